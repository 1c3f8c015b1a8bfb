/// The rounds of one bench: Railyard and, if asked, bare libfabric on every rail or a bare socket, in turn, with
/// medians.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/ours.hpp"
#include "bench/raw_libfabric.hpp"
#include "bench/raw_socket.hpp"
#include "bench/referee.hpp"
#include "railyard/bootstrap.hpp"
#include "railyard/settings.hpp"
#include "railyard/world.hpp"

namespace railyard::tool {

struct BenchOptions {
  bench::Test test = bench::Test::put;
  std::vector<std::size_t> sizes;
  std::uint32_t rounds = 7;
  std::uint32_t round_ms = 0;
  bool beside_raw = false;     ///< bare libfabric
  bool beside_socket = false;  ///< a bare socket on the first rail's interface
};

/// What one rail of rank 0 carried while its rounds ran, in MB/s of those rounds.
struct RailFigure {
  std::string name;
  double sent = 0;
  double received = 0;
};

struct BenchRow {
  std::size_t bytes = 0;
  double ours = 0;
  std::optional<double> raw;
  std::uint64_t rounds_verified = 0;  ///< rounds, warm-up included, whose data was checked
  std::uint64_t bytes_verified = 0;
  std::vector<RailFigure> by_rail;
};

struct BenchReport {
  std::string provider;
  std::size_t rails = 0;
  std::vector<BenchRow> rows;
  WorldStatistics counted;         ///< by rank 0's world over the whole bench
  std::vector<std::string> notes;  ///< what a reader of the figures must know
};

const char* test_name(bench::Test test);
/// "us", "MB/s" or "op/s"
const char* test_unit(bench::Test test);
/// A round trip: less is better.
bool is_latency(bench::Test test);

/// Both ranks hold one and call `run`; rank 0 gets the figures.
class BenchMatch {
 public:
  /// Opens a world and, beside it, what it is compared with. Collective. `bootstrap` and `referee` must outlive it.
  static Result<std::unique_ptr<BenchMatch>> open(const BenchOptions& options, const Settings& settings,
                                                  Bootstrap& bootstrap, bench::Referee& referee);
  /// Collective. The report's rows are filled on rank 0.
  Result<BenchReport> run();
  /// Collective: takes everything down in order.
  Result<void> close();

 private:
  BenchMatch(const BenchOptions& options, World world, bench::Referee& referee);
  Result<void> open_raw(const Settings& settings);
  Result<void> connect_raw();
  Result<void> open_socket(const Settings& settings);
  Result<void> connect_socket();
  std::vector<bench::Contestant*> contestants() const;

  /// Rank 0: one round on both ranks; returns its seconds.
  Result<double> direct(std::size_t contestant, std::size_t bytes, std::uint64_t count, BenchRow& row);
  /// Rank 1: does what rank 0 directs until it says stop.
  Result<void> follow();
  Result<void> perform(const bench::Plan& plan, double& seconds);
  Result<std::uint64_t> calibrate(std::size_t contestant, std::size_t bytes, BenchRow& row);
  Result<BenchRow> measure(std::size_t bytes);
  void show_progress(std::size_t bytes, std::uint32_t round);

  BenchOptions options_;
  World world_;
  bench::Referee& referee_;
  std::unique_ptr<bench::Ours> ours_;
  std::vector<std::byte> raw_exposed_;
  std::vector<std::byte> raw_buffer_;
  std::vector<std::unique_ptr<bench::RawRail>> raw_;
  std::unique_ptr<bench::RawSocket> socket_;
  std::vector<std::uint64_t> serials_;  ///< rounds so far, by contestant
  std::int64_t began_ns_ = 0;
  std::int64_t shown_ns_ = 0;
};

}  // namespace railyard::tool
