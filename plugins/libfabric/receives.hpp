/// Posted receives and unexpected messages, and how they find each other.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "pieces.hpp"
#include "protocol.hpp"

namespace railyard::provider {

/// A sender, kept while something of it is here.
struct Source {
  fabric::shm::Inbound* in = nullptr;  ///< null: it has gone
  std::string address;
  fi_addr_t number = FI_ADDR_NOTAVAIL;
  std::uint64_t known_generation = 0;
  std::size_t held = 0;                ///< messages of it that are held
  std::vector<struct Incoming*> open;  ///< begun and not yet whole
  struct Path* back = nullptr;
};

/// A receive the program posted.
struct Receive {
  Receive* next = nullptr;
  Receive* previous = nullptr;
  Pieces pieces;
  std::uint64_t tag = 0;
  std::uint64_t ignore = 0;
  fi_addr_t from = FI_ADDR_UNSPEC;
  void* context = nullptr;
  bool completes = true;
  bool multi = false;     ///< takes message after message until too little is left
  bool finished = false;  ///< a multi receive that takes no more
  std::size_t used = 0;
  std::size_t active = 0;  ///< messages on their way into a multi receive
};

/// A message (or write) that is not done with its first record.
struct Incoming {
  Incoming* next = nullptr;
  Incoming* previous = nullptr;
  Source* source = nullptr;
  class Receives* receives = nullptr;  ///< null for a write
  std::uint64_t tag = 0;
  std::uint64_t data = 0;
  bool has_data = false;
  bool wants_done = false;
  bool several = false;
  bool discarded = false;
  bool aborted = false;  ///< its sender has gone: the receive that it meets fails, in its place
  std::uint64_t handle = 0;
  std::size_t total = 0;
  std::size_t received = 0;
  Receive* receive = nullptr;  ///< where it goes, once that is known
  std::size_t base = 0;        ///< its place in a multi receive
  std::vector<std::byte> bytes;
  void* claimed_by = nullptr;
  bool claimed = false;
  std::uint64_t key = 0;  ///< of a write
  std::uint64_t address = 0;

  bool whole() const { return received == total; }
};

template <typename Node>
class List {
 public:
  Node* first() const { return first_; }
  bool empty() const { return first_ == nullptr; }
  void push(Node& node) {
    node.next = nullptr;
    node.previous = last_;
    (last_ != nullptr ? last_->next : first_) = &node;
    last_ = &node;
  }
  void remove(Node& node) {
    (node.previous != nullptr ? node.previous->next : first_) = node.next;
    (node.next != nullptr ? node.next->previous : last_) = node.previous;
  }

 private:
  Node* first_ = nullptr;
  Node* last_ = nullptr;
};

/// Reuses what was freed; keeps some. Free ones are chained through `next`.
template <typename Object>
class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    while (free_ != nullptr) delete std::exchange(free_, free_->next);
  }
  Object& take() {
    if (free_ == nullptr) return *new Object;
    --kept_;
    return *std::exchange(free_, free_->next);
  }
  void give(Object& object) {
    if (kept_ == kMostKept) {
      delete &object;
      return;
    }
    ++kept_;
    object.next = free_;
    free_ = &object;
  }

 private:
  static constexpr std::size_t kMostKept = 4096;
  Object* free_ = nullptr;
  std::size_t kept_ = 0;
};

struct ReceivePool {
  Pool<Receive> receives;
  Pool<Incoming> incoming;
  std::size_t held_bytes = 0;  ///< of unexpected messages
};

/// One matching space: tagged or not.
class Receives {
 public:
  explicit Receives(std::uint64_t completion_flags) : operation(completion_flags) {}
  const std::uint64_t operation;  ///< FI_RECV and the kind

  List<Receive> posted;
  List<Incoming> unexpected;

  static bool matches(const Receive& receive, std::uint64_t tag, fi_addr_t from) {
    return ((receive.tag ^ tag) & ~receive.ignore) == 0 && (receive.from == FI_ADDR_UNSPEC || receive.from == from);
  }
  Receive* match(std::uint64_t tag, fi_addr_t from) const {
    for (Receive* receive = posted.first(); receive != nullptr; receive = receive->next)
      if (matches(*receive, tag, from)) return receive;
    return nullptr;
  }
};

}  // namespace railyard::provider
