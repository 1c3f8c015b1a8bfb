#include "launcher/launcher.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/entropy.hpp"
#include "bootstrap/protocol.hpp"
#include "bootstrap/server.hpp"
#include "launcher/signal_watch.hpp"
#include "launcher/supervision.hpp"

namespace railyard::launcher {

namespace {

std::string hexadecimal(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

Result<std::string> random_text(std::size_t bytes) {
  std::vector<std::byte> random(bytes);
  if (auto filled = fill_random(random); !filled) return std::move(filled.error());
  return hexadecimal(random);
}

/// A directory for the socket file, gone with its owner.
class PrivateDirectory {
 public:
  static Result<PrivateDirectory> make() {
    const char* const parent = getenv("TMPDIR");
    std::string path = parent != nullptr && std::strlen(parent) < 64 ? parent : "/tmp";
    path += "/railyard-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      return Error(Status::io, fmt::format("cannot make a directory {}: {}", path, std::strerror(errno)));
    }
    return PrivateDirectory(std::move(path));
  }
  explicit PrivateDirectory(std::string path) : path_(std::move(path)) {}
  PrivateDirectory(PrivateDirectory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  PrivateDirectory& operator=(PrivateDirectory&&) = delete;
  ~PrivateDirectory() {
    if (!path_.empty()) rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Raises the limit of open files to what the rendezvous and the pipes of so many ranks need, and puts it back.
class OpenFilesLimit {
 public:
  explicit OpenFilesLimit(std::int32_t ranks) {
    rlimit limit{};
    const auto needed = static_cast<rlim_t>(128 + 6 * static_cast<std::int64_t>(ranks));
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
    before_ = limit;
    limit.rlim_cur = std::min(needed, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  OpenFilesLimit(const OpenFilesLimit&) = delete;
  OpenFilesLimit& operator=(const OpenFilesLimit&) = delete;
  ~OpenFilesLimit() {
    if (before_) setrlimit(RLIMIT_NOFILE, &*before_);
  }
  const std::optional<rlimit>& before() const { return before_; }

 private:
  std::optional<rlimit> before_;
};

Result<std::vector<Fd>> open_namespaces(const std::string& list) {
  std::vector<Fd> namespaces;
  std::string_view rest = list;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string name(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if (name.empty() || name.find('/') != std::string::npos) {
      return Error(Status::invalid,
                   fmt::format("'{}' is no list of network namespaces: give names with commas between", list));
    }
    Fd fd(::open(("/var/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) {
      return Error(Status::not_found,
                   fmt::format("no network namespace '{}': {} (see `ip netns list`)", name, std::strerror(errno)));
    }
    namespaces.push_back(std::move(fd));
  }
  return namespaces;
}

/// Where the ranks of a job on one machine meet.
Result<bootstrap::Address> local_address(bool across_namespaces, std::optional<PrivateDirectory>& directory) {
  bootstrap::Address address;
  if (across_namespaces) {
    auto made = PrivateDirectory::make();
    if (!made) return std::move(made.error());
    directory.emplace(std::move(*made));
    address.kind = bootstrap::Address::Kind::unix_path;
    address.path = directory->path() + "/rendezvous";
    return address;
  }
  auto name = random_text(16);
  if (!name) return std::move(name.error());
  address.kind = bootstrap::Address::Kind::unix_abstract;
  address.path = "railyard-" + *name;
  return address;
}

Result<LaunchReport> launch(const LaunchOptions& options, ChildPlan plan) {
  if (options.ranks < 1 || options.ranks > bootstrap::kMostRanks) {
    return Error(Status::out_of_range,
                 fmt::format("a job has 1 to {} ranks, not {}", bootstrap::kMostRanks, options.ranks));
  }
  std::string list = options.network_namespaces;
  if (const char* lab = getenv("RAILYARD_LAB_NETNS"); list.empty() && lab != nullptr) list = lab;
  auto namespaces = open_namespaces(list);
  if (!namespaces) return std::move(namespaces.error());

  const OpenFilesLimit open_files(options.ranks);
  // Declared before the server, which removes its file first.
  std::optional<PrivateDirectory> directory;
  auto address = local_address(!namespaces->empty(), directory);
  if (!address) return std::move(address.error());
  auto key = random_text(32);
  if (!key) return std::move(key.error());
  bootstrap::ServerOptions server_options;
  server_options.address = *address;
  server_options.size = options.ranks;
  server_options.job_key = *key;
  auto server = bootstrap::Server::open(server_options);
  if (!server) return std::move(server.error());

  const SignalWatch signals;
  if (!signals.fd()) return Error(Status::io, fmt::format("cannot watch for signals: {}", std::strerror(errno)));
  plan.open_files = open_files.before();
  const Environment job = {{"RAILYARD_SIZE", std::to_string(options.ranks)},
                           {"RAILYARD_BOOTSTRAP", "tcp"},
                           {"RAILYARD_RENDEZVOUS", (*server)->address().text()},
                           {"RAILYARD_RENDEZVOUS_HOST", "launcher"},
                           {"RAILYARD_JOB_KEY", *key}};
  Supervision supervision(options, signals, **server);
  if (auto started = supervision.start(plan, job, *namespaces); !started) return std::move(started.error());
  // After the forks: a child must not inherit a process in which another thread was at work.
  if (auto started = (*server)->start(); !started) return std::move(started.error());
  return supervision.run();
}

}  // namespace

Result<LaunchReport> launch_command(const LaunchOptions& options, const std::vector<std::string>& command) {
  if (command.empty() || command.front().empty()) return Error(Status::invalid, "no program to start was named");
  ChildPlan plan;
  plan.command = command;
  return launch(options, std::move(plan));
}

Result<LaunchReport> launch_function(const LaunchOptions& options, const std::function<int(int rank)>& body) {
  ChildPlan plan;
  plan.body = body;
  return launch(options, std::move(plan));
}

}  // namespace railyard::launcher
