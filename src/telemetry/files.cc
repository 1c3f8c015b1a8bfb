#include "telemetry/files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>
#include <string_view>

#include "base/fd.hpp"

namespace railyard::telemetry {
namespace {

constexpr std::int64_t kKeptSeconds = 3600;
constexpr std::size_t kMostKept = 16;

template <typename Number>
bool take_number(std::string_view& text, Number& number) {
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end == text.data()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool parse_name(std::string_view name, std::string_view prefix, Found& found) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  if (!take_number(name, found.pid) || found.pid <= 0 || !name.starts_with('.')) return false;
  name.remove_prefix(1);
  return take_number(name, found.started) && (name.empty() || name.front() == '.');
}

}  // namespace

std::string directory_of(const std::string& setting) {
  if (setting.find('/') != std::string::npos) return setting;
  return "/dev/shm";
}

std::uint64_t start_time(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(in, line);
  // The command, in parentheses, may hold anything; the start time is the 20th word after it.
  const std::size_t after = line.rfind(')');
  if (after == std::string::npos) return 0;
  std::string_view rest = std::string_view(line).substr(after + 1);
  for (int word = 0; word < 20; ++word) {
    const std::size_t space = rest.find(' ');
    if (space == std::string_view::npos) return 0;
    rest.remove_prefix(space + 1);
  }
  std::uint64_t ticks = 0;
  return take_number(rest, ticks) ? ticks : 0;
}

bool is_alive(const std::string& path, pid_t pid, std::uint64_t started) {
  // First by its number: closing a file that this very process holds the lock of would drop the lock.
  if (started != 0 && start_time(pid) == started) return true;
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) return false;
  struct flock held {};
  held.l_type = F_RDLCK;
  held.l_whence = SEEK_SET;
  // In another container the number means nothing here, but the lock does.
  return ::fcntl(file.get(), F_GETLK, &held) == 0 && held.l_type != F_UNLCK;
}

std::vector<Found> list(const std::string& directory, std::string_view prefix) {
  std::vector<Found> all;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(directory.c_str()), ::closedir);
  if (folder == nullptr) return all;
  while (const dirent* const entry = ::readdir(folder.get())) {
    Found found;
    if (!parse_name(entry->d_name, prefix, found)) continue;
    found.path = fmt::format("{}/{}", directory, entry->d_name);
    struct stat about {};
    if (::lstat(found.path.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) continue;
    if (::geteuid() != 0 && about.st_uid != ::geteuid()) continue;
    found.alive = is_alive(found.path, found.pid, found.started);
    all.push_back(std::move(found));
  }
  std::ranges::sort(all, {}, [](const Found& each) { return std::pair(each.pid, each.started); });
  return all;
}

std::size_t clean(const std::string& directory, bool all, std::string_view prefix) {
  struct Dead {
    std::string path;
    std::int64_t written = 0;
  };
  std::vector<Dead> dead;
  for (const Found& found : list(directory, prefix)) {
    if (found.alive) continue;
    struct stat about {};
    if (::lstat(found.path.c_str(), &about) != 0 || about.st_uid != ::geteuid()) continue;
    dead.push_back({found.path, about.st_mtim.tv_sec});
  }
  std::ranges::sort(dead, std::greater(), &Dead::written);
  std::size_t removed = 0;
  const std::int64_t now = ::time(nullptr);
  for (std::size_t i = 0; i < dead.size(); ++i) {
    if (!all && i < kMostKept && now - dead[i].written < kKeptSeconds) continue;
    if (::unlink(dead[i].path.c_str()) == 0) ++removed;
  }
  return removed;
}

}  // namespace railyard::telemetry
