// Uses nothing but installed headers: one rank puts to itself and waits for the signal.
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "railyard/window.hpp"
#include "railyard/world.hpp"

namespace {

int report(const railyard::Error& error) {
  std::fprintf(stderr, "%s\n", error.text().c_str());
  return 1;
}

}  // namespace

int main() {
  auto world = railyard::World::open();
  if (!world) return report(world.error());
  auto window = railyard::Window::allocate(*world, 4096);
  if (!window) return report(window.error());
  const std::uint64_t sent = 42;
  if (auto put = window->put_signal(world->rank(), 8, &sent, sizeof sent, {.index = 0}); !put)
    return report(put.error());
  if (auto seen = window->wait_signal(0, railyard::Comparison::greater_equal, 1); !seen) return report(seen.error());
  std::uint64_t received = 0;
  std::memcpy(&received, window->local().data() + 8, sizeof received);
  if (auto closed = window->close(); !closed) return report(closed.error());
  std::puts(received == sent ? "consumer: put and signal arrived" : "consumer: WRONG BYTES");
  return received == sent ? 0 : 1;
}
