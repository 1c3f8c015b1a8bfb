#include "sim/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "base/log.hpp"

namespace railyard::sim {

namespace {

using fabric::sim::RailOptions;

constexpr std::int64_t kNanosecondsPerMicrosecond = 1'000;
constexpr std::size_t kKiB = 1024;
/// The longest message of the library's own; no rail offers less.
constexpr std::size_t kLeastMessage = 4 * kKiB;

template <typename T>
T one_of(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[random.below(choices.size())];
}

std::uint32_t between(Random& random, std::uint32_t least, std::uint32_t most) {
  return least + static_cast<std::uint32_t>(random.below(most - least + 1));
}

/// Every rail of a world may do different things with a registration, but not announce different limits at random: what
/// varies within a process is what varies in one machine.
RailOptions draw_rail_kind(Random& random) {
  RailOptions rail;
  rail.bandwidth = one_of(random, {1e9, 3.125e9, 12.5e9, 50e9});
  rail.latency = between(random, 1, 15) * kNanosecondsPerMicrosecond;
  rail.jitter = between(random, 0, 1'000);
  rail.post_delay = between(random, 0, 500);
  rail.completion_delay = between(random, 0, 2'000);
  rail.mtu = one_of<std::size_t>(random, {1'500, 4 * kKiB, 4 * kKiB, 9'000, 16 * kKiB});
  rail.depth = one_of<std::size_t>(random, {8, 32, 128, 512});
  rail.not_ready = one_of<std::size_t>(random, {4, 64});
  rail.max_message = one_of<std::size_t>(random, {kLeastMessage, 4 * kLeastMessage});
  rail.max_write = one_of<std::size_t>(random, {16 * kKiB, 128 * kKiB, std::size_t{1} << 30U});
  rail.receive_depth = one_of<std::size_t>(random, {16, 128, 4'096});
  rail.delivery_complete = random.chance(0.8);
  rail.inject_bytes = one_of<std::size_t>(random, {0, 64, 256});
  rail.needs_local_registration = random.chance(0.5);
  rail.binds_registrations = rail.needs_local_registration && random.chance(0.3);
  rail.virtual_addresses = random.chance(0.5);
  rail.progresses_alone = random.chance(0.7);
  rail.immediate_takes_receive = random.chance(0.3);
  rail.tells_rate = random.chance(0.5);
  return rail;
}

void draw_network(Plan& plan, Random& random) {
  const RailOptions base = draw_rail_kind(random);
  const bool alike = random.chance(0.5);
  // Rails that reach only the rail of the same number elsewhere; every rank needs one of each plane's peers then.
  const bool planes = random.chance(0.3);
  for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
    for (std::uint32_t number = 0; number < plan.rails[rank]; ++number) {
      RailOptions rail = base;
      if (!alike) {
        rail.bandwidth = base.bandwidth / between(random, 1, 4);
        rail.latency = base.latency * between(random, 1, 4);
      }
      rail.process = static_cast<int>(rank);
      rail.number = static_cast<int>(number);
      if (planes) rail.plane = fmt::format("plane {}", number);
      plan.fabric.rails.push_back(std::move(rail));
    }
  }
}

void draw_settings(Settings& settings, Random& random) {
  settings.driver = "sim";
  settings.timeout_ms = 0;  // nothing waits: a full queue answers busy
  settings.threads = "single";
  settings.log = "error";
  settings.batch = one_of(random, {1U, 4U, 32U, 32U});
  settings.inline_bytes = one_of(random, {0U, 64U, 1024U, 1024U, 3000U});
  settings.window = one_of(random, {4U, 16U, 128U, 1024U, 4096U});
  settings.chunk_min = one_of(random, {256U, 1024U, 4096U, 32768U});
  settings.chunk_max = settings.chunk_min * one_of(random, {1U, 4U, 32U});
  // Rails are away for 50 us to 50 ms, and not for longer where no other is left.
  settings.ack_deadline_ms = one_of(random, {1U, 1U, 2U, 5U, 20U});
  settings.peer_timeout_ms = 3'000;
}

/// Long enough, in chunks small enough, for the sequence numbers of an immediate to go round.
void make_long(Plan& plan) {
  plan.behaviour.operations = 2'500;
  plan.behaviour.most_outstanding = 64;
  plan.settings.inline_bytes = 0;
  plan.settings.chunk_min = 256;
  plan.settings.chunk_max = 256;
}

void draw_behaviour(Behaviour& behaviour, Random& random) {
  behaviour.operations = between(random, 40, 240);
  behaviour.most_burst = one_of(random, {1U, 4U, 16U});
  behaviour.most_outstanding = one_of(random, {2U, 16U, 64U});
  behaviour.issue_percent = between(random, 10, 90);
  behaviour.progress_percent = between(random, 20, 100);
  behaviour.sleep_percent = random.chance(0.3) ? between(random, 1, 3) : 0;
  behaviour.sleep = between(random, 20, 300) * kNanosecondsPerMicrosecond;
  behaviour.turn = between(random, 100, 3'000);
  behaviour.hot_percent = random.chance(0.25) ? between(random, 30, 90) : 0;
  behaviour.self_percent = random.chance(0.5) ? between(random, 1, 10) : 0;
  behaviour.large = random.chance(0.2);
  behaviour.weights.resize(kKinds);
  for (std::uint32_t& weight : behaviour.weights) weight = between(random, 0, 10);
  // Most of what this library is for, in every schedule.
  behaviour.weights[static_cast<std::size_t>(Kind::put_signal)] += 15;
  behaviour.weights[static_cast<std::size_t>(Kind::signal)] += 5;
}

}  // namespace

const char* to_string(Kind kind) {
  static constexpr std::array<const char*, kKinds> kNames = {"put_signal",
                                                             "signal",
                                                             "put",
                                                             "relaxed put",
                                                             "overwriting put",
                                                             "put_value",
                                                             "put_counter",
                                                             "put_signal_counter",
                                                             "get",
                                                             "put and get",
                                                             "own atomic",
                                                             "atomic add",
                                                             "atomic swap",
                                                             "atomic compare_swap",
                                                             "put_vector",
                                                             "get_vector"};
  return kNames[static_cast<std::size_t>(kind)];
}

Plan make_plan(std::uint64_t seed, const ScenarioOptions& options) {
  Plan plan;
  plan.seed = seed;
  Random random(Random(seed).next());  // mixed: neighbouring seeds have nothing in common
  plan.ranks = options.ranks != 0 ? options.ranks : one_of(random, {2U, 2U, 2U, 3U, 4U, 5U, 6U});
  const std::uint32_t rails = options.rails != 0 ? options.rails : between(random, 1, 4);
  const bool uneven = options.rails == 0 && random.chance(0.25);
  for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
    plan.rails.push_back(uneven ? between(random, 1, 4) : rails);
  }
  draw_network(plan, random);
  draw_settings(plan.settings, random);
  draw_behaviour(plan.behaviour, random);
  plan.two_worlds = Random(~seed).chance(0.2);
  if (plan.ranks == 2 && random.chance(0.02)) make_long(plan);
  if (options.operations != 0) plan.behaviour.operations = options.operations;
  plan.fabric.seed = random.next();
  plan.fabric.fence_works = options.fence;
  const auto add = [&](const fabric::sim::FaultKind& kind) {
    kind.apply(plan.fabric, random);
    plan.kinds += fmt::format("{}{}", plan.kinds.empty() ? "" : ",", kind.name);
  };
  if (options.any_faults) {
    for (const auto& kind : fabric::sim::fault_kinds()) {
      if (random.chance(kind.share)) add(kind);
    }
  } else {
    for (const auto* kind : options.faults) add(*kind);
  }
  log_debug("seed {}: {} ranks, {} rails, faults: {}", seed, plan.ranks, plan.fabric.rails.size(),
            plan.kinds.empty() ? "none" : plan.kinds);
  return plan;
}

Plan orderly_plan(std::uint32_t ranks, std::uint32_t rails) {
  Plan plan;
  plan.seed = 1;
  plan.ranks = ranks;
  plan.rails.assign(ranks, rails);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    for (std::uint32_t number = 0; number < rails; ++number) {
      RailOptions rail;
      rail.process = static_cast<int>(rank);
      rail.number = static_cast<int>(number);
      plan.fabric.rails.push_back(std::move(rail));
    }
  }
  plan.settings.driver = "sim";
  plan.settings.timeout_ms = 0;
  plan.settings.threads = "single";
  return plan;
}

}  // namespace railyard::sim
