/// What goes wrong is told, by name, and nobody waits for ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "cpu_time.hpp"
#include "device_world.hpp"

namespace railyard {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kBriefBudget = 20'000'000;  // nanoseconds

/// One rank, one proxy that serves it; commands written by hand.
void post_raw(const device::Window& kernel, const device::detail::Command& command, std::uint64_t index,
              std::uint32_t ring = 0) {
  using namespace device::detail;  // NOLINT(google-build-using-namespace)
  const Handle& handle = kernel.handle();
  Word words[kCommandWords];
  command.pack(words);
  Word* const slot = handle.commands + (std::size_t{ring} * handle.depth + index % handle.depth) * kCommandWords;
  for (std::size_t at = 0; at < kCommandWords; ++at) {
    store_system(&slot[at], words[at] | phase_of(index, handle.depth));
  }
  __atomic_store_n(&handle.tails[ring].tail, index + 1, __ATOMIC_RELEASE);
}

Error await_error(DeviceProxy& proxy) {
  for (;;) {
    if (auto status = proxy.status(); !status) return std::move(status.error());
    std::this_thread::yield();
  }
}

TEST(DeviceFailure, AWaitThatIsNotMetEndsWithItsBudgetAndIsTold) {
  run_proxied(2, 4096, patient(), [](Node& node) {
    if (node.world.rank() != 0) return;
    const device::Window brief = node.kernel.with_budget(kBriefBudget).on_ring(3);
    must(node.proxy.status());
    EXPECT_EQ(brief.wait_signal(5, device::Comparison::greater_equal, 9, 1), device::Status::timeout);
    const Error error = std::move(node.proxy.status().error());
    EXPECT_EQ(error.status(), Status::timeout);
    EXPECT_EQ(error.where().peer, 1);
    EXPECT_STREQ(error.where().operation, "wait_signal");
    EXPECT_THAT(error.text(), HasSubstr("signal 5"));
    EXPECT_THAT(error.text(), HasSubstr("ring 3"));
    // The first one counts.
    EXPECT_EQ(brief.wait_counter(6, 1), device::Status::timeout);
    EXPECT_THAT(node.proxy.status().error().text(), HasSubstr("signal 5"));
    // It stops nothing.
    EXPECT_TRUE(node.kernel.signal(1, {0}).ok());
    EXPECT_EQ(node.kernel.quiet(), device::Status::ok);
    node.proxy.resume();
    must(node.proxy.status());
    EXPECT_EQ(brief.wait_counter(6, 1), device::Status::timeout);
    EXPECT_THAT(node.proxy.status().error().text(), HasSubstr("counter 6"));
    node.proxy.resume();
  });
}

struct BadCommand {
  const char* name;
  std::function<void(device::detail::Command&)> spoil;
  const char* says;
};

TEST(DeviceFailure, BadCommandsAreErrorsThatNameThem) {
  using device::Operation;
  using device::detail::Command;
  const std::vector<BadCommand> bad{
      {"operation", [](Command& it) { it.operation = static_cast<Operation>(77); }, "unknown operation 77"},
      {"no operation", [](Command& it) { it.operation = Operation::none; }, "unknown operation 0"},
      {"rank", [](Command& it) { it.rank = 9; }, "rank 9 does not exist"},
      {"offset", [](Command& it) { it.offset = 4090; }, "do not fit"},
      {"huge offset", [](Command& it) { it.offset = ~std::uint64_t{0}; }, "do not fit"},
      {"bytes", [](Command& it) { it.bytes = std::uint64_t{1} << 60; }, "do not fit"},
      {"source", [](Command& it) { it.source = 0; }, "null pointer"},
      {"signal", [](Command& it) { it.signal_index = 64; }, "signal 64 does not exist"},
      {"signal operation", [](Command& it) { it.signal_op = static_cast<device::SignalOp>(3); }, "signal operation"},
      {"counter", [](Command& it) { it.counter_index = 64; }, "counter 64 does not exist"},
      {"no signal", [](Command& it) { it.has_signal = false; }, "without a signal"},
      {"payload", [](Command& it) { it.is_inline = true, it.inline_bytes = 25; }, "25 bytes inside"},
  };
  run_proxied(2, 4096, patient({.rings = 2}), [&](Node& node) {
    if (node.world.rank() != 0) return;
    std::uint64_t index = 0;
    std::uint64_t source[2] = {1, 2};
    for (const BadCommand& one : bad) {
      SCOPED_TRACE(one.name);
      Command command;
      command.operation = Operation::put_signal_counter;
      command.rank = 1;
      command.source = reinterpret_cast<std::uintptr_t>(source);
      command.bytes = sizeof source;
      command.has_signal = command.has_counter = true;
      one.spoil(command);
      post_raw(node.kernel, command, index++);
      const Error error = await_error(node.proxy);
      EXPECT_THAT(error.text(), HasSubstr(one.says));
      EXPECT_THAT(error.text(), HasSubstr("ring 0"));
      EXPECT_EQ(error.where().sequence, index - 1);
      EXPECT_EQ(error.where().peer, command.rank);
      // What follows it is not sent: its data might have been the signal's.
      Command signal;
      signal.operation = Operation::signal;
      signal.rank = 1;
      signal.has_signal = true;
      signal.signal_value = 1;
      signal.signal_index = 3;
      post_raw(node.kernel, signal, index++);
      EXPECT_EQ(node.kernel.on_ring(0).quiet(), device::Status::error);
      EXPECT_EQ(node.kernel.on_ring(1).wait_signal(0, device::Comparison::equal, 77), device::Status::error);
      while (node.proxy.commands() < index) std::this_thread::yield();
      node.proxy.resume();
      must(node.proxy.status());
      EXPECT_EQ(node.kernel.on_ring(0).quiet(), device::Status::ok);
    }
    EXPECT_TRUE(node.kernel.on_ring(0).signal(1, {7}).ok());
    EXPECT_EQ(node.kernel.on_ring(0).quiet(), device::Status::ok);
    must(node.window.signal(1, {8}));
    must(node.window.quiet());
  });
}

TEST(DeviceFailure, NothingThatFollowsAnErrorIsSent) {
  run_proxied(2, 4096, patient({.rings = 2}), [](Node& node) {
    if (node.world.rank() == 0) {
      const device::Window kernel = node.kernel.on_ring(1);
      EXPECT_TRUE(kernel.put(1, 5000, &node, 100).ok()) << "the proxy finds out";
      EXPECT_TRUE(kernel.signal(1, {0}).ok());
      EXPECT_EQ(kernel.quiet(), device::Status::error);
      const Error error = std::move(node.proxy.status().error());
      EXPECT_EQ(error.status(), Status::out_of_range);
      EXPECT_STREQ(error.where().operation, "put");
      EXPECT_EQ(error.where().peer, 1);
      node.proxy.resume();
      EXPECT_TRUE(kernel.signal(1, {1}).ok());
      EXPECT_EQ(kernel.quiet(), device::Status::ok);
    } else {
      EXPECT_EQ(node.kernel.wait_signal(1, device::Comparison::equal, 1), device::Status::ok);
      EXPECT_EQ(node.kernel.read_signal(0), 0U);
    }
  });
}

/// Also what the proxy had not yet looked at when it was told to go on.
TEST(DeviceFailure, WhatWasPostedBeforeResumeIsDropped) {
  run_proxied(2, 4096, patient({.rings = 2}), [](Node& node) {
    if (node.world.rank() == 0) {
      const device::Window kernel = node.kernel.on_ring(1);
      EXPECT_TRUE(kernel.put(1, 5000, &node, 100).ok());
      EXPECT_EQ(await_error(node.proxy).status(), Status::out_of_range);
      node.proxy.state().wedge(true);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // a pass that has begun ends
      EXPECT_TRUE(kernel.signal(1, {0}).ok());
      node.proxy.resume();
      node.proxy.state().wedge(false);
      EXPECT_TRUE(kernel.signal(1, {1}).ok());
      EXPECT_EQ(kernel.quiet(), device::Status::ok);
    } else {
      EXPECT_EQ(node.kernel.wait_signal(1, device::Comparison::equal, 1), device::Status::ok);
      EXPECT_EQ(node.kernel.read_signal(0), 0U);
    }
  });
}

/// Every kind of wait, against a proxy that does nothing: each ends with its budget.
TEST(DeviceFailure, EveryWaitEndsThoughTheProxyIsWedged) {
  run_proxied(2, 1 << 20, patient({.rings = 2, .depth = 64, .barriers = 1, .barrier_signal = 8}), [](Node& node) {
    if (node.world.rank() != 0) return;
    node.proxy.state().wedge(true);
    const device::Window brief = node.kernel.with_budget(kBriefBudget).on_ring(0);
    std::vector<std::byte> source(1000);
    std::uint64_t posted = 0;
    // The ring fills; the one that finds no room leaves no hole.
    for (;; ++posted) {
      const device::Ticket ticket = brief.put(1, 0, source.data(), source.size());
      if (ticket.ok()) continue;
      EXPECT_EQ(ticket.status(), device::Status::timeout);
      EXPECT_EQ(brief.wait(ticket), device::Status::timeout) << "its own status";
      break;
    }
    EXPECT_GE(posted, 64U);
    EXPECT_LE(posted, 64U + 16U) << "a batch may have gone before the wedge";
    EXPECT_EQ(brief.quiet(), device::Status::timeout);
    EXPECT_EQ(brief.wait(device::Ticket::of(0, posted - 1)), device::Status::timeout);
    EXPECT_EQ(brief.wait_signal(0, device::Comparison::equal, 1), device::Status::timeout);
    EXPECT_EQ(brief.wait_counter(0, 1), device::Status::timeout);
    EXPECT_EQ(brief.barrier(), device::Status::timeout);
    EXPECT_EQ(brief.fence(), device::Status::timeout);
    // And goes on where it was.
    node.proxy.state().wedge(false);
    EXPECT_EQ(node.kernel.on_ring(0).quiet(), device::Status::ok);
    EXPECT_EQ(node.proxy.commands(), posted);
    node.proxy.resume();
  });
}

TEST(DeviceFailure, ABarrierGoesOnAfterATimeOut) {
  run_proxied(2, 4096, patient({.barriers = 1, .barrier_signal = 8}), [](Node& node) {
    for (int round = 0; round < 5; ++round) {
      if (node.world.rank() == 0) {
        EXPECT_EQ(node.kernel.with_budget(kBriefBudget / 10).barrier(), device::Status::timeout);
        EXPECT_EQ(node.kernel.with_budget(kBriefBudget / 10).barrier(), device::Status::timeout);
        must(node.window.signal(1, {0}));
      } else {
        must(node.window.wait_signal(0, Comparison::greater_equal, static_cast<std::uint64_t>(round) + 1));
      }
      ASSERT_EQ(node.kernel.barrier(), device::Status::ok) << round;
    }
    node.proxy.resume();
  });
}

TEST(DeviceFailure, CloseCompletesWhatWasPosted) {
  run_proxied(2, 1 << 20, patient({.rings = 4}), [](Node& node) {
    if (node.world.rank() == 0) {
      const auto sent = device_pattern(1000, 4);
      for (std::uint32_t post = 0; post < 200; ++post) {
        const device::Window kernel = node.kernel.on_ring(post);
        EXPECT_TRUE(kernel.put_signal(1, post * 1000, sent.data(), sent.size(), {0}).ok());
      }
      must(node.proxy.close());
      must(node.proxy.close());
      EXPECT_EQ(node.proxy.commands(), 200U);
      EXPECT_EQ(node.kernel.with_budget(kBriefBudget).wait_signal(9, device::Comparison::equal, 1),
                device::Status::error)
          << "nobody is there any more";
    } else {
      must(node.window.wait_signal(0, Comparison::equal, 200));
      const auto sent = device_pattern(1000, 4);
      for (std::size_t post = 0; post < 200; ++post) EXPECT_TRUE(device_holds(node.window, post * 1000, sent));
    }
  });
}

TEST(DeviceFailure, AProxyMayEndWithCommandsOutstanding) {
  run_proxied(2, 1 << 20, patient({.rings = 4}), [](Node& node) {
    if (node.world.rank() != 0) return;
    std::vector<std::byte> source(100'000);
    {
      auto brief = must(DeviceProxy::open(node.window, {.rings = 4, .threads = 2}));
      for (std::uint32_t post = 0; post < 100; ++post) {
        EXPECT_TRUE(brief.handle().on_ring(post).put(1, 0, source.data(), post % 2 == 0 ? 8 : source.size()).ok());
      }
    }
    must(node.window.quiet());
  });
}

TEST(DeviceFailure, OptionsThatMakeNoSenseAreRefused) {
  run_proxied(2, 4096, patient(), [](Node& node) {
    const auto refused = [&](const DeviceOptions& options, const char* says) {
      auto opened = DeviceProxy::open(node.window, options);
      ASSERT_FALSE(opened);
      EXPECT_THAT(opened.error().text(), HasSubstr(says));
    };
    refused({.rings = 3}, "3 rings");
    refused({.rings = 8192}, "8192 rings");
    refused({.depth = 32}, "depth of 32");
    refused({.rings = 2, .threads = 3}, "3 threads");
    refused({.barriers = 2, .barrier_signal = 63}, "2 barriers");
    if (accelerator::driver() == nullptr) refused({.device = 0}, "no GPU");
  });
}

Settings impatient_settings(int /*rank*/) {
  Settings settings = loopback_settings(1);
  settings.peer_timeout_ms = 500;
  return settings;
}

/// A kernel that names the rank it waits for learns that it is gone, long before its budget is spent.
TEST(DeviceFailure, AWaitForARankThatDiesEnds) {
  run_processes(2, impatient_settings,
                [](World& world, ProcessRendezvous& rendezvous) {
                  auto window = must(Window::allocate(world, 4096));
                  auto proxy = must(DeviceProxy::open(window, patient({.barriers = 1, .barrier_signal = 8})));
                  const device::Window kernel = proxy.handle();
                  if (world.rank() == 1) {
                    EXPECT_TRUE(kernel.signal(0, {0}).ok());
                    while (rendezvous.notes[0] == 0) std::this_thread::yield();
                    ::raise(SIGKILL);
                  }
                  EXPECT_EQ(kernel.wait_signal(0, device::Comparison::equal, 1), device::Status::ok);
                  EXPECT_TRUE(kernel.signal(1, {0}).ok());
                  EXPECT_EQ(kernel.quiet(), device::Status::ok);
                  rendezvous.notes[0] = 1;
                  EXPECT_EQ(kernel.wait_signal(1, device::Comparison::equal, 1, 1), device::Status::peer_lost);
                  const Error error = std::move(proxy.status().error());
                  EXPECT_EQ(error.status(), Status::peer_lost);
                  EXPECT_EQ(error.where().peer, 1);
                  EXPECT_EQ(kernel.barrier(), device::Status::peer_lost);
                  // To post to it is an error of the proxy's.
                  EXPECT_TRUE(kernel.put_value(1, 0, 1).ok());
                  EXPECT_EQ(kernel.quiet(), device::Status::error);
                  EXPECT_EQ(proxy.status().status(), Status::peer_lost);
                  EXPECT_STREQ(proxy.status().error().where().operation, "put_value");
                },
                {1});
}

/// Nothing was ever sent between the two: the proxy asks on the kernel's behalf.
TEST(DeviceFailure, AWaitForARankThatWasNeverHeardOfEnds) {
  run_processes(2, impatient_settings,
                [](World& world, ProcessRendezvous& rendezvous) {
                  auto window = must(Window::allocate(world, 4096));
                  auto proxy = must(DeviceProxy::open(window, patient()));
                  if (world.rank() == 1) {
                    while (rendezvous.notes[0] == 0) std::this_thread::yield();
                    ::raise(SIGKILL);
                  }
                  rendezvous.notes[0] = 1;
                  EXPECT_EQ(proxy.handle().wait_signal(1, device::Comparison::equal, 1, 1), device::Status::peer_lost);
                },
                {1});
}

#if !defined(RAILYARD_SANITIZED)
TEST(DeviceIdle, AnIdleProxySleeps) {
  run_processes(
      1, [](int) { return loopback_settings(1); },
      [](World& world, ProcessRendezvous&) {
        auto window = must(Window::allocate(world, 4096));
        auto proxy = must(DeviceProxy::open(window));
        EXPECT_TRUE(proxy.handle().signal(0, {0}).ok());
        std::this_thread::sleep_for(milliseconds(100));
        const CpuTime cpu;
        std::this_thread::sleep_for(seconds(3));
        EXPECT_LT(cpu.share(), 0.01);
        RecordProperty("share", std::to_string(cpu.share()));
      });
}
#endif

}  // namespace
}  // namespace railyard
