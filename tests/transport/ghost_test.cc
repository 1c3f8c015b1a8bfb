/// A process that is stopped in the middle of a long put, given up by its peer, and goes on: not one byte of the peer's
/// memory changes any more. Two real processes over the rails of this machine.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "fabric/rail.hpp"
#include "memory/region.hpp"
#include "rails.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

constexpr std::size_t kGhostBytes = 8U << 20U;
constexpr std::size_t kGhostRails = 2;

/// A real rail that never knows whether the process at the other end lives, as behind a path that is cut.
class BlindRail final : public fabric::Rail {
 public:
  explicit BlindRail(std::unique_ptr<fabric::Rail> rail) : rail_(std::move(rail)) {}
  const fabric::Capabilities& capabilities() const override { return rail_->capabilities(); }
  std::string name() const override { return rail_->name(); }
  std::string fabric() const override { return rail_->fabric(); }
  std::vector<std::byte> address() const override { return rail_->address(); }
  Result<fabric::RemoteId> connect(std::span<const std::byte> address, fabric::LinkTag tag) override {
    return rail_->connect(address, tag);
  }
  void disconnect(fabric::RemoteId remote) override { rail_->disconnect(remote); }
  bool fence(fabric::LinkTag tag) override { return rail_->fence(tag); }
  void forget(fabric::LinkName link) override { rail_->forget(link); }
  Result<fabric::Registration> register_memory(std::span<std::byte> memory, fabric::Access access) override {
    return rail_->register_memory(memory, access);
  }
  void revoke(const fabric::Registration& registration) override { rail_->revoke(registration); }
  fabric::Post send(fabric::RemoteId remote, const fabric::LocalChunk& message, fabric::PostContext* context) override {
    return rail_->send(remote, message, context);
  }
  fabric::Post receive(const fabric::LocalChunk& buffer, fabric::PostContext* context) override {
    return rail_->receive(buffer, context);
  }
  fabric::Post write(const fabric::RemoteChunk& to, const fabric::LocalChunk& from, fabric::WriteOptions options,
                     fabric::PostContext* context) override {
    return rail_->write(to, from, options, context);
  }
  fabric::Post read(const fabric::RemoteChunk& from, const fabric::LocalChunk& to,
                    fabric::PostContext* context) override {
    return rail_->read(from, to, context);
  }
  void ring() override { rail_->ring(); }
  std::size_t poll(std::span<fabric::Event> events) override { return rail_->poll(events); }
  void stop() override { rail_->stop(); }
  std::string describe_error(int error) const override { return rail_->describe_error(error); }
  std::string failure() const override { return rail_->failure(); }

 private:
  std::unique_ptr<fabric::Rail> rail_;
};

/// What the two processes know of each other: memory that they share.
struct GhostBoard {
  struct End {
    std::atomic<bool> there{false};
    std::array<std::array<std::byte, 512>, kGhostRails> address{};
    std::array<std::size_t, kGhostRails> address_bytes{};
    std::array<RemoteKey, kGhostRails> keys{};
  };
  std::array<End, 2> ends;
  std::atomic<bool> failed{false};  ///< the writer has learnt that it was given up
};

Identity ghost_identity(int rank) {
  Identity made;
  made.bytes[0] = static_cast<std::uint8_t>(rank + 1);
  return made;
}

class GhostEnd {
 public:
  GhostEnd(GhostBoard& board, int rank) : board_(board), rank_(rank), memory_(kGhostBytes) {}

  bool open() {
    Settings settings = test_rails(kGhostRails);
    settings.shared_memory = "off";
    settings.peer_timeout_ms = rank_ == 0 ? 400 : 60'000;
    settings.log = "error";
    auto rails = fabric::open_rails(settings);
    if (!rails) return false;
    EngineParts parts;
    parts.settings = settings;
    parts.clock = &clock_;
    parts.rank = rank_;
    parts.size = 2;
    parts.identity = ghost_identity(rank_);
    GhostBoard::End& mine = board_.ends[static_cast<std::size_t>(rank_)];
    for (std::size_t i = 0; i < kGhostRails && i < rails->size(); ++i) {
      const auto address = (*rails)[i]->address();
      std::ranges::copy(address, mine.address[i].begin());
      mine.address_bytes[i] = address.size();
      fabrics_.push_back((*rails)[i]->fabric());
      parts.rails.push_back(std::make_unique<BlindRail>(std::move((*rails)[i])));
    }
    parts.find_peer = [this](int peer) -> Result<PeerAddress> {
      const GhostBoard::End& theirs = board_.ends[static_cast<std::size_t>(peer)];
      PeerAddress found{ghost_identity(peer), {}, {}};
      for (std::size_t i = 0; i < fabrics_.size(); ++i)
        found.rails.push_back({fabrics_[i], std::span(theirs.address[i]).first(theirs.address_bytes[i])});
      return found;
    };
    auto engine = Engine::open(std::move(parts));
    if (!engine) return false;
    engine_ = std::move(*engine);
    auto region = memory::Region::open(engine_->rails(), memory_, {.remote = true, .bulk = true});
    if (!region) return false;
    region_ = *region;
    for (std::size_t i = 0; i < fabrics_.size(); ++i) mine.keys[i] = {region_->on(i).key, region_->on(i).remote_base};
    mine.there.store(true);
    while (!board_.ends[static_cast<std::size_t>(1 - rank_)].there.load()) std::this_thread::yield();
    auto flow = engine_->peers().flow(static_cast<std::uint32_t>(1 - rank_));
    if (!flow) return false;
    flow_ = *flow;
    return true;
  }
  ~GhostEnd() {
    region_.reset();
    engine_.reset();
  }

  /// Puts all of the memory over and over until the flow fails.
  void write_for_ever() {
    std::ranges::fill(memory_, std::byte{0x77});
    while (!flow_->failed.load()) {
      Bulk work;
      work.local = memory_.data();
      work.bytes = memory_.size();
      work.region = region_;
      work.remote = {0, board_.ends[static_cast<std::size_t>(1 - rank_)].keys};
      std::uint64_t number = 0;
      if (engine_->completions().outstanding() < 4) engine_->submissions().try_write(*flow_, work, nullptr, number);
      engine_->progress();
    }
  }
  template <typename Until>
  bool run(Until&& until, std::chrono::milliseconds most) {
    const auto end = std::chrono::steady_clock::now() + most;
    while (!until()) {
      if (std::chrono::steady_clock::now() > end) return false;
      engine_->progress();
    }
    return true;
  }

  GhostBoard& board_;
  int rank_;
  SteadyClock clock_;
  std::vector<std::byte> memory_;
  std::vector<std::string> fabrics_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<memory::Region> region_;
  Flow* flow_ = nullptr;
};

class GhostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    void* const room = ::mmap(nullptr, sizeof(GhostBoard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(room, MAP_FAILED);
    board_ = new (room) GhostBoard;
    child_ = ::fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      GhostEnd writer(*board_, 1);
      if (writer.open()) {
        writer.write_for_ever();
        board_->failed.store(writer.flow_->error.status() == Status::peer_lost);
      }
      ::_exit(0);
    }
    target_ = std::make_unique<GhostEnd>(*board_, 0);
    ASSERT_TRUE(target_->open());
    const auto landed = [this] { return target_->memory_.back() != std::byte{}; };
    ASSERT_TRUE(target_->run(landed, std::chrono::seconds(20)));
  }
  void TearDown() override {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    target_.reset();
    ::munmap(board_, sizeof(GhostBoard));
  }
  void stop_writer() {
    ASSERT_EQ(::kill(child_, SIGSTOP), 0);
    ASSERT_EQ(::waitpid(child_, nullptr, WUNTRACED), child_);
  }
  /// The memory is somebody else's now; the writer goes on.
  void expect_no_ghosts() {
    std::ranges::fill(target_->memory_, std::byte{0xee});
    ASSERT_EQ(::kill(child_, SIGCONT), 0);
    const auto told = [this] { return board_->failed.load(); };
    EXPECT_TRUE(target_->run(told, std::chrono::seconds(20))) << "the writer does not learn that it was given up";
    EXPECT_EQ(std::ranges::count(target_->memory_, std::byte{0xee}), static_cast<std::ptrdiff_t>(kGhostBytes));
  }

  GhostBoard* board_ = nullptr;
  pid_t child_ = -1;
  std::unique_ptr<GhostEnd> target_;
};

TEST_F(GhostTest, AWriterThatWasStoppedAndLostChangesNothingWhenItGoesOn) {
  stop_writer();
  // The target must owe it something to miss it: a put of its own.
  Bulk work;
  std::vector<std::byte> source(kGhostBytes / 2);
  work.local = source.data();
  work.bytes = source.size();
  auto region = memory::Region::open(target_->engine_->rails(), source, {.bulk = true});
  ASSERT_TRUE(region);
  work.region = *region;
  work.remote = {0, board_->ends[1].keys};
  std::uint64_t number = 0;
  ASSERT_TRUE(target_->engine_->submissions().try_write(*target_->flow_, work, nullptr, number));
  const auto lost = [this] { return target_->flow_->failed.load(); };
  ASSERT_TRUE(target_->run(lost, std::chrono::seconds(30)));
  EXPECT_EQ(target_->flow_->error.status(), Status::peer_lost);
  expect_no_ghosts();
  work.region.reset();
  region->reset();
}

TEST_F(GhostTest, AWriterThatWasStoppedAndShutOutChangesNothingWhenItGoesOn) {
  stop_writer();
  target_->engine_->begin_shut_out(*target_->flow_, "a test gives it up");
  const auto lost = [this] { return target_->flow_->failed.load(); };
  ASSERT_TRUE(target_->run(lost, std::chrono::seconds(30)));
  expect_no_ghosts();
}

}  // namespace
}  // namespace railyard::transport
