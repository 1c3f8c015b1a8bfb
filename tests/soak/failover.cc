/// Soak: verified traffic of every kind, both ways between ranks 2i and 2i+1, for some seconds, while somebody breaks
/// and mends rails (tests/lab/failover.test). Put_signals from 8 B to 1 MiB, each byte checked when its signal is seen;
/// slots under guard (ghosts); fetching additions that must answer 0, 1, 2, ...; additions and signals whose sums must
/// be exact; gets of known bytes. Writes the verified bytes of every 5 ms, with wall-clock stamps, as JSON. Exits 1 if
/// anything was lost, double, early, corrupt or a ghost.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include "pair.hpp"

namespace {

using namespace railyard;        // NOLINT(google-build-using-namespace)
using namespace railyard::soak;  // NOLINT(google-build-using-namespace)

struct Options {
  double seconds = 10;
  std::string profile = "mixed";
  std::size_t large = 256 * 1024;
  double patience = 20;
  std::string json;
};

[[noreturn]] void give_up(const std::string& what) {
  fmt::print(stderr, "failover: {}\n", what);
  std::exit(1);
}
template <typename T>
T must(Result<T> result) {
  if (!result) give_up(result.error().text());
  return std::move(result).value();
}
void must(Result<void> result) {
  if (!result) give_up(result.error().text());
}

/// Bytes verified in each slice of wall-clock time, and the deadline of the slowest link as it was then.
class TimeLine {
 public:
  void note(std::uint64_t verified_in_all, const World& world) {
    const auto slice = static_cast<std::size_t>((std::chrono::system_clock::now() - start_) / kSlice);
    if (slice >= slices_.size()) slices_.resize(slice + 1);
    slices_[slice] += verified_in_all - noted_;
    noted_ = verified_in_all;
    while (deadlines_.size() <= slice / kSlicesPerDeadline) deadlines_.push_back(longest_deadline(world));
  }
  std::string json() const {
    const auto start = std::chrono::duration_cast<std::chrono::nanoseconds>(start_.time_since_epoch()).count();
    return fmt::format(R"("start_ns": {}, "slice_ns": {}, "slices": [{}], "deadlines_ns": {}, "deadlines": [{:.4f}])",
                       start, std::chrono::nanoseconds(kSlice).count(), fmt::join(slices_, ","),
                       std::chrono::nanoseconds(kSlicesPerDeadline * kSlice).count(), fmt::join(deadlines_, ","));
  }

 private:
  static double longest_deadline(const World& world) {
    double longest = 0;
    for (const auto& rail : world.statistics().rails) longest = std::max(longest, rail.deadline);
    return longest;
  }

  static constexpr std::chrono::milliseconds kSlice{5};
  static constexpr std::size_t kSlicesPerDeadline = 20;
  std::chrono::system_clock::time_point start_ = std::chrono::system_clock::now();
  std::vector<std::uint64_t> slices_;
  std::vector<double> deadlines_;
  std::uint64_t noted_ = 0;
};

/// bulk: even ranks send large puts as fast as they go, odd ranks small ones; duplex: both large ones.
PairOptions shapes(const Options& options, int rank) {
  StreamShape mixed;
  if (options.profile == "mixed") return {mixed, mixed};
  StreamShape bulk;
  bulk.most = options.large;
  bulk.large = true;
  // The rails are for the stream; the rest goes along at a pace that does not weigh.
  PairOptions result{bulk, bulk, std::chrono::milliseconds(1)};
  if (options.profile == "bulk") (rank % 2 == 0 ? result.in : result.out).large = false;
  return result;
}

std::string statistics_json(const World& world) {
  const WorldStatistics all = world.statistics();
  std::vector<std::string> rails;
  for (const auto& rail : all.rails) {
    rails.push_back(fmt::format(
        R"({{"name": "{}", "up": {}, "links_down": {}, "deadline": {:.4f}, "bytes_sent": {}, "bytes_received": {}, "rate": {:.0f}}})",
        rail.name, rail.up, rail.links_down, rail.deadline, rail.bytes_sent, rail.bytes_received, rail.rate));
  }
  return fmt::format(
      R"({{"operations": {}, "dropped_stale": {}, "dropped_malformed": {}, "links_suspected": {}, )"
      R"("links_lost": {}, "links_rejoined": {}, "fences": {}, "segments_replayed": {}, "rails": [{}]}})",
      all.operations_completed, all.dropped_stale, all.dropped_malformed, all.links_suspected, all.links_lost,
      all.links_rejoined, all.fences, all.segments_replayed, fmt::join(rails, ", "));
}

std::string findings_json(const Findings& found) {
  return fmt::format(R"({{"lost": {}, "double": {}, "early": {}, "corrupt": {}, "ghost": {}}})", found.lost,
                     found.doubled, found.early, found.corrupt, found.ghost);
}

void write_report(const Options& options, const World& world, const Pair& pair, const TimeLine& line,
                  const std::string& error) {
  if (options.json.empty()) return;
  std::vector<std::string> settings;
  for (const auto& entry : world.settings().list()) {
    settings.push_back(fmt::format(R"("{}": "{}")", entry.name, entry.name == "RAILYARD_JOB_KEY" ? "" : entry.value));
  }
  std::string told = error;
  std::replace(told.begin(), told.end(), '"', '\'');
  std::ofstream file(fmt::format("{}.{}.json", options.json, world.rank()));
  file << fmt::format(
      R"({{"rank": {}, "profile": "{}", "error": "{}", "findings": {}, "messages_sent": {}, "messages_received": {}, )"
      R"("fetches": {}, "gets": {}, "statistics": {}, "settings": {{{}}}, {}}})",
      world.rank(), options.profile, told, findings_json(pair.findings()), pair.sent(), pair.received(), pair.fetched(),
      pair.got(), statistics_json(world), fmt::join(settings, ", "), line.json());
  if (!file.flush()) give_up("cannot write " + options.json);
}

/// Runs the traffic; the error that ended it, if one did.
std::string run(World& world, Pair& pair, TimeLine& line, const Options& options) {
  using Clock = std::chrono::steady_clock;
  const auto stop =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
  auto last_move = Clock::now();
  while (!pair.done()) {
    const auto now = Clock::now();
    auto moved = pair.step(now < stop);
    if (!moved) return moved.error().text();
    world.progress();
    line.note(pair.verified_bytes(), world);
    if (*moved) {
      last_move = now;
    } else if (now - last_move > std::chrono::duration<double>(options.patience)) {
      return fmt::format("nothing moved for {} s: {} messages sent, {} received", options.patience, pair.sent(),
                         pair.received());
    } else {
      std::this_thread::yield();
    }
  }
  return {};
}

bool traffic(World& world, const Options& options) {
  const PairOptions pair_options = shapes(options, world.rank());
  const Layout layout(world.size(), pair_options.out);
  WindowOptions window_options;
  window_options.signals = layout.signals();
  auto window = must(Window::allocate(world, layout.bytes(), window_options));
  fill(window.local().first(Layout::kShelf), key_of(Use::shelf, world.rank(), 0, 0));
  Pair pair(world, window, layout, world.rank() ^ 1, pair_options);
  must(window.barrier());

  if (!options.json.empty()) std::ofstream(fmt::format("{}.{}.started", options.json, world.rank()));
  TimeLine line;
  std::string error = run(world, pair, line, options);
  if (error.empty()) {
    must(window.quiet());
    must(window.barrier());
    pair.check_again();
  }
  const Findings& found = pair.findings();
  write_report(options, world, pair, line, error);
  fmt::print(
      "rank {}: {} put_signals sent, {} received, {:.1f} MB verified, {} fetches, {} gets: {} lost, {} double, {} "
      "early, {} corrupt, {} ghost{}{}\n",
      world.rank(), pair.sent(), pair.received(), static_cast<double>(pair.verified_bytes()) / 1e6, pair.fetched(),
      pair.got(), found.lost, found.doubled, found.early, found.corrupt, found.ghost,
      error.empty() ? "" : "; ended by: ", error);
  if (!error.empty()) return false;
  must(window.close());
  return found.total() == 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"verified traffic between pairs of ranks while rails break"};
  app.add_option("--seconds", options.seconds, "how long operations are begun");
  app.add_option("--profile", options.profile,
                 "mixed: all sizes both ways; bulk: large puts from even ranks; duplex: both ways")
      ->check(CLI::IsMember({"mixed", "bulk", "duplex"}));
  app.add_option("--large", options.large, "bytes of a large put (bulk, duplex)");
  app.add_option("--patience", options.patience, "seconds without any movement that are taken for a loss");
  app.add_option("--json", options.json,
                 "where to write PREFIX.RANK.json: findings, statistics, verified bytes by time; PREFIX.RANK.started "
                 "is made first");
  CLI11_PARSE(app, argc, argv);
  auto world = must(World::open());
  if (world.size() % 2 != 0) give_up("the number of ranks must be even");
  return traffic(world, options) ? 0 : 1;
}
