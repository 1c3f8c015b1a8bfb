/// `railyard bench --report`: what one page shows, as data. The page's pictures and the JSON beside it are both made
/// from this, so that every figure on the page is in the JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "railyard/settings.hpp"

namespace railyard::tool {

struct ReportPoint {
  double x = 0;
  double y = 0;
};

struct ReportSeries {
  std::string name;
  std::vector<ReportPoint> points;
};

/// Something that happened at a place of the x axis.
struct ReportMark {
  double x = 0;
  std::string text;
};

enum class ReportAxis : std::uint8_t {
  bytes,     ///< logarithmic
  count,     ///< of rails
  quantile,  ///< the tail gets as much room as the middle
  seconds,
};

struct ReportFigure {
  std::string id;
  std::string title;
  std::string note;  ///< what a reader of the figure must know
  ReportAxis x = ReportAxis::bytes;
  std::string x_label;
  std::string y_label;
  bool log_y = false;
  std::vector<ReportSeries> series;
  std::vector<ReportMark> marks;
};

struct ReportFact {
  std::string key;  ///< in the JSON
  std::string label;
  std::string value;
};

struct ReportData {
  std::string command;
  std::vector<ReportFact> machine;
  std::vector<ReportFigure> figures;
  std::string topology;  ///< a picture of the machine; empty: none could be drawn
};

struct ReportOptions {
  std::string folder;
  bool quick = false;
  bool pin = true;
  std::uint32_t rounds = 0;    ///< of each measurement; 0: by `quick`
  std::uint32_t round_ms = 0;  ///< the same
};

/// Measures everything, in worlds that it starts one after another, and writes FOLDER/index.html and
/// FOLDER/report.json. Returns the exit code.
int run_report(const ReportOptions& options, const Settings& settings);

/// What this machine is, and what it runs.
std::vector<ReportFact> describe_machine(const Settings& settings);

/// One figure as an SVG element. Each point is a dot that carries its series' number, x and y.
std::string report_picture(const ReportFigure& figure);
std::string report_page(const ReportData& data);
std::string report_json(const ReportData& data);
/// A figure as both the page and the JSON write it.
std::string figure_text(double value);

}  // namespace railyard::tool
