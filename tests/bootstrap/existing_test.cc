// A program that already has a way for its ranks to talk passes it in.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "helpers.hpp"
#include "launcher/launcher.hpp"
#include "railyard/window.hpp"
#include "railyard/world.hpp"

namespace railyard::bootstrap {
namespace {

using launcher::launch_function;
using launcher::LaunchOptions;

/// What a user might write: two ranks with a socket between them.
class TwoRanks final : public Bootstrap {
 public:
  TwoRanks(int rank, int socket) : rank_(rank), socket_(socket) {}
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  std::string describe() const override { return "a socket of my own"; }

  Result<std::vector<std::vector<std::byte>>> allgather(std::span<const std::byte> mine, Deadline) override {
    ++calls;
    const std::uint64_t length = mine.size();
    if (!move(true, std::as_writable_bytes(std::span(const_cast<std::uint64_t*>(&length), 1))) ||
        !move(true, {const_cast<std::byte*>(mine.data()), mine.size()})) {
      return Error(Status::io, "send");
    }
    std::uint64_t other_length = 0;
    if (!move(false, std::as_writable_bytes(std::span(&other_length, 1)))) return Error(Status::io, "receive");
    std::vector<std::vector<std::byte>> all(2);
    all[static_cast<std::size_t>(rank_)].assign(mine.begin(), mine.end());
    auto& other = all[static_cast<std::size_t>(1 - rank_)];
    other.resize(other_length);
    if (!move(false, other)) return Error(Status::io, "receive");
    return all;
  }
  Result<void> barrier(Deadline deadline) override {
    auto gathered = allgather({}, deadline);
    if (!gathered) return std::move(gathered.error());
    return {};
  }

  int calls = 0;

 private:
  bool move(bool out, std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count =
          out ? write(socket_, bytes.data(), bytes.size()) : read(socket_, bytes.data(), bytes.size());
      if (count <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
    return true;
  }
  const int rank_;
  const int socket_;
};

int be_rank(int rank, int socket) {
  TwoRanks mine(rank, socket);
  WorldOptions options;
  options.bootstrap = &mine;
  auto world = World::open(options);
  if (!world) {
    fmt::print(stderr, "{}\n", world.error().text());
    return 2;
  }
  if (world->rank() != rank || world->size() != 2 || mine.calls == 0) return 3;
  auto window = Window::allocate(*world, 64);
  if (!window) return 4;
  const std::uint64_t value = 0x1234 + static_cast<std::uint64_t>(rank);
  if (!window->put_signal(1 - rank, 8, &value, sizeof(value), {})) return 5;
  if (!window->wait_signal(0, Comparison::equal, 1)) return 6;
  std::uint64_t got = 0;
  std::memcpy(&got, window->local().data() + 8, sizeof(got));
  if (got != 0x1234 + static_cast<std::uint64_t>(1 - rank)) return 7;
  return window->close() ? 0 : 8;
}

TEST(ExistingBootstrap, AWorldOpensOverOneThatIsPassedIn) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  LaunchOptions options;
  options.ranks = 2;
  // The other way round than the launcher's environment says: what was passed in counts.
  const auto report = launch_function(options, [&ends](int rank) { return be_rank(1 - rank, ends[rank]); });
  close(ends[0]);
  close(ends[1]);
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_EQ(report->exit_code, 0) << report->failure;
}

}  // namespace
}  // namespace railyard::bootstrap
