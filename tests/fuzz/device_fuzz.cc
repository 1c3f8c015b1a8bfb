/// Feeds a device proxy commands of any words: nothing may crash, reach outside the window or hang; what makes no sense
/// is an error of the proxy's, and after `resume` it goes on. A source address is the program's own, as in a call on
/// the host: here it is always readable.
#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/log.hpp"
#include "device/proxy.hpp"
#include "fabric/sim/fabric.hpp"
#include "window/assemble.hpp"

namespace railyard {
namespace {

using device::detail::Command;
using device::detail::kCommandWords;
using device::detail::Word;

void require(bool promise) {
  if (!promise) std::abort();
}

constexpr std::size_t kBytes = 4096;
constexpr std::size_t kSourceBytes = 8192;

/// One rank alone: its window is its own memory, so the range of every command is checked by what it writes.
class Alone {
 public:
  Alone() : fabric_(options()) {
    WorldParts parts;
    parts.settings.threads = "single";
    parts.clock = &fabric_.clock();
    parts.rails.push_back(std::move(fabric_.open_rail(0)).value());
    parts.identity.bytes[0] = 1;
    auto assembly = std::move(WorldAssembly::begin(std::move(parts))).value();
    const std::array world_said{assembly.contribution()};
    world_ = std::make_unique<World>(std::move(assembly.finish(world_said)).value());
    auto window = WindowAssembly::begin(*world_, std::span(memory_), {});
    const std::array window_said{window.contribution()};
    window_ = std::make_unique<Window>(std::move(window.finish(window_said)).value());
    DeviceOptions options;
    options.rings = 2;
    options.depth = 64;
    auto& state = window_detail::WindowAccess::state(*window_);
    auto memory = std::move(device_detail::SharedMemory::open(state, options)).value();
    proxy_ = std::make_unique<DeviceProxy::State>(*window_, options, std::move(memory));
  }
  ~Alone() { proxy_.reset(); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

  void post(std::uint32_t ring, const Word (&words)[kCommandWords]) {
    const device::Window kernel = proxy_->handle();
    const device::detail::Handle& handle = kernel.handle();
    const Word index = posted_[ring]++;
    Word* const slot = handle.commands + (std::size_t{ring} * handle.depth + index % handle.depth) * kCommandWords;
    const Word phase = device::detail::phase_of(index, handle.depth);
    for (std::size_t at = 0; at < kCommandWords; ++at) {
      device::detail::store_system(&slot[at], (words[at] & ~device::detail::kPhase) | phase);
    }
  }
  /// All of it is taken, whatever it was.
  void settle() {
    for (int pass = 0; pass < 4; ++pass) proxy_->pass_all();
    require(proxy_->commands() == posted_[0] + posted_[1]);
    if (!proxy_->status()) proxy_->resume();
    proxy_->pass_all();
    const device::Window kernel = proxy_->handle();
    for (std::size_t ring = 0; ring < 2; ++ring) require(kernel.handle().progress[ring].completed == posted_[ring]);
    require(proxy_->status().ok());
  }

 private:
  static fabric::sim::FabricOptions options() {
    fabric::sim::FabricOptions options;
    options.rails.resize(1);
    return options;
  }

  std::vector<std::byte> memory_{kBytes};  // the address sanitizer guards its ends
  fabric::sim::SimFabric fabric_;
  std::unique_ptr<World> world_;
  std::unique_ptr<Window> window_;
  std::unique_ptr<DeviceProxy::State> proxy_;
  std::array<Word, 2> posted_{};
};

std::uint64_t some_number(FuzzedDataProvider& data) {
  switch (data.ConsumeIntegralInRange(0, 4)) {
    case 0:
      return data.ConsumeIntegralInRange<std::uint64_t>(0, 65);
    case 1:
      return kBytes - data.ConsumeIntegralInRange<std::uint64_t>(0, 65);
    case 2:
      return ~std::uint64_t{0} - data.ConsumeIntegralInRange<std::uint64_t>(0, 65);
    case 3:
      return data.ConsumeIntegralInRange<std::uint64_t>(0, 2 * kBytes);
    default:
      return data.ConsumeIntegral<std::uint64_t>();
  }
}

}  // namespace
}  // namespace railyard

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace railyard;  // NOLINT(google-build-using-namespace)
  set_log_level(LogLevel::error);
  static const std::vector<std::byte> source(kSourceBytes);
  FuzzedDataProvider data(bytes, size);
  Alone alone;
  int unsettled = 0;
  while (data.remaining_bytes() > 0) {
    Word words[kCommandWords];
    if (data.ConsumeBool()) {
      for (Word& word : words) word = data.ConsumeIntegral<Word>();
    } else {
      Command command;
      command.operation = static_cast<device::Operation>(data.ConsumeIntegralInRange(0, 16));
      command.signal_op = static_cast<device::SignalOp>(data.ConsumeIntegralInRange(0, 3));
      command.has_signal = data.ConsumeBool();
      command.has_counter = data.ConsumeBool();
      command.is_inline = data.ConsumeBool();
      command.inline_bytes = data.ConsumeIntegralInRange<std::uint8_t>(0, 40);
      command.rank = static_cast<std::uint32_t>(data.ConsumeBool() ? 0 : some_number(data));
      command.offset = some_number(data);
      command.bytes = some_number(data);
      for (Word& word : command.payload) word = data.ConsumeIntegral<Word>();
      command.signal_index = some_number(data);
      command.counter_index = some_number(data);
      command.signal_value = some_number(data);
      command.pack(words);
    }
    Command command = Command::unpack(words);
    if (!command.is_inline && command.source != 0) {
      command.source = reinterpret_cast<std::uintptr_t>(source.data());
      if (command.bytes > source.size() && command.bytes < 2 * kBytes) command.bytes = source.size();
      command.pack(words);
    }
    alone.post(data.ConsumeBool() ? 0 : 1, words);
    if (data.ConsumeBool() || ++unsettled == 48) alone.settle(), unsettled = 0;
  }
  alone.settle();
  return 0;
}
