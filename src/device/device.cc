#include "railyard/device.hpp"

#include <fmt/format.h>

#include <bit>

#include "device/proxy.hpp"

namespace railyard {

namespace {

constexpr std::uint32_t kMostRings = 4096;  // bits of a ticket
constexpr std::uint32_t kLeastDepth = 64;   // a warp posts together
constexpr std::uint32_t kMostDepth = 65536;

Result<void> check_options(window_detail::WindowState& window, const DeviceOptions& options) {
  const auto wrong = [](std::string what) { return Error(Status::invalid, "device proxy: " + std::move(what)); };
  if (!std::has_single_bit(options.rings) || options.rings > kMostRings) {
    return wrong(fmt::format("{} rings; a power of two up to {} is possible", options.rings, kMostRings));
  }
  if (!std::has_single_bit(options.depth) || options.depth < kLeastDepth || options.depth > kMostDepth) {
    return wrong(
        fmt::format("a depth of {}; a power of two from {} to {} is possible", options.depth, kLeastDepth, kMostDepth));
  }
  if (options.threads == 0 || options.threads > options.rings) {
    return wrong(fmt::format("{} threads for {} rings", options.threads, options.rings));
  }
  if (options.budget.count() < 0) return wrong("a budget below zero");
  const std::uint64_t end =
      options.barrier_signal + std::uint64_t{options.barriers} * device_detail::barrier_rounds(window.world().size);
  for (int rank = 0; options.barriers > 0 && rank < window.world().size; ++rank) {
    if (end <= window.part(rank).signals) continue;
    return wrong(fmt::format("{} barriers from signal {} on take {} signals; rank {}'s window has {}", options.barriers,
                             options.barrier_signal, end - options.barrier_signal, rank, window.part(rank).signals));
  }
  return {};
}

}  // namespace

Result<DeviceProxy> DeviceProxy::open(Window& window, const DeviceOptions& options) {
  window_detail::WindowState& state = window_detail::WindowAccess::state(window);
  if (auto open = state.check_open("device proxy"); !open) return std::move(open.error());
  if (auto checked = check_options(state, options); !checked) return std::move(checked.error());
  if (state.engine().settings().threads == "single") {
    return Error(Status::invalid, "device proxy: the world is for one thread only (RAILYARD_THREADS=single)");
  }
  auto memory = device_detail::SharedMemory::open(state, options);
  if (!memory) return std::move(memory.error());
  if (options.direct) state.expect_touching();
  auto proxy = std::make_unique<State>(window, options, std::move(*memory));
  proxy->start();
  return DeviceProxy(std::move(proxy));
}

std::size_t DeviceProxy::device_bytes(const Window& window, const DeviceOptions& options) {
  window_detail::WindowState& state = window_detail::WindowAccess::state(window);
  return device_detail::BlockLayout(options.rings, options.depth, static_cast<std::size_t>(state.world().size),
                                    options.barriers)
      .producer_bytes;
}

DeviceProxy::DeviceProxy(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeviceProxy::DeviceProxy(DeviceProxy&&) noexcept = default;
DeviceProxy& DeviceProxy::operator=(DeviceProxy&&) noexcept = default;
DeviceProxy::~DeviceProxy() = default;

Result<void> DeviceProxy::close(Deadline deadline) { return state_->close(deadline); }
device::Window DeviceProxy::handle() const { return state_->handle(); }
Result<void> DeviceProxy::status() const { return state_->status(); }
void DeviceProxy::resume() { state_->resume(); }
void DeviceProxy::wake() { state_->wake(); }
std::uint64_t DeviceProxy::commands() const { return state_->commands(); }

}  // namespace railyard
