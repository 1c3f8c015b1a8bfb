/// Vectors of the C API.
#include <cstddef>
#include <span>

#include "c_api/operate.hpp"

using railyard::GetBlock;
using railyard::PutBlock;
using railyard::Strides;
using railyard::Window;
using namespace railyard::c_api;  // NOLINT(google-build-using-namespace): these are the C side's own helpers

namespace {

// A list may be long: it is used as it is.
static_assert(sizeof(ry_put_block) == sizeof(PutBlock) &&
              offsetof(ry_put_block, source) == offsetof(PutBlock, source) &&
              offsetof(ry_put_block, offset) == offsetof(PutBlock, offset) &&
              offsetof(ry_put_block, bytes) == offsetof(PutBlock, bytes));
static_assert(sizeof(ry_get_block) == sizeof(GetBlock) &&
              offsetof(ry_get_block, destination) == offsetof(GetBlock, destination) &&
              offsetof(ry_get_block, offset) == offsetof(GetBlock, offset) &&
              offsetof(ry_get_block, bytes) == offsetof(GetBlock, bytes));

std::span<const PutBlock> to_blocks(const ry_put_block* blocks, size_t count) {
  return {reinterpret_cast<const PutBlock*>(blocks), count};
}
std::span<const GetBlock> to_blocks(const ry_get_block* blocks, size_t count) {
  return {reinterpret_cast<const GetBlock*>(blocks), count};
}
Strides to_strides(const ry_strides& given) { return {given.count, given.bytes, given.local, given.remote}; }

}  // namespace

extern "C" {

ry_status ry_put_vector(ry_window* window, int rank, const ry_put_block* blocks, size_t count, ry_ticket* ticket) {
  if (blocks == nullptr && count > 0) return fail_invalid(__func__, "no blocks");
  return operate(__func__, window, ticket, [&](Window& w) { return w.put_vector(rank, to_blocks(blocks, count)); });
}

ry_status ry_put_vector_signal(ry_window* window, int rank, const ry_put_block* blocks, size_t count,
                               ry_signal_update signal, ry_ticket* ticket) {
  if (blocks == nullptr && count > 0) return fail_invalid(__func__, "no blocks");
  if (!is_signal_op(signal.op)) return fail_signal_op(__func__, signal.op);
  return operate(__func__, window, ticket,
                 [&](Window& w) { return w.put_vector_signal(rank, to_blocks(blocks, count), to_update(signal)); });
}

ry_status ry_get_vector(ry_window* window, int rank, const ry_get_block* blocks, size_t count, ry_ticket* ticket) {
  if (blocks == nullptr && count > 0) return fail_invalid(__func__, "no blocks");
  return operate(__func__, window, ticket, [&](Window& w) { return w.get_vector(rank, to_blocks(blocks, count)); });
}

ry_status ry_put_strided(ry_window* window, int rank, size_t offset, const void* source, ry_strides blocks,
                         ry_ticket* ticket) {
  return operate(__func__, window, ticket,
                 [&](Window& w) { return w.put_strided(rank, offset, source, to_strides(blocks)); });
}

ry_status ry_put_strided_signal(ry_window* window, int rank, size_t offset, const void* source, ry_strides blocks,
                                ry_signal_update signal, ry_ticket* ticket) {
  if (!is_signal_op(signal.op)) return fail_signal_op(__func__, signal.op);
  return operate(__func__, window, ticket, [&](Window& w) {
    return w.put_strided_signal(rank, offset, source, to_strides(blocks), to_update(signal));
  });
}

ry_status ry_get_strided(ry_window* window, int rank, size_t offset, void* destination, ry_strides blocks,
                         ry_ticket* ticket) {
  return operate(__func__, window, ticket,
                 [&](Window& w) { return w.get_strided(rank, offset, destination, to_strides(blocks)); });
}

}  // extern "C"
