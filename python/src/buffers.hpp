/// Memory that Python objects bring: anything with the buffer protocol, `__cuda_array_interface__` or `__dlpack__`.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <span>
#include <utility>

namespace railyard::python {

namespace py = pybind11;

struct ManagedTensor;  // DLPack's

enum class Access { read, write };

/// Contiguous memory of an object that is kept as it is (not freed, not resized) as long as this lives. Made and ended
/// with Python's lock held.
class Buffer {
 public:
  Buffer() = default;
  /// Raises TypeError where the object has no memory or holds Python objects, BufferError where the memory is not
  /// contiguous or, for writing, is read-only.
  Buffer(py::handle object, Access access);
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() { release(); }

  /// Blocks at equal distances.
  struct Strided {
    std::size_t count = 0;
    std::size_t bytes = 0;
    std::size_t stride = 0;
  };
  /// Memory that need not be contiguous: rows of an array, a column, every other element. Raises BufferError where its
  /// elements are not blocks at equal distances.
  static Buffer strided(py::handle object, Access access, Strided& blocks);

  void* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  std::span<std::byte> bytes() const noexcept { return {static_cast<std::byte*>(data_), size_}; }
  void release() noexcept;

 private:
  void swap(Buffer& other) noexcept {
    std::swap(view_, other.view_);
    std::swap(tensor_, other.tensor_);
    std::swap(owner_, other.owner_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  void from_view(py::handle object, Access access);
  void from_cuda(py::handle object, Access access);
  void from_tensor(py::handle object);

  Py_buffer view_{};  // one of these three
  ManagedTensor* tensor_ = nullptr;
  py::object owner_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace railyard::python
