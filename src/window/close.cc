/// The collective end of windows: side by side, under one deadline.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "window/window_state.hpp"

namespace railyard {
namespace window_detail {
namespace {

/// Of several engines none is left alone for longer while another is waited for.
constexpr std::int64_t kTurn = 5'000'000;

/// Windows of one world: what is outstanding is the world's, and its ranks wait for each other once.
struct EndingWorld {
  WorldState* world;
  std::vector<Window*> windows;
  Error error = {};
  bool failed() const { return error.status() != Status::ok; }
  WindowState& any() const { return WindowAccess::state(*windows.front()); }
  /// Some are of all ranks.
  bool collective() const {
    return world->bootstrap != nullptr &&
           !std::ranges::all_of(windows, [](Window* each) { return WindowAccess::state(*each).is_lone(); });
  }
};

class WindowEnds {
 public:
  WindowEnds(std::span<Window* const> windows, Deadline deadline)
      : deadline_(deadline), clock_(WindowAccess::state(*windows.front()).engine().clock()) {
    std::int64_t longest = 0;
    for (Window* window : windows) {
      WindowState& state = WindowAccess::state(*window);
      longest = std::max(longest, state.nanoseconds(deadline));
      auto known = std::ranges::find(worlds_, &state.world(), &EndingWorld::world);
      if (known == worlds_.end()) known = worlds_.insert(known, EndingWorld{&state.world(), {}, {}});
      known->windows.push_back(window);
    }
    until_ = longest == INT64_MAX ? INT64_MAX : clock_.now() + longest;
  }

  Result<void> run() {
    quiet();
    finish_handshakes();
    meet();
    Error first;
    for (EndingWorld& each : worlds_) {
      if (!each.failed()) {
        shut(each);
      } else if (first.status() == Status::ok) {
        first = std::move(each.error);
      }
    }
    return first.status() == Status::ok ? Result<void>() : Result<void>(std::move(first));
  }

 private:
  std::int64_t left() const {
    return until_ == INT64_MAX ? INT64_MAX : std::max<std::int64_t>(0, until_ - clock_.now());
  }
  Deadline rest() const {
    const auto time = std::chrono::nanoseconds(left());
    return deadline_.is_default() ? Deadline::rest_of_default(time) : Deadline::in(time);
  }

  void quiet() {
    const auto busy = [](const EndingWorld& each) { return each.any().outstanding() != 0; };
    while (worlds_.size() > 1 && left() > 0 && std::ranges::any_of(worlds_, busy)) {
      for (const EndingWorld& each : worlds_)
        each.any().engine().wait_until([&] { return !busy(each); }, std::min(left(), kTurn));
    }
    for (EndingWorld& each : worlds_)
      if (auto quieted = each.windows.front()->quiet(rest()); !quieted) each.error = std::move(quieted.error());
  }

  /// The worlds may go next. All ranks are closing, so all make progress and answer.
  void finish_handshakes() {
    const std::int64_t until = clock_.now() + std::min(left(), transport::Handshakes::kLongest);
    for (const EndingWorld& each : worlds_) {
      if (each.failed() || !each.collective()) continue;
      transport::Engine& engine = each.any().engine();
      engine.wait_until([&] { return engine.handshakes().pending() == 0; },
                        std::max<std::int64_t>(0, until - clock_.now()));
    }
  }

  /// Every rank is quiet when it enters, so nothing of its windows is on its way when all have. Worlds take turns, each
  /// with an equal part of the time: one whose ranks do not come leaves the others theirs.
  void meet() {
    const auto meets = [](const EndingWorld& each) { return !each.failed() && each.collective(); };
    auto waiting = std::ranges::count_if(worlds_, meets);
    for (EndingWorld& each : worlds_) {
      if (!meets(each)) continue;
      const std::int64_t time = left() == INT64_MAX ? INT64_MAX : left() / waiting;
      --waiting;
      const auto deadline = Deadline::in(std::chrono::nanoseconds(time));
      if (auto met = each.world->with_progress([&] { return each.world->bootstrap->barrier(deadline); }); !met)
        each.error = std::move(met.error());
    }
  }

  static void shut(const EndingWorld& world) {
    for (Window* window : world.windows) {
      WindowState& state = WindowAccess::state(*window);
      state.shut(world.world->bootstrap != nullptr && !state.is_lone());
    }
  }

  Deadline deadline_;
  Clock& clock_;
  std::vector<EndingWorld> worlds_;
  std::int64_t until_ = 0;
};

}  // namespace
}  // namespace window_detail

bool Window::is_open() const noexcept { return state_ != nullptr && state_->check_open("is_open").ok(); }

Result<void> Window::close(Deadline deadline) {
  Window* const self = this;
  return close_all({&self, 1}, deadline);
}

Result<void> Window::close_all(std::span<Window* const> windows, Deadline deadline) {
  for (std::size_t i = 0; i < windows.size(); ++i) {
    if (windows[i] == nullptr || windows[i]->state_ == nullptr) {
      return Error(Status::invalid, fmt::format("close: number {} of {} is no window", i, windows.size()),
                   {.operation = "close"});
    }
    if (auto open = windows[i]->state_->check_open("close"); !open) return open;
    if (std::ranges::find(windows.first(i), windows[i]) != windows.begin() + static_cast<std::ptrdiff_t>(i)) {
      return Error(Status::invalid, fmt::format("close: number {} of {} was given before", i, windows.size()),
                   {.operation = "close"});
    }
  }
  if (windows.empty()) return {};
  return window_detail::WindowEnds(windows, deadline).run();
}

}  // namespace railyard
