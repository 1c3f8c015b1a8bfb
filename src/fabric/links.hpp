/// The links of a connected rail, by RemoteId: slots, states, and each loss told once. A driver's own link derives from
/// `Link` and adds its connection; the driver opens and closes that, and this keeps the rest.
///
///     take -> connecting -> stands -> up -> lose -> lost -> release
///
/// `connecting` and `up` may go straight to `release` (the owner has disconnected), `connecting` straight to `lost`.
/// Where contexts come back later than `disconnect`, `retire` comes before `release`: nobody finds the link any more,
/// and its slot is kept.
#pragma once

#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include "fabric/pending.hpp"
#include "fabric/rail.hpp"

namespace railyard::fabric {

struct Link {
  enum class State : std::uint8_t {
    connecting,  ///< posts are busy
    up,
    lost,      ///< and its owner told
    retiring,  ///< its owner has disconnected; some of its contexts are still to come
  };
  State state = State::connecting;
  bool refused = false;          ///< lost because its peer's process is gone
  RemoteId remote = 0;           ///< its slot
  std::uint32_t generation = 0;  ///< which of the links that had this slot; from 1 on
  LinkTag tag;

  bool connecting() const { return state == State::connecting; }
  bool up() const { return state == State::up; }
  bool lost() const { return state == State::lost; }
};

template <typename L>
class Links {
 public:
  explicit Links(PendingEvents& events) : events_(&events) {}

  /// A new link, made afresh, in a free slot.
  L& take(const LinkTag& tag) {
    static_assert(std::derived_from<L, Link>);
    if (free_.empty()) {
      free_.push_back(static_cast<RemoteId>(slots_.size()));
      slots_.emplace_back();
      up_.push_back(nullptr);
    }
    const RemoteId remote = free_.back();
    free_.pop_back();
    Slot& slot = slots_[remote];
    slot.link = std::make_unique<L>();
    slot.link->remote = remote;
    slot.link->generation = ++slot.generation;
    slot.link->tag = tag;
    ++connecting_;
    return *slot.link;
  }

  /// Null: there is no such link, or its owner has disconnected it.
  L* find(RemoteId remote) const {
    L* const link = remote < slots_.size() ? slots_[remote].link.get() : nullptr;
    return link != nullptr && link->state != Link::State::retiring ? link : nullptr;
  }
  /// The link if it takes posts, else null: all that a post looks at.
  L* ready(RemoteId remote) const {
    L* const* const slot = up_.data() + remote;
    return slot < up_.data() + up_.size() ? *slot : nullptr;
  }
  /// The link that a context was posted to.
  L* operator[](RemoteId remote) const { return slots_[remote].link.get(); }

  void stands(L& link) {
    if (!link.connecting()) return;
    --connecting_;
    link.state = Link::State::up;
    up_[link.remote] = &link;
  }
  /// Tells the owner, once. False: it was lost before.
  bool lose(L& link, const Loss& loss) {
    if (link.lost() || link.state == Link::State::retiring) return false;
    leave(link);
    link.state = Link::State::lost;
    link.refused = loss.refused;
    events_->push_lost(link.remote, loss);
    return true;
  }
  void retire(L& link) {
    leave(link);
    events_->forget_lost(link.remote);
    link.state = Link::State::retiring;
  }
  /// The end: the slot is free for another, and the link no more.
  void release(L& link) {
    if (link.state != Link::State::retiring) retire(link);
    const RemoteId remote = link.remote;
    slots_[remote].link.reset();
    free_.push_back(remote);
  }

  /// How many neither stand nor have failed.
  std::size_t connecting() const { return connecting_; }
  /// Each one that its owner has not disconnected. None may be taken or released meanwhile.
  template <typename Visit>
  void each(Visit&& visit) const {
    for (const Slot& slot : slots_)
      if (slot.link != nullptr && slot.link->state != Link::State::retiring) visit(*slot.link);
  }
  /// The link of ours that faces the peer's, if it has not failed; `leads_there(link)` says whether it is to that peer.
  template <typename LeadsThere>
  L* facing(const LinkTag& theirs, LeadsThere&& leads_there) const {
    if (theirs.facing == LinkName{}) return nullptr;
    for (const Slot& slot : slots_) {
      L* const link = slot.link.get();
      if (link == nullptr || !(link->connecting() || link->up())) continue;
      if (link->tag.id == theirs.facing && link->tag.facing == theirs.id && leads_there(*link)) return link;
    }
    return nullptr;
  }
  /// All at once and without a word, for a rail that has stopped.
  void clear() {
    for (Slot& slot : slots_) slot.link.reset();
    up_.assign(up_.size(), nullptr);
    connecting_ = 0;
    free_.clear();
    for (RemoteId remote = 0; remote < slots_.size(); ++remote) free_.push_back(remote);
  }

 private:
  struct Slot {
    std::unique_ptr<L> link;  ///< null: free. Links do not move: contexts and connections point at them
    std::uint32_t generation = 0;
  };

  void leave(const L& link) {
    if (link.connecting()) --connecting_;
    up_[link.remote] = nullptr;
  }

  PendingEvents* events_;
  std::vector<Slot> slots_;
  std::vector<L*> up_;  ///< by RemoteId: those that take posts
  std::vector<RemoteId> free_;
  std::size_t connecting_ = 0;
};

}  // namespace railyard::fabric
