/// Feeds an engine with whatever the fuzzer makes up: frames and notices, with or without a right header, immediates,
/// links that die and interfaces that go, while it has work of its own. Nothing may crash, read or write outside what
/// is exposed, or be applied twice.
#include <array>
#include <cstdlib>
#include <cstring>

#include "../transport/script_rail.hpp"
#include "base/clock.hpp"
#include "fabric/ofi/request.hpp"
#include "transport/directory.hpp"
#include "transport/engine.hpp"

namespace {

using namespace railyard;             // NOLINT(google-build-using-namespace)
using namespace railyard::transport;  // NOLINT(google-build-using-namespace)

/// A millisecond passes with every look: links are looked after each time.
class RunningClock final : public Clock {
 public:
  std::int64_t now() const override { return time_ += 1'000'000; }
  void idle() override {}

 private:
  mutable std::int64_t time_ = 0;
};

struct Bench {
  Bench() {
    EngineParts parts;
    parts.clock = &clock;
    parts.size = 2;
    auto owned = std::make_unique<ScriptRail>();
    rail = owned.get();
    parts.rails.push_back(std::move(owned));
    parts.find_peer = [](int) -> Result<PeerAddress> {
      static const std::array<std::byte, 1> kAddress{};
      PeerAddress peer;
      peer.identity.bytes[0] = 2;
      peer.rails.push_back({"script", kAddress});
      return peer;
    };
    engine = std::move(Engine::open(std::move(parts)).value());
    guarded.fill(0x5a5a5a5a5a5a5a5aULL);
    ExposedRegion exposed_region;
    exposed_region.memory = std::as_writable_bytes(std::span(guarded).subspan(8, 16));
    exposed_region.signals = std::span(guarded).subspan(32, 4);
    exposed_region_id = *engine->exposed().expose(exposed_region);
    flow = *engine->peers().flow(1);
  }
  void check_guards() const {
    for (std::size_t i = 0; i < guarded.size(); ++i) {
      const bool exposed = (i >= 8 && i < 24) || (i >= 32 && i < 36);
      if (!exposed && guarded[i] != 0x5a5a5a5a5a5a5a5aULL) std::abort();
    }
  }
  void put() const {
    static constexpr std::array<std::byte, 8> kBytes{};
    const PutRecord record{7, 0, kBytes};
    std::uint64_t number = 0;
    if (!flow->failed) (void)engine->submissions().try_records(*flow, &record, nullptr, number);
  }
  RunningClock clock;
  ScriptRail* rail = nullptr;
  std::unique_ptr<Engine> engine;
  std::array<std::uint64_t, 64> guarded{};
  std::uint32_t exposed_region_id = 0;
  Flow* flow = nullptr;
};

std::uint8_t data_byte(const std::vector<std::byte>& message, std::size_t index) {
  return index < message.size() ? static_cast<std::uint8_t>(message[index]) : 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bench bench;
  (void)parse_contribution({reinterpret_cast<const std::byte*>(data), size});
  (void)fabric::ofi::LinkRequest::parse({reinterpret_cast<const std::byte*>(data), size}, {});
  while (size >= 4) {
    const std::uint8_t action = data[0];
    const std::size_t wanted = data[1] + std::size_t{data[2]} % 16U * 256U;
    data += 3;
    size -= 3;
    const std::size_t bytes = std::min(wanted, size);
    std::vector<std::byte> message(bytes);
    if (bytes > 0) std::memcpy(message.data(), data, bytes);
    data += bytes;
    size -= bytes;
    if (action % 16 == 4) {
      bench.rail->lose(data_byte(message, 0) % 4, (data_byte(message, 1) & 1U) != 0);
    } else if (action % 16 == 8) {
      bench.rail->set_interface((data_byte(message, 0) & 1U) != 0);
    } else if (action % 16 == 12) {
      bench.put();
    } else if (action % 4 == 3 && bytes >= 4) {
      std::uint32_t immediate = 0;
      std::memcpy(&immediate, message.data(), 4);
      bench.rail->land(immediate);
    } else {
      if (action % 4 != 0 && bytes >= wire::kRecordsAt) {
        // A header that passes, so that the records are reached.
        wire::FrameHeader header;
        std::memcpy(&header, message.data(), sizeof header);
        header.magic = wire::kMagic;
        header.version = wire::kVersion;
        header.kind = action % 4 == 1 ? wire::FrameKind::sequenced : wire::FrameKind::notice;
        if (header.kind == wire::FrameKind::notice) header.records = 1;
        header.reserved = 0;
        header.flow = 1;
        header.session = bench.flow->session_in;
        header.sequence %= 64;
        header.bytes = static_cast<std::uint32_t>(bytes);
        std::memcpy(message.data(), &header, sizeof header);
        if (action % 4 == 1 && bytes >= wire::kRecordsAt + 8)
          std::memcpy(message.data() + wire::kRecordsAt + 4, &bench.exposed_region_id, 4);
      }
      bench.rail->deliver(message);
    }
    bench.engine->progress();
    if (bench.rail->sends.size() > 1000) bench.rail->sends.clear();
  }
  for (int i = 0; i < 4; ++i) bench.engine->progress();
  bench.check_guards();
  return 0;
}
