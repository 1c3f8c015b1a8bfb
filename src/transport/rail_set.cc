#include "transport/rail_set.hpp"

#include <algorithm>

#include "base/touch.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {
namespace {

constexpr std::size_t kReceivesPerRail = 64;     // posted at any time
constexpr std::size_t kReceivesForWrites = 512;  // where writes use them up, too
constexpr std::size_t kReceivesPerBlock = 64;

}  // namespace

RailSet::RailSet(std::vector<std::unique_ptr<fabric::Rail>> rails) : rails_(std::move(rails)), states_(rails_.size()) {
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    fabric::Rail& rail = *rails_[i];
    views_.push_back(&rail);
    if (rail.capabilities().chains_posts) bells_.push_back(&rail);
    RailState& state = states_[i];
    state.rail = &rail;
    state.index = i;
    state.most_receives =
        static_cast<std::uint32_t>(rail.capabilities().landings_use_receives ? kReceivesForWrites : kReceivesPerRail);
    state.statistics.name = rail.name();
    state.statistics.provider = rail.capabilities().provider;
  }
  rung_ = bells_;
}

Result<void> RailSet::open(std::uint32_t batch, std::size_t held) {
  events_.resize(std::max<std::uint32_t>(batch, 1));
  room_ = events_;
  std::size_t posted = 0;
  for (const RailState& rail : states_) posted += rail.most_receives;
  auto receives = memory::Slab::open(views_, wire::kFrameBytes, kReceivesPerBlock, held + posted);
  if (!receives) return std::move(receives.error());
  receives_.emplace(std::move(*receives));
  for (RailState& rail : states_) post_receives(rail);
  return {};
}

void RailSet::stop() {
  for (const auto& rail : rails_) rail->stop();
}

void RailSet::stop(RailState& rail) {
  rail.stuck = false;
  rail.stopped = rail.down = true;
  rail.rail->stop();
}

bool RailSet::all_read_since(std::uint64_t poll) const {
  return std::ranges::all_of(states_, [poll](const RailState& rail) { return rail.emptied > poll; });
}

void RailSet::post_receives(RailState& rail) {
  while (rail.posted_receives < rail.most_receives) {
    memory::Buffer* buffer = rail.to_post;
    if (buffer != nullptr) {
      rail.to_post = buffer->next;
    } else if (buffer = receives_->take(); buffer == nullptr) {
      ++exhausted_;
      return;
    }
    if (!post_receive(rail, *buffer)) {
      buffer->next = rail.to_post;
      rail.to_post = buffer;
      return;
    }
  }
}

void RailSet::warm_up() const {
  touch(*this);
  touch(states_.data(), states_.size() * sizeof(RailState));
  touch(events_.data(), 2 * sizeof(fabric::Event));
}

}  // namespace railyard::transport
