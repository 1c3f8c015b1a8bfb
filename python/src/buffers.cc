#include "buffers.hpp"

#include <cstdint>
#include <cstring>
#include <string>

namespace railyard::python {

// DLPack's structures, as its ABI lays them out.
struct TensorDevice {
  std::int32_t type;
  std::int32_t id;
};
struct Tensor {
  void* data;
  TensorDevice device;
  std::int32_t dimensions;
  struct {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
  } element;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t offset;
};
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

namespace {

constexpr std::int32_t kHost = 1;
constexpr std::int32_t kCuda = 2;
constexpr std::int32_t kCudaHost = 3;
constexpr std::int32_t kCudaManaged = 13;

/// Whether a struct format names Python objects ('O'); names of fields stand between colons.
bool holds_objects(const char* format) {
  bool in_name = false;
  for (const char* at = format; *at != '\0'; ++at) {
    if (*at == ':') in_name = !in_name;
    if (!in_name && *at == 'O') return true;
  }
  return false;
}

std::string type_of(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

[[noreturn]] void not_contiguous() { throw py::buffer_error("the memory is not C-contiguous: copy it first"); }
[[noreturn]] void read_only() { throw py::buffer_error("the memory is read-only, and this call writes to it"); }

/// Rows in order without gaps. `strides` in the same unit as `item`.
template <typename Shape, typename Strides>
bool is_contiguous(std::size_t dimensions, const Shape& shape, const Strides& strides, std::int64_t item) {
  std::int64_t expected = item;
  for (std::size_t i = dimensions; i-- > 0;) {
    if (shape(i) == 0) return true;
    if (shape(i) != 1 && strides(i) != expected) return false;
    expected *= shape(i);
  }
  return true;
}

}  // namespace

Buffer::Buffer(py::handle object, Access access) {
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    from_view(object, access);
  } else if (py::hasattr(object, "__cuda_array_interface__")) {
    from_cuda(object, access);
  } else if (py::hasattr(object, "__dlpack__")) {
    from_tensor(object);
  } else {
    throw py::type_error("'" + type_of(object) +
                         "' has no memory to use: neither the buffer protocol, __cuda_array_interface__ nor "
                         "__dlpack__");
  }
}

void Buffer::from_view(py::handle object, Access access) {
  // NumPy's array without PyBUF_WRITABLE, so that the message about read-only memory is the same for all.
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_ND | PyBUF_FORMAT) != 0) {
    view_ = {};
    PyErr_Clear();
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FULL_RO) != 0) {
      view_ = {};
      throw py::error_already_set();
    }
    PyBuffer_Release(&view_);
    view_ = {};
    not_contiguous();
  }
  const bool objects = view_.format != nullptr && holds_objects(view_.format);
  const bool locked = access == Access::write && view_.readonly != 0;
  if (objects || locked) {
    release();
    if (locked && !objects) read_only();
    throw py::type_error("an array of Python objects is pointers of this process, not data: use a number type");
  }
  data_ = view_.buf;
  size_ = static_cast<std::size_t>(view_.len);
}

Buffer Buffer::strided(py::handle object, Access access, Strided& blocks) {
  Buffer made;
  if (PyObject_CheckBuffer(object.ptr()) == 0) {
    made = Buffer(object, access);
    blocks = {1, made.size_, made.size_};
    return made;
  }
  Py_buffer& view = made.view_;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    view = {};
    throw py::error_already_set();
  }
  if (view.format != nullptr && holds_objects(view.format))
    throw py::type_error("an array of Python objects is pointers of this process, not data: use a number type");
  if (access == Access::write && view.readonly != 0) read_only();
  // From the innermost dimension on: first those that are contiguous, then those that go on at one distance.
  blocks = {1, static_cast<std::size_t>(view.itemsize), 0};
  for (int i = view.ndim; i-- > 0;) {
    const auto extent = static_cast<std::size_t>(view.shape[i]);
    const py::ssize_t stride = view.strides[i];
    if (extent == 0) blocks.count = 0;
    if (blocks.count == 0 || extent == 1) continue;
    if (blocks.count == 1 && stride == static_cast<py::ssize_t>(blocks.bytes)) {
      blocks.bytes *= extent;
    } else if (blocks.count == 1 && stride >= 0) {
      blocks.count = extent;
      blocks.stride = static_cast<std::size_t>(stride);
    } else if (blocks.count > 1 && stride == static_cast<py::ssize_t>(blocks.count * blocks.stride)) {
      blocks.count *= extent;
    } else {
      throw py::buffer_error("the elements are not blocks at equal distances: use put_vector, or copy them first");
    }
  }
  made.data_ = view.buf;
  made.size_ = static_cast<std::size_t>(view.len);
  return made;
}

void Buffer::from_cuda(py::handle object, Access access) {
  const py::dict interface = object.attr("__cuda_array_interface__");
  const py::tuple shape = interface["shape"];
  const std::string kind = py::str(interface["typestr"]);
  const py::tuple data = interface["data"];
  if (kind.size() < 3 || kind[1] == 'O') throw py::type_error("typestr '" + kind + "' is no number type");
  const auto item = static_cast<std::int64_t>(std::stoll(kind.substr(2)));
  if (access == Access::write && data[1].cast<bool>()) read_only();
  std::int64_t count = item;
  for (const py::handle extent : shape) count *= extent.cast<std::int64_t>();
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    const py::tuple strides = interface["strides"];
    const auto extent = [&](std::size_t i) { return shape[i].cast<std::int64_t>(); };
    const auto stride = [&](std::size_t i) { return strides[i].cast<std::int64_t>(); };
    if (strides.size() != shape.size() || !is_contiguous(shape.size(), extent, stride, item)) not_contiguous();
  }
  owner_ = py::reinterpret_borrow<py::object>(object);
  data_ = reinterpret_cast<void*>(data[0].cast<std::uintptr_t>());
  size_ = static_cast<std::size_t>(count);
}

void Buffer::from_tensor(py::handle object) {
  const py::tuple device = object.attr("__dlpack_device__")();
  const auto type = device[0].cast<std::int32_t>();
  if (type != kHost && type != kCuda && type != kCudaHost && type != kCudaManaged) {
    throw py::type_error("a tensor of DLPack device type " + std::to_string(type) + ": host and CUDA memory are known");
  }
  // -1: no stream is made to wait. Whoever puts from memory that a kernel writes waits for the kernel first.
  const py::object capsule =
      type == kCuda ? object.attr("__dlpack__")(py::arg("stream") = -1) : object.attr("__dlpack__")();
  auto* const managed = static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) throw py::error_already_set();
  const Tensor& tensor = managed->tensor;
  const auto rank = static_cast<std::size_t>(tensor.dimensions);
  const auto extent = [&](std::size_t i) { return tensor.shape[i]; };
  const auto stride = [&](std::size_t i) { return tensor.strides[i]; };
  if (tensor.strides != nullptr && !is_contiguous(rank, extent, stride, 1)) not_contiguous();
  std::int64_t bits = std::int64_t{tensor.element.bits} * tensor.element.lanes;
  for (std::size_t i = 0; i < rank; ++i) bits *= tensor.shape[i];
  // From here the tensor is ours to delete, not the capsule's.
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  tensor_ = managed;
  data_ = static_cast<std::byte*>(tensor.data) + tensor.offset;
  size_ = static_cast<std::size_t>((bits + 7) / 8);
}

void Buffer::release() noexcept {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
  view_ = {};
  if (tensor_ != nullptr && tensor_->deleter != nullptr) tensor_->deleter(tensor_);
  tensor_ = nullptr;
  owner_ = py::object();
  data_ = nullptr;
  size_ = 0;
}

}  // namespace railyard::python
