/// The figures of a report, drawn.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "report.hpp"
#include "svg.hpp"
#include "text.hpp"

namespace railyard::tool {

namespace {

constexpr double kWidth = 960;
constexpr double kLeft = 84;
constexpr double kRight = 940;
constexpr double kTop = 44;
constexpr double kBottom = 330;
constexpr double kLegendLine = 20;
constexpr std::size_t kLegendColumns = 3;
/// More points than this are a curve with invisible dots.
constexpr std::size_t kFewPoints = 40;

using Anchor = Svg::Anchor;

std::size_t legend_lines(const ReportFigure& figure) {
  return (figure.series.size() + kLegendColumns - 1) / kLegendColumns;
}

class ReportPlot {
 public:
  explicit ReportPlot(const ReportFigure& figure)
      : figure_(figure), svg_(kWidth, kBottom + 52 + kLegendLine * static_cast<double>(legend_lines(figure))) {
    double least = std::numeric_limits<double>::max();
    double most = 0;
    left_ = least;
    right_ = std::numeric_limits<double>::lowest();
    for (const ReportSeries& series : figure.series) {
      for (const ReportPoint& point : series.points) {
        left_ = std::min(left_, along(point.x));
        right_ = std::max(right_, along(point.x));
        most = std::max(most, point.y);
        if (point.y > 0) least = std::min(least, point.y);
      }
    }
    if (figure.x == ReportAxis::seconds || figure.x == ReportAxis::quantile) left_ = 0;
    if (figure.x == ReportAxis::quantile) right_ = 3;
    if (!(right_ > left_)) right_ = left_ + 1;
    if (figure.log_y) {
      low_ = std::floor(std::log10(std::min(least, std::max(most, 1e-3))));
      high_ = std::max(low_ + 1, std::ceil(std::log10(std::max(most, 1e-3))));
    } else {
      high_ = round_up(most);
    }
  }

  std::string draw() {
    svg_.text({kLeft - 68, 22}, figure_.y_label, {.size = 12, .colour = kMuted});
    figure_.log_y ? draw_logarithmic() : draw_linear();
    draw_x();
    for (std::size_t i = 0; i < figure_.marks.size(); ++i) draw_mark(i);
    // The first series last: it is what the figure is about.
    for (std::size_t i = figure_.series.size(); i-- > 0;) draw_series(i);
    return svg_.finish();
  }

 private:
  /// Where a value of the x axis lies, in the axis's own measure.
  double along(double x) const {
    if (figure_.x == ReportAxis::bytes) return std::log2(std::max(x, 1.0));
    if (figure_.x == ReportAxis::quantile) return -std::log10(std::max(1 - x, 1e-9));
    return x;
  }
  double x_of(double x) const { return kLeft + (kRight - kLeft) * (along(x) - left_) / (right_ - left_); }
  double y_of(double y) const {
    const double share =
        figure_.log_y ? (std::log10(std::max(y, 1e-12)) - low_) / (high_ - low_) : y / std::max(high_, 1e-12);
    return kBottom - (kBottom - kTop) * std::clamp(share, 0.0, 1.0);
  }

  void grid_line(double y, const std::string& label, bool axis) {
    svg_.line({kLeft, y}, {kRight, y}, axis ? kAxis : kGrid);
    svg_.text({kLeft - 8, y + 4}, label, {.size = 12, .anchor = Anchor::end, .colour = kMuted});
  }
  void draw_linear() {
    constexpr int kTicks = 4;
    for (int i = 0; i <= kTicks; ++i)
      grid_line(y_of(high_ * i / kTicks), fmt::format("{:g}", high_ * i / kTicks), i == 0);
  }
  void draw_logarithmic() {
    for (double power = low_; power <= high_; ++power) {
      grid_line(y_of(std::pow(10, power)), fmt::format("{:g}", std::pow(10, power)), power == low_);
    }
  }

  void tick(double x, const std::string& label) {
    svg_.line({x_of(x), kTop}, {x_of(x), kBottom}, kGrid);
    svg_.text({x_of(x), kBottom + 18}, label, {.size = 12, .anchor = Anchor::middle, .colour = kMuted});
  }
  void draw_x() {
    if (figure_.x == ReportAxis::quantile) {
      for (const double quantile : {0.0, 0.5, 0.9, 0.99, 0.999}) tick(quantile, fmt::format("{:g} %", 100 * quantile));
    } else if (figure_.x == ReportAxis::seconds) {
      const double step = round_up(right_ / 10);
      for (double time = 0; time <= right_ + 1e-9; time += step) tick(time, fmt::format("{:g}", time));
    } else {
      const bool bytes = figure_.x == ReportAxis::bytes;
      std::vector<double> places;
      for (const ReportSeries& series : figure_.series) {
        for (const ReportPoint& point : series.points) places.push_back(point.x);
      }
      std::sort(places.begin(), places.end());
      places.erase(std::unique(places.begin(), places.end()), places.end());
      for (const double place : places) tick(place, bytes ? readable_bytes(place) : fmt::format("{:g}", place));
    }
    svg_.text({(kLeft + kRight) / 2, kBottom + 36}, figure_.x_label,
              {.size = 12, .anchor = Anchor::middle, .colour = kMuted});
  }

  void draw_mark(std::size_t index) {
    constexpr const char* kMark = "#b42318";
    constexpr double kRoom = 110;
    const double x = x_of(figure_.marks[index].x);
    // Where another mark follows closely, the text is on the other side of the line.
    const bool crowded = index + 1 < figure_.marks.size() && x_of(figure_.marks[index + 1].x) - x < kRoom;
    svg_.line({x, kTop}, {x, kBottom}, kMark);
    svg_.text({crowded ? x - 4 : x + 4, kTop - 6}, figure_.marks[index].text,
              {.size = 12, .anchor = crowded ? Anchor::end : Anchor::start, .colour = kMark});
  }

  void draw_series(std::size_t index) {
    const ReportSeries& series = figure_.series[index];
    const char* colour = kCurves[index % std::size(kCurves)];
    std::vector<Svg::Point> points;
    for (const ReportPoint& point : series.points) points.push_back({x_of(point.x), y_of(point.y)});
    svg_.curve(points, colour);
    const double radius = series.points.size() > kFewPoints ? 0.8 : 3.5;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const ReportPoint& point = series.points[i];
      svg_.dot(points[i], radius, colour,
               fmt::format("{}: {}, {}", series.name, figure_text(point.x), figure_text(point.y)),
               fmt::format("data-figure=\"{}\" data-series=\"{}\" data-x=\"{}\" data-y=\"{}\"", figure_.id, index,
                           figure_text(point.x), figure_text(point.y)));
    }
    const double x = kLeft + static_cast<double>(index % kLegendColumns) * 285;
    const double y = kBottom + 60 + static_cast<double>(index / kLegendColumns) * kLegendLine;
    svg_.rectangle(x, y - 6, 16, 4, colour);
    svg_.text({x + 22, y}, series.name, {.size = 12});
  }

  const ReportFigure& figure_;
  Svg svg_;
  double left_ = 0;
  double right_ = 1;
  double low_ = 0;
  double high_ = 1;
};

}  // namespace

std::string figure_text(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? fmt::format("{:.0f}", value)
                                                              : fmt::format("{:.6g}", value);
}

std::string report_picture(const ReportFigure& figure) { return ReportPlot(figure).draw(); }

}  // namespace railyard::tool
