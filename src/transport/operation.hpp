/// Operation: work that a caller submitted to a flow. Segment: one part of it on one rail, from post to
/// acknowledgement.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "fabric/rail.hpp"
#include "memory/region.hpp"
#include "memory/slab.hpp"
#include "transport/failures.hpp"
#include "transport/link.hpp"

namespace railyard::transport {

struct Flow;

/// Whose structure a completion's context is the head of. A buffer that nobody has tagged is for receiving.
enum class Tag : std::uint8_t { receive_buffer = 0, segment = 1, report = 2 };

/// Where an exposed region lies on one of its owner's rails.
struct RemoteKey {
  std::uint64_t key = 0;
  std::uint64_t base = 0;
};

/// A peer's exposed memory as a sender knows it.
struct RemoteMemory {
  std::uint32_t exposed_region = 0;
  std::span<const RemoteKey> keys;  ///< by the owner's rail
  bool on_device = false;           ///< it is memory of a GPU
};

struct Operation;

struct Segment : fabric::PostContext {
  Segment* next = nullptr;  ///< the flow's unacknowledged segments, in sequence
  Operation* operation = nullptr;
  std::uint64_t offset = 0;  ///< inside the operation
  std::uint32_t bytes = 0;
  std::uint32_t epoch = 0;     ///< the link's epoch it was posted in
  std::uint32_t sequence = 0;  ///< not beside `bytes`: the compiler would make one store of the two, which takes longer
  std::uint16_t link = 0;
  bool posted = false;     ///< the rail still holds it
  bool finished = false;   ///< acknowledged, delivered or read
  bool in_flight = false;  ///< counted in its link's flight
  bool lost = false;       ///< its link died; whether it arrived is not known yet
  bool again = false;      ///< did not arrive: goes out once more as soon as the rail has let go of it
  std::uint8_t attempts = 0;
  bool timed = false;                    ///< a frame whose time to its acknowledgement is measured, from `stamp` on
  std::uint8_t faults = 0;               ///< links that broke with it, and the rail could not tell why
  bool alone = false;                    ///< it has a link for itself, to find out
  bool voided = false;                   ///< a frame that says so goes in its place
  memory::Buffer* void_frame = nullptr;  ///< that frame
  RateStamp stamp;

  void reset() { *this = Segment{}; }
};

/// A frame is one with its buffer and its segment, and is taken and given back as one: both stay its own in the pool.
struct Operation {
  enum class Kind : std::uint8_t {
    frame,          ///< records in a buffer, applied in sequence by the target
    write,          ///< ordered chunks: each with an immediate and a place in the sequence
    relaxed_write,  ///< chunks outside the sequence, done when delivered
    read,
    atomic,  ///< by the target's NIC, once: its rail is the same for everybody, and nothing is sent again
  };

  /// Whether its segments have numbers: they are done when acknowledged; the others when the rail says so.
  bool sequenced() const { return kind == Kind::frame || kind == Kind::write; }

  Operation* next = nullptr;
  Flow* flow = nullptr;
  Kind kind = Kind::frame;
  bool whole = false;   ///< every segment has been posted
  bool prompt = false;  ///< of a frame: it does not wait for company
  bool fenced = false;  ///< nothing that came before may still be under way outside the sequence when this starts
  FailureCause failure = FailureCause::none;  ///< it has failed alone: what is left of it is not sent
  bool withdrawn = false;                     ///< its local memory was taken back: nothing of it can be sent again
  // A link broke with a segment of it, and the rail cannot tell whether because of that (failover.cc).
  bool doubted = false;     ///< until that is known nothing new of it is sent
  bool cleared = false;     ///< a segment of it, alone on a link, has arrived
  bool on_trial = false;    ///< a segment of it is alone on a link
  std::uint8_t faults = 0;  ///< links that broke with a segment of it alone on them
  std::uint16_t records = 0;
  std::uint32_t segments = 0;       ///< of chunks, that exist
  std::uint32_t unfinished = 0;     ///< of them, those not acknowledged (or delivered, or read) yet
  std::uint64_t number = 0;         ///< the flow's operations up to this are complete when this is; 0: no news
  memory::Buffer* frame = nullptr;  ///< a frame's bytes; what a native atomic brings
  std::byte* local = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t started = 0;  ///< bytes handed to rails so far
  std::uint64_t remote_offset = 0;
  RemoteMemory remote;
  std::shared_ptr<memory::Region> region;
  std::shared_ptr<const void> keep;  ///< what `remote` and `counter` point into
  std::uint64_t* counter = nullptr;
  std::uint64_t counter_value = 0;
  std::uint32_t slot = 0;  ///< out-of-sequence completion, plus one
  /// Of an ordered write: the caller's number of it, and the frame that follows with its signal or message. Of a frame
  /// that a vector has for itself: the vector's number.
  std::uint64_t submission = 0;
  Operation* companion = nullptr;  ///< in the queue or unacknowledged as long as a segment of the write is
  fabric::AtomicRequest request;
  Segment own;  ///< a frame's only one

  /// What makes it a frame, once in its life.
  void become_frame(memory::Buffer* buffer) {
    frame = buffer;
    own.tag = static_cast<std::uint8_t>(Tag::segment);
    own.operation = this;
  }
  /// As new. A frame has used few of its fields.
  void reset() {
    if (kind != Kind::frame) {
      *this = Operation{};
      return;
    }
    flow = nullptr;
    whole = fenced = prompt = false;
    records = 0;
    number = submission = 0;
    own.finished = own.lost = own.again = own.timed = false;
    own.attempts = 0;
  }
};

/// A first-in-first-out list through `next`.
template <typename T>
class Fifo {
 public:
  bool empty() const { return head_ == nullptr; }
  T* head() const { return head_; }
  T* tail() const { return tail_; }
  void push(T* item) {
    item->next = nullptr;
    (tail_ == nullptr ? head_ : tail_->next) = item;
    tail_ = item;
  }
  void push_front(T* item) {
    item->next = head_;
    head_ = item;
    if (tail_ == nullptr) tail_ = item;
  }
  /// Takes the newest off again. Walks the list: for the rare case only.
  void remove_last() {
    if (head_ == tail_) {
      head_ = tail_ = nullptr;
      return;
    }
    T* before = head_;
    while (before->next != tail_) before = before->next;
    before->next = nullptr;
    tail_ = before;
  }
  T* pop() {
    T* item = head_;
    head_ = item->next;
    if (head_ == nullptr) tail_ = nullptr;
    item->next = nullptr;
    return item;
  }

 private:
  T* head_ = nullptr;
  T* tail_ = nullptr;
};

}  // namespace railyard::transport
