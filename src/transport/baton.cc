#include "transport/baton.hpp"

#include <thread>

namespace railyard::transport {

void Baton::yield() { std::this_thread::yield(); }

}  // namespace railyard::transport
