/// Peers' links to a connected rail: which epochs of them are let in, what they use here, and how they end: told once,
/// or fenced. A driver's own *carrier* (a connection, a queue pair, an endpoint: whatever it can close by itself)
/// derives from `Carrier` and says whether another is of the same peer (`same_peer`). The driver opens and closes
/// carriers; this says when, and keeps the rest.
///
/// A carrier that closes has *come to rest* once nothing more can land through it and everything that did is pending.
/// Drivers whose bytes land inside `poll` alone close and rest in one step; a NIC needs time in between.
///
/// Where a function takes `close`, it calls `close(carrier)` for each carrier whose link has ended with this. That may
/// call `rested`, and must not destroy any other carrier.
#pragma once

#include <algorithm>
#include <concepts>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fabric/pending.hpp"
#include "fabric/rail.hpp"

namespace railyard::fabric {

/// What a peer's link uses.
struct Carrier {
  std::optional<LinkTag> inbound;  ///< the link; none: no peer's, or one that has ended
  std::optional<LinkTag> ended;    ///< the one that has, until the carrier has come to rest
  bool fences = false;             ///< a fence waits for that
  std::uint8_t lane = 0;           ///< where a link uses several carriers: which of them
};

template <typename C>
class InboundLinks {
 public:
  explicit InboundLinks(PendingEvents& events) : events_(&events) {}

  /// Whether the peer's link may come in: its epoch is not fenced, and no newer one has been here.
  bool welcome(const LinkTag& tag) const {
    const auto found = links_.find(tag.id);
    return found == links_.end() || (tag.epoch >= found->second.newest && !fenced(tag));
  }

  /// Whether this epoch of it is shut out.
  bool fenced(const LinkTag& tag) const {
    const auto found = links_.find(tag.id);
    return found != links_.end() && found->second.fenced && tag.epoch <= *found->second.fenced;
  }

  /// The link uses this carrier from now on. The sender has given up the epochs before this one, and what it had for
  /// this lane in this one: those close. False: so does this carrier, which an earlier epoch used.
  template <typename Close>
  bool seat(C& carrier, const LinkTag& tag, Close&& close) {
    if (carrier.inbound && carrier.inbound->id != tag.id) left(carrier);
    InboundLink& link = links_[tag.id];
    link.forgotten = false;
    link.newest = tag.epoch;
    if (!carrier.inbound) {
      link.carriers.push_back(&carrier);
      carrier.inbound = tag;
    }
    const bool seated = carrier.inbound->epoch == tag.epoch;
    std::vector<C*> given_up;
    for (C* const other : link.carriers) {
      if (!other->inbound) continue;
      const bool replaced = other != &carrier && other->lane == carrier.lane && other->same_peer(carrier);
      if (replaced || other->inbound->epoch != tag.epoch) given_up.push_back(other);
    }
    for (C* const other : given_up) end(*other);
    for (C* const other : given_up) close(*other);
    return seated;
  }

  /// The link has ended; its carrier has still to come to rest.
  void end(C& carrier) {
    if (carrier.inbound) carrier.ended = std::exchange(carrier.inbound, std::nullopt);
  }
  /// Tells that the link has left, unless a fence has ended it, or another lane of it is still there.
  void rested(C& carrier) {
    if (!carrier.ended) return;
    const LinkTag tag = *carrier.ended;
    const bool fenced = carrier.fences;
    InboundLink& link = strike(carrier);
    if (fenced) {
      --link.closing;
      link.fence_mark = events_->mark();
    } else if (std::ranges::none_of(link.carriers, [&](const C* other) {
                 return tag_of(*other).epoch == tag.epoch && other->same_peer(carrier);
               })) {
      events_->push_left(tag);
    }
    if (link.forgotten && link.carriers.empty()) links_.erase(tag.id);
  }
  /// Both at once.
  void left(C& carrier) {
    end(carrier);
    rested(carrier);
  }
  /// The link never came to use it: nobody is told.
  void withdraw(C& carrier) {
    if (!carrier.inbound) return;
    end(carrier);
    strike(carrier);
  }

  /// As Rail::fence: the epochs that it shuts out end, and are not told as left.
  template <typename Close>
  bool fence(const LinkTag& tag, Close&& close) {
    InboundLink& link = links_[tag.id];
    link.forgotten = false;
    if (!link.fenced || *link.fenced < tag.epoch) {
      link.fenced = tag.epoch;
      std::vector<C*> closing;
      for (C* const carrier : link.carriers) {
        if (tag_of(*carrier).epoch > tag.epoch || carrier->fences) continue;
        carrier->fences = true;
        ++link.closing;
        if (carrier->inbound) closing.push_back(carrier);  // else it closes already
        end(*carrier);
      }
      for (C* const carrier : closing) close(*carrier);
      link.fence_mark = events_->mark();
    }
    return link.closing == 0 && events_->past(link.fence_mark);
  }

  /// As Rail::forget.
  void forget(const LinkName& name) {
    const auto found = links_.find(name);
    if (found == links_.end()) return;
    InboundLink& link = found->second;
    link.newest = 0;
    link.fenced.reset();
    link.forgotten = true;
    if (link.carriers.empty()) links_.erase(found);
  }

  /// The carrier that the link of that name uses now and `right(carrier)` holds for; null: there is none.
  template <typename Right>
  C* find(const LinkName& name, Right&& right) const {
    const auto found = links_.find(name);
    if (found == links_.end()) return nullptr;
    for (C* const carrier : found->second.carriers)
      if (carrier->inbound && right(*carrier)) return carrier;
    return nullptr;
  }

  /// For a rail that has stopped: nobody is told. The carriers must be gone, or go without a word.
  void clear() { links_.clear(); }

 private:
  /// What is known of a peer's link over all its epochs.
  struct InboundLink {
    std::uint32_t newest = 0;
    std::optional<std::uint32_t> fenced;  ///< up to this one they are shut out
    std::uint64_t fence_mark = 0;         ///< the events that came before the fence
    std::size_t closing = 0;              ///< carriers that have to come to rest first
    bool forgotten = false;               ///< it goes with its last carrier
    std::vector<C*> carriers;             ///< that it uses, or that have still to come to rest
  };

  static const LinkTag& tag_of(const C& carrier) { return carrier.inbound ? *carrier.inbound : *carrier.ended; }

  InboundLink& strike(C& carrier) {
    static_assert(std::derived_from<C, Carrier>);
    InboundLink& link = links_[carrier.ended->id];
    std::erase(link.carriers, &carrier);
    carrier.ended.reset();
    carrier.fences = false;
    return link;
  }

  PendingEvents* events_;
  std::unordered_map<LinkName, InboundLink, LinkNameHash> links_;
};

}  // namespace railyard::fabric
