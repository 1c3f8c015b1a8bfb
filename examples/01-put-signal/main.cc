// A ring of ranks: each puts a message into the next one's window and signals it. The signal says that the message is
// there, whatever rails it took.
//
//   railyard launch -n 2 -- example-01-put-signal

#include <cstdio>
#include <cstring>
#include <string>

#include "railyard/window.hpp"
#include "railyard/world.hpp"

namespace {

constexpr std::size_t kArrived = 0;  // which of the window's signals we use

bool failed(const char* what, const railyard::Error& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.text().c_str());
  return false;
}

bool run() {
  // The launcher left rank, size and rendezvous in the environment; rails are found by themselves.
  auto world = railyard::World::open();
  if (!world) return failed("no world", world.error());

  // Every rank exposes 4 KiB of zeroed memory. Making a window is collective.
  auto window = railyard::Window::allocate(*world, 4096);
  if (!window) return failed("no window", window.error());

  const int next = (world->rank() + 1) % world->size();
  const int previous = (world->rank() + world->size() - 1) % world->size();
  const std::string message = "greetings from rank " + std::to_string(world->rank());

  // The put does not wait. `message` must stay as it is until the put is complete locally: see quiet below.
  auto put = window->put_signal(next, 0, message.c_str(), message.size() + 1, {.index = kArrived});
  if (!put) return failed("put failed", put.error());

  // Our own message, from the previous rank: once its signal is here, so are its bytes.
  auto arrived = window->wait_signal(kArrived, railyard::Comparison::greater_equal, 1);
  if (!arrived) return failed("nothing came", arrived.error());
  const char* received = reinterpret_cast<const char*>(window->local().data());
  std::printf("rank %d of %d, over %zu rails: %s\n", world->rank(), world->size(), world->rail_count(), received);
  const bool right = received == "greetings from rank " + std::to_string(previous);

  // Everything this rank sent is complete after quiet; close waits for all ranks.
  if (auto quiet = window->quiet(); !quiet) return failed("quiet", quiet.error());
  if (auto closed = window->close(); !closed) return failed("close", closed.error());
  if (!right) std::fprintf(stderr, "rank %d received the wrong message\n", world->rank());
  return right;
}

}  // namespace

int main() { return run() ? 0 : 1; }
