/// The verbs double as a library of its own, libibverbs.so.1, for programs that are not linked with it: found on
/// LD_LIBRARY_PATH. Two devices, on a network inside the process that loads it.
#include "doubles/verbs/verbs_double.hpp"

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace railyard::fabric::verbs {
void replace_library(const Library* /*other*/) {}  // whoever loads this finds the calls by their names
}  // namespace railyard::fabric::verbs

namespace {

using railyard::fabric::verbs::Library;

const Library& calls() {
  // Never ended: rails may outlive every static.
  static auto* const network = new railyard::verbs_double::Network({.devices = 2});
  return network->library();
}

}  // namespace

#define VERBS_DOUBLE_CALL __attribute__((visibility("default")))

extern "C" {
VERBS_DOUBLE_CALL ibv_device** ibv_get_device_list(int* count) { return calls().get_device_list(count); }
VERBS_DOUBLE_CALL void ibv_free_device_list(ibv_device** list) { calls().free_device_list(list); }
VERBS_DOUBLE_CALL const char* ibv_get_device_name(ibv_device* device) { return calls().get_device_name(device); }
VERBS_DOUBLE_CALL ibv_context* ibv_open_device(ibv_device* device) { return calls().open_device(device); }
VERBS_DOUBLE_CALL int ibv_close_device(ibv_context* context) { return calls().close_device(context); }
VERBS_DOUBLE_CALL int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  return calls().query_device(context, attributes);
}
VERBS_DOUBLE_CALL int ibv_query_port(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attributes) {
  return calls().query_port(context, port, attributes);
}
VERBS_DOUBLE_CALL int ibv_query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid) {
  return calls().query_gid(context, port, index, gid);
}
VERBS_DOUBLE_CALL int ibv_query_pkey(ibv_context* context, std::uint8_t port, int index, __be16* pkey) {
  return calls().query_pkey(context, port, index, pkey);
}
VERBS_DOUBLE_CALL ibv_pd* ibv_alloc_pd(ibv_context* context) { return calls().alloc_pd(context); }
VERBS_DOUBLE_CALL int ibv_dealloc_pd(ibv_pd* domain) { return calls().dealloc_pd(domain); }
VERBS_DOUBLE_CALL ibv_mr* ibv_reg_mr(ibv_pd* domain, void* address, std::size_t bytes, int access) {
  return calls().reg_mr(domain, address, bytes, access);
}
VERBS_DOUBLE_CALL ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* address, std::size_t bytes, std::uint64_t iova,
                                           unsigned access) {
  return calls().reg_mr_iova2(domain, address, bytes, iova, access);
}
VERBS_DOUBLE_CALL ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, std::uint64_t offset, std::size_t bytes, std::uint64_t iova,
                                            int descriptor, int access) {
  return calls().reg_dmabuf_mr(domain, offset, bytes, iova, descriptor, access);
}
VERBS_DOUBLE_CALL int ibv_dereg_mr(ibv_mr* region) { return calls().dereg_mr(region); }
VERBS_DOUBLE_CALL ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* user, ibv_comp_channel* channel,
                                        int vector) {
  return calls().create_cq(context, entries, user, channel, vector);
}
VERBS_DOUBLE_CALL int ibv_destroy_cq(ibv_cq* queue) { return calls().destroy_cq(queue); }
VERBS_DOUBLE_CALL ibv_srq* ibv_create_srq(ibv_pd* domain, ibv_srq_init_attr* attributes) {
  return calls().create_srq(domain, attributes);
}
VERBS_DOUBLE_CALL int ibv_destroy_srq(ibv_srq* queue) { return calls().destroy_srq(queue); }
VERBS_DOUBLE_CALL ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  return calls().create_qp(domain, attributes);
}
VERBS_DOUBLE_CALL int ibv_modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
  return calls().modify_qp(pair, attributes, mask);
}
VERBS_DOUBLE_CALL int ibv_destroy_qp(ibv_qp* pair) { return calls().destroy_qp(pair); }
VERBS_DOUBLE_CALL ibv_ah* ibv_create_ah(ibv_pd* domain, ibv_ah_attr* attributes) {
  return calls().create_ah(domain, attributes);
}
VERBS_DOUBLE_CALL int ibv_destroy_ah(ibv_ah* address) { return calls().destroy_ah(address); }
VERBS_DOUBLE_CALL int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  return calls().get_async_event(context, event);
}
VERBS_DOUBLE_CALL void ibv_ack_async_event(ibv_async_event* event) { calls().ack_async_event(event); }
}
