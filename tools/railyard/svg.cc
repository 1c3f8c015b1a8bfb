#include "svg.hpp"

#include <fmt/core.h>

#include <cmath>

namespace railyard::tool {

namespace {

const char* anchor_name(Svg::Anchor anchor) {
  switch (anchor) {
    case Svg::Anchor::middle:
      return "middle";
    case Svg::Anchor::end:
      return "end";
    case Svg::Anchor::start:
      break;
  }
  return "start";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

double round_up(double value) {
  if (value <= 0) return 1;
  const double unit = std::pow(10, std::floor(std::log10(value)));
  for (const double step : {1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0}) {
    if (step * unit >= value) return step * unit;
  }
  return 10 * unit;
}

Svg::Svg(double width, double height) {
  body_ = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif\">\n",
      width, height);
  rectangle(0, 0, width, height, "#ffffff");
}

void Svg::rectangle(double x, double y, double width, double height, std::string_view colour) {
  body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x, y,
                       width, height, colour);
}

void Svg::line(Point from, Point to, std::string_view colour, double width) {
  body_ +=
      fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{}\"/>\n",
                  from.x, from.y, to.x, to.y, colour, width);
}

void Svg::curve(std::span<const Point> points, std::string_view colour) {
  body_ += "<polyline points=\"";
  for (const Point& point : points) body_ += fmt::format("{:.1f},{:.1f} ", point.x, point.y);
  body_ += fmt::format("\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>\n", colour);
}

void Svg::dot(Point at, double radius, std::string_view colour, std::string_view title, std::string_view data) {
  body_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\" {}><title>{}</title></circle>\n", at.x,
                       at.y, radius, colour, data, escaped(title));
}

void Svg::text(Point at, std::string_view content, const TextStyle& style) {
  body_ +=
      fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" text-anchor=\"{}\" font-weight=\"{}\" fill=\"{}\">",
                  at.x, at.y, style.size, anchor_name(style.anchor), style.bold ? "600" : "400", style.colour);
  body_ += escaped(content) + "</text>\n";
}

std::string Svg::finish() { return std::move(body_) + "</svg>\n"; }

}  // namespace railyard::tool
