/// No driver is built in: every machine is one without GPUs.
#include "accelerator/accelerator.hpp"

namespace railyard::accelerator {

[[gnu::weak]] Driver* driver() { return nullptr; }
[[gnu::weak]] Driver* loaded_driver() { return nullptr; }

}  // namespace railyard::accelerator
