/// The calls of libibverbs that rails use, found when they are first needed: a machine without the library has no verbs
/// rails and needs nothing installed. Posts and polls are not here: they go through the table in an opened device.
#pragma once

#include <infiniband/verbs.h>

#include "railyard/result.hpp"

namespace railyard::fabric::verbs {

/// One pointer for each call. A double fills it with its own (tests/doubles/verbs).
struct Library {
  ibv_device** (*get_device_list)(int* count) = nullptr;
  void (*free_device_list)(ibv_device** list) = nullptr;
  const char* (*get_device_name)(ibv_device* device) = nullptr;
  ibv_context* (*open_device)(ibv_device* device) = nullptr;
  int (*close_device)(ibv_context* context) = nullptr;
  int (*query_device)(ibv_context* context, ibv_device_attr* attributes) = nullptr;
  int (*query_port)(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attributes) = nullptr;
  int (*query_gid)(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid) = nullptr;
  /// May be null: libraries before 2020 do not know it.
  int (*query_gid_ex)(ibv_context* context, std::uint32_t port, std::uint32_t index, ibv_gid_entry* entry,
                      std::uint32_t flags, std::size_t entry_bytes) = nullptr;
  int (*query_pkey)(ibv_context* context, std::uint8_t port, int index, __be16* pkey) = nullptr;

  ibv_pd* (*alloc_pd)(ibv_context* context) = nullptr;
  int (*dealloc_pd)(ibv_pd* domain) = nullptr;
  ibv_mr* (*reg_mr)(ibv_pd* domain, void* address, std::size_t bytes, int access) = nullptr;
  /// May be null: relaxed ordering is then not to be had.
  ibv_mr* (*reg_mr_iova2)(ibv_pd* domain, void* address, std::size_t bytes, std::uint64_t iova,
                          unsigned access) = nullptr;
  /// May be null: device memory is then not to be had.
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* domain, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int descriptor,
                           int access) = nullptr;
  int (*dereg_mr)(ibv_mr* region) = nullptr;
  ibv_cq* (*create_cq)(ibv_context* context, int entries, void* user, ibv_comp_channel* channel, int vector) = nullptr;
  int (*destroy_cq)(ibv_cq* queue) = nullptr;
  ibv_srq* (*create_srq)(ibv_pd* domain, ibv_srq_init_attr* attributes) = nullptr;
  int (*destroy_srq)(ibv_srq* queue) = nullptr;
  ibv_qp* (*create_qp)(ibv_pd* domain, ibv_qp_init_attr* attributes) = nullptr;
  int (*modify_qp)(ibv_qp* pair, ibv_qp_attr* attributes, int mask) = nullptr;
  int (*destroy_qp)(ibv_qp* pair) = nullptr;
  /// Both may be null: there is nothing to agree on then.
  int (*query_ece)(ibv_qp* pair, ibv_ece* options) = nullptr;
  int (*set_ece)(ibv_qp* pair, ibv_ece* options) = nullptr;
  ibv_ah* (*create_ah)(ibv_pd* domain, ibv_ah_attr* attributes) = nullptr;
  int (*destroy_ah)(ibv_ah* address) = nullptr;
  int (*get_async_event)(ibv_context* context, ibv_async_event* event) = nullptr;
  void (*ack_async_event)(ibv_async_event* event) = nullptr;
};

/// The machine's library, or what tests put in its place. An error says what to install.
Result<const Library*> library();
/// For tests: used instead from now on; null: the machine's again. Not while rails are open.
void replace_library(const Library* other);

}  // namespace railyard::fabric::verbs
