/// Sub-worlds: who is in one, how its ranks meet, and what their errors say.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.hpp"
#include "window/assemble.hpp"
#include "window/window_state.hpp"

namespace railyard {

int WorldState::rank_of(int world_rank) const {
  if (members.empty() || world_rank < 0) return world_rank;
  const auto found = std::ranges::find(members, world_rank);
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

namespace window_detail {

Error WindowState::in_our_terms(Error error) const {
  if (!world_.is_part()) return error;
  Error::Where where = error.where();
  const int named = where.peer;
  where.peer = world_.rank_of(named);
  if (where.peer < 0) return error;
  return {error.status(),
          fmt::format("{} (the world's rank {} is rank {} of this sub-world)", error.message(), named, where.peer),
          where};
}

int WindowState::lost_rank() const {
  const int last = engine_.losses().last();
  if (last < 0) return -1;
  const transport::Ranks& ranks = world_.membership->ranks();
  const auto flow = static_cast<std::uint32_t>(last);
  if (!world_.is_part() && ranks.owns(flow)) return static_cast<int>(flow - ranks.first_flow);
  for (int rank = 0; rank < world_.size; ++rank) {
    const transport::Flow* const flow = existing_flow(rank);
    if (flow == nullptr || !flow->failed.load(std::memory_order_acquire)) continue;
    // One that has left is named by no operation (losses.cc).
    if (flow->error.where().operation[0] != '\0') return rank;
  }
  return -1;
}

std::uint64_t WindowState::outstanding() const {
  const std::uint64_t all = engine_.completions().outstanding();
  if (all == 0 || (!world_.is_part() && world_.home().alone())) return all;
  std::uint64_t sum = 0;
  for (int rank = 0; rank < world_.size; ++rank) {
    const transport::Flow* const flow = existing_flow(rank);
    if (flow != nullptr) sum += flow->outstanding.load(std::memory_order_acquire);
  }
  return sum;
}

namespace {

constexpr std::uint32_t kSplitMagic = 0x74696c70;  // "plit"

/// How the ranks of a sub-world meet: through a window of theirs, which the ranks of the larger world have made
/// together.
class SubWorldBootstrap final : public Bootstrap {
 public:
  SubWorldBootstrap(Window window, int rank, int size, std::string parent)
      : window_(std::move(window)), rank_(rank), size_(size), parent_(std::move(parent)) {}

  /// What each rank shows of its contribution at a time.
  struct Page {
    static constexpr std::size_t kBytes = 32768;
    std::uint64_t whole = 0;  ///< bytes of the contribution
    std::byte bytes[kBytes];
  };

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string describe() const override { return "a part of " + parent_; }
  Result<void> barrier(Deadline deadline) override { return meet(deadline); }

  Result<std::vector<std::vector<std::byte>>> allgather(std::span<const std::byte> mine, Deadline deadline) override {
    std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(size_));
    Page& shown = *reinterpret_cast<Page*>(window_.local().data());
    std::vector<Page> seen(static_cast<std::size_t>(size_));
    std::size_t longest = 0;
    std::size_t from = 0;
    do {
      shown.whole = mine.size();
      const std::size_t now = std::min(Page::kBytes, mine.size() - std::min(from, mine.size()));
      if (now > 0) std::memcpy(shown.bytes, mine.data() + from, now);
      if (auto met = meet(deadline); !met) return std::move(met.error());
      std::vector<Ticket> gets;
      for (int rank = 0; rank < size_; ++rank) {
        auto got = window_.get(rank, 0, &seen[static_cast<std::size_t>(rank)], sizeof(Page));
        if (!got) return std::move(got.error());
        gets.push_back(*got);
      }
      for (const Ticket& get : gets)
        if (auto got = window_.wait(get, Completion::remote, deadline); !got) return std::move(got.error());
      // Nobody shows the next page before all have seen this one.
      if (auto met = meet(deadline); !met) return std::move(met.error());
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        const Page& page = seen[rank];
        longest = std::max<std::size_t>(longest, page.whole);
        if (from >= page.whole) continue;
        const std::size_t bytes = std::min<std::size_t>(Page::kBytes, page.whole - from);
        all[rank].insert(all[rank].end(), page.bytes, page.bytes + bytes);
      }
      from += Page::kBytes;
    } while (from < longest);
    return all;
  }

 private:
  /// A barrier, and nothing else: that an operation of some other window failed is for its own user to hear.
  Result<void> meet(Deadline deadline) {
    WindowState& state = WindowAccess::state(window_);
    if (auto met = state.run_barrier(deadline); !met) return met;
    state.barrier().inside = false;
    // Whoever leaves next has said that it came.
    (void)state.wait_for_all(deadline);
    return {};
  }

  Window window_;
  int rank_;
  int size_;
  std::string parent_;
};

struct Choice {
  int color = -1;
  int key = 0;
  int rank = 0;
};

std::vector<std::byte> write_choice(int color, int key) {
  ByteWriter writer;
  writer.u32(kSplitMagic);
  writer.u32(static_cast<std::uint32_t>(color));
  writer.u32(static_cast<std::uint32_t>(key));
  return writer.take();
}

/// The ranks of one color, in order.
Result<std::vector<Choice>> read_choices(std::span<const std::vector<std::byte>> all, int color) {
  std::vector<Choice> same;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    ByteReader reader(all[rank]);
    if (reader.u32() != kSplitMagic) reader.fail();
    const auto theirs = static_cast<int>(reader.u32());
    const auto key = static_cast<int>(reader.u32());
    if (!reader.done()) {
      return Error(Status::invalid,
                   fmt::format("split: rank {} makes another collective call: do all ranks make the same ones in the "
                               "same order?",
                               rank),
                   {.peer = static_cast<int>(rank), .operation = "split"});
    }
    if (theirs == color) same.push_back({theirs, key, static_cast<int>(rank)});
  }
  std::ranges::stable_sort(same, {}, &Choice::key);
  return same;
}

}  // namespace
}  // namespace window_detail

using namespace window_detail;  // NOLINT(google-build-using-namespace): the rest of this file's own

Result<std::optional<World>> World::split(int color, int key) {
  WorldState& here = *state_;
  if (here.bootstrap == nullptr) return Error(Status::unsupported, "this world was assembled without a bootstrap");
  const auto deadline = Deadline::in(std::chrono::milliseconds(settings().bootstrap_timeout_ms));
  const auto gather = [&](const std::vector<std::byte>& mine) {
    return here.with_progress([&] { return here.bootstrap->allgather(mine, deadline); });
  };
  auto choices = gather(write_choice(color, key));
  if (!choices) return std::move(choices.error());
  auto same = read_choices(*choices, color);
  if (!same) return std::move(same.error());
  if (color < 0) {
    // The others make their windows; this rank has nothing to tell them.
    if (auto all = gather({}); !all) return std::move(all.error());
    return std::optional<World>();
  }

  auto state = std::make_shared<WorldState>();
  state->membership = here.membership;
  state->first_flow = here.first_flow;
  state->shares_memory = here.shares_memory;
  state->size = static_cast<int>(same->size());
  for (const Choice& each : *same) {
    if (each.rank == here.rank) state->rank = static_cast<int>(state->members.size());
    state->members.push_back(here.world_rank(each.rank));
  }
  World made = WorldAccess::make(state);
  auto assembly = WindowAssembly::begin(made, sizeof(SubWorldBootstrap::Page), {.signals = 0, .counters = 0});
  auto offers = gather(assembly.contribution());
  if (!offers) return std::move(offers.error());
  std::vector<std::vector<std::byte>> ours;
  for (const Choice& each : *same) ours.push_back(std::move((*offers)[static_cast<std::size_t>(each.rank)]));
  auto window = assembly.finish(ours);
  if (!window) return std::move(window.error());
  state->owned_bootstrap =
      std::make_unique<SubWorldBootstrap>(std::move(*window), state->rank, state->size, here.bootstrap->describe());
  state->bootstrap = state->owned_bootstrap.get();
  return std::optional<World>(std::move(made));
}

int World::world_rank(int rank) const noexcept {
  return rank >= 0 && rank < state_->size ? state_->world_rank(rank) : -1;
}

int World::translate(int rank, const World& other) const noexcept {
  const int here = world_rank(rank);
  if (here < 0) return -1;
  const Membership& mine = *state_->membership;
  const Membership& theirs = *other.state_->membership;
  return other.state_->rank_of(&mine == &theirs ? here : theirs.rank_of(mine.identity_of(here)));
}

}  // namespace railyard
