/// One rank of a job in which another is killed: all-to-all verified traffic, what it was told of the loss, what it
/// still holds at the end. Speaks in lines with the process that kills (killed_rank.cc).
#pragma once

#include <malloc.h>
#include <sys/socket.h>

#include <array>
#include <list>
#include <string_view>
#include <thread>
#include <vector>

#include "holdings.hpp"
#include "pair.hpp"

namespace railyard::soak {

/// The socket to the process that kills.
constexpr int kControl = 3;

inline std::int64_t steady_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

inline void tell(const std::string& line) {
  // Nobody listens any more: the job is over, and so are we.
  if (::send(kControl, (line + "\n").data(), line.size() + 1, MSG_NOSIGNAL) < 0) std::_Exit(1);
}

inline bool told_to_stop() {
  char byte;
  return ::recv(kControl, &byte, 1, MSG_DONTWAIT) > 0;
}

inline std::string complaint(const char* during, const Error& error) {
  return fmt::format("error {} {} {} {} {}", during, static_cast<int>(error.status()), error.where().peer, steady_ns(),
                     error.text());
}

class Survivor {
 public:
  /// More than the allocator's own coming and going, less than the window.
  static constexpr std::size_t kUntouched = 256 << 20;
  static constexpr std::size_t kSlack = 128 << 20;

  /// Exit code 0: all that it saw was told; whether it was right is for the other process to say.
  static int run() {
    mallopt(M_ARENA_MAX, 1);
    if (!open_alone()) return 1;
    const Holdings before = Holdings::now();
    tell("opening");
    if (auto world = World::open(); world) {
      Survivor(*world).take_part();
    } else {
      tell(complaint("open", world.error()));
    }
    const std::string left = Holdings::now().beyond(before, kSlack);
    tell(left.empty() ? "clean" : "left" + left);
    return 0;
  }

 private:
  explicit Survivor(World& world) : world_(world), layout_(world.size(), shape()) {}

  static StreamShape shape() {
    StreamShape shape;
    shape.slots = 16;
    shape.held = 8;
    shape.most = 64 * 1024;
    return shape;
  }

  /// A world of one: what libraries load and keep for ever is there before anything is counted.
  static bool open_alone() {
    auto settings = Settings::from_environment();
    if (!settings || !settings->set("RAILYARD_BOOTSTRAP", "single")) return false;
    WorldOptions options;
    options.settings = &*settings;
    return World::open(options).ok();
  }

  void take_part() {
    WindowOptions options;
    options.signals = layout_.signals() + static_cast<std::size_t>(world_.size());
    auto window = Window::allocate(world_, layout_.bytes() + kUntouched, options);
    if (!window) return tell(complaint("allocate", window.error()));
    fill(window->local().first(Layout::kShelf), key_of(Use::shelf, world_.rank(), 0, 0));
    for (int rank = 0; rank < world_.size(); ++rank) {
      if (rank != world_.rank()) pairs_.emplace_back(world_, *window, layout_, rank, PairOptions{shape(), shape()});
    }
    // Every receiver has its guards in place.
    if (auto met = window->barrier(); !met) return tell(complaint("barrier", met.error()));
    tell("traffic");
    exchange();
    part(*window);
    tell("closing");
    if (auto closed = window->close(); !closed) tell(complaint("close", closed.error()));
  }

  /// Until told to stop, and then until all pairs that are left have heard each other out.
  void exchange() {
    bool go_on = true;
    std::list<Pair*> left;
    for (Pair& pair : pairs_) left.push_back(&pair);
    while (!left.empty()) {
      if (go_on && told_to_stop()) go_on = false;
      bool any = false;
      left.remove_if([&](Pair* pair) { return is_over(*pair, go_on, any); });
      world_.progress();
      if (!any) std::this_thread::yield();
    }
  }

  /// With a rank gone there is no barrier any more: nobody leaves before every other one that is left has said that it
  /// has heard all.
  void part(Window& window) {
    const auto word = [&](int rank) { return layout_.signals() + static_cast<std::size_t>(rank); };
    for (const int peer : whole_) {
      if (auto said = window.signal(peer, {word(world_.rank()), 1}); !said) tell(complaint("part", said.error()));
    }
    for (const int peer : whole_) {
      auto heard = window.wait_signal(word(peer), Comparison::greater_equal, 1);
      if (!heard) tell(complaint("part", heard.error()));
      if (auto quiet = window.quiet(peer); !quiet) tell(complaint("part", quiet.error()));
    }
  }

  bool is_over(Pair& pair, bool go_on, bool& any) {
    auto moved = pair.step(go_on);
    if (!moved) {
      tell(complaint("traffic", moved.error()));
      report("broken", pair);
      return true;
    }
    any |= *moved;
    if (!pair.done()) return false;
    report("whole", pair);
    whole_.push_back(pair.peer());
    return true;
  }

  static void report(const char* how, const Pair& pair) {
    const Findings& found = pair.findings();
    tell(fmt::format("pair {} {} {} {} {} {} {} {} {}", pair.peer(), how, pair.received(), pair.verified_bytes(),
                     found.lost, found.doubled, found.early, found.corrupt, found.ghost));
  }

  World& world_;
  Layout layout_;
  std::list<Pair> pairs_;
  std::vector<int> whole_;  ///< those we are done with
};

}  // namespace railyard::soak
