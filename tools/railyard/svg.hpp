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
// Told apart by people who see colours differently too.
inline constexpr const char* kCurves[] = {"#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7"};

/// A round number at or above `value`: the top of an axis.
double round_up(double value);
/// For the content of an element or, within double quotes, of an attribute.
std::string escaped(std::string_view text);

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
  /// A dot that carries `data` (attributes) and shows `title` under the pointer.
  void dot(Point at, double radius, std::string_view colour, std::string_view title, std::string_view data);
  void text(Point at, std::string_view content, const TextStyle& style);
  void text(Point at, std::string_view content) { text(at, content, TextStyle{}); }
  /// The finished picture.
  std::string finish();

 private:
  std::string body_;
};

}  // namespace railyard::tool
