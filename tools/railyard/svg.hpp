/// A small SVG writer: rectangles, lines, curves and text in one look.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace railyard::tool {

// What every picture's frame is drawn in.
inline constexpr const char* kMuted = "#57606a";
inline constexpr const char* kGrid = "#e4e7eb";
inline constexpr const char* kAxis = "#8c959f";

class Svg {
 public:
  enum class Anchor { start, middle, end };
  struct Point {
    double x;
    double y;
  };
  struct TextStyle {
    double size = 13;
    Anchor anchor = Anchor::start;
    bool bold = false;
    std::string_view colour = "#24292f";
  };

  Svg(double width, double height);
  void rectangle(double x, double y, double width, double height, std::string_view colour);
  void line(Point from, Point to, std::string_view colour, double width = 1);
  void curve(std::span<const Point> points, std::string_view colour);
  void text(Point at, std::string_view content, const TextStyle& style);
  void text(Point at, std::string_view content) { text(at, content, TextStyle{}); }
  /// The finished picture.
  std::string finish();

 private:
  std::string body_;
};

}  // namespace railyard::tool
