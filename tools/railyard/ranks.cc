#include "ranks.hpp"

#include <fmt/core.h>
#include <sched.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/log.hpp"
#include "bootstrap/open.hpp"
#include "bootstrap/pmix.hpp"
#include "commands.hpp"
#include "fabric/rail.hpp"
#include "launcher/launcher.hpp"

namespace railyard::tool {

bool inside_a_world(const Settings& settings) { return settings.rank >= 0 || bootstrap::started_by_pmix(); }

namespace {

/// What each rank finds on its host is shared first: otherwise every rank would report a missing rail by itself, and
/// those that have one would wait for the others.
Result<void> find_rails_together(const Settings& settings, Bootstrap& bootstrap) {
  const auto offers = fabric::discover(settings);
  ByteWriter mine;
  mine.u8(static_cast<std::uint8_t>(offers.status()));
  mine.text(offers.ok() ? "" : offers.error().message());
  auto all = bootstrap.allgather(mine.bytes(), {});
  if (!all) return std::move(all.error());
  std::vector<int> without;
  Status status = Status::ok;
  std::string message;
  for (std::size_t rank = 0; rank < all->size(); ++rank) {
    ByteReader in((*all)[rank]);
    const std::uint8_t code = in.u8();
    const std::string text = in.text();
    if (!in.done() || code > static_cast<std::uint8_t>(Status::no_memory)) {
      return Error(Status::version_mismatch, "the ranks run different programs");
    }
    if (code == 0) continue;
    if (without.empty()) {
      status = static_cast<Status>(code);
      message = text;
    }
    without.push_back(static_cast<int>(rank));
  }
  if (without.empty()) return {};
  if (without.size() < all->size()) message = fmt::format("rank {}: {}", without.front(), message);
  return Error(status, message);
}

int run_one_rank(const char* command, const Settings& settings, const RankBody& body) {
  auto bootstrap = open_bootstrap(settings);
  if (!bootstrap) return report_error(command, bootstrap.error());
  set_log_rank((*bootstrap)->rank());
  if (auto found = find_rails_together(settings, **bootstrap); !found) {
    return (*bootstrap)->rank() == 0 ? report_error(command, found.error()) : exit_code_for(found.status());
  }
  return body(settings, **bootstrap);
}

/// The settings of a forked rank: the parent's, and what the launcher put into the environment.
Result<Settings> settings_of_child(Settings settings) {
  for (const char* name : {"RAILYARD_RANK", "RAILYARD_SIZE", "RAILYARD_BOOTSTRAP", "RAILYARD_RENDEZVOUS",
                           "RAILYARD_RENDEZVOUS_HOST", "RAILYARD_JOB_KEY"}) {
    const char* value = std::getenv(name);
    if (value == nullptr) continue;
    if (auto set = settings.set(name, value); !set) return std::move(set.error());
  }
  return settings;
}

}  // namespace

int run_ranks(const char* command, int ranks, const Settings& settings, const RankBody& body) {
  if (inside_a_world(settings)) return run_one_rank(command, settings, body);
  launcher::LaunchOptions options;
  options.ranks = ranks;
  // A rank that fails says why itself: the launcher's line about its exit code would only bury that.
  set_log_sink([](LogLevel, std::string_view) {});
  auto report = launcher::launch_function(options, [&](int) {
    set_log_sink({});
    auto own = settings_of_child(settings);
    return own ? run_one_rank(command, *own, body) : report_error(command, own.error());
  });
  set_log_sink({});
  if (!report) return report_error(command, report.error());
  if (report->exit_code > kExitMachine) {
    // It did not end by itself: there is no line of its own.
    fmt::print(stderr, "railyard {}: {}\n", command, report->failure.empty() ? "interrupted" : report->failure);
  }
  return report->exit_code;
}

void pin_rank(const char* command, int rank) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  int turn = rank % CPU_COUNT(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || turn-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof(one), &one) != 0)
      fmt::print(stderr, "railyard {}: rank {} not pinned\n", command, rank);
    return;
  }
}

}  // namespace railyard::tool
