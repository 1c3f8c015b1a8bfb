#include "fabric/verbs/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <type_traits>
#include <utility>

#include "base/shared_library.hpp"

namespace railyard::fabric::verbs {

namespace {

constexpr const char* kName = "libibverbs.so.1";

/// Needs no destructor: rails may outlive every static, and nothing may be left when a plugin is unloaded.
struct Loaded {
  Library calls;
  std::array<char, 400> error{};  ///< empty: there is none

  template <typename... Parts>
  void fail(fmt::format_string<Parts...> format, Parts&&... parts) {
    fmt::format_to_n(error.data(), error.size() - 1, format, std::forward<Parts>(parts)...);
  }
};
static_assert(std::is_trivially_destructible_v<Loaded>);

template <typename Call>
bool find(void* object, const char* name, Call& call) {
  call = reinterpret_cast<Call>(::dlsym(object, name));
  return call != nullptr;
}

Loaded load() {
  Loaded loaded;
  void* const object = open_shared_library(kName);
  if (object == nullptr) {
    const char* const why = ::dlerror();
    loaded.fail(
        "there is no {} here ({}): install libibverbs and the NIC's provider (Debian: "
        "libibverbs1, ibverbs-providers)",
        kName, why == nullptr ? "unknown" : why);
    return loaded;
  }
  Library& calls = loaded.calls;
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto& call) {
    if (!find(object, name, call) && missing == nullptr) missing = name;
  };
  need("ibv_get_device_list", calls.get_device_list);
  need("ibv_free_device_list", calls.free_device_list);
  need("ibv_get_device_name", calls.get_device_name);
  need("ibv_open_device", calls.open_device);
  need("ibv_close_device", calls.close_device);
  need("ibv_query_device", calls.query_device);
  need("ibv_query_port", calls.query_port);
  need("ibv_query_gid", calls.query_gid);
  need("ibv_query_pkey", calls.query_pkey);
  need("ibv_alloc_pd", calls.alloc_pd);
  need("ibv_dealloc_pd", calls.dealloc_pd);
  need("ibv_reg_mr", calls.reg_mr);
  need("ibv_dereg_mr", calls.dereg_mr);
  need("ibv_create_cq", calls.create_cq);
  need("ibv_destroy_cq", calls.destroy_cq);
  need("ibv_create_srq", calls.create_srq);
  need("ibv_destroy_srq", calls.destroy_srq);
  need("ibv_create_qp", calls.create_qp);
  need("ibv_modify_qp", calls.modify_qp);
  need("ibv_destroy_qp", calls.destroy_qp);
  need("ibv_create_ah", calls.create_ah);
  need("ibv_destroy_ah", calls.destroy_ah);
  need("ibv_get_async_event", calls.get_async_event);
  need("ibv_ack_async_event", calls.ack_async_event);
  find(object, "_ibv_query_gid_ex", calls.query_gid_ex);
  find(object, "ibv_reg_mr_iova2", calls.reg_mr_iova2);
  find(object, "ibv_reg_dmabuf_mr", calls.reg_dmabuf_mr);
  find(object, "ibv_query_ece", calls.query_ece);
  find(object, "ibv_set_ece", calls.set_ece);
  if (missing != nullptr) loaded.fail("{} here has no {}: it is too old", kName, missing);
  return loaded;
}

const Library* g_other = nullptr;

}  // namespace

Result<const Library*> library() {
  if (g_other != nullptr) return g_other;
  static const Loaded loaded = load();  // never closed, since providers keep state
  if (loaded.error[0] != 0) return Error(Status::not_found, loaded.error.data());
  return &loaded.calls;
}

void replace_library(const Library* other) { g_other = other; }

}  // namespace railyard::fabric::verbs
