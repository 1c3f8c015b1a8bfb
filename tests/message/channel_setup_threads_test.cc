// A set-up in the hands of several threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <mutex>
#include <thread>

#include "message/channel_setup_bed.hpp"

namespace railyard::message {
namespace {

/// Notices when it is called by two at a time.
class WatchfulHost : public Host {
 public:
  Result<std::vector<std::byte>> on_hello(std::uint64_t, std::span<const std::byte> hello) override {
    const Inside inside(*this);
    std::this_thread::yield();
    return std::vector<std::byte>(hello.begin(), hello.end());
  }
  void on_ready(std::uint64_t, std::span<const std::byte>) override {
    const Inside inside(*this);
    ++ready;
  }
  void on_gone(std::uint64_t) override {
    const Inside inside(*this);
    ++gone;
  }

  std::atomic<int> ready{0};
  std::atomic<int> gone{0};
  std::atomic<bool> overlapped{false};
  std::atomic<bool> closed{false};
  std::atomic<bool> called_after_close{false};

 private:
  struct Inside {
    explicit Inside(WatchfulHost& owner) : host(owner) {
      if (host.inside_.fetch_add(1) != 0) host.overlapped = true;
      if (host.closed) host.called_after_close = true;
    }
    ~Inside() { host.inside_.fetch_sub(1); }
    WatchfulHost& host;
  };
  std::atomic<int> inside_{0};
};

std::string wait_for_welcome(ChannelSetup& setup, Handle& handle) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < until) {
    auto welcome = setup.welcome(handle);
    if (!welcome) return "error: " + welcome.error().text();
    if (*welcome) return text_of(**welcome);
    std::this_thread::yield();
  }
  return "nothing";
}

TEST_F(ChannelSetupTest, FourThreadsConnectWhileOneProgresses) {
  constexpr int kEach = 50;
  WatchfulHost watchful;
  const Handle issued = listener->open_listener(watchful).value();
  std::atomic<bool> stop{false};
  std::jthread progress([&] {
    while (!stop) {
      listener->progress();
      connector->progress();
    }
  });
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < kEach; ++i) {
          Handle handle = issued;
          const std::string hello = fmt::format("{} {}", thread, i);
          EXPECT_TRUE(connector->begin(handle, bytes_of(hello)));
          if (i % 10 == 9) {
            connector->abandon(handle);
            continue;
          }
          EXPECT_EQ(wait_for_welcome(*connector, handle), hello);
          EXPECT_TRUE(connector->finish(handle, bytes_of(hello)));
        }
      });
    }
  }
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (watchful.ready < 4 * kEach * 9 / 10 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  stop = true;
  progress.join();
  EXPECT_EQ(watchful.ready, 4 * kEach * 9 / 10);
  EXPECT_FALSE(watchful.overlapped);
}

TEST_F(ChannelSetupTest, HostsAreCalledOneAtATimeHoweverManyThreadsProgress) {
  WatchfulHost watchful;
  const Handle issued = listener->open_listener(watchful).value();
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&] {
        std::vector<Handle> handles(25, issued);
        for (Handle& handle : handles) EXPECT_TRUE(connector->begin(handle, bytes_of("hello")));
        for (Handle& handle : handles) {
          std::optional<std::vector<std::byte>> setup_message;
          const auto until = std::chrono::steady_clock::now() + kPatience;
          while (!setup_message && std::chrono::steady_clock::now() < until) {
            listener->progress();
            connector->progress();
            setup_message = connector->welcome(handle).value();
          }
          EXPECT_TRUE(connector->finish(handle, {}));
        }
      });
    }
  }
  EXPECT_TRUE(drive([&] { return watchful.ready == 100; }));
  EXPECT_FALSE(watchful.overlapped);
}

TEST_F(ChannelSetupTest, ListenersOpenAndCloseWhileFourThreadsProgressAndConnect) {
  std::atomic<bool> stop{false};
  std::vector<std::jthread> progress;
  for (int thread = 0; thread < 2; ++thread) {
    progress.emplace_back([&] {
      while (!stop) {
        listener->progress();
        connector->progress();
        std::this_thread::yield();
      }
    });
  }
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 2; ++thread) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) {
          WatchfulHost watchful;
          const Handle own_handle = listener->open_listener(watchful).value();
          std::vector<Handle> handles(3, own_handle);
          for (Handle& handle : handles) EXPECT_TRUE(connector->begin(handle, bytes_of("hello")));
          if (i % 2 == 0) {
            EXPECT_EQ(wait_for_welcome(*connector, handles[0]), "hello");
          }
          listener->close_listener(own_handle);
          watchful.closed = true;
          for (Handle& handle : handles) connector->abandon(handle);
          EXPECT_FALSE(watchful.called_after_close);
        }  // the host ends: a later call would be seen by a sanitizer
      });
    }
  }
  stop = true;
}

/// Stays in its first call until it is let go.
class SlowHost : public Host {
 public:
  Result<std::vector<std::byte>> on_hello(std::uint64_t, std::span<const std::byte>) override {
    inside.count_down();
    leave.wait();
    left = true;
    return std::vector<std::byte>();
  }
  void on_ready(std::uint64_t, std::span<const std::byte>) override {}
  void on_gone(std::uint64_t) override {}

  std::latch inside{1};
  std::latch leave{1};
  std::atomic<bool> left{false};
};

TEST_F(ChannelSetupTest, CloseListenerReturnsOnlyWhenNoCallOfThatHostIsRunning) {
  SlowHost slow;
  Handle handle = listener->open_listener(slow).value();
  ASSERT_TRUE(connector->begin(handle, {}));
  std::atomic<bool> stop{false};
  std::jthread progress([&] {
    while (!stop) {
      listener->progress();
      connector->progress();
    }
  });
  slow.inside.wait();
  // Of another host's listener it does not wait.
  const Handle other = listener->open_listener(host).value();
  listener->close_listener(other);
  std::jthread letting_go([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    slow.leave.count_down();
  });
  listener->close_listener(handle);
  EXPECT_TRUE(slow.left);
  stop = true;
}

TEST_F(ChannelSetupTest, OthersMeetWhileAHostTakesItsTime) {
  SlowHost slow;
  Handle handle = listener->open_listener(slow).value();
  ASSERT_TRUE(connector->begin(handle, {}));
  std::jthread calling([&] {
    while (!slow.left) {
      connector->progress();
      listener->progress();
    }
  });
  slow.inside.wait();
  // Calls wait for their turn, but bytes move and callers are served.
  Handle back = connector->open_listener(host).value();
  EXPECT_EQ(meet(*listener, back, "meanwhile"), "welcome meanwhile");
  slow.leave.count_down();
}

}  // namespace
}  // namespace railyard::message
