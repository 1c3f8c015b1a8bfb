#include "report_measure.hpp"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cmath>

#include "base/bytes.hpp"
#include "commands.hpp"
#include "demo_report.hpp"
#include "ranks.hpp"

namespace railyard::tool {

namespace {

void write_findings(ByteWriter& out, const ReportFindings& found) {
  const auto number = [&out](double value) { out.u64(std::bit_cast<std::uint64_t>(value)); };
  out.u32(static_cast<std::uint32_t>(found.series.size()));
  for (const ReportSeries& series : found.series) {
    out.text(series.name);
    out.u32(static_cast<std::uint32_t>(series.points.size()));
    for (const ReportPoint& point : series.points) {
      number(point.x);
      number(point.y);
    }
  }
  out.u32(static_cast<std::uint32_t>(found.marks.size()));
  for (const ReportMark& mark : found.marks) {
    number(mark.x);
    out.text(mark.text);
  }
}

ReportFindings read_findings(ByteReader in) {
  const auto number = [&in] { return std::bit_cast<double>(in.u64()); };
  ReportFindings found;
  for (std::uint32_t left = in.u32(); left > 0 && in.ok(); --left) {
    ReportSeries series;
    series.name = in.text();
    for (std::uint32_t points = in.u32(); points > 0 && in.ok(); --points) {
      const double x = number();
      series.points.push_back({x, number()});
    }
    found.series.push_back(std::move(series));
  }
  for (std::uint32_t left = in.u32(); left > 0 && in.ok(); --left) {
    const double x = number();
    found.marks.push_back({x, in.text()});
  }
  return found;
}

/// Memory that ranks, which are processes of their own, leave their findings in.
class SharedFile {
 public:
  SharedFile() : file_(memfd_create("railyard-report", MFD_CLOEXEC)) {}
  ~SharedFile() {
    if (file_ >= 0) ::close(file_);
  }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  bool put(std::span<const std::byte> bytes) const {
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t wrote = ::pwrite(file_, bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
      if (wrote <= 0) return false;
      at += static_cast<std::size_t>(wrote);
    }
    return true;
  }
  std::vector<std::byte> take() const {
    const off_t size = ::lseek(file_, 0, SEEK_END);
    std::vector<std::byte> bytes(size > 0 ? static_cast<std::size_t>(size) : 0);
    const ssize_t got = ::pread(file_, bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }

 private:
  int file_;
};

}  // namespace

int measure_in_world(const Settings& settings, bool pin, const ReportBody& body, ReportFindings& found) {
  const SharedFile shared;
  const int code = run_ranks("bench", 2, settings, [&](const Settings& own, Bootstrap& bootstrap) {
    if (pin) pin_rank("bench", bootstrap.rank());
    const auto findings = body(own, bootstrap);
    if (!findings) return report_error("bench", findings.error());
    if (bootstrap.rank() != 0) return int{kExitOk};
    ByteWriter out;
    write_findings(out, *findings);
    return shared.put(out.bytes()) ? int{kExitOk} : int{kExitFailed};
  });
  const std::vector<std::byte> bytes = shared.take();
  if (code == kExitOk) found = read_findings(ByteReader(bytes));
  return code;
}

ReportBody bench_body(const BenchOptions& options, bool by_rail) {
  return [options, by_rail](const Settings& settings, Bootstrap& bootstrap) -> Result<ReportFindings> {
    bench::Referee referee(bootstrap, Deadline::in(std::chrono::milliseconds(settings.bootstrap_timeout_ms)));
    auto match = BenchMatch::open(options, settings, bootstrap, referee);
    if (!match) return std::move(match.error());
    auto report = (*match)->run();
    if (!report) return std::move(report.error());
    if (auto closed = (*match)->close(); !closed) return std::move(closed.error());
    ReportFindings found;
    found.series.push_back({test_name(options.test), {}});
    for (const BenchRow& row : report->rows) {
      const auto bytes = static_cast<double>(row.bytes);
      found.series.front().points.push_back({bytes, row.ours});
      for (std::size_t i = 0; by_rail && i < row.by_rail.size(); ++i) {
        if (found.series.size() < i + 2) found.series.push_back({fmt::format("rail {}", i), {}});
        found.series[i + 1].points.push_back({bytes, row.by_rail[i].sent});
      }
    }
    return found;
  };
}

ReportBody percentiles_body(double seconds) {
  return [seconds](const Settings& settings, Bootstrap& bootstrap) -> Result<ReportFindings> {
    auto world = World::open({.settings = &settings, .bootstrap = &bootstrap});
    if (!world) return std::move(world.error());
    auto traffic = DemoTraffic::open(*world, bootstrap, seconds);
    if (!traffic) return std::move(traffic.error());
    auto result = traffic->run();
    if (!result) return std::move(result.error());
    if (auto closed = traffic->close(); !closed) return std::move(closed.error());
    auto summary = summarise(*result, bootstrap);
    if (!summary) return std::move(summary.error());
    if (!summary->all.failure.empty()) return Error(Status::rail_failed, "wrong data: " + summary->all.failure);
    ReportFindings found;
    for (const DemoPhase& phase : summary->all.phases) {
      ReportSeries series{phase.name, {}};
      for (int tenths = 0; tenths <= 30; ++tenths) {
        const double beyond = std::pow(10, -0.1 * tenths);
        // A percentile that fewer samples than it needs cannot show is left out.
        if (static_cast<double>(phase.latency.count()) * beyond < 1) break;
        series.points.push_back({1 - beyond, phase.latency.quantile(1 - beyond) / 1e3});
      }
      if (!series.points.empty()) found.series.push_back(std::move(series));
    }
    return found;
  };
}

}  // namespace railyard::tool
