#include "fabric/verbs/library.hpp"

#include <fmt/format.h>

#include "base/shared_library.hpp"

namespace railyard::fabric::verbs {

namespace {

constexpr const char* kName = "libibverbs.so.1";

LoadedCalls<Library> load() {
  LoadedCalls<Library> loaded;
  LibraryCalls library(kName);
  if (!library) {
    loaded.fail(
        fmt::format("there is no {} here ({}): install libibverbs and the NIC's provider (Debian: "
                    "libibverbs1, ibverbs-providers)",
                    kName, library.why()));
    return loaded;
  }
  Library& calls = loaded.calls;
  library.need("ibv_get_device_list", calls.get_device_list);
  library.need("ibv_free_device_list", calls.free_device_list);
  library.need("ibv_get_device_name", calls.get_device_name);
  library.need("ibv_open_device", calls.open_device);
  library.need("ibv_close_device", calls.close_device);
  library.need("ibv_query_device", calls.query_device);
  library.need("ibv_query_port", calls.query_port);
  library.need("ibv_query_gid", calls.query_gid);
  library.need("ibv_query_pkey", calls.query_pkey);
  library.need("ibv_alloc_pd", calls.alloc_pd);
  library.need("ibv_dealloc_pd", calls.dealloc_pd);
  library.need("ibv_reg_mr", calls.reg_mr);
  library.need("ibv_dereg_mr", calls.dereg_mr);
  library.need("ibv_create_cq", calls.create_cq);
  library.need("ibv_destroy_cq", calls.destroy_cq);
  library.need("ibv_create_srq", calls.create_srq);
  library.need("ibv_destroy_srq", calls.destroy_srq);
  library.need("ibv_create_qp", calls.create_qp);
  library.need("ibv_modify_qp", calls.modify_qp);
  library.need("ibv_destroy_qp", calls.destroy_qp);
  library.need("ibv_create_ah", calls.create_ah);
  library.need("ibv_destroy_ah", calls.destroy_ah);
  library.need("ibv_get_async_event", calls.get_async_event);
  library.need("ibv_ack_async_event", calls.ack_async_event);
  library.find("_ibv_query_gid_ex", calls.query_gid_ex);
  library.find("ibv_reg_mr_iova2", calls.reg_mr_iova2);
  library.find("ibv_reg_dmabuf_mr", calls.reg_dmabuf_mr);
  library.find("ibv_query_ece", calls.query_ece);
  library.find("ibv_set_ece", calls.set_ece);
  if (library.missing() != nullptr)
    loaded.fail(fmt::format("{} here has no {}: it is too old", kName, library.missing()));
  return loaded;
}

const Library* g_other = nullptr;

}  // namespace

Result<const Library*> library() {
  if (g_other != nullptr) return g_other;
  static const LoadedCalls<Library> loaded = load();  // never closed, since providers keep state
  if (loaded.failed()) return Error(Status::not_found, loaded.error.data());
  return &loaded.calls;
}

void replace_library(const Library* other) { g_other = other; }

}  // namespace railyard::fabric::verbs
