/// PMIx, found at run time: the library and all that links it work without it. Only src/bootstrap/pmix.cc calls it.
#pragma once

#include <pmix.h>

#include "railyard/result.hpp"

namespace railyard::bootstrap {

/// Its calls, by the names of pmix.h. That header's macros call functions by name: they cannot be used.
struct PmixLibrary {
  decltype(&::PMIx_Init) init = nullptr;
  decltype(&::PMIx_Finalize) finalize = nullptr;
  decltype(&::PMIx_Put) put = nullptr;
  decltype(&::PMIx_Commit) commit = nullptr;
  decltype(&::PMIx_Get) get = nullptr;
  decltype(&::PMIx_Fence_nb) fence = nullptr;
  decltype(&::PMIx_Info_load) load_info = nullptr;
  decltype(&::PMIx_Value_destruct) destruct_value = nullptr;
  decltype(&::PMIx_Error_string) error_string = nullptr;
};

/// The machine's library, or what tests put in its place. An error says what to install.
Result<const PmixLibrary*> pmix_library();
/// For tests: used instead from now on. Not while a bootstrap is open.
void replace_pmix_library(const PmixLibrary* other);

}  // namespace railyard::bootstrap
