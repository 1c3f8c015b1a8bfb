#include "sim_goodput.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "commands.hpp"
#include "json.hpp"
#include "svg.hpp"
#include "text.hpp"

namespace railyard::tool {

namespace {

constexpr double kWidth = 1000;
constexpr double kHeight = 440;
constexpr double kLeft = 80;
constexpr double kRight = 970;
constexpr double kTop = 100;
constexpr double kBottom = 360;
constexpr const char* kPossible = "#e69f00";
constexpr const char* kDelivered = "#0072b2";

using Anchor = Svg::Anchor;

/// Shares of the line rate over time. The axis begins where the lower curve is, not at zero: little is lost.
class GoodputPlot {
 public:
  GoodputPlot(Svg& svg, const sim::Goodput& result) : svg_(svg), result_(result) {
    double least = 1;
    for (const sim::GoodputStep& step : result.steps) {
      if (step.time > sim::kGoodputStart) {
        least = std::min({least, step.delivered / result.line_rate, step.possible / result.line_rate});
      }
    }
    low_ = std::clamp(std::floor(least * 50) / 50, 0.0, 0.98);
    end_ = result.steps.back().time;
  }

  void draw() {
    constexpr int kTicks = 4;
    for (int i = 0; i <= kTicks; ++i) {
      const double share = low_ + (kHigh - low_) * i / kTicks;
      svg_.line({kLeft, y_of(share)}, {kRight, y_of(share)}, i == 0 ? kAxis : kGrid);
      svg_.text({kLeft - 8, y_of(share) + 4}, fmt::format("{:.1f} %", 100 * share),
                {.size = 12, .anchor = Anchor::end, .colour = kMuted});
    }
    for (double time = 0; time <= end_ + 1e-9; time += 0.5) {
      svg_.text({x_of(time), kBottom + 18}, fmt::format("{:g} s", time),
                {.size = 12, .anchor = Anchor::middle, .colour = kMuted});
    }
    draw_curve(kPossible, 0, "line rate of the links whose rails stand", &sim::GoodputStep::possible);
    draw_curve(kDelivered, 340, "arrived, checked byte for byte, in steps of 10 ms", &sim::GoodputStep::delivered);
  }

 private:
  static constexpr double kHigh = 1.0;

  double x_of(double time) const { return kLeft + (kRight - kLeft) * time / end_; }
  double y_of(double share) const {
    return kBottom - (kBottom - kTop) * std::clamp((share - low_) / (kHigh - low_), 0.0, 1.08);
  }

  void draw_curve(const char* colour, double legend, const char* name, double sim::GoodputStep::*value) {
    std::vector<Svg::Point> points;
    for (const sim::GoodputStep& step : result_.steps) {
      points.push_back({x_of(step.time), y_of(step.*value / result_.line_rate)});
    }
    svg_.curve(points, colour);
    svg_.rectangle(kLeft + legend, kBottom + 39, 16, 4, colour);
    svg_.text({kLeft + legend + 22, kBottom + 44}, name, {.size = 12});
  }

  Svg& svg_;
  const sim::Goodput& result_;
  double low_ = 0;
  double end_ = 1;
};

std::string goodput_json(const sim::GoodputOptions& options, const sim::Goodput& result) {
  JsonWriter json;
  json.begin_object()
      .field("ranks", options.ranks)
      .field("rails", options.rails)
      .field("seed", options.seed)
      .field("failing_per_second", options.failing)
      .field("failures", result.failures)
      .field("puts", result.puts)
      .field("wrong", result.wrong)
      .field("refused", result.refused)
      .field("links_lost", result.links_lost)
      .field("segments_replayed", result.replayed)
      .field("line_rate", result.line_rate)
      .field("share", result.share)
      .field("worst_share", result.worst);
  json.key("steps").begin_array();
  for (const sim::GoodputStep& step : result.steps) {
    json.begin_object()
        .field("time", step.time)
        .field("delivered", step.delivered)
        .field("possible", step.possible)
        .end_object();
  }
  return json.end_array().end_object().finish();
}

void print_goodput(const sim::GoodputOptions& options, const sim::Goodput& result) {
  using Align = Table::Align;
  Table table({{"measured", Align::left}, {"value", Align::right}});
  const auto count = [&](const char* name, std::uint64_t value) { table.add({name, fmt::format("{}", value)}); };
  count("ranks", options.ranks);
  count("rails of each", options.rails);
  count("rails that failed", result.failures);
  count("links lost", result.links_lost);
  count("segments sent again", result.replayed);
  count("puts checked", result.puts);
  table.rule();
  count("puts found wrong", result.wrong);
  count("operations refused", result.refused);
  table.add({"arrived, of what the standing rails could carry", fmt::format("{:.2f} %", 100 * result.share)});
  table.add({"in the worst 10 ms", fmt::format("{:.2f} %", 100 * result.worst)});
  fmt::print("{}", table.text());
}

}  // namespace

std::string goodput_picture(const sim::GoodputOptions& options, const sim::Goodput& result) {
  Svg svg(kWidth, kHeight);
  svg.text({24, 36},
           fmt::format("{} ranks with {} rails each, {:g} % of the rails failing per second", options.ranks,
                       options.rails, 100 * options.failing),
           {.size = 18, .bold = true});
  svg.text({24, 62},
           fmt::format("Simulated: {} failures, {} links lost, {} segments sent again; {:.2f} % of what was possible "
                       "arrived",
                       result.failures, result.links_lost, result.replayed, 100 * result.share),
           {.size = 13, .colour = kMuted});
  GoodputPlot(svg, result).draw();
  svg.text({24, kHeight - 12},
           result.clean() ? fmt::format("Share of all rails' line rate; {} puts, each as it was sent", result.puts)
                          : fmt::format("FAILED: {} puts wrong, {} operations refused", result.wrong, result.refused),
           {.size = 12, .colour = result.clean() ? kMuted : "#b42318"});
  return svg.finish();
}

int run_goodput_command(const sim::GoodputOptions& options, const std::string& json, const std::string& svg) {
  fmt::print(stderr, "railyard sim: {} ranks, {:g} virtual seconds\n", options.ranks, options.seconds);
  const auto result = sim::measure_goodput(options);
  if (!result) return report_error("sim", result.error());
  print_goodput(options, *result);
  if (!json.empty()) {
    if (auto written = write_text(json, goodput_json(options, *result)); !written) {
      return report_error("sim", written.error());
    }
  }
  if (!svg.empty()) {
    if (auto written = write_text(svg, goodput_picture(options, *result)); !written) {
      return report_error("sim", written.error());
    }
  }
  return result->clean() ? int{kExitOk} : int{kExitFailed};
}

}  // namespace railyard::tool
