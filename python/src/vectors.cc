/// Vector and strided operations of a window.
#include <pybind11/stl.h>

#include <optional>

#include "window.hpp"

namespace railyard::python {

py::object hand_out(const std::shared_ptr<PyWindow>& self, Result<Ticket> submitted, std::vector<Buffer>&& blocks) {
  auto pending = std::make_shared<Pending>();
  if (!submitted && submitted.status() != Status::invalid && submitted.status() != Status::out_of_range) {
    // A long vector is handed over in parts: some of them may be under way.
    pending->blocks = std::move(blocks);
    pending->until_end = true;
    self->keep(pending);
  }
  const Ticket ticket = take(std::move(submitted));
  if (ticket.number == 0) return complete_ticket();
  pending->ticket = ticket;
  pending->blocks = std::move(blocks);
  self->keep(pending);
  return py::cast(PyTicket{self, ticket, std::move(pending)});
}

namespace {

using Self = const std::shared_ptr<PyWindow>&;

/// The memory of (offset, memory) pairs, and the library's list of it.
template <typename Block>
std::vector<Block> to_blocks(const py::iterable& given, Access access, std::vector<Buffer>& buffers) {
  std::vector<Block> blocks;
  for (const py::handle each : given) {
    const auto pair = py::reinterpret_borrow<py::object>(each).cast<py::tuple>();
    if (pair.size() != 2) throw py::value_error("a block is a pair: (offset, memory)");
    const auto offset = static_cast<std::size_t>(pair[0].cast<py::ssize_t>());
    const Buffer& buffer = buffers.emplace_back(pair[1], access);
    blocks.push_back({buffer.data(), offset, buffer.size()});
  }
  return blocks;
}

py::object put_vector(Self self, int rank, const py::iterable& given, std::optional<std::size_t> signal,
                      std::uint64_t value, SignalOp op) {
  const Call call(*self, "put_vector");
  std::vector<Buffer> buffers;
  const auto blocks = to_blocks<PutBlock>(given, Access::read, buffers);
  auto submitted = without_gil([&] {
    return signal ? self->window().put_vector_signal(rank, blocks, {*signal, value, op})
                  : self->window().put_vector(rank, blocks);
  });
  return hand_out(self, std::move(submitted), std::move(buffers));
}

py::object get_vector(Self self, int rank, const py::iterable& given) {
  const Call call(*self, "get_vector");
  std::vector<Buffer> buffers;
  const auto blocks = to_blocks<GetBlock>(given, Access::write, buffers);
  auto submitted = without_gil([&] { return self->window().get_vector(rank, blocks); });
  return hand_out(self, std::move(submitted), std::move(buffers));
}

Strides to_strides(const Buffer::Strided& blocks, std::size_t stride) {
  return {blocks.count, blocks.bytes, blocks.stride, stride};
}

py::object put_strided(Self self, int rank, py::ssize_t offset, py::handle source, std::size_t stride,
                       std::optional<std::size_t> signal, std::uint64_t value, SignalOp op) {
  const Call call(*self, "put_strided");
  Buffer::Strided blocks;
  std::vector<Buffer> buffers;
  const Buffer& from = buffers.emplace_back(Buffer::strided(source, Access::read, blocks));
  const Strides strides = to_strides(blocks, stride);
  const auto at = static_cast<std::size_t>(offset);
  auto submitted = without_gil([&] {
    return signal ? self->window().put_strided_signal(rank, at, from.data(), strides, {*signal, value, op})
                  : self->window().put_strided(rank, at, from.data(), strides);
  });
  return hand_out(self, std::move(submitted), std::move(buffers));
}

py::object get_strided(Self self, int rank, py::ssize_t offset, py::handle destination, std::size_t stride) {
  const Call call(*self, "get_strided");
  Buffer::Strided blocks;
  std::vector<Buffer> buffers;
  const Buffer& to = buffers.emplace_back(Buffer::strided(destination, Access::write, blocks));
  const Strides strides = to_strides(blocks, stride);
  auto submitted = without_gil(
      [&] { return self->window().get_strided(rank, static_cast<std::size_t>(offset), to.data(), strides); });
  return hand_out(self, std::move(submitted), std::move(buffers));
}

}  // namespace

void bind_vectors(py::class_<PyWindow, std::shared_ptr<PyWindow>>& type) {
  type.def("put_vector", &put_vector, py::arg("rank"), py::arg("blocks"), py::arg("signal") = py::none(),
           py::arg("value") = 1, py::arg("op") = SignalOp::add,
           "Puts many blocks, pairs of (offset, memory), as one operation; small ones travel together. With `signal`, "
           "that signal of `rank`'s changes after all of them. Nothing moves where one block is wrong.")
      .def("get_vector", &get_vector, py::arg("rank"), py::arg("blocks"),
           "Fills many blocks, pairs of (offset, memory), as one operation.")
      .def("put_strided", &put_strided, py::arg("rank"), py::arg("offset"), py::arg("source"), py::arg("stride"),
           py::arg("signal") = py::none(), py::arg("value") = 1, py::arg("op") = SignalOp::add,
           "Puts the blocks of an array that need not be contiguous (rows of a part, a column) to places `stride` "
           "bytes apart, from `offset` on.")
      .def("get_strided", &get_strided, py::arg("rank"), py::arg("offset"), py::arg("destination"), py::arg("stride"),
           "Fills such an array from places `stride` bytes apart.");
}

}  // namespace railyard::python
