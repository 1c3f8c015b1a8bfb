/// The page of a report and the JSON beside it.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "json.hpp"
#include "report.hpp"
#include "svg.hpp"
#include "text.hpp"

namespace railyard::tool {

namespace {

constexpr const char* kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Railyard: what this machine reaches</title>
<style>
body { font-family: system-ui, "DejaVu Sans", Helvetica, Arial, sans-serif; color: #24292f; max-width: 980px;
  margin: 2rem auto; padding: 0 1rem; line-height: 1.45; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .3rem; }
p.note { color: #57606a; margin: .2rem 0 .6rem; font-size: .92rem; }
svg { max-width: 100%; height: auto; border: 1px solid #e4e7eb; border-radius: 6px; }
table { border-collapse: collapse; font-size: .88rem; margin: .5rem 0; }
td, th { padding: .2rem .8rem .2rem 0; text-align: right; border-bottom: 1px solid #e4e7eb; }
.facts td, .facts th, td:first-child, th:first-child { text-align: left; } .facts th { font-weight: 400; color: #57606a; }
details { margin: .4rem 0; } summary { cursor: pointer; color: #57606a; font-size: .9rem; }
</style>
</head>
<body>
)";

/// Every place of the x axis that a series has a point at.
std::vector<double> places(const ReportFigure& figure) {
  std::vector<double> all;
  for (const ReportSeries& series : figure.series) {
    for (const ReportPoint& point : series.points) all.push_back(point.x);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::string place_text(const ReportFigure& figure, double x) {
  if (figure.x == ReportAxis::bytes) return readable_bytes(x);
  return figure.x == ReportAxis::quantile ? fmt::format("{:.4g} %", 100 * x) : figure_text(x);
}

/// A row for each place; curves over time are too long for it.
std::string table_of(const ReportFigure& figure) {
  if (figure.x == ReportAxis::seconds) return "";
  std::string out =
      fmt::format("<details><summary>The figures</summary>\n<table><tr><th>{}</th>", escaped(figure.x_label));
  for (const ReportSeries& series : figure.series) out += fmt::format("<th>{}</th>", escaped(series.name));
  out += "</tr>\n";
  for (const double x : places(figure)) {
    out += fmt::format("<tr><td>{}</td>", place_text(figure, x));
    for (std::size_t i = 0; i < figure.series.size(); ++i) {
      const auto& points = figure.series[i].points;
      const auto at =
          std::find_if(points.begin(), points.end(), [x](const ReportPoint& point) { return point.x == x; });
      if (at == points.end()) {
        out += "<td></td>";
      } else {
        out += fmt::format("<td data-figure=\"{}\" data-series=\"{}\" data-x=\"{}\" data-y=\"{}\">{}</td>", figure.id,
                           i, figure_text(x), figure_text(at->y), readable_number(at->y));
      }
    }
    out += "</tr>\n";
  }
  return out + "</table></details>\n";
}

/// Integers as such: a size in bytes keeps its last digit.
void write_number(JsonWriter& json, double value) {
  value == std::floor(value) && std::abs(value) < 1e15 ? json.value(static_cast<std::int64_t>(value))
                                                       : json.value(value);
}

}  // namespace

std::string report_page(const ReportData& data) {
  std::string out = kHead;
  out += "<h1>What this machine reaches</h1>\n";
  out += fmt::format(
      "<p class=\"note\">Made by <code>{}</code>: two ranks on this machine, all data verified. Every point is in "
      "<a href=\"report.json\">report.json</a>; the pointer on a point shows its value.</p>\n",
      escaped(data.command));
  out += "<h2>The machine</h2>\n<table class=\"facts\">\n";
  for (const ReportFact& fact : data.machine) {
    out += fmt::format("<tr><th>{}</th><td data-fact=\"{}\">{}</td></tr>\n", escaped(fact.label), fact.key,
                       escaped(fact.value));
  }
  out += "</table>\n";
  for (const ReportFigure& figure : data.figures) {
    out += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"note\">{}</p>\n", figure.id, escaped(figure.title),
                       escaped(figure.note));
    out += report_picture(figure) + table_of(figure) + "</section>\n";
  }
  if (!data.topology.empty()) out += "<h2>Rails and GPUs</h2>\n" + data.topology;
  return out + "</body>\n</html>\n";
}

std::string report_json(const ReportData& data) {
  JsonWriter json;
  json.begin_object().field("command", std::string_view(data.command)).key("machine").begin_object();
  for (const ReportFact& fact : data.machine) json.field(fact.key, std::string_view(fact.value));
  json.end_object().key("figures").begin_array();
  for (const ReportFigure& figure : data.figures) {
    json.begin_object()
        .field("id", std::string_view(figure.id))
        .field("title", std::string_view(figure.title))
        .field("note", std::string_view(figure.note))
        .field("x", std::string_view(figure.x_label))
        .field("y", std::string_view(figure.y_label));
    json.key("series").begin_array();
    for (const ReportSeries& series : figure.series) {
      json.begin_object().field("name", std::string_view(series.name)).key("points").begin_array();
      for (const ReportPoint& point : series.points) {
        json.begin_array();
        write_number(json, point.x);
        write_number(json, point.y);
        json.end_array();
      }
      json.end_array().end_object();
    }
    json.end_array().key("marks").begin_array();
    for (const ReportMark& mark : figure.marks) {
      json.begin_object().field("x", mark.x).field("text", std::string_view(mark.text)).end_object();
    }
    json.end_array().end_object();
  }
  return json.end_array().end_object().finish();
}

}  // namespace railyard::tool
