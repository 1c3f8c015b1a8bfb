/// What the tests of the set-up of channels share: a host that keeps what it hears, a clock that can jump, a plain
/// socket to misbehave with, a relay that can change what passes.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "message/channel_setup.hpp"
#include "message/handle.hpp"

namespace railyard::message {

/// Long enough for a busy machine under a sanitizer; a test that passes never waits for it.
inline constexpr auto kPatience = std::chrono::seconds(60);

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}
inline std::string text_of(std::span<const std::byte> bytes) {
  return bytes.empty() ? "" : std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// Real time, and as much more as a test wants to have passed.
class JumpClock final : public Clock {
 public:
  std::int64_t now() const override { return steady_.now() + ahead_.load(); }
  void idle() override { steady_.idle(); }
  void jump(std::chrono::nanoseconds ahead) { ahead_ += ahead.count(); }

 private:
  SteadyClock steady_;
  std::atomic<std::int64_t> ahead_{0};
};

/// Welcomes everybody with "welcome " and what they said, unless told otherwise.
class KeepingHost : public Host {
 public:
  Result<std::vector<std::byte>> on_hello(std::uint64_t handshake, std::span<const std::byte> hello) override {
    hellos[handshake] = text_of(hello);
    if (answer) return answer(handshake);
    return bytes_of("welcome " + text_of(hello));
  }
  void on_ready(std::uint64_t handshake, std::span<const std::byte> setup_message) override {
    ready[handshake] = text_of(setup_message);
  }
  void on_gone(std::uint64_t handshake) override { gone.push_back(handshake); }

  std::function<Result<std::vector<std::byte>>(std::uint64_t)> answer;
  std::map<std::uint64_t, std::string> hellos;
  std::map<std::uint64_t, std::string> ready;
  std::vector<std::uint64_t> gone;
};

inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator list("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(list), end(list)));
}

/// The system takes little at a time from any socket of this process: what is sent goes out in chunks.
inline void squeeze_sockets() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int socket = std::stoi(entry.path().filename());
    const int bytes = 4096;
    (void)setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));  // says no where it is no socket
  }
}

/// Two set-up objects, as of two processes, and a host behind a listener of the first.
class ChannelSetupTest : public testing::Test {
 protected:
  ChannelSetupTest() {
    set_log_level(LogLevel::warn);  // whatever other tests of this program want
    set_log_sink([this](LogLevel, std::string_view line) { log += std::string(line) + "\n"; });
    settings.bootstrap_timeout_ms = 60'000;
    settings.interfaces = "lo";  // one address: each thing happens once
    listener = open();
    connector = open();
  }
  ~ChannelSetupTest() override { set_log_sink({}); }

  std::unique_ptr<ChannelSetup> open() {
    auto setup = ChannelSetup::open(settings, clock);
    EXPECT_TRUE(setup) << (setup ? "" : setup.error().text());
    return setup ? std::move(*setup) : nullptr;
  }
  Handle open_listener() {
    auto handle = listener->open_listener(host);
    EXPECT_TRUE(handle) << (handle ? "" : handle.error().text());
    return handle ? *handle : Handle{};
  }

  /// Everybody moves on until `done`; false: it took too long.
  bool drive(const std::function<bool()>& done) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (!done()) {
      if (listener) listener->progress();
      if (connector) connector->progress();
      for (const auto& step : steps) step();
      if (std::chrono::steady_clock::now() > until) return false;
    }
    return true;
  }
  /// Everybody moves on until nothing has happened for a while.
  void drive_to_rest() {
    auto last = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - last < std::chrono::milliseconds(30)) {
      bool moved = listener && listener->progress();
      moved = (connector && connector->progress()) || moved;
      for (const auto& step : steps) step();
      if (moved) last = std::chrono::steady_clock::now();
    }
  }

  /// What `welcome` says in the end: a set-up message, or "error: ...".
  std::string meet(ChannelSetup& setup, Handle& handle, std::string_view hello) {
    if (auto begun = setup.begin(handle, bytes_of(hello)); !begun) return "error: " + begun.error().text();
    return outcome(setup, handle);
  }
  std::string outcome(ChannelSetup& setup, Handle& handle) {
    std::string said;
    const bool came = drive([&] {
      auto welcome = setup.welcome(handle);
      if (!welcome) said = "error: " + welcome.error().text();
      if (welcome && *welcome) said = text_of(**welcome);
      return !welcome || *welcome;
    });
    return came ? said : "nothing";
  }

  /// The handle with other contents, as somebody who knows the layout could make it.
  static Handle changed(const Handle& handle, const std::function<void(HandleContents&)>& change) {
    HandleContents contents = read_handle(handle).value();
    change(contents);
    return make_handle(contents);
  }

  JumpClock clock;
  Settings settings;
  KeepingHost host;
  std::string log;
  std::vector<std::function<void()>> steps;  ///< what else moves on in `drive`
  std::unique_ptr<ChannelSetup> listener;
  std::unique_ptr<ChannelSetup> connector;
};

inline sockaddr_in ipv4(std::string_view host, std::uint16_t port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET, std::string(host).c_str(), &name.sin_addr), 1);
  return name;
}
inline IpAddress address_of(std::string_view text) {
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  if (inet_pton(AF_INET6, std::string(text).c_str(), &six.sin6_addr) == 1) {
    return *IpAddress::of(reinterpret_cast<const sockaddr&>(six));
  }
  const sockaddr_in four = ipv4(text, 0);
  return *IpAddress::of(reinterpret_cast<const sockaddr&>(four));
}

/// A plain socket, blocking but for reads.
class RawSocket {
 public:
  RawSocket() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  explicit RawSocket(Fd socket) : fd(std::move(socket)) {}

  bool connect(std::string_view host, std::uint16_t port) {
    const sockaddr_in name = ipv4(host, port);
    return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0;
  }
  /// Where it listens: the port.
  std::uint16_t listen(std::string_view host, std::uint16_t port = 0, int backlog = 16) {
    sockaddr_in name = ipv4(host, port);
    socklen_t length = sizeof(name);
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), length), 0);
    EXPECT_EQ(::listen(fd.get(), backlog), 0);
    EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &length), 0);
    return ntohs(name.sin_port);
  }
  bool readable(int timeout_ms = 0) const {
    pollfd ready{fd.get(), POLLIN, 0};
    return poll(&ready, 1, timeout_ms) > 0;
  }
  Fd accept() { return Fd(::accept4(fd.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
  void send(std::span<const std::byte> bytes) { (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// Appends what is there to `received`; `ended` once the other end has closed.
  void read() {
    if (ended || !readable()) return;
    std::array<char, 4096> buffer;
    const ssize_t count = ::recv(fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count > 0) received.append(buffer.data(), static_cast<std::size_t>(count));
    if (count == 0 || (count < 0 && errno != EAGAIN)) ended = true;
  }

  Fd fd;
  std::string received;
  bool ended = false;
};

/// Stands between connector and listener on an address and port of its own.
class Relay {
 public:
  /// What is done to the bytes of one direction; `at`: how many passed before.
  using Change = std::function<void(std::span<std::byte> bytes, std::size_t at)>;

  /// `port` 0: any.
  Relay(std::string_view host, std::uint16_t to, std::uint16_t port = 0)
      : to_(to), port_(listener_.listen(host, port)) {}
  std::uint16_t port() const { return port_; }
  void step() {
    if (listener_.readable()) {
      Pair& pair = pairs_.emplace_back(RawSocket(listener_.accept()), RawSocket());
      EXPECT_TRUE(pair.near.connect("127.0.0.1", to_));
    }
    for (Pair& pair : pairs_) {
      pass(pair.far, pair.near, pair.to_listener, to_listener);
      pass(pair.near, pair.far, pair.to_connector, to_connector);
    }
  }

  Change to_listener;
  Change to_connector;

 private:
  struct Pair {
    Pair(RawSocket far_end, RawSocket near_end) : far(std::move(far_end)), near(std::move(near_end)) {}
    RawSocket far;
    RawSocket near;
    std::size_t to_listener = 0;
    std::size_t to_connector = 0;
  };
  static void pass(RawSocket& from, RawSocket& to, std::size_t& passed, const Change& change) {
    const bool before = from.ended;
    from.read();
    auto bytes = bytes_of(std::exchange(from.received, {}));
    if (change && !bytes.empty()) change(bytes, passed);
    passed += bytes.size();
    if (!bytes.empty()) to.send(bytes);
    if (from.ended && !before) ::shutdown(to.fd.get(), SHUT_WR);
  }

  const std::uint16_t to_;
  RawSocket listener_;
  std::uint16_t port_;
  std::list<Pair> pairs_;
};

}  // namespace railyard::message
