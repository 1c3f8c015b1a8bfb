/// The demo's picture: what each rail carried, and how long operations took.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "demo_report.hpp"
#include "svg.hpp"
#include "text.hpp"

namespace railyard::tool {

namespace {

constexpr double kWidth = 1000;
constexpr double kHeight = 510;
constexpr double kTop = 110;
constexpr double kBottom = 400;
constexpr const char* kBar = "#2f6fb3";

using Anchor = Svg::Anchor;

/// As many words of the rail's name as fit: "tcp eth0 10.0.0.1", "tcp eth0" or nothing.
std::string fitting_name(std::string name, double room) {
  constexpr double kCharacter = 6.6;
  while (static_cast<double>(name.size()) * kCharacter > room) {
    const std::size_t space = name.rfind(' ');
    name.resize(space == std::string::npos ? 0 : space);
  }
  return name;
}

void draw_rails(Svg& svg, const DemoSummary& summary) {
  constexpr double kLeft = 80;
  constexpr double kRight = 420;
  svg.text({kLeft, 78}, "All-to-all: what each rail carried, MB/s", {.size = 14, .bold = true});
  double most = 0;
  for (const DemoRail& rail : summary.all.rails) most = std::max(most, summary.rail_rate(rail) / 1e6);
  const double top = round_up(most);
  constexpr int kTicks = 4;
  for (int i = 0; i <= kTicks; ++i) {
    const double y = kBottom - (kBottom - kTop) * i / kTicks;
    svg.line({kLeft, y}, {kRight, y}, i == 0 ? kAxis : kGrid);
    svg.text({kLeft - 8, y + 4}, fmt::format("{:g}", top * i / kTicks),
             {.size = 12, .anchor = Anchor::end, .colour = kMuted});
  }
  const std::size_t rails = summary.all.rails.size();
  if (rails == 0) return;
  const double pitch = (kRight - kLeft) / static_cast<double>(rails);
  const double width = std::min(64.0, pitch * 0.62);
  for (std::size_t i = 0; i < rails; ++i) {
    const DemoRail& rail = summary.all.rails[i];
    const double rate = summary.rail_rate(rail) / 1e6;
    const double height = (kBottom - kTop) * rate / top;
    const double middle = kLeft + pitch * (static_cast<double>(i) + 0.5);
    svg.rectangle(middle - width / 2, kBottom - height, width, height, kBar);
    svg.text({middle, kBottom - height - 6}, readable_number(rate), {.size = 12, .anchor = Anchor::middle});
    svg.text({middle, kBottom + 18}, fmt::format("{}{}", pitch < 40 ? "" : "rail ", i),
             {.size = 12, .anchor = Anchor::middle});
    const std::string name = fitting_name(rail.name, pitch);
    svg.text({middle, kBottom + 34}, name, {.size = 11, .anchor = Anchor::middle, .colour = kMuted});
  }
}

/// Latencies over percentiles: the tail, where things go wrong, gets as much room as the middle.
class LatencyPlot {
 public:
  LatencyPlot(Svg& svg, const DemoSummary& summary) : svg_(svg), summary_(summary) {
    double least = 1e18;
    double most = 1;
    for (const DemoPhase& phase : summary.all.phases) {
      if (phase.latency.count() == 0) continue;
      least = std::min(least, phase.latency.quantile(0.001));
      most = std::max(most, phase.latency.quantile(0.999));
    }
    low_ = std::floor(std::log10(std::clamp(least, 1.0, most)));
    high_ = std::max(low_ + 1, std::ceil(std::log10(most)));
  }

  void draw() {
    svg_.text({kLeft, 78}, "Latency by percentile", {.size = 14, .bold = true});
    draw_axes();
    for (std::size_t i = 0; i < summary_.all.phases.size(); ++i) draw_phase(i);
  }

 private:
  static constexpr double kLeft = 530;
  static constexpr double kRight = 960;
  static constexpr double kNines = 3;  ///< the right end: 99.9 %

  static double x_of(double quantile) { return kLeft + (kRight - kLeft) * -std::log10(1 - quantile) / kNines; }
  double y_of(double nanoseconds) const {
    const double share = (std::log10(std::max(nanoseconds, 1.0)) - low_) / (high_ - low_);
    return kBottom - (kBottom - kTop) * std::clamp(share, 0.0, 1.0);
  }

  void draw_axes() {
    for (double power = low_; power <= high_; ++power) {
      const double y = y_of(std::pow(10, power));
      svg_.line({kLeft, y}, {kRight, y}, power == low_ ? kAxis : kGrid);
      svg_.text({kLeft - 8, y + 4}, power_label(power), {.size = 12, .anchor = Anchor::end, .colour = kMuted});
    }
    for (const auto& [quantile, label] : {std::pair{0.5, "50 %"}, {0.9, "90 %"}, {0.99, "99 %"}, {0.999, "99.9 %"}}) {
      svg_.line({x_of(quantile), kTop}, {x_of(quantile), kBottom}, kGrid);
      svg_.text({x_of(quantile), kBottom + 18}, label, {.size = 12, .anchor = Anchor::middle, .colour = kMuted});
    }
  }

  static std::string power_label(double power) {
    if (power < 3) return fmt::format("{:.0f} ns", std::pow(10, power));
    if (power < 6) return fmt::format("{:.0f} us", std::pow(10, power - 3));
    if (power < 9) return fmt::format("{:.0f} ms", std::pow(10, power - 6));
    return fmt::format("{:.0f} s", std::pow(10, power - 9));
  }

  void draw_phase(std::size_t index) {
    const DemoPhase& phase = summary_.all.phases[index];
    if (phase.latency.count() == 0) return;
    const char* colour = kCurves[index % std::size(kCurves)];
    std::vector<Svg::Point> points;
    for (double nines = 0; nines <= kNines + 1e-9; nines += 0.02) {
      const double quantile = 1 - std::pow(10, -nines);
      // A percentile that fewer samples than it needs cannot show is left out.
      if (static_cast<double>(phase.latency.count()) * (1 - quantile) < 1) break;
      points.push_back({kLeft + (kRight - kLeft) * nines / kNines, y_of(phase.latency.quantile(quantile))});
    }
    svg_.curve(points, colour);
    const double x = kLeft + static_cast<double>(index % 2) * 220;
    const double y = kBottom + 44 + static_cast<double>(index / 2) * 20;
    svg_.rectangle(x, y - 5, 16, 4, colour);
    svg_.text({x + 22, y}, phase.name, {.size = 12});
  }

  Svg& svg_;
  const DemoSummary& summary_;
  double low_ = 3;
  double high_ = 6;
};

}  // namespace

std::string demo_picture(const DemoSummary& summary) {
  Svg svg(kWidth, kHeight);
  double total = 0;
  for (const DemoRail& rail : summary.all.rails) total += summary.rail_rate(rail) / 1e6;
  svg.text({24, 36},
           fmt::format("Railyard demo: {} ranks, {} rails ({}), {} MB/s together", summary.ranks,
                       summary.all.rails.size(), summary.all.provider, readable_number(total)),
           {.size = 18, .bold = true});
  draw_rails(svg, summary);
  LatencyPlot(svg, summary).draw();
  svg.text({24, kHeight - 18},
           summary.all.failure.empty() ? fmt::format("Verified: {} byte for byte, {} signals, {} atomics",
                                                     readable_bytes(static_cast<double>(summary.all.bytes_checked)),
                                                     summary.all.signals_checked, summary.all.atomics_checked)
                                       : "FAILED: " + summary.all.failure,
           {.size = 12, .colour = summary.all.failure.empty() ? kMuted : "#b42318"});
  return svg.finish();
}

}  // namespace railyard::tool
