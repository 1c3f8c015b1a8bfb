/// Many links in one process: what they cost while nothing happens.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>

#include "fabric/tcp_bed.hpp"
#include "sanitized.hpp"

namespace railyard::fabric {
namespace {

constexpr std::uint32_t kLinks = 1024;
constexpr std::size_t kMostBytes = std::size_t{64} << 10U;  ///< of one idle link, at one end

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Pages that the kernel holds for bytes in TCP sockets of this network namespace's machine.
std::uint64_t kernel_buffer_bytes() {
  std::ifstream file("/proc/net/sockstat");
  for (std::string word; file >> word;)
    if (word == "mem") {
      std::uint64_t pages = 0;
      file >> pages;
      return pages * 4096;
    }
  return 0;
}

std::size_t heap_bytes() { return ::mallinfo2().uordblks + ::mallinfo2().hblkhd; }

/// Links from a rail to another of this process: each has both of its ends here.
class ManyLinks : public ::testing::Test {
 protected:
  void SetUp() override {
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlim_t needed = 2 * kLinks + 256;
    if (limit.rlim_max < needed) GTEST_SKIP() << "so many descriptors are not allowed here";
    limit.rlim_cur = std::max(limit.rlim_cur, needed);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    auto bed = TcpBed::open({});
    ASSERT_TRUE(bed) << bed.error().message();
    bed_ = std::move(*bed);
  }
  /// All at the same moment; one that is lost, as on a machine that has no time for it, is tried again.
  void connect_all() {
    std::vector<RemoteId> attempts;
    std::uint32_t begun = 0;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(5);
    while (remotes_.size() < kLinks) {
      ASSERT_LT(std::chrono::steady_clock::now(), give_up) << remotes_.size();
      while (begun - lost_ < kLinks) {
        const auto remote = bed_.from->connect(bed_.to->address(), {++begun, 1, 0});
        ASSERT_TRUE(remote);
        attempts.push_back(*remote);
      }
      std::array<Event, 16> events;
      bed_.to->poll(events);
      for (std::size_t i = 0, count = bed_.from->poll(events); i < count; ++i) {
        if (events[i].kind != Event::Kind::lost) continue;
        bed_.from->disconnect(events[i].remote);
        lost_ += static_cast<std::uint32_t>(std::erase(attempts, events[i].remote));
      }
      // A link that stands can say how it gets on.
      std::erase_if(attempts, [&](RemoteId remote) {
        if (!bed_.from->delivery(remote)) return false;
        remotes_.push_back(remote);
        return true;
      });
    }
  }

  TcpBed bed_;
  std::vector<RemoteId> remotes_;
  std::uint32_t lost_ = 0;
};

TEST_F(ManyLinks, AThousandIdleLinksCostLittle) {
  const std::size_t heap_before = heap_bytes();
  const std::uint64_t kernel_before = kernel_buffer_bytes();
  const auto began = std::chrono::steady_clock::now();
  ASSERT_NO_FATAL_FAILURE(connect_all());
  const double connecting = seconds_since(began);
  for (const RemoteId remote : remotes_) {
    bed_.link = remote;
    ASSERT_TRUE(bed_.send(1000));
  }
  for (int i = 0; i < 20'000; ++i) bed_.poll();  // until none is looked at on the off-chance

  const std::size_t heap = (heap_bytes() - std::min(heap_bytes(), heap_before)) / (2 * kLinks);
  const std::uint64_t kernel_now = kernel_buffer_bytes();
  const std::uint64_t kernel = (kernel_now - std::min(kernel_now, kernel_before)) / (2 * kLinks);
  constexpr int kPasses = 200'000;
  std::array<Event, 16> events;
  std::array<double, 5> passes{};
  for (double& pass : passes) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kPasses; ++i) bed_.from->poll(events);
    pass = seconds_since(begin) / kPasses;
  }
  std::ranges::sort(passes);
  std::printf(
      "%u links: connected in %.0f ms; idle, each end: %zu bytes of heap, %llu of kernel buffers; an idle pass: "
      "%.0f ns\n",
      kLinks, connecting * 1e3, heap, static_cast<unsigned long long>(kernel), passes[0] * 1e9);
#ifndef RAILYARD_SANITIZED
  EXPECT_LE(heap, kMostBytes / 4);
  EXPECT_LE(heap + kernel, kMostBytes);
#endif
}

/// An idle pass does not grow with the number of links: only epoll knows of them.
TEST_F(ManyLinks, AnIdlePassCostsTheSameWithOneLinkAndAThousand) {
#ifdef RAILYARD_SANITIZED
  GTEST_SKIP() << "times under sanitizers say nothing";
#endif
  auto one = TcpBed::open({});
  ASSERT_TRUE(one);
  ASSERT_TRUE(one->connect_and_send({1, 1, 0}, 100));
  ASSERT_NO_FATAL_FAILURE(connect_all());
  for (int i = 0; i < 20'000; ++i) {
    bed_.poll();
    one->poll();
  }
  std::array<Event, 16> events;
  const auto time_of = [&](Rail& rail) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 50'000; ++i) rail.poll(events);
    return seconds_since(begin);
  };
  std::array<double, 9> ratios{};
  for (double& ratio : ratios) {
    const double few = time_of(*one->from);
    ratio = time_of(*bed_.from) / few;
  }
  std::ranges::sort(ratios);
  EXPECT_LT(ratios[2], 4.0);
}

}  // namespace
}  // namespace railyard::fabric
