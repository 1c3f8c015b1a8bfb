/// What the tests of the bootstrap share: a server, ranks in threads, contents to send, a plain socket to misbehave
/// with.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "bootstrap/client.hpp"
#include "bootstrap/protocol.hpp"
#include "bootstrap/server.hpp"
#include "railyard/bootstrap.hpp"
#include "rendezvous/address.hpp"
#include "rendezvous/frames.hpp"
#include "rendezvous/test_bytes.hpp"

namespace railyard::bootstrap {

using rendezvous::bytes_of;
using rendezvous::kKey;
using rendezvous::kPatience;
using rendezvous::open_descriptors;
using rendezvous::text_of;

/// The contribution of a rank: of a length of its own, recognisable.
inline std::string contribution(int rank) {
  return fmt::format("rank {}:", rank) + std::string(static_cast<std::size_t>(rank) * 7 % 1000, 'x');
}

inline std::unique_ptr<Server> start_server(std::int32_t size, std::string_view address = "127.0.0.1:0",
                                            const std::function<void(ServerOptions&)>& adjust = {}) {
  ServerOptions options;
  options.address = Address::parse(address).value();
  options.size = size;
  options.job_key = kKey;
  if (adjust) adjust(options);
  auto server = Server::open(options);
  EXPECT_TRUE(server) << (server ? "" : server.error().text());
  if (!server) return nullptr;
  EXPECT_TRUE((*server)->start());
  return std::move(*server);
}

inline ClientOptions client_options(const Address& address, std::int32_t rank, std::int32_t size) {
  ClientOptions options;
  options.address = address;
  options.rank = rank;
  options.size = size;
  options.job_key = kKey;
  options.timeout_ns = std::chrono::nanoseconds(kPatience).count();
  return options;
}

/// Calls `body(rank)` in a thread for each rank and waits for all.
inline void in_threads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

/// Whether an allgather gave everybody's contribution in order.
inline bool is_complete(const Result<std::vector<std::vector<std::byte>>>& gathered, int size) {
  if (!gathered || gathered->size() != static_cast<std::size_t>(size)) return false;
  for (int rank = 0; rank < size; ++rank) {
    if (text_of((*gathered)[static_cast<std::size_t>(rank)]) != contribution(rank)) return false;
  }
  return true;
}

/// Collects log lines while it lives.
class LogLines {
 public:
  LogLines() {
    set_log_sink([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~LogLines() { set_log_sink({}); }
  std::string all() {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    return text;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// A connection that keeps to no rules.
class RawConnection {
 public:
  explicit RawConnection(const Address& address) {
    auto connecting = rendezvous::start_connecting(rendezvous::resolve(address).value().front());
    socket_ = std::move(connecting.socket);
    pollfd wait{socket_.get(), POLLOUT, 0};
    EXPECT_EQ(poll(&wait, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())), 1);
  }
  void send(std::span<const std::byte> bytes) {
    [[maybe_unused]] const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void send(const rendezvous::OutgoingFrame& frame) { send(*frame.bytes); }
  /// Everything until the server closes.
  std::vector<std::byte> read_to_end() {
    std::vector<std::byte> all;
    std::array<std::byte, 4096> buffer;
    for (;;) {
      pollfd wait{socket_.get(), POLLIN, 0};
      if (poll(&wait, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) <= 0) {
        ADD_FAILURE() << "the server did not close the connection";
        return all;
      }
      const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
      if (count <= 0) return all;
      all.insert(all.end(), buffer.begin(), buffer.begin() + count);
    }
  }
  /// The refusal that the server sends before it closes.
  std::optional<rendezvous::Complaint> read_refusal() {
    using namespace rendezvous;
    FrameReader reader(kMostHandshake);
    reader.feed(read_to_end());
    Frame frame;
    while (reader.next(frame) == FrameReader::State::frame) {
      if (frame.type == FrameType::refusal) return parse_complaint(frame.payload, kMostRefusalText);
    }
    return std::nullopt;
  }
  void close() { socket_.reset(); }

 private:
  Fd socket_;
};

}  // namespace railyard::bootstrap
