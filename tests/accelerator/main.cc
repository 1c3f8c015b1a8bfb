#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "accelerator/gpu.hpp"
#include "base/log.hpp"

namespace {

using railyard::accelerator::Driver;
namespace gpu = railyard::accelerator::testing;

/// A process that asks once.
int ask_for_driver(std::string_view how) {
  std::atomic<bool> quiet{true};
  railyard::set_log_sink([&](railyard::LogLevel level, std::string_view) {
    if (level != railyard::LogLevel::debug) quiet = false;
  });
  railyard::set_log_level(railyard::LogLevel::debug);
  if (how == "brought" || how == "started") gpu::load_gpu();
  if (how == "started") {
    auto* const start = reinterpret_cast<int (*)(unsigned)>(::dlsym(RTLD_DEFAULT, "cuInit"));
    if (start == nullptr || start(0) != 0) return 3;
  }
  if (how != "wanted" && how != "loaded") static_cast<void>(railyard::accelerator::may_have_gpus());
  const Driver* const found =
      how == "wanted" ? railyard::accelerator::driver() : railyard::accelerator::loaded_driver();
  const bool again =
      (how == "wanted" ? railyard::accelerator::driver() : railyard::accelerator::loaded_driver()) == found;
  railyard::set_log_sink({});
  if (!again || !quiet) return 1;
  if (how == "loaded" && ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr) return 2;
  return found != nullptr ? gpu::kDriverFound : gpu::kDriverNone;
}

}  // namespace

int main(int count, char** arguments) {
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // peers take descriptors of one another
  const std::string_view first = count > 1 ? arguments[1] : "";
  if (first == "--peer" && count == 3) return gpu::run_peer(std::atoi(arguments[2]));
  if (first.starts_with("--driver=")) return ask_for_driver(first.substr(9));
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
