#include "text.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

namespace railyard::tool {

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t width = display_width(columns_[i].title);
    for (const auto& row : rows_) width = std::max(width, display_width(row[i]));
    widths.push_back(width);
  }
  std::string out;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string& cell = cell_of(i);
      const std::string padding(widths[i] - display_width(cell), ' ');
      if (i > 0) line += "  ";
      line += columns_[i].align == Align::left ? cell + padding : padding + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  };
  const auto add_rule = [&] {
    std::size_t total = columns_.empty() ? 0 : 2 * (columns_.size() - 1);
    for (const std::size_t width : widths) total += width;
    out += std::string(total, '-') + '\n';
  };
  add_line([&](std::size_t i) -> const std::string& { return columns_[i].title; });
  add_rule();
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    if (std::find(rules_.begin(), rules_.end(), r) != rules_.end()) add_rule();
    add_line([&](std::size_t i) -> const std::string& { return rows_[r][i]; });
  }
  return out;
}

bool unicode_terminal() {
  // The first of these that is set decides, as in setlocale.
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string locale(value);
    return locale.find("UTF-8") != std::string::npos || locale.find("utf8") != std::string::npos ||
           locale.find("UTF8") != std::string::npos || locale.find("utf-8") != std::string::npos;
  }
  return false;
}

std::string bar(double fraction, std::size_t width, bool unicode) {
  if (!std::isfinite(fraction)) fraction = 0;
  fraction = std::clamp(fraction, 0.0, 1.0);
  const auto eighths = static_cast<std::size_t>(std::lround(fraction * static_cast<double>(width) * 8));
  if (!unicode) return std::string((eighths + 4) / 8, '#');
  static constexpr const char* kPartial[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string out;
  for (std::size_t i = 0; i < eighths / 8; ++i) out += "█";
  return out + kPartial[eighths % 8];
}

std::string readable_number(double number) {
  const double magnitude = std::fabs(number);
  if (magnitude >= 100) return fmt::format("{:.0f}", number);
  if (magnitude >= 10) return fmt::format("{:.1f}", number);
  return fmt::format("{:.2f}", number);
}

std::string readable_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  const bool whole = bytes == std::floor(bytes) && bytes < 1024;
  return whole ? fmt::format("{:.0f} {}", bytes, kUnits[unit])
               : fmt::format("{} {}", readable_number(bytes), kUnits[unit]);
}

std::string readable_nanoseconds(double nanoseconds) {
  if (nanoseconds < 1e3) return fmt::format("{:.0f} ns", nanoseconds);
  if (nanoseconds < 1e6) return readable_number(nanoseconds / 1e3) + " us";
  if (nanoseconds < 1e9) return readable_number(nanoseconds / 1e6) + " ms";
  return readable_number(nanoseconds / 1e9) + " s";
}

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

Result<void> check_writable(const std::string& path) {
  if (path == "-") return {};
  std::error_code ignored;
  const std::filesystem::path file(path);
  if (std::filesystem::is_directory(file, ignored)) {
    return Error(Status::io, fmt::format("cannot write '{}': it is a folder; name a file", path));
  }
  const bool exists = std::filesystem::exists(file, ignored);
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  const std::string asked = exists ? path : folder.string();
  if (access(asked.c_str(), W_OK) == 0) return {};
  return Error(Status::io,
               fmt::format("cannot write '{}': {}: {}; choose another place", path, asked, std::strerror(errno)));
}

Result<void> write_text(const std::string& path, std::string_view text) {
  const bool standard_output = path == "-";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> owned(standard_output ? nullptr : std::fopen(path.c_str(), "w"),
                                                              [](std::FILE* file) { return std::fclose(file); });
  std::FILE* file = standard_output ? stdout : owned.get();
  if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file) != text.size() || std::fflush(file) != 0) {
    return Error(Status::io, fmt::format("cannot write '{}': {}", path, std::strerror(errno)));
  }
  return {};
}

}  // namespace railyard::tool
