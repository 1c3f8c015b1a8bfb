/// `railyard top` and `railyard export`, beside programs that run, that were killed, and files that are none.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <regex.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

#include "base/fd.hpp"
#include "json_reader.hpp"
#include "railyard/channel.hpp"
#include "railyard/context.hpp"
#include "run_command.hpp"
#include "telemetry/schema.hpp"
#include "telemetry/store.hpp"

namespace railyard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A process that publishes numbers of the test's and does nothing else, until it is ended.
class Publisher {
 public:
  explicit Publisher(const std::string& directory) {
    int ready[2];
    if (::pipe(ready) != 0) return;
    child_ = ::fork();
    if (child_ == 0) {
      const auto store = telemetry::Store::open(directory);
      store->set_rank(1, 4);
      auto context = store->add(telemetry::Group::context, {{"context", "world 0"}});
      auto rail = store->add(telemetry::Group::rail, {{"context", "world 0"}, {"rail", "0"}, {"device", "tcp \"x\\y"}});
      auto link = store->add(telemetry::Group::link, {{"context", "world 0"}, {"peer", "rank 3"}, {"rail", "0"}});
      auto flow = store->add(telemetry::Group::flow, {{"context", "world 0"}, {"peer", "rank 3"}, {"flow", "3"}});
      auto channel = store->add(telemetry::Group::channel, {{"context", "world 0"}, {"peer", "rank 3"}, {"flow", "3"}});
      auto window = store->add(telemetry::Group::window, {{"context", "world 0"}, {"window", "7"}});
      window.set(telemetry::window_field::puts, std::uint64_t{5151});
      namespace of = telemetry;
      const auto once = [](telemetry::Record& record, std::uint32_t field, std::uint32_t first) {
        telemetry::count_in<telemetry::Octaves>(record.histogram<telemetry::Octaves>(field, first), 3000);
      };
      for (std::uint32_t field = of::rail_field::chunk_latency; field < of::rail_field::count; ++field)
        once(rail, field, of::rail_field::chunk_latency);
      for (std::uint32_t field = of::link_field::chunk_latency; field < of::link_field::count; ++field)
        once(link, field, of::link_field::chunk_latency);
      once(flow, of::flow_field::latency, of::flow_field::latency);
      once(channel, of::channel_field::latency, of::channel_field::latency);
      for (std::uint32_t field = of::window_field::put_latency; field < of::window_field::count; ++field)
        once(window, field, of::window_field::put_latency);
      rail.set(telemetry::rail_field::bytes_sent, std::uint64_t{123456789});
      context.set(telemetry::context_field::operations_completed, std::uint64_t{4242});
      context.set(telemetry::context_field::waiting, std::uint64_t{3});
      context.set(telemetry::context_field::waiting_for_peer, std::uint64_t{3});
      for (std::uint32_t field = telemetry::context_field::put_latency; field < telemetry::context_field::count;
           ++field)
        for (int i = 0; i < 100; ++i)
          telemetry::count_in(context.histogram(field, telemetry::context_field::put_latency), 20'000);
      (void)!::write(ready[1], "", 1);
      for (;;) ::pause();
    }
    char byte = 0;
    (void)!::read(ready[0], &byte, 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Publisher() { kill(); }
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = -1;
  }
  pid_t pid() const { return child_; }

 private:
  pid_t child_ = -1;
};

/// Names of all metrics in a text of Prometheus, every line of which must be one.
std::set<std::string> metrics_in(const std::string& text) {
  // The system's expressions: the compiler warns of the standard library's under the sanitizers.
  regex_t form;
  const char* const line_form =
      R"re(^[a-zA-Z_:][a-zA-Z0-9_:]*\{[a-zA-Z_][a-zA-Z0-9_]*="([^"\\]|\\.)*"(,[a-zA-Z_][a-zA-Z0-9_]*="([^"\\]|\\.)*")*\} (-?[0-9.e+-]+|NaN|[+-]Inf)$)re";
  EXPECT_EQ(::regcomp(&form, line_form, REG_EXTENDED | REG_NOSUB), 0);
  std::set<std::string> names;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("# HELP ") || line.starts_with("# TYPE ")) continue;
    EXPECT_EQ(::regexec(&form, line.c_str(), 0, nullptr, 0), 0) << line;
    names.insert(line.substr(0, line.find('{')));
  }
  ::regfree(&form);
  return names;
}

TEST(Top, ShowsARunningProcess) {
  const ScratchFolder scratch;
  const Publisher running(scratch.file(""));
  const Outcome text =
      railyard_command({"top", "--once", "--interval", "0", "--directory", scratch.file(""), "--show", "rails"});
  ASSERT_EQ(text.exit_code, 0) << text.errors;
  EXPECT_THAT(text.output, AllOf(HasSubstr(std::to_string(running.pid())), HasSubstr("1/4"), HasSubstr("118 MiB"),
                                 HasSubstr("4242"), HasSubstr("rank 3: signal for"), Not(HasSubstr("dead"))));
  const Outcome json = railyard_command({"top", "--json", "-", "--interval", "0.05", "--directory", scratch.file("")});
  const auto all = JsonReader::read(json.output);
  ASSERT_TRUE(all) << json.output;
  ASSERT_EQ((*all)["processes"].array().size(), 1U);
  const Json& process = (*all)["processes"].array()[0];
  EXPECT_EQ(process["pid"].number(), running.pid());
  EXPECT_TRUE(process["alive"].flag());
  EXPECT_EQ(process["rail"].array()[0]["bytes_sent"].number(), 123456789);
  EXPECT_EQ(process["rail"].array()[0]["bytes_sent_per_second"].number(), 0);
  EXPECT_EQ(process["context"].array()[0]["put_latency"]["count"].number(), 100);
  EXPECT_EQ(process["window"].array()[0]["puts"].number(), 5151);
  // 3000 ns lie between two powers of two.
  EXPECT_EQ(process["window"].array()[0]["get_latency"]["p99"].number(), 4096);
  const Outcome windows =
      railyard_command({"top", "--once", "--interval", "0", "--directory", scratch.file(""), "--show", "windows"});
  EXPECT_THAT(windows.output, AllOf(HasSubstr("window"), HasSubstr("5151"), HasSubstr("4.10 us")));
}

TEST(Top, ShowsAKilledProcessUntilItIsCleanedAway) {
  const ScratchFolder scratch;
  Publisher running(scratch.file(""));
  running.kill();
  const Outcome text = railyard_command({"top", "--once", "--directory", scratch.file("")});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.output, AllOf(HasSubstr("118 MiB"), HasSubstr("dead")));
  std::string file;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.file(""))) file = entry.path();
  EXPECT_THAT(railyard_command({"top", "--once", "--file", file}).output, HasSubstr("118 MiB"));
  EXPECT_THAT(railyard_command({"top", "--clean", "--directory", scratch.file("")}).output, HasSubstr("1 files"));
  EXPECT_TRUE(std::filesystem::is_empty(scratch.file("")));
  EXPECT_THAT(railyard_command({"top", "--once", "--directory", scratch.file("")}).output, HasSubstr("No process"));
}

TEST(Top, PutsTheLivingFirstAndFewOfTheDeadBehindThem) {
  const ScratchFolder scratch;
  std::vector<std::string> killed;
  for (int i = 0; i < 6; ++i) {
    Publisher one(scratch.file(""));
    killed.push_back(std::to_string(one.pid()));
  }
  const Publisher running(scratch.file(""));
  const Outcome text =
      railyard_command({"top", "--once", "--interval", "0", "--directory", scratch.file(""), "--show", "processes"});
  const auto living = text.output.find(std::to_string(running.pid()));
  ASSERT_NE(living, std::string::npos) << text.output;
  EXPECT_LT(living, text.output.find("dead"));
  // The two that were killed first are not shown.
  EXPECT_THAT(text.output,
              AllOf(HasSubstr("2 more that were killed"), Not(HasSubstr(killed[0])), HasSubstr(killed[5])));
  const auto all = JsonReader::read(
      railyard_command({"top", "--json", "-", "--interval", "0", "--directory", scratch.file("")}).output);
  ASSERT_TRUE(all);
  EXPECT_EQ((*all)["processes"].array().size(), 7U);
}

TEST(Top, OrdersByAllThatItsKeyOrdersBy) {
  const ScratchFolder scratch;
  const Publisher running(scratch.file(""));
  for (const char* const order : {"pid", "sent", "received", "operations", "under-way"}) {
    const Outcome text =
        railyard_command({"top", "--once", "--interval", "0", "--sort", order, "--directory", scratch.file("")});
    EXPECT_EQ(text.exit_code, 0) << order << ": " << text.errors;
  }
}

TEST(Top, HelpShowsItsOwnExamplesAndNoOthers) {
  const std::string top = railyard_command({"top", "--help"}).output;
  EXPECT_THAT(top, AllOf(HasSubstr("railyard top --once"), Not(HasSubstr("railyard demo"))));
  const std::string exported = railyard_command({"export", "--help"}).output;
  EXPECT_THAT(exported, AllOf(HasSubstr("railyard export --prometheus"), Not(HasSubstr("railyard demo"))));
  EXPECT_THAT(railyard_command({"--help"}).output, HasSubstr("railyard demo"));
}

TEST(Top, SaysWhatIsNoTelemetryFile) {
  const ScratchFolder scratch;
  std::ofstream(scratch.file("railyard.telemetry.1.1")) << "something else";
  const Outcome named = railyard_command({"top", "--once", "--file", scratch.file("railyard.telemetry.1.1")});
  EXPECT_EQ(named.exit_code, 2);
  EXPECT_THAT(named.errors, HasSubstr("not a telemetry file"));
  const Outcome all = railyard_command({"top", "--once", "--directory", scratch.file("")});
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_THAT(all.output, HasSubstr("not a telemetry file"));
  EXPECT_NE(railyard_command({"top", "--file", scratch.file("none")}).exit_code, 0);
}

TEST(Top, CountsWhatABenchMoves) {
  const ScratchFolder scratch;
  const auto variables = on_loopback({{"RAILYARD_TELEMETRY", scratch.file("")}, {"RAILYARD_SUMMARY", "1"}});
  const Outcome bench =
      railyard_command({"bench", "put", "--sizes", "64K", "--rounds", "3", "--round-ms", "100"}, variables);
  ASSERT_EQ(bench.exit_code, 0) << bench.errors;
  EXPECT_THAT(bench.errors, AllOf(HasSubstr("railyard summary[rank 0 of 2]: world 0:"), HasSubstr("rail 0 (tcp lo"),
                                  HasSubstr("railyard summary[rank 1 of 2]"), HasSubstr("put: half within")));
  EXPECT_TRUE(std::filesystem::is_empty(scratch.file(""))) << "a process that ended left its file";
}

TEST(Export, EveryLineIsOneAndEveryFieldIsThere) {
  const ScratchFolder scratch;
  const Publisher running(scratch.file(""));
  const Outcome text = railyard_command({"export", "--prometheus", "--directory", scratch.file("")});
  ASSERT_EQ(text.exit_code, 0) << text.errors;
  const auto names = metrics_in(text.output);
  std::size_t fields = 0;
  for (const auto& group : telemetry::schema())
    for (const auto& field : group.fields) fields += field.kind != telemetry::Kind::histogram ? 1 : 3;
  EXPECT_EQ(names.size(), fields + 2);
  EXPECT_TRUE(names.contains("railyard_rail_bytes_sent_total"));
  EXPECT_THAT(text.output, HasSubstr(R"(device="tcp \"x\\y"} 123456789)"));
  EXPECT_THAT(text.output, HasSubstr("put_latency_seconds_count{"));
}

/// A channel between two contexts of this process.
struct TestChannel {
  std::unique_ptr<Channel> out;
  std::unique_ptr<Channel> in;
};
TestChannel open_test_channel(Context& from, Context& to, std::uint32_t service_class) {
  TestChannel channel;
  auto listener = to.listen();
  if (!listener) return channel;
  Handle handle = (*listener)->handle();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while ((!channel.out || !channel.in) && std::chrono::steady_clock::now() < until) {
    if (!channel.out) {
      auto out = from.connect(handle, {.service_class = service_class});
      if (!out) break;
      channel.out = std::move(*out);
    }
    if (!channel.in) {
      auto in = (*listener)->accept();
      if (!in) break;
      channel.in = std::move(*in);
    }
  }
  return channel;
}

/// Everything before a line's value, once for each time that it is there.
std::vector<std::string> series_in(const std::string& text) {
  std::vector<std::string> series;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    if (!line.starts_with("#")) series.push_back(line.substr(0, line.rfind(' ')));
  return series;
}

class ExportOfChannels : public ::testing::TestWithParam<std::uint32_t> {};

/// Prometheus refuses the whole text otherwise, and `top` would take the one for the other.
TEST_P(ExportOfChannels, NoSeriesOccursTwice) {
  const ScratchFolder scratch;
  Settings settings;
  settings.driver = "tcp";
  settings.interfaces = "lo";
  settings.shared_memory = "off";
  settings.rails = 2;
  settings.workers = 1;
  settings.shared_links = GetParam();
  settings.telemetry = scratch.file("");
  auto a = Context::open(settings);
  auto b = Context::open(settings);
  ASSERT_TRUE(a && b);
  std::vector<TestChannel> channels;
  for (const std::uint32_t service_class : {0U, 0U, 1U, 0U, 1U}) {
    channels.push_back(open_test_channel(**a, **b, service_class));
    ASSERT_TRUE(channels.back().out && channels.back().in);
  }
  const std::size_t routes = GetParam() == 0 ? channels.size() : std::size_t{2} * GetParam();
  std::vector<std::string> series;
  const auto count = [&](std::string_view metric) {
    return static_cast<std::size_t>(std::ranges::count_if(
        series, [&](const std::string& each) { return each.starts_with(std::string(metric) + "{"); }));
  };
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  do {
    series = series_in(railyard_command({"export", "--prometheus", "--directory", scratch.file("")}).output);
  } while ((count("railyard_channel_messages_sent_total") < 2 * channels.size() ||
            count("railyard_link_state") < 2 * settings.rails * routes) &&
           std::chrono::steady_clock::now() < until);
  EXPECT_EQ(count("railyard_channel_messages_sent_total"), 2 * channels.size());
  EXPECT_EQ(count("railyard_link_state"), 2 * settings.rails * routes);
  std::ranges::sort(series);
  std::size_t twice = 0;
  std::string example;
  for (std::size_t i = 1; i < series.size(); ++i) {
    if (series[i] != series[i - 1]) continue;
    ++twice;
    example = series[i];
  }
  EXPECT_EQ(twice, 0U) << example;
  const Outcome shown =
      railyard_command({"top", "--once", "--interval", "0", "--show", "links", "--directory", scratch.file("")});
  EXPECT_THAT(shown.output, AllOf(HasSubstr("route"), HasSubstr(GetParam() == 0 ? "own" : "shared 1")));
}
INSTANTIATE_TEST_SUITE_P(SharedLinks, ExportOfChannels, ::testing::Values(0U, 2U),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(Export, TheDashboardUsesMetricsThatThereAre) {
  const ScratchFolder scratch;
  const Publisher running(scratch.file(""));
  const auto names = metrics_in(railyard_command({"export", "--prometheus", "--directory", scratch.file("")}).output);
  const std::string file = read_file(std::string(RAILYARD_SOURCE_DIR) + "/tools/grafana/railyard.json");
  const auto dashboard = JsonReader::read(file);
  ASSERT_TRUE(dashboard);
  EXPECT_GE((*dashboard)["panels"].array().size(), 10U);
  std::size_t used = 0;
  constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyz_";
  for (const Json& panel : (*dashboard)["panels"].array()) {
    for (const Json& target : panel["targets"].array()) {
      const std::string& expression = target["expr"].text();
      for (std::size_t at = expression.find("railyard_"); at != std::string::npos; ++used) {
        const std::size_t end = std::min(expression.find_first_not_of(kNameCharacters, at), expression.size());
        const std::string metric = expression.substr(at, end - at);
        EXPECT_TRUE(names.contains(metric)) << metric << " in " << panel["title"].text();
        at = expression.find("railyard_", end);
      }
    }
  }
  EXPECT_GE(used, 15U);
}

/// Labels that the dashboard groups and filters by: Prometheus adds `instance`; the rest must be in what is exported.
TEST(Export, TheDashboardUsesLabelsThatThereAre) {
  const ScratchFolder scratch;
  const Publisher running(scratch.file(""));
  const std::string exported = railyard_command({"export", "--prometheus", "--directory", scratch.file("")}).output;
  const auto dashboard = JsonReader::read(read_file(std::string(RAILYARD_SOURCE_DIR) + "/tools/grafana/railyard.json"));
  ASSERT_TRUE(dashboard);
  // Every line of a metric has the label, so one that has it is enough.
  const auto has = [&](const std::string& metric, const std::string& label) {
    std::istringstream in(exported);
    for (std::string line; std::getline(in, line);)
      if (line.starts_with(metric + "{"))
        return line.find("{" + label + "=\"") != std::string::npos ||
               line.find("," + label + "=\"") != std::string::npos;
    return false;
  };
  constexpr std::string_view kNameSymbols = "abcdefghijklmnopqrstuvwxyz_";
  std::size_t used = 0;
  for (const Json& panel : (*dashboard)["panels"].array()) {
    for (const Json& target : panel["targets"].array()) {
      const std::string& expression = target["expr"].text();
      const std::size_t name = expression.find("railyard_");
      const std::string metric = expression.substr(name, expression.find_first_not_of(kNameSymbols, name) - name);
      const std::size_t by = expression.find("by (");
      if (by == std::string::npos) continue;
      std::istringstream labels(expression.substr(by + 4, expression.find(')', by) - by - 4));
      for (std::string label; std::getline(labels >> std::ws, label, ',');) {
        if (label == "instance") continue;
        EXPECT_TRUE(has(metric, label)) << label << " of " << metric << " in " << panel["title"].text();
        ++used;
      }
      // What the legend shows is left after the sum.
      const std::string& legend = target["legendFormat"].text();
      for (std::size_t at = legend.find("{{"); at != std::string::npos; at = legend.find("{{", at + 2)) {
        const std::string label = legend.substr(at + 2, legend.find("}}", at) - at - 2);
        EXPECT_THAT(expression, HasSubstr(label)) << panel["title"].text();
      }
    }
  }
  EXPECT_GE(used, 4U);
}

std::string http_get(int port, const std::string& request) {
  const Fd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return "";
  (void)!::write(connection.get(), request.data(), request.size());
  std::string answer;
  char bytes[4096];
  for (ssize_t got; (got = ::read(connection.get(), bytes, sizeof bytes)) > 0;)
    answer.append(bytes, static_cast<std::size_t>(got));
  return answer;
}

TEST(Export, ServesOnLoopback) {
  const ScratchFolder scratch;
  const Publisher running(scratch.file(""));
  int out[2];
  ASSERT_EQ(::pipe(out), 0);
  const pid_t server = ::fork();
  if (server == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    ::execl(RAILYARD_COMMAND, "railyard", "export", "--prometheus", "--listen", "0", "--directory",
            scratch.file("").c_str(), nullptr);
    ::_exit(127);
  }
  ::close(out[1]);
  std::string line;
  for (char c = 0; ::read(out[0], &c, 1) == 1 && c != '\n';) line += c;
  ::close(out[0]);
  const auto colon = line.rfind(':');
  ASSERT_NE(colon, std::string::npos) << line;
  const int port = std::atoi(line.c_str() + colon + 1);
  const std::string answer = http_get(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(answer, AllOf(HasSubstr("HTTP/1.1 200 OK"), HasSubstr("railyard_rail_bytes_sent_total")));
  EXPECT_THAT(http_get(port, "GET /other HTTP/1.1\r\n\r\n"), HasSubstr("404"));
  EXPECT_THAT(http_get(port, "POST /metrics HTTP/1.1\r\n\r\n"), HasSubstr("405"));
  ::kill(server, SIGTERM);
  int status = 0;
  ::waitpid(server, &status, 0);
  EXPECT_EQ(status, 0) << "SIGTERM ends it well";
}

TEST(Operating, ListsEveryField) {
  const std::string page = read_file(std::string(RAILYARD_SOURCE_DIR) + "/docs/operating.md");
  for (const auto& group : telemetry::schema())
    for (const auto& field : group.fields)
      EXPECT_THAT(page, HasSubstr(std::string("`") + group.name + "." + field.name + "`"));
}

}  // namespace
}  // namespace railyard::testing
