#include "bootstrap/pmix_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <type_traits>

#include "base/shared_library.hpp"

namespace railyard::bootstrap {

namespace {

constexpr const char* kPmixName = "libpmix.so.2";  // every PMIx 3, 4 and 5

/// Needs no destructor: nothing may be left when a plugin is unloaded.
struct LoadedPmix {
  PmixLibrary calls;
  std::array<char, 400> error{};  ///< empty: there is none
};
static_assert(std::is_trivially_destructible_v<LoadedPmix>);

const PmixLibrary* replaced_pmix = nullptr;

LoadedPmix load_pmix() {
  LoadedPmix loaded;
  const auto fail = [&](const std::string& why) {
    fmt::format("{}; or set RAILYARD_RENDEZVOUS, RAILYARD_RANK, RAILYARD_SIZE and RAILYARD_JOB_KEY", why)
        .copy(loaded.error.data(), loaded.error.size() - 1);
  };
  void* const object = open_shared_library(kPmixName);
  if (object == nullptr) {
    const char* const why = ::dlerror();
    fail(fmt::format("there is no {} here ({}): install PMIx (Debian: libpmix2)", kPmixName,
                     why == nullptr ? "unknown" : why));
    return loaded;
  }
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto& call) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(object, name));
    if (call == nullptr && missing == nullptr) missing = name;
  };
  PmixLibrary& calls = loaded.calls;
  need("PMIx_Init", calls.init);
  need("PMIx_Finalize", calls.finalize);
  need("PMIx_Put", calls.put);
  need("PMIx_Commit", calls.commit);
  need("PMIx_Get", calls.get);
  need("PMIx_Fence_nb", calls.fence);
  need("PMIx_Info_load", calls.load_info);
  need("PMIx_Value_destruct", calls.destruct_value);
  need("PMIx_Error_string", calls.error_string);
  if (missing != nullptr) fail(fmt::format("{} here has no {}: install PMIx 4.2 or newer", kPmixName, missing));
  return loaded;
}

}  // namespace

Result<const PmixLibrary*> pmix_library() {
  if (replaced_pmix != nullptr) return replaced_pmix;
  static const LoadedPmix loaded = load_pmix();  // never closed, since it has threads
  if (loaded.error[0] != 0) return Error(Status::unsupported, loaded.error.data());
  return &loaded.calls;
}

void replace_pmix_library(const PmixLibrary* other) { replaced_pmix = other; }

}  // namespace railyard::bootstrap
