#include "topology/assignment.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace railyard::topology {

namespace {

// How deep in the machine two devices have a common point.
constexpr std::size_t kSameSocket = 1;
constexpr std::size_t kSameNode = 2;
constexpr std::size_t kSameBridge = 3;  // and one more for each PCIe bridge that both hang below

std::size_t common_depth(const PciLocation& a, const PciLocation& b) noexcept {
  if (!a.root.empty() && a.root == b.root) {
    const auto [end, other] = std::ranges::mismatch(a.bridges, b.bridges);
    return kSameBridge + static_cast<std::size_t>(end - a.bridges.begin());
  }
  if (a.numa >= 0 && a.numa == b.numa) return kSameNode;
  return a.socket >= 0 && a.socket == b.socket ? kSameSocket : 0;
}

/// A NIC, and how much of it has been given away. Whole megabits: sums must not depend on the order of additions.
struct Candidate {
  std::size_t index = 0;  ///< in the caller's list
  const Nic* nic = nullptr;
  std::uint64_t rate = 1;
  std::size_t card = 0;  ///< ports of one card have the same
  std::uint64_t users = 0;
  std::uint64_t first = 0;  ///< how many GPUs have it first
  std::uint64_t first_spare = 0;
};

/// The machine while its NICs are being given out. NICs are known by their index in `nics`, which is by address.
struct Sharing {
  std::vector<Candidate> nics;
  std::vector<std::uint64_t> card_users;
  std::uint64_t fastest = 1;

  bool is_slow(std::size_t nic) const { return nics[nic].rate * kSlowNic < fastest; }
  /// (count + 1) / rate of one against the other, in whole numbers.
  static bool is_less(std::uint64_t count, std::uint64_t rate, std::uint64_t other_count, std::uint64_t other_rate) {
    return (count + 1) * other_rate < (other_count + 1) * rate;
  }
  /// Which of two equally near NICs a GPU takes.
  bool is_better(std::size_t a, std::size_t b) const {
    const Candidate& one = nics[a];
    const Candidate& other = nics[b];
    if (is_less(one.users, one.rate, other.users, other.rate)) return true;
    if (is_less(other.users, other.rate, one.users, one.rate)) return false;
    return std::tuple(one.users, card_users[one.card], a) < std::tuple(other.users, card_users[other.card], b);
  }
  void use(std::size_t nic) {
    ++nics[nic].users;
    ++card_users[nics[nic].card];
  }
};

Sharing make_sharing(std::span<const Nic> given) {
  std::vector<std::size_t> order(given.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return comes_before(given[a], given[b]); });
  double fastest = 0;
  for (const Nic& nic : given) fastest = std::max(fastest, nic.rate);

  Sharing sharing;
  constexpr double kMegabit = 1e6 / 8;
  const auto megabits = [&](double rate) {
    // Nobody knows the rate of many virtual NICs: no reason to take them for slow.
    return static_cast<std::uint64_t>(std::max(std::round((rate > 0 ? rate : fastest) / kMegabit), 1.0));
  };
  sharing.fastest = megabits(fastest);
  std::string last_card;
  for (const std::size_t index : order) {
    const std::string function = given[index].location.function();
    const std::string card = function.substr(0, function.rfind('.'));
    if (card.empty() || card != last_card) sharing.card_users.push_back(0);
    last_card = card;
    sharing.nics.push_back({index, &given[index], megabits(given[index].rate), sharing.card_users.size() - 1});
  }
  return sharing;
}

/// A GPU while NICs are being given out.
struct Claim {
  std::size_t gpu = 0;            ///< in the caller's list
  std::vector<std::size_t> near;  ///< NICs, by address
};

std::vector<std::size_t> near_nics(const Gpu& gpu, const Sharing& sharing) {
  std::vector<std::size_t> near;
  std::size_t deepest = 0;
  for (std::size_t nic = 0; nic < sharing.nics.size(); ++nic) {
    if (sharing.is_slow(nic)) continue;
    const std::size_t depth = common_depth(gpu.location, sharing.nics[nic].nic->location);
    if (depth > deepest) near.clear();
    if (depth >= deepest) near.push_back(nic);
    deepest = std::max(deepest, depth);
  }
  return near;
}

std::vector<std::size_t> take_share(const Claim& claim, std::span<const Claim> claims, std::size_t most,
                                    Sharing& sharing) {
  std::uint64_t total = 0;
  for (const std::size_t nic : claim.near) total += sharing.nics[nic].rate;
  const auto sharers = static_cast<std::uint64_t>(
      std::ranges::count_if(claims, [&](const Claim& other) { return std::ranges::includes(claim.near, other.near); }));

  std::vector<std::size_t> left = claim.near;
  std::vector<std::size_t> taken;
  for (std::uint64_t rate = 0; rate * sharers < total && (most == 0 || taken.size() < most);) {
    const auto best =
        std::ranges::min_element(left, [&](std::size_t a, std::size_t b) { return sharing.is_better(a, b); });
    rate += sharing.nics[*best].rate;
    sharing.use(*best);
    taken.push_back(*best);
    left.erase(best);
  }
  return taken;
}

/// To the front: the one that is first for the fewest. Whoever uses one NIC alone takes the first.
void choose_first(std::vector<std::size_t>& taken, Sharing& sharing) {
  const auto first = std::ranges::min_element(taken, [&](std::size_t a, std::size_t b) {
    const Candidate& one = sharing.nics[a];
    const Candidate& other = sharing.nics[b];
    return Sharing::is_less(one.first, one.rate, other.first, other.rate);
  });
  if (first == taken.end()) return;
  std::rotate(taken.begin(), first, first + 1);
  ++sharing.nics[taken.front()].first;
}

std::vector<std::size_t> order_spares(const Gpu& gpu, const std::vector<std::size_t>& taken, Sharing& sharing) {
  std::vector<std::size_t> spares;
  for (std::size_t nic = 0; nic < sharing.nics.size(); ++nic)
    if (std::ranges::find(taken, nic) == taken.end()) spares.push_back(nic);
  std::ranges::stable_sort(spares, [&](std::size_t a, std::size_t b) {
    const Candidate& one = sharing.nics[a];
    const Candidate& other = sharing.nics[b];
    const std::size_t depth = common_depth(gpu.location, one.nic->location);
    const std::size_t other_depth = common_depth(gpu.location, other.nic->location);
    if (sharing.is_slow(a) != sharing.is_slow(b)) return sharing.is_slow(b);
    if (depth != other_depth) return depth > other_depth;
    return Sharing::is_less(one.users + one.first_spare, one.rate, other.users + other.first_spare, other.rate);
  });
  if (!spares.empty()) ++sharing.nics[spares.front()].first_spare;
  return spares;
}

std::vector<AssignedNic> describe(const Gpu& gpu, const std::vector<std::size_t>& nics, const Sharing& sharing) {
  std::vector<AssignedNic> out;
  out.reserve(nics.size());
  for (const std::size_t nic : nics)
    out.push_back({sharing.nics[nic].index, path_between(gpu.location, sharing.nics[nic].nic->location)});
  return out;
}

/// The NICs that the caller gave by their indices in its list.
std::vector<std::size_t> find_given(const std::vector<std::size_t>& indices, const Sharing& sharing) {
  std::vector<std::size_t> nics;
  for (const std::size_t index : indices) {
    const auto found = std::ranges::find(sharing.nics, index, &Candidate::index);
    nics.push_back(static_cast<std::size_t>(found - sharing.nics.begin()));
  }
  return nics;
}

}  // namespace

const char* to_string(PathKind path) noexcept {
  switch (path) {
    case PathKind::pci_switch:
      return "PCIe switch";
    case PathKind::host_bridge:
      return "host bridge";
    case PathKind::numa_node:
      return "NUMA node";
    case PathKind::socket:
      return "socket";
    case PathKind::machine:
      break;
  }
  return "machine";
}

PathKind path_between(const PciLocation& a, const PciLocation& b) noexcept {
  const std::size_t depth = common_depth(a, b);
  if (depth > kSameBridge) return PathKind::pci_switch;
  if (depth == kSameBridge) return PathKind::host_bridge;
  if (depth == kSameNode) return PathKind::numa_node;
  return depth == kSameSocket ? PathKind::socket : PathKind::machine;
}

std::vector<GpuRails> assign_nics(std::span<const Gpu> gpus, std::span<const Nic> nics,
                                  const AssignmentOptions& options) {
  Sharing sharing = make_sharing(nics);
  std::vector<Claim> claims(gpus.size());
  for (std::size_t i = 0; i < gpus.size(); ++i) claims[i] = {i, near_nics(gpus[i], sharing)};
  std::ranges::sort(claims, {},
                    [&](const Claim& claim) { return std::pair(claim.near.size(), gpus[claim.gpu].address); });

  const auto by_hand = [&](std::size_t gpu) { return gpu < options.by_hand.size() && !options.by_hand[gpu].empty(); };
  std::vector<std::vector<std::size_t>> taken(gpus.size());
  // What was given by hand is used, whoever would have had it.
  for (const Claim& claim : claims) {
    if (!by_hand(claim.gpu)) continue;
    taken[claim.gpu] = find_given(options.by_hand[claim.gpu], sharing);
    for (const std::size_t nic : taken[claim.gpu]) sharing.use(nic);
    ++sharing.nics[taken[claim.gpu].front()].first;
  }
  for (const Claim& claim : claims) {
    if (by_hand(claim.gpu)) continue;
    taken[claim.gpu] = take_share(claim, claims, options.most_per_gpu, sharing);
    choose_first(taken[claim.gpu], sharing);
  }
  std::vector<GpuRails> all(gpus.size());
  for (const Claim& claim : claims) {
    const Gpu& gpu = gpus[claim.gpu];
    const auto spares = order_spares(gpu, taken[claim.gpu], sharing);
    all[claim.gpu] = {gpu.address, by_hand(claim.gpu), describe(gpu, taken[claim.gpu], sharing),
                      describe(gpu, spares, sharing)};
  }
  return all;
}

}  // namespace railyard::topology
