/// CM messages and addresses of verbs rails as whoever knows a rail's address can write them, to the parsers and to a
/// rail that has links of its own. Nothing may crash or be done that devices do not allow, each call costs one queue
/// pair at most, and none without the rail's secret, and the links of others go on.
#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <cstdlib>
#include <random>
#include <string_view>
#include <vector>

#include "doubles/verbs/verbs_double.hpp"
#include "fabric/rail.hpp"
#include "fabric/verbs_rogue_peer.hpp"

namespace {

using namespace railyard;          // NOLINT(google-build-using-namespace)
using namespace railyard::fabric;  // NOLINT(google-build-using-namespace)
using verbs::CmMessage;
using verbs::VerbsRailAddress;

constexpr std::size_t kInputBytes = 3000;

void require(bool condition) {
  if (!condition) std::abort();
}

void parse(std::span<const std::byte> bytes) {
  if (const auto message = CmMessage::parse(bytes)) {
    const auto again = message->pack();
    require(again.size() == bytes.size() && again.size() + CmMessage::kMacBytes <= CmMessage::kMostBytes &&
            CmMessage::parse(again));
  }
  if (const auto address = VerbsRailAddress::parse(bytes, false, "fuzz")) {
    require(address->hosts.size() <= VerbsRailAddress::kMostHosts);
    const auto again = VerbsRailAddress::parse(address->pack(), false, "fuzz");
    require(again && *again == *address);
  }
}

/// An address that is one but for a byte or its end.
void parse_address(FuzzedDataProvider& data) {
  VerbsRailAddress address;
  address.queue_pair = data.ConsumeIntegral<std::uint32_t>();
  address.host_port = data.ConsumeIntegral<std::uint16_t>();
  address.hosts.resize(data.ConsumeIntegralInRange<std::size_t>(0, VerbsRailAddress::kMostHosts + 1));
  auto bytes = address.pack();
  if (data.ConsumeBool()) bytes[data.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1)] ^= std::byte{1};
  if (data.ConsumeBool()) bytes.resize(data.ConsumeIntegralInRange<std::size_t>(0, bytes.size()));
  parse(bytes);
}

std::unique_ptr<Rail> open_rail(const char* device) {
  Settings settings;
  settings.driver = "verbs";
  settings.interfaces = device;
  settings.shared_memory = "off";
  settings.rails = 1;
  settings.log = "error";
  auto rails = open_rails(settings);
  require(rails.ok());
  return std::move(rails->front());
}

/// Two rails with a link each way, and what they are told.
class Victims {
 public:
  Victims() {
    for (std::size_t i : {0u, 1u}) registrations_[i] = rails_[i]->register_memory(memory_, {}).value();
    there_ = rails_[0]->connect(rails_[1]->address(), {kThere, 1, kBack}).value();
    back_ = rails_[1]->connect(rails_[0]->address(), {kBack, 1, kThere}).value();
    require(works());
  }
  void poll() {
    for (auto& rail : rails_) {
      std::array<Event, 8> events;
      const std::size_t count = rail->poll(events);
      for (std::size_t i = 0; i < count; ++i) {
        // A link that the rail has begun to the rogue peer may be lost.
        const bool own = events[i].remote == (rail == rails_[0] ? there_ : back_);
        require(events[i].kind != Event::Kind::rail_down && (events[i].kind != Event::Kind::lost || !own));
        if (events[i].context != nullptr) ++came_;
      }
    }
  }
  /// A message each way.
  bool works() {
    std::array<PostContext, 4> contexts;
    const std::size_t before = came_;
    for (std::size_t i : {0u, 1u}) {
      require(rails_[i]->receive({memory_.data() + 64, 64, registrations_[i].descriptor[0]}, &contexts[2 + i]) ==
              Post::posted);
    }
    for (std::size_t i : {0u, 1u}) {
      Post answer = Post::busy;
      for (int tries = 0; answer == Post::busy && tries < kPatience; ++tries) {
        answer = rails_[i]->send(i == 0 ? there_ : back_, {memory_.data(), 8, registrations_[i].descriptor[0]},
                                 &contexts[i]);
        poll();
      }
      if (answer != Post::posted) return false;
    }
    for (int tries = 0; came_ < before + 4 && tries < kPatience; ++tries) poll();
    return came_ == before + 4;
  }
  VerbsRailAddress address() const { return *VerbsRailAddress::parse(rails_[0]->address(), false, "fuzz"); }
  Rail& target() { return *rails_[0]; }

 private:
  static constexpr std::uint64_t kThere = 0x1111222233334444;
  static constexpr std::uint64_t kBack = 0x5555666677778888;
  static constexpr int kPatience = 3'000'000;

  std::array<std::unique_ptr<Rail>, 2> rails_{open_rail("fake0"), open_rail("fake1")};
  std::array<std::byte, 128> memory_{};
  std::array<Registration, 2> registrations_;
  RemoteId there_ = 0;
  RemoteId back_ = 0;
  std::size_t came_ = 0;
};

/// A handle that is one of a rail's, or its like.
std::uint64_t handle(FuzzedDataProvider& data, std::uint64_t heard) {
  switch (data.ConsumeIntegralInRange(0, 3)) {
    case 0:
      return heard;
    case 1:
      return data.ConsumeIntegralInRange<std::uint64_t>(0, 3) << 32 | data.ConsumeIntegralInRange<std::uint64_t>(0, 6);
    case 2:
      return data.ConsumeIntegralInRange<std::uint64_t>(0, 6);
    default:
      return data.ConsumeIntegral<std::uint64_t>();
  }
}

CmMessage make_up(FuzzedDataProvider& data, const verbs::RoguePeer& rogue, std::uint64_t heard) {
  CmMessage message;
  message.kind = static_cast<CmMessage::Kind>(data.ConsumeIntegralInRange(1, 11));
  message.reason = static_cast<CmMessage::Reason>(data.ConsumeIntegralInRange(0, 3));
  message.from = rogue.address(data.ConsumeIntegralInRange<std::uint64_t>(1, 3));
  message.here = handle(data, heard);
  message.there = handle(data, heard);
  message.tagged = data.ConsumeIntegralInRange(0, 7) != 0;
  message.tag.id = data.ConsumeIntegralInRange<std::uint64_t>(0, 5);
  message.tag.epoch = data.ConsumeBool() ? data.ConsumeIntegralInRange<std::uint32_t>(0, 4) : ~0U;
  message.tag.facing = data.ConsumeIntegralInRange<std::uint64_t>(0, 5);
  message.end.queue_pair = data.ConsumeIntegralInRange<std::uint32_t>(1, 0xffffff);
  message.end.first_packet = data.ConsumeIntegralInRange<std::uint32_t>(0, 0xffffff);
  message.end.mtu = data.ConsumeIntegralInRange<std::uint8_t>(1, 5);
  message.end.reads = data.ConsumeIntegral<std::uint8_t>();
  message.end.ece_vendor = data.ConsumeIntegralInRange<std::uint32_t>(0, 2);
  message.end.ece_options = data.ConsumeIntegral<std::uint32_t>();
  return message;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  parse(std::as_bytes(std::span(bytes, size)));
  // What the input begins a generator goes on with: short inputs say a lot from the first second on.
  std::vector<std::uint8_t> input(bytes, bytes + size);
  std::minstd_rand more(static_cast<std::uint32_t>(
      std::hash<std::string_view>{}(std::string_view(reinterpret_cast<const char*>(bytes), size))));
  while (input.size() < kInputBytes) input.push_back(static_cast<std::uint8_t>(more() >> 8));
  FuzzedDataProvider data(input.data(), input.size());
  parse_address(data);
  verbs_double::Network network({.devices = 3});
  {
    Victims victims;
    auto rogue = verbs::RoguePeer::open(network.library(), "fake2");
    require(rogue.has_value());
    const VerbsRailAddress target = victims.address();
    std::size_t calls = 0;
    std::uint64_t heard = 0;
    std::uint64_t own = 90;
    for (int step = 0; step < 64 && data.remaining_bytes() > 0; ++step) {
      switch (data.ConsumeIntegralInRange(0, 9)) {
        case 0:
          victims.poll();
          break;
        case 1: {  // the rail calls him
          auto remote =
              victims.target().connect(rogue->address(data.ConsumeIntegralInRange<std::uint64_t>(1, 3)).pack(),
                                       {own++, 1, data.ConsumeIntegralInRange<std::uint64_t>(0, 5)});
          require(remote.ok());
          ++calls;
          break;
        }
        case 2:
          (void)victims.target().fence({data.ConsumeIntegralInRange<std::uint64_t>(0, 5), 2, 0});
          break;
        case 3: {  // without the secret, or with a message that was changed
          auto forged = rogue->seal(target, make_up(data, *rogue, heard));
          forged[data.ConsumeIntegralInRange<std::size_t>(0, forged.size() - 1)] ^= std::byte{1};
          (void)rogue->write(target, forged);
          victims.poll();
          break;
        }
        default:
          ++calls;
          (void)rogue->write(target, make_up(data, *rogue, heard));
          victims.poll();
      }
      while (const auto message = rogue->read()) heard = data.ConsumeBool() ? message->here : message->there;
      require(network.count(0, verbs_double::Kind::connected_pair).created <= 1 + calls);
    }
    require(network.violations().empty());
  }
  require(network.violations().empty() && network.alive() == 0);
  return 0;
}
