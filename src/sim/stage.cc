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
  second_windows.clear();
  second_worlds.clear();
  windows.clear();
  worlds.clear();
}

namespace {

Result<void> finish_worlds(std::vector<WorldAssembly>& begun, std::vector<World>& worlds) {
  std::vector<std::vector<std::byte>> contributions;
  contributions.reserve(begun.size());
  for (const WorldAssembly& assembly : begun) contributions.push_back(assembly.contribution());
  for (WorldAssembly& assembly : begun) {
    auto world = assembly.finish(contributions);
    if (!world) return std::move(world.error());
    worlds.push_back(std::move(*world));
  }
  return {};
}

Result<void> open_windows(std::vector<World>& worlds, std::size_t bytes, const WindowOptions& options,
                          std::vector<Window>& windows) {
  std::vector<WindowAssembly> begun;
  std::vector<std::vector<std::byte>> contributions;
  for (World& world : worlds) {
    begun.push_back(WindowAssembly::begin(world, bytes, options));
    contributions.push_back(begun.back().contribution());
  }
  for (WindowAssembly& assembly : begun) {
    auto window = assembly.finish(contributions);
    if (!window) return std::move(window.error());
    windows.push_back(std::move(*window));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Cluster>> Cluster::open(const Plan& plan, std::size_t window_bytes, const WindowOptions& options,
                                               int worlds_on_each) {
  std::unique_ptr<Cluster> cluster(new Cluster(plan));
  Random random(plan.seed);
  std::vector<WorldAssembly> begun;
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
    parts.worlds = worlds_on_each;
    parts.seed = random.next();
    for (auto& byte : parts.identity.bytes) byte = static_cast<std::uint8_t>(random.next());
    auto assembly = WorldAssembly::begin(std::move(parts));
    if (!assembly) return std::move(assembly.error());
    begun.push_back(std::move(*assembly));
  }
  if (auto finished = finish_worlds(begun, cluster->worlds); !finished) return std::move(finished.error());
  if (auto opened = open_windows(cluster->worlds, window_bytes, options, cluster->windows); !opened)
    return std::move(opened.error());
  return cluster;
}

Result<void> Cluster::open_second(std::size_t window_bytes, const WindowOptions& options) {
  std::vector<WorldAssembly> begun;
  for (World& world : worlds) {
    auto assembly = WorldAssembly::begin_beside(world, 1);
    if (!assembly) return std::move(assembly.error());
    begun.push_back(std::move(*assembly));
  }
  if (auto finished = finish_worlds(begun, second_worlds); !finished) return finished;
  return open_windows(second_worlds, window_bytes, options, second_windows);
}

Stage::Stage(Plan given)
    : plan(std::move(given)),
      layout(plan.ranks, plan.behaviour.large),
      random(Random(~plan.seed).next()),
      pairs_(std::size_t{plan.ranks} * plan.ranks) {}

Result<std::unique_ptr<Stage>> Stage::open(Plan plan) {
  std::unique_ptr<Stage> stage(new Stage(std::move(plan)));
  auto cluster =
      Cluster::open(stage->plan, stage->layout.bytes(), stage->window_options(), stage->plan.two_worlds ? 2 : 1);
  if (!cluster) return std::move(cluster.error());
  stage->cluster = std::move(*cluster);
  stage->fill_constants();
  const auto& programs = stage->plan.fabric.programs;
  if (programs.deregisters || programs.refusals) {
    auto brief = BriefWindows::open(*stage);
    if (!brief) return std::move(brief.error());
    stage->brief = std::move(*brief);
  }
  return stage;
}

Result<std::unique_ptr<Stage>> Stage::open_second() {
  Plan same = plan;
  same.seed = ~plan.seed;
  std::unique_ptr<Stage> stage(new Stage(std::move(same)));
  if (auto opened = cluster->open_second(stage->layout.bytes(), stage->window_options()); !opened)
    return std::move(opened.error());
  stage->cluster = cluster;
  stage->second_ = true;
  stage->fill_constants();
  return stage;
}

WindowOptions Stage::window_options() const {
  WindowOptions options;
  options.signals = layout.signals();
  return options;
}

void Stage::fill_constants() {
  for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
    targets.emplace_back(static_cast<int>(rank), plan.ranks);
    const auto memory = window(static_cast<int>(rank)).local();
    Pattern(plan.seed, rank, 0).fill(memory.first(Layout::kConstantBytes));
  }
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
