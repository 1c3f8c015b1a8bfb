/// What the commands print with: tables, bars, numbers people can read, files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "railyard/result.hpp"

namespace railyard::tool {

/// Columns that line up. Text to the left, numbers to the right.
class Table {
 public:
  enum class Align : std::uint8_t { left, right };
  struct Column {
    std::string title;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// One cell per column; missing cells are empty.
  void add(std::vector<std::string> cells);
  /// A line across before the next row: for totals.
  void rule() { rules_.push_back(rows_.size()); }
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> rules_;
};

/// Whether the terminal's locale can show block characters.
bool unicode_terminal();

/// A horizontal bar: `fraction` (0 to 1) of `width` cells, in eighths of a cell, or in # where blocks cannot be shown.
std::string bar(double fraction, std::size_t width, bool unicode);

/// "8 B", "64 KiB", "1.5 MiB".
std::string readable_bytes(double bytes);
/// "12.3 us", "1.20 ms".
std::string readable_nanoseconds(double nanoseconds);
/// Three to four significant digits without an exponent.
std::string readable_number(double number);

/// Cells that the text takes in a terminal (code points of UTF-8).
std::size_t display_width(std::string_view text);

/// Whether `path` could be written, without touching it. "-" is the standard output.
Result<void> check_writable(const std::string& path);
/// Writes a whole file, or to the standard output for "-".
Result<void> write_text(const std::string& path, std::string_view text);

}  // namespace railyard::tool
