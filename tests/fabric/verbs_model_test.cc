/// Links of two rails in random steps, against what fabric/rail.hpp promises: every context comes back once, a link is
/// lost once in its epoch, nothing lands of an epoch that was fenced, and in the end nothing is left.
#include <map>
#include <random>
#include <set>

#include "fabric/verbs_rails.hpp"

namespace railyard::fabric {
namespace {

class VerbsModel : public VerbsRails, public ::testing::WithParamInterface<unsigned> {
 protected:
  static constexpr std::size_t kLinks = 4;  ///< of each side; the last one faces nobody
  static constexpr int kSteps = 2000;

  struct Line {
    std::uint64_t id = 0;
    std::uint64_t facing = 0;
    std::uint32_t epoch = 0;
    bool open = false;
    bool lost = false;
    RemoteId remote = 0;
    std::optional<std::uint32_t> fencing;  ///< the target is shutting epochs up to this one out
    std::uint32_t fenced = 0;              ///< and has done so with these
    std::set<std::uint32_t> left;
  };
  struct End {
    Side* side = nullptr;
    std::array<Line, kLinks> lines;
    std::set<const PostContext*> under_way;
    std::size_t looked_at = 0;
  };

  void SetUp() override {
    for (std::size_t i : {0u, 1u}) {
      ends_[i].side = &open(i, 64);
      for (std::size_t line = 0; line < kLinks; ++line) {
        ends_[i].lines[line].id = 100 * (i + 1) + line;
        if (line + 1 < kLinks) ends_[i].lines[line].facing = 100 * (2 - i) + line;
      }
    }
  }
  /// In an immediate: whose it is and which epoch.
  static std::uint32_t mark(std::size_t line, std::uint32_t epoch) {
    return static_cast<std::uint32_t>(line) << 24 | epoch;
  }

  void look(std::size_t index) {
    End& end = ends_[index];
    End& other = ends_[1 - index];
    for (; end.looked_at < end.side->log.size(); ++end.looked_at) {
      const Event event = end.side->log[end.looked_at];
      switch (event.kind) {
        case Event::Kind::lost: {
          const auto line =
              std::ranges::find_if(end.lines, [&](const Line& one) { return one.open && one.remote == event.remote; });
          ASSERT_NE(line, end.lines.end()) << "a link was lost that is not there";
          ASSERT_FALSE(line->lost) << "it was lost twice";
          line->lost = true;
          break;
        }
        case Event::Kind::landed: {
          const Line& line = other.lines[event.immediate >> 24];
          ASSERT_GT(event.immediate & 0xffffff, line.fenced) << "of an epoch that was shut out";
          break;
        }
        case Event::Kind::left: {
          const auto line = std::ranges::find(other.lines, event.link.id, &Line::id);
          ASSERT_NE(line, other.lines.end());
          ASSERT_LE(event.link.epoch, line->epoch);
          // Where CM messages get lost a call may come again after its answer was taken back: the same epoch, twice.
          ASSERT_TRUE(line->left.insert(event.link.epoch).second || GetParam() % 2 == 1) << "it left twice";
          break;
        }
        case Event::Kind::rail_down:
        case Event::Kind::rail_up:
          FAIL() << "the port was all right";
        default:
          if (event.context == nullptr || event.context->tag == kFed) break;
          ASSERT_EQ(end.under_way.erase(event.context), 1u) << "a context came back twice";
      }
    }
  }
  void turn() {
    for (std::size_t i : {0u, 1u}) {
      poll(*ends_[i].side);
      look(i);
      for (Line& line : ends_[1 - i].lines) {
        if (!line.fencing || !ends_[i].side->rail->fence({line.id, *line.fencing, line.facing})) continue;
        look(i);
        line.fenced = std::max(line.fenced, *line.fencing);
        line.fencing.reset();
      }
    }
  }
  void end(End& end, Line& line) {
    end.side->rail->disconnect(line.remote);
    line.open = line.lost = false;
  }
  void step() {
    const std::size_t index = random_() % 2;
    End& one = ends_[index];
    End& other = ends_[1 - index];
    const std::size_t number = random_() % kLinks;
    Line& line = one.lines[number];
    const auto what = random_() % 100;
    if (!line.open || line.lost) {
      if (line.open) end(one, line);
      if (what < 30) return;
      // A sender begins a new epoch only when the target has shut the old one out, or nothing of it is under way.
      if (line.fencing) return;
      line.remote = connect(*one.side, *other.side, {line.id, ++line.epoch, line.facing});
      line.open = true;
    } else if (what < 6) {
      end(one, line);
    } else if (what < 9) {
      line.fencing = line.epoch;
    } else {
      for (auto burst = random_() % 12; burst > 0; --burst) {
        PostContext* const context = one.side->fresh();
        const std::size_t bytes = random_() % 2 == 0 ? 8 : 2000;
        const Post answer =
            random_() % 3 == 0
                ? one.side->rail->send(line.remote, one.side->chunk(0, 8), context)
                : one.side->rail->write(one.side->to(line.remote, *other.side, 64), one.side->chunk(64, bytes),
                                        {.with_immediate = true, .immediate = mark(number, line.epoch)}, context);
        if (answer == Post::posted) one.under_way.insert(context);
        if (answer == Post::failed) {
          EXPECT_FALSE(one.side->rail->failure().empty());
          break;
        }
      }
    }
  }

  std::mt19937 random_{GetParam()};
  std::array<End, 2> ends_;
};

INSTANTIATE_TEST_SUITE_P(Seeds, VerbsModel, ::testing::Range(1u, 5u));

TEST_P(VerbsModel, ManyStepsWithCmMessagesLost) {
  for (std::size_t device : {0u, 1u}) {
    network_.lose_every(device, GetParam() % 2 == 0 ? 0 : 4 + GetParam());
    if (GetParam() == 4) network_.options(device).removes_completions = true;
    if (GetParam() >= 3) network_.pace(device, 3);
  }
  network_.retry_time(std::chrono::milliseconds(2));
  for (int i = 0; i < kSteps; ++i) {
    step();
    const auto turns = random_() % 4;
    for (unsigned n = 0; n < turns; ++n) turn();
    if (random_() % 40 == 0) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(25);
      while (std::chrono::steady_clock::now() < until) turn();
    }
    if (HasFatalFailure()) FAIL() << "at step " << i << " of seed " << GetParam();
  }
  for (End& one : ends_)
    for (Line& line : one.lines)
      if (line.open) end(one, line);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (network_.count(Device::connected_pair).alive > 0 && std::chrono::steady_clock::now() < until) turn();
  for (int n = 0; n < 100; ++n) turn();
  EXPECT_EQ(network_.count(Device::connected_pair).alive, 0u);
  for (const End& one : ends_) EXPECT_TRUE(one.under_way.empty()) << one.under_way.size();
  EXPECT_GT(network_.count(Device::connected_pair).created, 100u) << "little happened";
  EXPECT_GT(ends_[0].side->seen(Event::Kind::landed), 200u) << "little happened";
}

}  // namespace
}  // namespace railyard::fabric
