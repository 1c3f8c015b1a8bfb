/// A connection of a tcp rail, what is posted to it, and what it is in the middle of.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "base/fd.hpp"
#include "fabric/in_flight.hpp"
#include "fabric/inbound.hpp"
#include "fabric/links.hpp"
#include "fabric/tcp/device_traffic.hpp"
#include "fabric/tcp/frames.hpp"
#include "fabric/tcp/handshake.hpp"

namespace railyard::fabric::tcp {

/// What has become of the copies of a post whose memory is a GPU's.
enum class CopyFate : std::uint8_t {
  good,
  failed,  ///< one of them
  ended,   ///< its link has gone: it fails when none is under way any more, and `after` counts those
};

/// What the driver keeps of a post, in the room that its context has for that.
struct Posted {
  PostContext* next = nullptr;  ///< in whichever queue it is
  std::byte* address = nullptr;
  std::uint64_t key = 0;
  std::uint64_t offset = 0;
  std::uint64_t after = 0;  ///< of a message: it goes out once so many bytes of bulk have
  std::uint32_t bytes = 0;
  std::uint32_t started = 0;  ///< bytes handed to the connection, or received
  std::uint32_t number = 0;
  std::uint32_t immediate = 0;
  std::uint32_t fetched = 0;  ///< bytes of device memory whose copies have begun
  FrameKind kind = FrameKind::message;
  bool with_immediate : 1 = false;
  bool patient : 1 = false;  ///< of a write: nobody waits for its acknowledgement
  std::int8_t device = -1;   ///< `address` is memory of this GPU
  CopyFate fate = CopyFate::good;

  bool on_device() const { return device >= 0 && bytes != 0; }
};
static_assert(sizeof(Posted) <= sizeof(PostContext::driver) && alignof(Posted) <= alignof(void*));

inline Posted& posted_of(PostContext* context) {
  return *std::launder(reinterpret_cast<Posted*>(context->driver.data()));
}
inline Posted& make_posted(PostContext* context) { return *::new (context->driver.data()) Posted; }

/// Posts in order, through the posts themselves: nothing is allocated.
class PostQueue {
 public:
  bool empty() const { return head_ == nullptr; }
  PostContext* front() const { return head_; }
  void push(PostContext* context) {
    posted_of(context).next = nullptr;
    (head_ == nullptr ? head_ : posted_of(tail_).next) = context;
    tail_ = context;
  }
  void push_front(PostContext* context) {
    posted_of(context).next = head_;
    if (head_ == nullptr) tail_ = context;
    head_ = context;
  }
  PostContext* pop() {
    PostContext* const first = head_;
    head_ = posted_of(first).next;
    return first;
  }
  /// Takes out the one of that number; null: there is none.
  PostContext* take(std::uint32_t number) {
    PostContext* before = nullptr;
    for (PostContext* one = head_; one != nullptr; before = one, one = posted_of(one).next) {
      if (posted_of(one).number != number) continue;
      (before == nullptr ? head_ : posted_of(before).next) = posted_of(one).next;
      if (tail_ == one) tail_ = before;
      return one;
    }
    return nullptr;
  }
  PostContext* find(std::uint32_t number) const {
    PostContext* one = head_;
    while (one != nullptr && posted_of(one).number != number) one = posted_of(one).next;
    return one;
  }
  void clear() { head_ = tail_ = nullptr; }

 private:
  PostContext* head_ = nullptr;
  PostContext* tail_ = nullptr;
};

struct Connection;

/// A link that this rail has made.
struct TcpLink : Link {
  TcpRailAddress peer;
  Connection* connection = nullptr;

  InFlight in_flight;            ///< every context that is still owed
  std::size_t messages_out = 0;  ///< of these: messages
  std::size_t data_out = 0;      ///< and writes and reads
  PostQueue messages;            ///< not yet handed to the connection
  PostQueue bulk;
  PostQueue written;           ///< waits for the target's word
  PostQueue reading;           ///< waits for its bytes
  std::vector<Fetch> fetches;  ///< of `bulk`, in its order
  std::uint64_t bulk_posted = 0;
  std::uint64_t bulk_started = 0;
  std::uint64_t bulk_landed = 0;

  // While connecting.
  std::int64_t give_up_at = 0;
  std::int64_t retry_at = 0;  ///< 0: an attempt is under way
  unsigned attempts = 0;
  unsigned crossings = 0;  ///< attempts that met the peer's own
  unsigned refusals = 0;   ///< attempts in a row that somebody turned away

  bool facing() const { return tag.facing != LinkId{}; }
};

/// A frame on its way out.
struct OutgoingFrame {
  std::array<std::byte, Frame::kBytes> header;
  const std::byte* payload = nullptr;
  std::size_t bytes = 0;           ///< of the payload
  std::size_t sent = 0;            ///< of both
  PostContext* context = nullptr;  ///< completes with this frame
  std::uint64_t key = 0;           ///< the region whose bytes these are, if a peer reads them
  std::byte* bounce = nullptr;     ///< the pinned buffer that the payload is in
  std::size_t left() const { return Frame::kBytes + bytes - sent; }
};

/// A peer's read that is being answered.
struct ServedRead {
  std::uint64_t key = 0;
  const std::byte* from = nullptr;
  std::uint32_t bytes = 0;
  std::uint32_t done = 0;
  std::uint32_t number = 0;
  std::uint32_t fetched = 0;
  int device = -1;
  bool refused = false;
  bool device_failed = false;

  bool on_device() const { return device >= 0 && bytes != 0; }
};

struct Connection : Carrier {
  enum class Phase : std::uint8_t {
    connecting,  ///< the kernel connects
    greeted,     ///< our HELLO is out
    proving,     ///< so is our PROOF
    standing,    ///< admitted: frames travel
    lingering,   ///< ours is said; until the peer has closed, too, what it sends is thrown away
    closed,
  };
  Phase phase = Phase::connecting;
  Fd socket;
  RailName peer{};
  TcpLink* link = nullptr;   ///< ours that uses it
  bool binding = false;      ///< our link has asked and waits for the answer
  bool leaves_host = false;  ///< its bytes go through the rail's device, not through loopback
  std::int64_t since = 0;    ///< of lingering, binding or connecting
  Transcript transcript;     ///< of a handshake that we began

  // Looking at it.
  bool active = false;  ///< in the rail's list of those that are read from
  bool unread = false;  ///< there is, or may be, something to read
  unsigned heat = 0;    ///< passes without anything until it is no longer read from on the off-chance

  // Sending.
  bool dirty = false;    ///< in the rail's list of those that have something to send
  bool blocked = false;  ///< the kernel takes no more for now
  std::vector<OutgoingFrame> out;
  std::size_t out_head = 0;
  std::size_t out_bytes = 0;
  std::vector<Frame> control;  ///< frames without a payload, which go first
  bool sends_tag = false;      ///< the link's tag goes out in a bind frame
  std::array<std::byte, kTagBytes> tag_bytes{};
  std::size_t urgent = 0;  ///< where in `out` the next message goes, if that has not begun to leave
  std::deque<ServedRead> served;
  bool serves_next = false;  ///< writes and the answers to reads take turns
  std::uint32_t next_number = 1;
  std::vector<std::vector<std::byte>> copies;  ///< of memory that was taken back while a frame of it was going out
  std::vector<Fetch> served_fetches;           ///< of `served`, in its order
  bool fetching = false;                       ///< in the list of those that are looked at for fetches
  bool starved = false;                        ///< would fetch, but no buffer is free

  // Receiving.
  std::array<std::byte, std::max(Frame::kBytes, kMostHandshakeBytes)> head{};
  std::size_t head_have = 0;
  Frame frame;                                       ///< the one that is coming in
  std::byte* to = nullptr;                           ///< null: its bytes are thrown away
  std::size_t left = 0;                              ///< of its payload
  PostContext* taking = nullptr;                     ///< the receive or the read that it is for
  std::optional<std::uint32_t> refusing;             ///< a write that was refused and whose last frame is still to come
  unsigned long_spell = 0;                           ///< a long payload came in so few frames ago
  bool stalled = false;                              ///< a message waits for a receive
  std::vector<std::byte> stash;                      ///< what was read behind it
  std::array<std::byte, kMostControlBytes> small{};  ///< the payload of a bind
  bool heard = false;                                ///< in the rail's list of those that were read from
  bool owes = false;                                 ///< in the rail's list of those that owe an acknowledgement
  bool awaited = false;                              ///< somebody waits for that
  std::uint32_t landed = 0;                          ///< the last write that did
  std::size_t landed_count = 0;
  std::size_t landed_bytes = 0;
  std::size_t write_bytes = 0;  ///< of the write whose last frame is still to come
  std::byte* bounce = nullptr;  ///< where the payload goes that is for device memory
  std::byte* bounce_for = nullptr;
  int bounce_device = -1;
  std::uint64_t bounce_turn = 0;             ///< who has had one for longest
  bool wants_bounce = false;                 ///< stalled because none is free
  std::deque<Landing> landings;              ///< in the order in which they came
  bool landing = false;                      ///< in the list of those that have some
  std::optional<std::uint32_t> bad_landing;  ///< a write of whose copies one failed

  bool standing() const { return phase == Phase::standing; }
  bool same_peer(const Connection& other) const { return peer == other.peer; }
  bool out_empty() const { return out_head == out.size(); }
};

}  // namespace railyard::fabric::tcp
