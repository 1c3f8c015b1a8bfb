/// On a healthy network nobody is warned of anything: not while links are made, not while ranks leave one by one.
#include <fcntl.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "process_world.hpp"

namespace railyard {
namespace {

/// What this process and its children write to stderr, from here to the end.
class CapturedErrors {
 public:
  CapturedErrors() : file_(std::tmpfile()), before_(::dup(STDERR_FILENO)) {
    // Each writes where the file ends, whoever wrote last.
    (void)::fcntl(::fileno(file_), F_SETFL, O_APPEND | ::fcntl(::fileno(file_), F_GETFL));
    ::dup2(::fileno(file_), STDERR_FILENO);
  }
  std::string end() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    std::string text;
    std::array<char, 4096> room;
    std::rewind(file_);
    for (std::size_t got; (got = std::fread(room.data(), 1, room.size(), file_)) > 0;) text.append(room.data(), got);
    std::fclose(file_);
    return text;
  }

 private:
  std::FILE* file_;
  int before_;
};

void all_to_all(World& world) {
  auto window = must(Window::allocate(world, 64 * 1024));
  std::vector<std::byte> bytes(8192, std::byte{7});
  for (int i = 1; i < world.size(); ++i) {
    const int to = (world.rank() + i) % world.size();
    must(window.put_signal(to, static_cast<std::size_t>(world.rank()) * bytes.size(), bytes.data(), bytes.size(),
                           {0, 1}));
  }
  must(window.wait_signal(0, Comparison::equal, static_cast<std::uint64_t>(world.size() - 1)));
  must(window.quiet());
  must(window.close());
}

TEST(QuietLog, FourRanksOnFourRailsMeetAndPartWithoutAWarning) {
  constexpr int kRounds = 4;
  CapturedErrors errors;
  for (int round = 0; round < kRounds; ++round) {
    run_processes(
        4,
        [](int) {
          Settings settings = test_rails(4);
          settings.shared_memory = "off";
          settings.log = "warn";
          return settings;
        },
        [](World& world, ProcessRendezvous&) {
          all_to_all(world);
          // They leave one after another, and those that stay are told the truth.
          const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(60 * world.rank());
          while (std::chrono::steady_clock::now() < until) world.progress();
          EXPECT_EQ(world.statistics().peers_lost, 0U);
        });
  }
  const std::string told = errors.end();
  EXPECT_EQ(told.find("warning"), std::string::npos) << told;
}

}  // namespace
}  // namespace railyard
