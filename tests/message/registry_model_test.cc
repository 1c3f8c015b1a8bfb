// T2: channels come and go in any order, from both ends; after every step the registries are what a model says, and in
// the end nothing is left. Ids are used again for ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "exchange.hpp"
#include "sanitized.hpp"
#include "yard.hpp"

namespace railyard::message {
namespace {

#ifdef RAILYARD_SANITIZED
constexpr int kScale = 10;
#else
constexpr int kScale = 1;
#endif

/// Which flows share which links, between two processes: the least used number takes the next one.
class RegistryModel {
 public:
  explicit RegistryModel(std::uint32_t shared_links) : counts_(shared_links) {}
  std::uint32_t join() {
    if (counts_.empty()) return ++private_, transport::RouteKey::kPrivate;
    const auto fewest = std::ranges::min_element(counts_);
    ++*fewest;
    return static_cast<std::uint32_t>(fewest - counts_.begin());
  }
  void leave(std::uint32_t number) { --(number == transport::RouteKey::kPrivate ? private_ : counts_[number]); }
  std::size_t routes() const {
    return private_ + static_cast<std::size_t>(std::ranges::count_if(counts_, [](auto count) { return count != 0; }));
  }
  std::size_t sharers(std::uint32_t number) const {
    return number == transport::RouteKey::kPrivate ? 1 : counts_[number];
  }

 private:
  std::vector<std::size_t> counts_;
  std::size_t private_ = 0;
};

struct Open {
  Ends ends;
  std::size_t from = 0;
  std::uint32_t service_class = 0;
  std::uint32_t number = 0;
};

class RegistryT2 : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(RegistryT2, AfterEveryStepRoutesSharersAndFlowsAreWhatTheModelSays) {
  const std::uint32_t shared_links = GetParam();
  Settings settings = quiet_settings();
  settings.shared_links = shared_links;
  const std::array both{settings, settings};
  const std::array<std::uint32_t, 2> rails{2, 2};
  Yard yard(orderly(rails), both);
  std::array<RegistryModel, 2> model{RegistryModel(shared_links), RegistryModel(shared_links)};  // by service class
  Random random(shared_links + 1);
  std::vector<Open> open;
  for (int step = 0; step < 600 / kScale; ++step) {
    if (open.size() < 12 && random.chance(0.55)) {
      Open each;
      each.from = random.below(2);
      each.service_class = static_cast<std::uint32_t>(random.below(2));
      each.number = model[each.service_class].join();
      each.ends = yard.join(each.from, 1 - each.from, each.service_class);
      ASSERT_TRUE(each.ends) << yard.why;
      open.push_back(std::move(each));
    } else if (!open.empty()) {
      const auto chosen = open.begin() + static_cast<std::ptrdiff_t>(random.below(open.size()));
      const std::size_t first = random.below(2);
      const std::array ends{chosen->ends.out, chosen->ends.in};
      yard.close(first == 0 ? chosen->from : 1 - chosen->from, *ends[first]);
      yard.close(first == 0 ? 1 - chosen->from : chosen->from, *ends[1 - first]);
      model[chosen->service_class].leave(chosen->number);
      open.erase(chosen);
    }
    const std::size_t expected = model[0].routes() + model[1].routes();
    ASSERT_TRUE(yard.until([&] {
      return yard.flows(0) == open.size() && yard.flows(1) == open.size() && yard.routes(0) == expected &&
             yard.routes(1) == expected;
    })) << "step "
        << step << ": " << open.size() << " channels, " << expected << " routes; there are " << yard.flows(0) << " and "
        << yard.flows(1) << " flows, " << yard.routes(0) << " and " << yard.routes(1) << " routes";
    for (const Open& each : open) {
      for (const auto& end : {each.ends.out, each.ends.in}) {
        const ChannelStatistics statistics = end->statistics();
        ASSERT_EQ(statistics.route, each.number) << "step " << step;
        ASSERT_EQ(statistics.sharers, model[each.service_class].sharers(each.number)) << "step " << step;
      }
    }
    if (!open.empty() && step % 4 == 0) {
      const std::size_t chosen = random.below(open.size());
      ASSERT_TRUE(exchange(yard, open[chosen].ends, static_cast<std::uint32_t>(step)));
    }
  }
  for (const Open& each : open) yard.close(each.ends, each.from, 1 - each.from);
  open.clear();
  EXPECT_TRUE(yard.until([&] { return yard.empty(); }));
  EXPECT_EQ(yard.at(0).joins_refused() + yard.at(1).joins_refused(), 0U);
}
INSTANTIATE_TEST_SUITE_P(SharedLinks, RegistryT2, ::testing::Values(0U, 1U, 2U, 4U));

/// A channel that is being opened: which of its set-up messages has been read.
struct Opening {
  std::size_t from = 0;
  std::size_t to = 0;
  Joining joining;
  std::vector<std::byte> welcome;  ///< empty: the hello is on its way
  std::shared_ptr<ChannelState> answered;
};

class Traffic {
 public:
  explicit Traffic(std::uint64_t seed) : random_(seed), yard_(make_yard(seed)) {}

  void step() {
    switch (random_.below(6)) {
      case 0:
      case 1:
        if (open_.size() + opening_.size() < 16) begin();
        break;
      case 2:
      case 3:
        if (!opening_.empty()) deliver(random_.below(opening_.size()));
        break;
      case 4:
        if (!opening_.empty() && random_.chance(0.2)) give_up(random_.below(opening_.size()));
        break;
      default:
        if (!open_.empty() && random_.chance(0.7)) close(random_.below(open_.size()));
    }
    for (std::uint64_t rounds = random_.below(4); rounds > 0; --rounds) yard_->round();
    check();
  }
  void finish() {
    while (!opening_.empty()) deliver(random_.below(opening_.size()));
    for (const auto& [ends, processes] : open_) {
      EXPECT_TRUE(exchange(*yard_, ends, ++names_)) << "the last exchange of " << names_;
    }
    while (!open_.empty()) close(open_.size() - 1);
    EXPECT_TRUE(yard_->until([this] { return yard_->empty(); }))
        << yard_->routes(0) << " and " << yard_->routes(1) << " routes, " << yard_->flows(0) << " and "
        << yard_->flows(1) << " flows left";
    for (std::size_t i = 0; i < yard_->size(); ++i) {
      EXPECT_EQ(yard_->at(i).engine().statistics().dropped_malformed, 0U);
    }
  }
  std::uint64_t opened() const { return opened_; }

 private:
  static std::unique_ptr<Yard> make_yard(std::uint64_t seed) {
    Random random(seed);
    Settings settings = quiet_settings();
    settings.shared_links = 1 + static_cast<std::uint32_t>(random.below(3));
    const std::array three{settings, settings, settings};
    const std::array<std::uint32_t, 3> rails{1, 2, 1};
    return std::make_unique<Yard>(orderly(rails, seed), three);
  }

  void begin() {
    Opening opening;
    opening.from = random_.below(yard_->size());
    opening.to = (opening.from + 1 + random_.below(yard_->size() - 1)) % yard_->size();
    auto joining = yard_->at(opening.from).begin(0, true);
    ASSERT_TRUE(joining);
    opening.joining = std::move(*joining);
    opening_.push_back(std::move(opening));
  }
  void deliver(std::size_t index) {
    Opening& opening = opening_[index];
    Worker& from = yard_->at(opening.from);
    if (opening.welcome.empty()) {
      auto answer = yard_->at(opening.to).answer(*read_hello(from.hello(opening.joining)));
      ASSERT_TRUE(answer) << answer.error().text();
      opening.welcome = std::move(answer->welcome);
      opening.answered = std::move(answer->channel);
      return;
    }
    auto channel = from.conclude(opening.joining, opening.welcome);
    ASSERT_TRUE(channel) << channel.error().text();
    if (*channel == nullptr) {
      opening.answered->end_at_once("asked again");
      opening.answered.reset();
      opening.welcome.clear();
      return;
    }
    open_.emplace_back(Ends{std::move(*channel), std::move(opening.answered)}, std::pair{opening.from, opening.to});
    opening_.erase(opening_.begin() + static_cast<std::ptrdiff_t>(index));
    ++opened_;
    EXPECT_TRUE(exchange(*yard_, open_.back().first, ++names_)) << "the first exchange of channel " << opened_;
  }
  void give_up(std::size_t index) {
    Opening& opening = opening_[index];
    if (opening.answered != nullptr) opening.answered->end_at_once("its connector is gone");
    yard_->at(opening.from).abandon(opening.joining);
    opening_.erase(opening_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  void close(std::size_t index) {
    const auto [ends, processes] = open_[index];
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(index));
    const bool reversed = random_.chance(0.5);
    yard_->close(reversed ? processes.second : processes.first, reversed ? *ends.in : *ends.out);
    for (std::uint64_t rounds = random_.below(3); rounds > 0; --rounds) yard_->round();
    yard_->close(reversed ? processes.first : processes.second, reversed ? *ends.out : *ends.in);
  }
  /// What holds at every moment, however many set-up messages and disconnects are on their way.
  void check() {
    for (std::size_t process = 0; process < yard_->size(); ++process) {
      std::size_t flows = 0;
      std::set<std::uint16_t> ids;
      for (const auto& route : yard_->at(process).engine().peers().registry().routes()) {
        flows += route->flows.size();
        ASSERT_TRUE(!route->flows.empty() || route->closing) << "a route that nobody uses is not closing";
        for (const transport::Flow* flow : route->flows) {
          ASSERT_TRUE(ids.insert(flow->id).second) << "two flows of id " << flow->id;
          ASSERT_EQ(flow->route, route.get());
        }
      }
      ASSERT_EQ(flows, yard_->flows(process));
    }
  }

  Random random_;
  std::unique_ptr<Yard> yard_;
  std::vector<Opening> opening_;
  std::vector<std::pair<Ends, std::pair<std::size_t, std::size_t>>> open_;
  std::uint32_t names_ = 0;
  std::uint64_t opened_ = 0;
};

TEST(RegistryT2SetupMessages, SetupMessagesMayCrossComeLateOrNeverAndNothingIsMixedUpOrLeft) {
  std::uint64_t opened = 0;
  for (std::uint64_t seed = 1; seed <= 60 / kScale; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Traffic traffic(seed);
    for (int i = 0; i < 150 && !::testing::Test::HasFailure(); ++i) traffic.step();
    traffic.finish();
    opened += traffic.opened();
    if (HasFailure()) return;
  }
  EXPECT_GT(opened, 500U / kScale);
}

TEST(RegistryT2Ids, IdsAreUsedAgainForEver) {
  constexpr std::size_t kAtOnce = 256;
  const std::size_t rounds = (70'000 / kScale) / kAtOnce;
  Settings settings = quiet_settings();
  const std::array both{settings, settings};
  const std::array<std::uint32_t, 2> rails{1, 1};
  Yard yard(orderly(rails), both);
  std::map<std::uint16_t, std::size_t> uses;
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<Ends> open;
    for (std::size_t i = 0; i < kAtOnce; ++i) {
      open.push_back(yard.join(i % 2, 1 - i % 2));
      ASSERT_TRUE(open.back()) << "channel " << round * kAtOnce + i << ": " << yard.why;
    }
    for (const auto& route : yard.at(0).engine().peers().registry().routes()) {
      ASSERT_EQ(route->flows.size(), kAtOnce);
      for (const transport::Flow* flow : route->flows) ++uses[flow->id];
    }
    if (round % 32 == 0) {
      ASSERT_TRUE(exchange(yard, open[round % kAtOnce], static_cast<std::uint32_t>(round)));
    }
    for (std::size_t i = 0; i < kAtOnce; ++i) yard.close(open[i], i % 2, 1 - i % 2);
    open.clear();
    ASSERT_TRUE(yard.until([&] { return yard.empty(); })) << "round " << round;
  }
  const auto most = std::ranges::max_element(uses, {}, [](const auto& use) { return use.second; });
  EXPECT_GE(most->second, kScale == 1 ? 2U : 1U) << "no id came a second time";
}

}  // namespace
}  // namespace railyard::message
