#include "sim/stage.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "window/assemble.hpp"

namespace railyard::sim {

Pair::Pair(int source, int target, const Layout& layout, std::span<std::byte> memory, Findings& findings)
    : flow(source, target, layout, memory, findings),
      adds(flow, "the source's add signal"),
      sets(flow, "the source's set signal"),
      shared(flow, "the source's part of a shared signal") {
  words[Layout::kOwnWords - 1].width = 4;
}

Cluster::~Cluster() { close(); }

void Cluster::close() {
  windows.clear();
  worlds.clear();
}

Result<std::unique_ptr<Cluster>> Cluster::open(const Plan& plan, std::size_t window_bytes,
                                               const WindowOptions& options) {
  std::unique_ptr<Cluster> cluster(new Cluster(plan));
  Random random(plan.seed);
  std::vector<WorldAssembly> worlds;
  std::vector<std::vector<std::byte>> contributions;
  std::size_t next_rail = 0;
  for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
    WorldParts parts;
    parts.settings = plan.settings;
    parts.clock = &cluster->fabric.clock();
    for (std::uint32_t i = 0; i < plan.rails[rank]; ++i) {
      auto rail = cluster->fabric.open_rail(next_rail++);
      if (!rail) return std::move(rail.error());
      parts.rails.push_back(std::move(*rail));
    }
    parts.rank = static_cast<int>(rank);
    parts.size = static_cast<int>(plan.ranks);
    parts.seed = random.next();
    for (auto& byte : parts.identity.bytes) byte = static_cast<std::uint8_t>(random.next());
    auto assembly = WorldAssembly::begin(std::move(parts));
    if (!assembly) return std::move(assembly.error());
    worlds.push_back(std::move(*assembly));
    contributions.push_back(worlds.back().contribution());
  }
  for (WorldAssembly& assembly : worlds) {
    auto world = assembly.finish(contributions);
    if (!world) return std::move(world.error());
    cluster->worlds.push_back(std::move(*world));
  }

  std::vector<WindowAssembly> windows;
  contributions.clear();
  for (World& world : cluster->worlds) {
    windows.push_back(WindowAssembly::begin(world, window_bytes, options));
    contributions.push_back(windows.back().contribution());
  }
  for (WindowAssembly& assembly : windows) {
    auto window = assembly.finish(contributions);
    if (!window) return std::move(window.error());
    cluster->windows.push_back(std::move(*window));
  }
  return cluster;
}

Stage::Stage(Plan given)
    : plan(std::move(given)),
      layout(plan.ranks, plan.behaviour.large),
      random(Random(~plan.seed).next()),
      pairs_(std::size_t{plan.ranks} * plan.ranks) {}

Result<std::unique_ptr<Stage>> Stage::open(Plan plan) {
  std::unique_ptr<Stage> stage(new Stage(std::move(plan)));
  WindowOptions options;
  options.signals = stage->layout.signals();
  auto cluster = Cluster::open(stage->plan, stage->layout.bytes(), options);
  if (!cluster) return std::move(cluster.error());
  stage->cluster = std::move(*cluster);
  for (std::uint32_t rank = 0; rank < stage->plan.ranks; ++rank) {
    stage->targets.emplace_back(static_cast<int>(rank), stage->plan.ranks);
    const auto memory = stage->window(static_cast<int>(rank)).local();
    Pattern(stage->plan.seed, rank, 0).fill(memory.first(Layout::kConstantBytes));
  }
  const auto& programs = stage->plan.fabric.programs;
  if (programs.deregisters || programs.refusals) {
    auto brief = BriefWindows::open(*stage);
    if (!brief) return std::move(brief.error());
    stage->brief = std::move(*brief);
  }
  return stage;
}

bool Stage::may_be_lost(int observer, int target) {
  if (!fabric().alive(target)) return true;
  for (const auto& rail : plan.fabric.rails) {
    if (rail.knows_liveness) return false;
  }
  const std::int64_t patience = std::int64_t{plan.settings.peer_timeout_ms} * 1'000'000 / 2;
  return std::max(fabric().longest_pause(observer), fabric().longest_pause(target)) >= patience;
}

Pair& Stage::pair(int source, int target) {
  auto& found = pairs_[static_cast<std::size_t>(source) * plan.ranks + static_cast<std::size_t>(target)];
  if (found == nullptr) {
    found = std::make_unique<Pair>(source, target, layout, window(target).local(), findings);
  }
  return *found;
}

}  // namespace railyard::sim
