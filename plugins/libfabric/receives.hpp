/// Posted receives and unexpected messages, and how they find each other.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io_vector.hpp"
#include "protocol.hpp"
#include "shm/endpoint.hpp"

namespace railyard::provider {

/// A sender, kept while something of it is here.
struct Source {
  shm::Inbound* in = nullptr;  ///< null: it has gone
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
  IoVector iov;
  std::uint64_t tag = 0;
  std::uint64_t ignore = 0;
  fi_addr_t from = FI_ADDR_UNSPEC;
  void* context = nullptr;
  bool completes = true;
  bool multi = false;     ///< takes message after message until too little is left
  bool finished = false;  ///< a multi receive that takes no more
  std::size_t used = 0;
  std::size_t active = 0;  ///< messages on their way into a multi receive

  // Of the queue it is in.
  std::uint64_t order = 0;
  Receive* next_alike = nullptr;
  Receive* previous_alike = nullptr;
  bool exact() const { return ignore == 0; }
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
  bool part = false;      ///< of a write to several places, not the last
  std::uint64_t key = 0;  ///< of a write
  std::uint64_t address = 0;

  // Of the queue it is in.
  std::uint64_t order = 0;
  Incoming* next_alike = nullptr;
  Incoming* previous_alike = nullptr;
  static constexpr bool exact() { return true; }

  bool whole() const { return received == total; }
};

template <typename Node, auto Next, auto Previous>
class Chain {
 public:
  Node* first() const { return first_; }
  bool empty() const { return first_ == nullptr; }
  static Node* after(const Node& node) { return node.*Next; }
  void push(Node& node) {
    node.*Next = nullptr;
    node.*Previous = last_;
    (last_ != nullptr ? last_->*Next : first_) = &node;
    last_ = &node;
  }
  void remove(Node& node) {
    (node.*Previous != nullptr ? (node.*Previous)->*Next : first_) = node.*Next;
    (node.*Next != nullptr ? (node.*Next)->*Previous : last_) = node.*Previous;
  }

 private:
  Node* first_ = nullptr;
  Node* last_ = nullptr;
};

/// Nodes in order, found by tag. They are searched one by one, which is fastest while the first ones match; after a
/// long search they are chained by tag too, so that thousands with tags of their own do not stand in each other's way.
template <typename Node>
class TagQueue {
 public:
  Node* first() const { return all_.first(); }
  bool empty() const { return all_.empty(); }
  void push(Node& node) {
    node.order = ++pushed_;
    all_.push(node);
    ++count_;
    if (chained_) [[unlikely]]
      link(node);
  }
  void remove(Node& node) {
    all_.remove(node);
    --count_;
    if (chained_) [[unlikely]]
      unchain(node);
  }
  /// The first one in order with `tag` (or with tags of which it ignores bits) that `accepts`.
  template <typename Accepts>
  Node* find(std::uint64_t tag, Accepts&& accepts) {
    if (!chained_) [[likely]] {
      std::size_t steps = 0;
      Node* const found = search(all_, [&](const Node& node) { return ++steps, accepts(node); });
      if (steps > kLong) [[unlikely]]
        chain();
      return found;
    }
    const auto alike = by_tag_.find(tag);
    Node* const exact = alike != by_tag_.end() ? search(alike->second, accepts) : nullptr;
    Node* const other = search(inexact_, accepts);
    if (exact == nullptr || other == nullptr) return exact != nullptr ? exact : other;
    return exact->order < other->order ? exact : other;
  }
  /// The first one in order, whatever its tag, that `accepts`.
  template <typename Accepts>
  Node* find_any(Accepts&& accepts) const {
    return search(all_, accepts);
  }

 private:
  static constexpr std::size_t kLong = 64;
  using All = Chain<Node, &Node::next, &Node::previous>;
  using Alike = Chain<Node, &Node::next_alike, &Node::previous_alike>;

  template <typename List, typename Accepts>
  static Node* search(const List& list, Accepts&& accepts) {
    for (Node* node = list.first(); node != nullptr; node = List::after(*node))
      if (accepts(*node)) return node;
    return nullptr;
  }
  void link(Node& node) { (node.exact() ? by_tag_[node.tag] : inexact_).push(node); }
  void chain() {
    chained_ = true;
    for (Node* each = all_.first(); each != nullptr; each = All::after(*each)) link(*each);
  }
  void unchain(Node& node) {
    if (!node.exact()) {
      inexact_.remove(node);
    } else {
      const auto alike = by_tag_.find(node.tag);
      alike->second.remove(node);
      if (alike->second.empty()) by_tag_.erase(alike);
    }
    if (count_ > kLong / 4) return;
    chained_ = false;
    by_tag_.clear();
    inexact_ = Alike();
  }

  All all_;
  std::size_t count_ = 0;
  std::uint64_t pushed_ = 0;
  bool chained_ = false;
  std::unordered_map<std::uint64_t, Alike> by_tag_;
  Alike inexact_;
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

  TagQueue<Receive> posted;
  TagQueue<Incoming> unexpected;
  std::unordered_multimap<void*, Incoming*> claimed;  ///< unexpected ones that wait for the receive with that context

  static bool matches(const Receive& receive, std::uint64_t tag, fi_addr_t from) {
    return ((receive.tag ^ tag) & ~receive.ignore) == 0 && (receive.from == FI_ADDR_UNSPEC || receive.from == from);
  }
  Receive* match(std::uint64_t tag, fi_addr_t from) {
    return posted.find(tag, [tag, from](const Receive& receive) { return matches(receive, tag, from); });
  }
  /// The oldest unexpected message for this receive; `accepts` looks at the rest.
  template <typename Accepts>
  Incoming* oldest_for(const Receive& receive, Accepts&& accepts) {
    return receive.exact() ? unexpected.find(receive.tag, accepts) : unexpected.find_any(accepts);
  }
};

}  // namespace railyard::provider
