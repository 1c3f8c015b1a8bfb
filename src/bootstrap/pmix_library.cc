#include "bootstrap/pmix_library.hpp"

#include <fmt/format.h>

#include <string>

#include "base/shared_library.hpp"

namespace railyard::bootstrap {

namespace {

constexpr const char* kPmixName = "libpmix.so.2";  // every PMIx 3, 4 and 5

const PmixLibrary* replaced_pmix = nullptr;

LoadedCalls<PmixLibrary> load_pmix() {
  LoadedCalls<PmixLibrary> loaded;
  const auto fail = [&](const std::string& why) {
    loaded.fail(fmt::format("{}; or set RAILYARD_RENDEZVOUS, RAILYARD_RANK, RAILYARD_SIZE and RAILYARD_JOB_KEY", why));
  };
  LibraryCalls library(kPmixName);
  if (!library) {
    fail(fmt::format("there is no {} here ({}): install PMIx (Debian: libpmix2)", kPmixName, library.why()));
    return loaded;
  }
  PmixLibrary& calls = loaded.calls;
  library.need("PMIx_Init", calls.init);
  library.need("PMIx_Finalize", calls.finalize);
  library.need("PMIx_Put", calls.put);
  library.need("PMIx_Commit", calls.commit);
  library.need("PMIx_Get", calls.get);
  library.need("PMIx_Fence_nb", calls.fence);
  library.need("PMIx_Info_load", calls.load_info);
  library.need("PMIx_Value_destruct", calls.destruct_value);
  library.need("PMIx_Error_string", calls.error_string);
  if (library.missing() != nullptr)
    fail(fmt::format("{} here has no {}: install PMIx 4.2 or newer", kPmixName, library.missing()));
  return loaded;
}

}  // namespace

Result<const PmixLibrary*> pmix_library() {
  if (replaced_pmix != nullptr) return replaced_pmix;
  static const LoadedCalls<PmixLibrary> loaded = load_pmix();  // never closed, since it has threads
  if (loaded.failed()) return Error(Status::unsupported, loaded.error.data());
  return &loaded.calls;
}

void replace_pmix_library(const PmixLibrary* other) { replaced_pmix = other; }

}  // namespace railyard::bootstrap
