/// `railyard top`: a live view of all Railyard processes on this host.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "commands.hpp"
#include "text.hpp"
#include "top_view.hpp"

namespace railyard::tool {
namespace {

struct TopOptions {
  HostOptions host;
  double interval = 1;
  bool once = false;
  std::string json;
  std::string sort = "pid";
  std::string show = "rails";
  bool clean = false;
};

constexpr const char* kTopFooter = R"(Examples:
  railyard top                                     live; s orders, d shows more, p pauses, q ends
  railyard top --once --show links                 routes and links of each process, once
  railyard top --once --show latency --interval 0  how long operations took since the processes began
  railyard top --json - --pid 4711                 all that one process publishes)";

volatile sig_atomic_t top_ended = 0;

/// The terminal without echo and lines, on its second screen; as it was before when this ends.
class Screen {
 public:
  Screen() {
    ::tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    struct sigaction end {};
    end.sa_handler = [](int) { top_ended = 1; };
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &end, nullptr);
    struct sigaction again {};
    again.sa_handler = [](int) {};
    ::sigaction(SIGWINCH, &again, nullptr);  // ends the wait for a key
    fmt::print("\x1b[?1049h\x1b[?25l");
  }
  ~Screen() {
    fmt::print("\x1b[?25h\x1b[?1049l");
    std::fflush(stdout);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// As much of the text as fits, the first line in reverse.
  static void draw(std::string_view title, std::string_view text) {
    winsize size{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) size = {24, 80, 0, 0};
    std::string out = fmt::format("\x1b[H\x1b[7m{:<{}.{}}\x1b[0m", title, size.ws_col, size.ws_col);
    for (int row = 1; row < size.ws_row; ++row) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      out += "\r\n";
      out += cut(line, size.ws_col);
      out += "\x1b[K";
    }
    fmt::print("{}", out);
    std::fflush(stdout);
  }

 private:
  /// So many characters of UTF-8.
  static std::string_view cut(std::string_view line, std::size_t columns) {
    std::size_t at = 0;
    for (std::size_t column = 0; at < line.size(); ++at) {
      const bool begins = (static_cast<unsigned char>(line[at]) & 0xc0U) != 0x80U;
      if (begins && column++ == columns) break;
    }
    return line.substr(0, at);
  }

  termios before_{};
};

/// The next key within so long; 0: none. An arrow is 'u' or 'n'.
char next_key(double seconds) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (::poll(&input, 1, static_cast<int>(seconds * 1000)) <= 0) return 0;
  // One at a time: several may have come since the last look.
  char key = 0;
  const ssize_t got = ::read(STDIN_FILENO, &key, 1);
  if (got <= 0) return (input.revents & (POLLHUP | POLLERR)) != 0 || got == 0 ? 'q' : '\0';
  char arrow[2]{};
  if (key != '\x1b' || ::read(STDIN_FILENO, arrow, sizeof arrow) != sizeof arrow) return key;
  return arrow[1] == 'A' ? 'u' : arrow[1] == 'B' ? 'n' : '\0';
}

template <typename Choice>
Choice after(Choice choice, std::size_t count) {
  return static_cast<Choice>((static_cast<std::size_t>(choice) + 1) % count);
}

/// Which process the keys mean: the one that is selected, by its place in the list.
int pid_at(const SeenHost& host, int step, int current) {
  std::vector<int> pids{0};
  for (const SeenProcess& process : host.processes) pids.push_back(process.found.pid);
  const auto at = std::ranges::find(pids, current);
  const auto index = at == pids.end() ? 0 : at - pids.begin();
  const auto count = static_cast<std::ptrdiff_t>(pids.size());
  return pids[static_cast<std::size_t>((index + step + count) % count)];
}

int run_live(const TopOptions& options, TopView view) {
  auto now = look_at_host(options.host);
  if (!now) return report_error("top", now.error());
  SeenHost before = *now;
  const Screen screen;
  bool paused = false;
  using Clock = std::chrono::steady_clock;
  auto due = Clock::now();
  while (top_ended == 0) {
    const std::string one = view.pid == 0 ? "" : fmt::format("  process {}", view.pid);
    Screen::draw(fmt::format(" railyard top  s sort: {}  d show: {}  up/down one process{}  p {}  q quit",
                             to_string(view.order), to_string(view.detail), one, paused ? "PAUSED" : "pause"),
                 top_text(before, *now, view));
    const double left = std::chrono::duration<double>(due - Clock::now()).count();
    switch (next_key(paused ? 3600 : std::max(0.0, left))) {
      case 'q':
        return kExitOk;
      case 's':
        view.order = after(view.order, 5);
        continue;
      case 'd':
        view.detail = after(view.detail, 5);
        continue;
      case 'n':
        view.pid = pid_at(*now, 1, view.pid);
        continue;
      case 'u':
        view.pid = pid_at(*now, -1, view.pid);
        continue;
      case 'p':
        paused = !paused;
        continue;
      default:
        break;
    }
    if (paused || Clock::now() < due) continue;
    due = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.interval));
    auto next = look_at_host(options.host);
    if (!next) return report_error("top", next.error());
    before = std::exchange(*now, std::move(*next));
  }
  return kExitOk;
}

int run_once(const TopOptions& options, const TopView& view) {
  auto before = look_at_host(options.host);
  if (!before) return report_error("top", before.error());
  // Two looks make a rate; a file of a process that is gone has none.
  const bool living = std::ranges::any_of(before->processes, [](const auto& each) { return each.found.alive; });
  SeenHost now = *before;
  if (living && options.interval > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval));
    auto next = look_at_host(options.host);
    if (!next) return report_error("top", next.error());
    now = std::move(*next);
  }
  const SeenHost& earlier = living && options.interval > 0 ? *before : now;
  if (!options.json.empty()) {
    if (auto written = write_text(options.json, top_json(earlier, now)); !written)
      return report_error("top", written.error());
    return kExitOk;
  }
  fmt::print("{}", top_text(earlier, now, view));
  return kExitOk;
}

int run_top(const TopOptions& options) {
  if (options.clean) {
    std::size_t removed = 0;
    for (const std::string& directory : directories(options.host)) removed += telemetry::clean(directory, true);
    fmt::print("{} files of processes that are gone were removed\n", removed);
    return kExitOk;
  }
  TopView view;
  for (const auto order :
       {TopOrder::pid, TopOrder::sent, TopOrder::received, TopOrder::operations, TopOrder::outstanding})
    if (options.sort == to_string(order)) view.order = order;
  for (const auto detail :
       {TopDetail::processes, TopDetail::rails, TopDetail::links, TopDetail::windows, TopDetail::latency})
    if (options.show == to_string(detail)) view.detail = detail;
  const bool terminal = ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
  if (options.once || !options.json.empty() || !terminal) return run_once(options, view);
  return run_live(options, view);
}

}  // namespace

void add_top_command(CLI::App& app, int& exit_code) {
  auto line = std::make_shared<TopOptions>();
  CLI::App* const top = app.add_subcommand("top", "Watch all Railyard processes of this host");
  top->footer(kTopFooter);
  top->add_flag("--once", line->once, "Print once and end; so it is where the output is no terminal");
  top->add_option("--json", line->json, "Write everything once as JSON to FILE; -: the standard output")
      ->type_name("FILE");
  top->add_option("--interval", line->interval, "Seconds between two looks, which rates are made from; 0: totals")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  top->add_option("--pid", line->host.pid, "Only this process")->check(CLI::PositiveNumber);
  top->add_option("--sort", line->sort, "Order of the processes")
      ->check(CLI::IsMember({"pid", "sent", "received", "operations", "under-way"}))
      ->capture_default_str();
  top->add_option("--show", line->show, "What is shown of each")
      ->check(CLI::IsMember({"processes", "rails", "links", "windows", "latency"}))
      ->capture_default_str();
  top->add_option("--file", line->host.file, "This telemetry file alone: of a process that runs or that was killed")
      ->type_name("FILE");
  top->add_option("--directory", line->host.directory, "Look for files in DIR alone")->type_name("DIR");
  top->add_flag("--clean", line->clean, "Remove the files of processes that are gone, and end");
  top->callback([line, &exit_code] { exit_code = run_top(*line); });
}

}  // namespace railyard::tool
