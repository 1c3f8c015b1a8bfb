/// Taking memory back while operations of our own use it.
#include "transport/engine.hpp"

namespace railyard::transport {

void Engine::revoke(memory::Region& region) { region.revoke(); }

}  // namespace railyard::transport
