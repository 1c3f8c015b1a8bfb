/// Messages from and to memory of GPUs, on the double of the driver: a processor that touches it ends the test.
#include "gpu_memory.hpp"

#include <gtest/gtest.h>

#include <array>
#include <tuple>

#include "base/random.hpp"
#include "contexts.hpp"

namespace railyard {
namespace {

using test::Gpu;
using test::GpuMemory;

constexpr std::size_t kBuffer = 2 << 20;

/// Which of the two sides are memory of a GPU, and whether it is registered ahead.
struct Sides {
  const char* name;
  bool sender;
  bool receiver;
  bool registered;
};

constexpr Sides kSides[] = {{"Both", true, true, true},
                            {"Sender", true, false, true},
                            {"Receiver", false, true, true},
                            {"BothUnregistered", true, true, false},
                            {"ReceiverUnregistered", false, true, false}};

/// Rails that carry them; 0: through shared memory.
class GpuMessages : public ::testing::TestWithParam<std::tuple<Sides, std::uint32_t>> {};
INSTANTIATE_TEST_SUITE_P(Sides, GpuMessages,
                         ::testing::Combine(::testing::ValuesIn(kSides), ::testing::Values(0U, 1U, 4U)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "Over" +
                                  std::to_string(std::get<1>(info.param));
                         });

class Side {
 public:
  Side(const Gpu& gpu, bool on_device) {
    if (on_device)
      device_ = std::make_unique<GpuMemory>(gpu, kBuffer);
    else
      host_.resize(kBuffer);
  }
  std::span<std::byte> span() { return device_ ? std::span(device_->data(), kBuffer) : std::span(host_); }
  void fill(const std::vector<std::byte>& bytes) {
    if (device_)
      device_->fill(bytes);
    else
      std::copy(bytes.begin(), bytes.end(), host_.begin());
  }
  std::vector<std::byte> read(std::size_t bytes) {
    if (device_) return device_->read(0, bytes);
    return {host_.begin(), host_.begin() + static_cast<std::ptrdiff_t>(bytes)};
  }

 private:
  std::unique_ptr<GpuMemory> device_;
  std::vector<std::byte> host_;
};

TEST_P(GpuMessages, ArriveWholeWhetherTheirReceiveIsEarlyOrLate) {
  const auto [sides, rails] = GetParam();
  const Gpu gpu;
  const Settings settings = rails == 0 ? over_memory() : over_network(rails);
  auto one = open_context(settings);
  auto other = open_context(settings);
  ASSERT_TRUE(one && other);
  ChannelPair pair = connect(*one, *other);
  ASSERT_TRUE(pair.out && pair.in);
  Side source(gpu, sides.sender);
  Side place(gpu, sides.receiver);
  std::unique_ptr<Memory> from;
  std::unique_ptr<Memory> to;
  if (sides.registered) {
    auto registered = pair.out->register_memory(source.span());
    ASSERT_TRUE(registered) << registered.error().text();
    from = std::move(*registered);
    registered = pair.in->register_memory(place.span());
    ASSERT_TRUE(registered) << registered.error().text();
    to = std::move(*registered);
  }
  Random random(3);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{8}, std::size_t{512}, std::size_t{4096},
                                  std::size_t{20000}, std::size_t{65536}, std::size_t{300000}, kBuffer}) {
    for (const bool late : {false, true}) {
      std::vector<std::byte> message(bytes);
      for (std::byte& byte : message) byte = static_cast<std::byte>(random.next());
      source.fill(message);
      place.fill(std::vector<std::byte>(bytes));
      Request* receive = nullptr;
      const ReceiveSlot slot{place.span(), 1, to.get()};
      const auto post = [&] {
        auto posted = pair.in->receive({&slot, 1});
        ASSERT_TRUE(posted) << posted.error().text();
        receive = *posted;
      };
      if (!late) post();
      auto send = pair.out->send(source.span().first(bytes), 1, from.get());
      ASSERT_TRUE(send) << send.error().text();
      if (late) {
        for (int i = 0; i < 100; ++i) std::this_thread::yield();
        post();
      }
      std::array<std::uint64_t, 1> sizes{};
      const auto received = pair.in->wait(receive, sizes);
      ASSERT_TRUE(received.ok()) << received.error().text();
      const auto sent = pair.out->wait(*send);
      ASSERT_TRUE(sent.ok()) << sent.error().text();
      EXPECT_EQ(sizes[0], bytes);
      ASSERT_EQ(place.read(bytes), message) << bytes << " bytes, " << (late ? "late" : "early");
    }
  }
  EXPECT_TRUE(!sides.sender || pair.out->statistics().eager_sent == 0) << "the processor reads eager messages";
}

TEST(GpuMessage, AWayThatDoesNotReachItIsRefusedWhenItIsRegistered) {
  const Gpu gpu;
  auto one = open_context(over_strict_provider());
  auto other = open_context(over_strict_provider());
  ASSERT_TRUE(one && other);
  ChannelPair pair = connect(*one, *other);
  ASSERT_TRUE(pair.out && pair.in);
  const GpuMemory memory(gpu, kBuffer);
  const auto refused = pair.out->register_memory({memory.data(), memory.size()});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.status(), Status::unsupported);
  EXPECT_NE(refused.error().text().find("GPU"), std::string::npos) << refused.error().text();
}

}  // namespace
}  // namespace railyard
