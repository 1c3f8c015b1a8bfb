// How the ends of a channel part while the network or one of them is away, on simulated rails.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "sim/channel_processes.hpp"
#include "sim/plan.hpp"

namespace railyard {
namespace {

constexpr std::int64_t kVirtualSecond = 1'000'000'000;
constexpr std::size_t kGivenUpBytes = 256 * 1024;

class LastWordTest : public ::testing::Test {
 protected:
  void open() {
    sim::Plan plan = sim::orderly_plan(2, 1);
    for (auto& rail : plan.fabric.rails) rail.give_up = kVirtualSecond / 2;
    std::vector<Settings> settings(2, plan.settings);
    for (Settings& each : settings) {
      each.timeout_ms = 30'000;
      each.peer_timeout_ms = 30'000;
      each.shared_links = 1;
    }
    auto opened = sim::ChannelProcesses::open(plan.fabric, settings);
    ASSERT_TRUE(opened) << opened.error().text();
    processes_ = std::move(*opened);
    ends_ = processes_->join(0, 1, 0, true);
    ASSERT_TRUE(ends_) << processes_->why;
  }
  void run(std::int64_t nanoseconds) {
    processes_->until([] { return false; }, nanoseconds);
  }
  /// A message each way, so that everything stands.
  void exchange() {
    for (const auto& [from, to] : {std::pair(ends_.out, ends_.in), std::pair(ends_.in, ends_.out)}) {
      std::array<std::byte, 8> bytes{};
      Request* const receive = *to->receive(std::array{ReceiveSlot{bytes, 0, nullptr}}, false);
      Request* const send = *from->send(bytes, 0, nullptr);
      ASSERT_TRUE(processes_->until([&] { return send->finished() && receive->finished(); }, kVirtualSecond));
      ASSERT_TRUE(from->test(send, {}));
      ASSERT_TRUE(to->test(receive, {}));
    }
    run(kVirtualSecond / 100);
  }

  std::unique_ptr<sim::ChannelProcesses> processes_;
  sim::ChannelEnds ends_;
};

/// Whether anything of the message that is given up has left its sender.
class GivenUpTest : public LastWordTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(LastWord, GivenUpTest, ::testing::Bool());

TEST_P(GivenUpTest, AMessageThatWasDoneArrivesThoughOneBeforeItWasGivenUp) {
  open();
  exchange();
  std::vector<std::byte> target(kGivenUpBytes);
  Request* const large = *ends_.in->receive(std::array{ReceiveSlot{target, 0, nullptr}}, false);
  run(kVirtualSecond / 100);  // its grant arrives
  // The receiver stops. A large message begins, a small one behind it is done at once, and the sender's user gives up
  // what is under way.
  processes_->fabric.pause(1, 5 * kVirtualSecond);
  processes_->fabric.set_state(0, {fabric::sim::Carry::errors, fabric::sim::Carry::everything});
  if (!GetParam()) {
    ASSERT_TRUE(ends_.out->send(std::as_bytes(std::span("lost with its link")), 1, nullptr));
    run(kVirtualSecond / 20);
  }
  const std::vector<std::byte> source(kGivenUpBytes, std::byte{1});
  const std::vector<std::byte> small(100, std::byte{2});
  Request* const begun = *ends_.out->send(source, 0, nullptr);
  Request* const done = *ends_.out->send(small, 0, nullptr);
  run(kVirtualSecond / 100);
  ASSERT_FALSE(begun->finished());
  ASSERT_TRUE(done->finished());
  processes_->fabric.set_state(0, {});
  processes_->as_user(0, [&] { ends_.out->close(); });
  ASSERT_FALSE(begun->finished()) << "given up";
  ASSERT_TRUE(
      processes_->until([&] { return !processes_->fabric.paused(1) && large->has_failed(); }, 20 * kVirtualSecond));
  EXPECT_EQ(ends_.in->test(large, {}).status(), Status::peer_lost);
  std::vector<std::byte> bytes(small.size());
  const auto receive = ends_.in->receive(std::array{ReceiveSlot{bytes, 0, nullptr}}, false);
  ASSERT_TRUE(receive) << receive.error().text();
  std::array<std::uint64_t, 1> size{};
  const auto received = ends_.in->test(*receive, size);
  ASSERT_TRUE(received && *received);
  EXPECT_EQ(size[0], small.size());
  EXPECT_EQ(bytes, small);
  processes_->as_user(1, [&] { ends_.in->close(); });
  EXPECT_TRUE(processes_->until([&] { return processes_->empty(); }, 60 * kVirtualSecond));
}

/// Sent before the sender knew of the receives: which of them each message is for is for the receiver to say.
TEST_F(LastWordTest, NothingTakesTheSlotOfAMessageThatDoesNotFit) {
  open();
  exchange();
  const std::array<std::byte, 4> large{};
  const std::array<std::byte, 1> small{std::byte{7}};
  std::array<std::array<std::byte, 1>, 3> targets{};
  std::vector<Request*> receives;
  processes_->fabric.pause(1, kVirtualSecond / 10);
  ASSERT_TRUE(ends_.out->send(large, 0, nullptr));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(ends_.out->send(small, 0, nullptr));
  run(kVirtualSecond / 20);
  for (auto& target : targets) receives.push_back(*ends_.in->receive(std::array{ReceiveSlot{target, 0}}, false));
  run(kVirtualSecond / 5);
  for (Request* receive : receives) {
    const auto done = ends_.in->test(receive, {});
    ASSERT_EQ(done.status(), Status::out_of_range) << "with a message that was sent after it";
  }
  for (const auto& target : targets) EXPECT_EQ(target[0], std::byte{0});
}

TEST_F(LastWordTest, AnEndStaysUntilItsLastWordIsHeard) {
  open();
  exchange();
  // What the answering end says does not get through, for longer than it stays for a mere acknowledgement.
  processes_->fabric.set_state(0, {fabric::sim::Carry::nothing, fabric::sim::Carry::everything});
  processes_->as_user(1, [&] { ends_.in->close(); });
  run(3 * kVirtualSecond);
  processes_->as_user(0, [&] { ends_.out->close(); });
  run(3 * kVirtualSecond);
  processes_->fabric.set_state(0, {});
  EXPECT_TRUE(processes_->until([&] { return processes_->empty(); }, 50 * kVirtualSecond))
      << "one end has gone without a word, and the other waits for it";
}

TEST_F(LastWordTest, ARouteThatThePeerMayHaveDroppedIsNotJoined) {
  open();
  exchange();
  // Epochs of process 0's link end with something on them: process 1 shuts them out.
  const std::vector<std::byte> small(100, std::byte{2});
  for (std::uint64_t epochs = 1; epochs <= 5; ++epochs) {
    processes_->fabric.set_state(0, {fabric::sim::Carry::errors, fabric::sim::Carry::errors});
    ASSERT_TRUE(ends_.out->send(small, 0, nullptr));
    run(kVirtualSecond / 10);
    processes_->fabric.set_state(0, {});
    const auto fenced = [&] { return processes_->at(0).engine().statistics().fences >= epochs; };
    ASSERT_TRUE(processes_->until(fenced, 20 * kVirtualSecond));
  }
  // Both ends close; process 1 stops when it has said so and is not there to drop its end.
  processes_->as_user(0, [&] { ends_.out->close(); });
  processes_->as_user(1, [&] { ends_.in->close(); });
  const auto gone = [&] { return processes_->at(0).engine().peers().registry().size() == 0; };
  ASSERT_TRUE(processes_->until(
      [&] {
        return std::ranges::all_of(std::array{0U, 1U}, [&](std::size_t process) {
          const auto routes = processes_->at(process).engine().peers().registry().routes();
          return routes.size() == 1 && std::ranges::all_of(routes[0]->flows, &transport::Flow::parting);
        });
      },
      10 * kVirtualSecond));
  run(kVirtualSecond / 200);
  ASSERT_EQ(processes_->at(1).engine().peers().registry().size(), 1U);
  processes_->fabric.pause(1, kVirtualSecond);
  ASSERT_TRUE(processes_->until(gone, kVirtualSecond / 2)) << "process 0 has no reason to wait for more";
  // Another channel, before process 1 has made a pass.
  sim::ChannelEnds next = processes_->join(0, 1, 0, true);
  ASSERT_TRUE(next) << processes_->why;
  std::vector<std::byte> bytes(small.size());
  Request* const receive = *next.in->receive(std::array{ReceiveSlot{bytes, 0, nullptr}}, false);
  Request* const sent = *next.out->send(small, 0, nullptr);
  EXPECT_TRUE(processes_->until([&] { return sent->finished() && receive->finished(); }, 20 * kVirtualSecond));
  EXPECT_EQ(bytes, small);
  for (const auto& [process, end] : {std::pair(0, next.out), std::pair(1, next.in)}) {
    processes_->as_user(static_cast<std::size_t>(process), [&end = end] { end->close(); });
  }
  EXPECT_TRUE(processes_->until([&] { return processes_->empty(); }, 60 * kVirtualSecond));
}

}  // namespace
}  // namespace railyard
