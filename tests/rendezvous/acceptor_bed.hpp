/// An acceptor and connecting ends joined by hand, with no socket and a clock that the test sets.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "rendezvous/acceptor.hpp"
#include "rendezvous/test_bytes.hpp"

namespace railyard::rendezvous {

class AcceptorBed : public ::testing::Test {
 protected:
  struct Peer {
    ConnectingEnd end;
    ConnectionId id;
    std::vector<Frame> frames;

    bool let_in() const { return end.proven(); }
    std::string failure() const { return end.failure() ? end.failure()->complaint.text : "no failure"; }
    Status status() const { return end.failure() ? end.failure()->complaint.status : Status::ok; }
  };

  void SetUp() override {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  void TearDown() override { set_log_sink({}); }
  virtual Acceptor& acceptor() = 0;

  ConnectionId connected() {
    acceptor().connected(++last_id_, "5.6.7.8:9");
    return last_id_;
  }
  Peer connect(Protocol protocol, std::vector<std::byte> claim, const std::string& key = kKey) {
    Nonce nonce{};
    nonce[0] = static_cast<std::byte>(++nonces_);
    return {ConnectingEnd({protocol, std::move(claim), key, 1 << 20, std::nullopt}, nonce), connected(), {}};
  }
  /// Passes bytes both ways until nothing moves.
  void settle(const std::vector<Peer*>& peers) {
    for (bool moved = true; moved;) {
      moved = false;
      for (Peer* peer : peers) {
        while (!peer->end.outgoing().empty()) {
          const std::vector<std::byte> bytes(peer->end.outgoing().begin(), peer->end.outgoing().end());
          peer->end.sent(bytes.size());
          acceptor().received(peer->id, bytes);
          moved = true;
        }
        while (!outgoing(peer->id).empty()) {
          peer->end.feed(take(peer->id));
          Frame frame;
          while (peer->end.next(frame) == ConnectingEnd::News::frame) peer->frames.push_back(std::move(frame));
          moved = true;
        }
      }
    }
  }
  /// Its hello is answered and its proof is under way.
  void be_challenged(Peer& peer) {
    const std::vector<std::byte> hello(peer.end.outgoing().begin(), peer.end.outgoing().end());
    peer.end.sent(hello.size());
    acceptor().received(peer.id, hello);
    EXPECT_FALSE(outgoing(peer.id).empty());
  }
  Bytes outgoing(ConnectionId id) {
    const Conversation* const conversation = acceptor().conversation(id);
    return conversation == nullptr ? Bytes() : conversation->outgoing();
  }
  std::vector<std::byte> take(ConnectionId id) {
    const std::vector<std::byte> bytes(outgoing(id).begin(), outgoing(id).end());
    acceptor().conversation(id)->sent(bytes.size());
    return bytes;
  }
  void send_raw(ConnectionId id, const OutgoingFrame& frame) { acceptor().received(id, *frame.bytes); }
  std::optional<Complaint> refusal(ConnectionId id) {
    FrameReader reader(kMostHandshake);
    while (!outgoing(id).empty()) reader.feed(take(id));
    Frame frame;
    while (reader.next(frame) == FrameReader::State::frame) {
      if (frame.type == FrameType::refusal) return parse_complaint(frame.payload, kMostRefusalText);
    }
    return std::nullopt;
  }

  ManualClock clock_;
  int nonces_ = 0;
  ConnectionId last_id_ = 0;
};

}  // namespace railyard::rendezvous
