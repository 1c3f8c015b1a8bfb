/// Who knows where a connected libfabric rail listens but not its secret, or repeats what was heard on the wire, gets
/// no endpoint, and does not disturb those who have one.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fd.hpp"
#include "fabric/ofi/admission.hpp"
#include "fabric/two_rails.hpp"

namespace railyard::fabric {
namespace {

using Bytes = std::vector<std::byte>;

std::size_t descriptors_open() {
  const std::filesystem::directory_iterator list("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(list), end(list)));
}

const sockaddr* generic(const sockaddr_in& address) { return reinterpret_cast<const sockaddr*>(&address); }

Fd connect_to(const sockaddr_in& there) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(socket.get(), generic(there), sizeof there) == 0 ? std::move(socket) : Fd();
}

/// Somebody on the way: hands on what both sides say, and keeps the request with which each connection begins.
class Listener {
 public:
  Listener() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address_;
    EXPECT_EQ(::bind(listener_.get(), generic(address_), bytes), 0);
    EXPECT_EQ(::listen(listener_.get(), 16), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address_), &bytes), 0);
  }
  ~Listener() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const sockaddr_in& address() const { return address_; }
  Fd accept() const { return Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)); }

  void hand_on_to(const sockaddr_in& target) {
    thread_ = std::thread([this, target] {
      while (!over_) step(target);
    });
  }
  std::vector<Bytes> requests() {
    const std::lock_guard lock(mutex_);
    std::vector<Bytes> all;
    for (const Pair& pair : pairs_) all.push_back(pair.request);
    return all;
  }

 private:
  struct Pair {
    Fd from;
    Fd to;
    Bytes request;
    bool answered = false;
  };

  void step(const sockaddr_in& target) {
    std::vector<pollfd> sockets{{listener_.get(), POLLIN, 0}};
    for (const Pair& pair : pairs_)
      for (const Fd* const end : {&pair.from, &pair.to}) sockets.push_back({end->get(), POLLIN, 0});
    ::poll(sockets.data(), sockets.size(), 10);
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 1; i < sockets.size(); ++i)
      if (sockets[i].revents != 0) hand_on(pairs_[(i - 1) / 2], i % 2 == 1);
    if (Fd client = accept()) pairs_.push_back({std::move(client), connect_to(target), {}, false});
  }
  static void hand_on(Pair& pair, bool forth) {
    std::array<std::byte, 4096> room{};
    const ssize_t got = ::recv((forth ? pair.from : pair.to).get(), room.data(), room.size(), MSG_DONTWAIT);
    if (got <= 0) {
      pair.from.reset();
      pair.to.reset();
      return;
    }
    pair.answered |= !forth;
    if (!pair.answered) pair.request.insert(pair.request.end(), room.begin(), room.begin() + got);
    (void)::send((forth ? pair.to : pair.from).get(), room.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL);
  }

  Fd listener_;
  sockaddr_in address_{};
  std::atomic<bool> over_ = false;  ///< tells the thread; carries nothing else
  std::thread thread_;
  std::mutex mutex_;  ///< guards the pairs
  std::vector<Pair> pairs_;
};

class OfiAdmission : public TwoRails {
 protected:
  static constexpr LinkTag kTag{42, 5};
  static constexpr std::size_t kMacBytes = 16;  ///< at the end of a request, behind its number

  ofi::OfiRailAddress address_of(const Side& side) const {
    const ofi::OfiRailAddress kind{side.rail->capabilities().provider, FI_SOCKADDR_IN, {Bytes(sizeof(sockaddr_in))}};
    return *ofi::OfiRailAddress::parse(side.rail->address(), kind, "test");
  }
  sockaddr_in where_is(const Side& side) const {
    sockaddr_in there{};
    std::memcpy(&there, address_of(side).names[0].data(), sizeof there);
    return there;
  }
  /// The rail as it would be reached at another place.
  Bytes moved(const Side& side, const sockaddr_in& there) const {
    ofi::OfiRailAddress address = address_of(side);
    std::memcpy(address.names[0].data(), &there, sizeof there);
    return address.pack();
  }
  void poll_for(int polls) {
    pump_until([=]() mutable { return polls-- == 0; });
  }
  /// What the rail `a_` sends to have the control lane of a link to `b_`, which never hears of it.
  Bytes unheard_request() {
    const Listener listener;
    auto remote = a_.rail->connect(moved(b_, listener.address()), kTag);
    EXPECT_TRUE(remote.ok());
    Fd socket;
    EXPECT_TRUE(pump_until([&] { return static_cast<bool>(socket = listener.accept()); }));
    Bytes request(1024);
    ssize_t got = 0;
    EXPECT_TRUE(pump_until([&] { return (got = ::recv(socket.get(), request.data(), request.size(), 0)) > 0; }));
    request.resize(static_cast<std::size_t>(got));
    EXPECT_GT(request.size(), ofi::LinkRequest::kBytes);
    a_.rail->disconnect(*remote);
    return request;
  }
  /// Without the secret, but with a number that has not been here.
  static Bytes forged(Bytes request, int number) {
    request[request.size() - kMacBytes - 1] = static_cast<std::byte>(number);
    return request;
  }
  Fd say(const Bytes& request) const {
    Fd socket = connect_to(where_is(b_));
    EXPECT_TRUE(static_cast<bool>(socket));
    EXPECT_EQ(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    return socket;
  }
  /// Whether `b_` has closed the connection: it does so with every request that it refuses.
  bool turned_away(const Fd& socket) {
    std::array<std::byte, 1024> room{};
    bool closed = false;
    pump_until([&, patience = 5000]() mutable {
      ssize_t got = 0;
      while ((got = ::recv(socket.get(), room.data(), room.size(), MSG_DONTWAIT)) > 0) {
      }
      closed = got == 0 || errno != EAGAIN;
      return closed || patience-- == 0;
    });
    return closed;
  }
  bool turned_away(const Bytes& request) { return turned_away(say(request)); }
};
INSTANTIATE_TEST_SUITE_P(Beds, OfiAdmission, ::testing::Values(Bed{"tcp_connected", "tcp", "lo", "connected"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(OfiAdmission, AWrongSecretIsRejected) {
  ofi::OfiRailAddress address = address_of(b_);
  address.secret[3] ^= std::byte{1};
  auto remote = a_.rail->connect(address.pack(), kTag);
  ASSERT_TRUE(remote.ok());
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1; }));
  EXPECT_EQ(find(a_, Event::Kind::lost)->remote, *remote);
  EXPECT_TRUE(find(a_, Event::Kind::lost)->unverified) << "whoever refused may be another than the peer";
  EXPECT_FALSE(find(a_, Event::Kind::lost)->unwanted);
  EXPECT_TRUE(delivers());
  EXPECT_EQ(seen(b_, Event::Kind::left), 0u);
}

TEST_P(OfiAdmission, TheJobsKeyIsPartOfTheSecret) {
  Settings settings = settings_for(GetParam(), 1);
  settings.job_key = "another job";
  auto rails = open_rails(settings);
  ASSERT_TRUE(rails.ok());
  Rail& other = *rails->front();
  ASSERT_TRUE(other.connect(b_.rail->address(), kTag).ok());
  std::vector<std::pair<Rail*, Event>> log;
  EXPECT_TRUE(pump({&other, b_.rail.get()}, log, [&] {
    return std::ranges::any_of(log, [](const auto& one) { return one.second.kind == Event::Kind::lost; });
  }));
}

TEST_P(OfiAdmission, AnAddressOfAnOlderReleaseIsRefused) {
  Bytes older = b_.rail->address();
  older[4] = std::byte{1};
  EXPECT_EQ(a_.rail->connect(older, kTag).status(), Status::version_mismatch);
}

TEST_P(OfiAdmission, EveryByteOfARequestIsProven) {
  ASSERT_TRUE(delivers());
  const Bytes request = unheard_request();
  const std::size_t before = descriptors_open();
  for (std::size_t i = request.size() - ofi::LinkRequest::kBytes; i < request.size(); ++i) {
    Bytes changed = request;
    changed[i] ^= std::byte{0x10};
    EXPECT_TRUE(turned_away(changed)) << "byte " << i;
  }
  EXPECT_LE(descriptors_open(), before);
  const Fd admitted = say(request);
  EXPECT_FALSE(turned_away(admitted)) << "the request was not good to begin with";
  EXPECT_TRUE(delivers());
}

TEST_P(OfiAdmission, ARecordedRequestIsOfNoUse) {
  Listener listener;
  listener.hand_on_to(where_is(b_));
  a_.rail->disconnect(a_.peer);
  auto remote = a_.rail->connect(moved(b_, listener.address()), kTag);
  ASSERT_TRUE(remote.ok());
  a_.peer = *remote;
  ASSERT_TRUE(delivers());
  const std::vector<Bytes> lanes = listener.requests();
  ASSERT_EQ(lanes.size(), kLanes);
  log_.clear();

  // The link stands: none takes its place, and both lanes go on.
  for (const Bytes& request : lanes) EXPECT_TRUE(turned_away(request)) << "replayed while the link stands";
  EXPECT_TRUE(delivers());
  PostContext written;
  ASSERT_EQ(insist([&] {
              return a_.rail->write({a_.peer, b_.at(0), b_.registration.key}, a_.chunk(0, 64, kData), {}, &written);
            }),
            Post::posted);
  EXPECT_TRUE(pump_until([&] { return told(a_, &written) == 1; }));
  EXPECT_EQ(seen(a_, Event::Kind::lost), 0u);
  EXPECT_EQ(seen(b_, Event::Kind::left), 0u);

  a_.rail->disconnect(a_.peer);
  ASSERT_TRUE(pump_until([&] { return seen(b_, Event::Kind::left) == 1; }));
  for (const Bytes& request : lanes) EXPECT_TRUE(turned_away(request)) << "replayed when the link has left";
  b_.rail->forget(kTag.id);
  for (const Bytes& request : lanes) EXPECT_TRUE(turned_away(request)) << "replayed when the link is forgotten";
  EXPECT_EQ(seen(b_, Event::Kind::left), 1u);
}

TEST_P(OfiAdmission, AFloodOfForgedRequestsKeepsNobodyOut) {
  ASSERT_TRUE(delivers());
  const Bytes request = unheard_request();
  poll_for(1000);
  const std::size_t before = descriptors_open();
  std::vector<Fd> flood;
  for (int i = 0; i < 100; ++i) flood.push_back(say(forged(request, 50 + i)));
  auto genuine = a_.rail->connect(b_.rail->address(), kTag);
  ASSERT_TRUE(genuine.ok());
  for (int i = 100; i < 200; ++i) flood.push_back(say(forged(request, 50 + i)));
  EXPECT_TRUE(delivers()) << "the link that stood";
  std::swap(a_.peer, *genuine);
  EXPECT_TRUE(delivers()) << "the link that came in the midst of it";
  for (const Fd& one : flood) EXPECT_TRUE(turned_away(one));
  flood.clear();
  EXPECT_EQ(seen(a_, Event::Kind::lost), 0u);
  EXPECT_EQ(seen(b_, Event::Kind::left), 0u);
  std::swap(a_.peer, *genuine);
  a_.rail->disconnect(*genuine);
  ASSERT_TRUE(pump_until([&] { return seen(b_, Event::Kind::left) == 1; }));
  EXPECT_TRUE(pump_until([&, patience = 5000]() mutable { return descriptors_open() <= before || patience-- == 0; }));
  EXPECT_LE(descriptors_open(), before);
}

TEST(OfiReplayWindow, TakesEachNumberOnceInAnyOrder) {
  ofi::ReplayWindow window;
  for (const std::uint32_t number : {5U, 3U, 4U, 1U, 2U, 900U}) {
    EXPECT_TRUE(window.take(number)) << number;
    EXPECT_FALSE(window.take(number)) << number;
  }
  EXPECT_TRUE(window.take(6));
  for (const std::uint32_t number : {1U, 5U, 6U, 900U}) EXPECT_FALSE(window.take(number)) << number;
}

TEST(OfiReplayWindow, WhatIsTooOldCountsAsSeen) {
  constexpr std::uint32_t kNumbers = ofi::ReplayWindow::kNumbers;
  ofi::ReplayWindow window;
  EXPECT_TRUE(window.take(10));
  EXPECT_TRUE(window.take(10 + kNumbers - 1));
  EXPECT_FALSE(window.take(10)) << "the oldest that is remembered";
  EXPECT_TRUE(window.take(10 + kNumbers));
  EXPECT_FALSE(window.take(10));
  EXPECT_TRUE(window.take(11));
  EXPECT_TRUE(window.take(UINT32_MAX)) << "far ahead";
  EXPECT_FALSE(window.take(10 + kNumbers));
  EXPECT_TRUE(window.take(UINT32_MAX - kNumbers + 1));
  EXPECT_FALSE(window.take(UINT32_MAX - kNumbers));
}

}  // namespace
}  // namespace railyard::fabric
