// Many channels between two contexts. T1: how many links there are. T3: nobody gets what is another's. T10: who gets
// how much.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>

#include "base/random.hpp"
#include "contexts.hpp"
#include "rdma_objects.hpp"
#include "sanitized.hpp"

namespace railyard {
namespace {

/// Connections of this process: each established TCP socket is one libfabric endpoint of a link's lane.
std::size_t connections() {
  if (on_verbs()) return rdma_objects("qp", ::getpid(), " type RC ");
  std::set<std::string> established;
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
    if (state == "01") established.insert("socket:[" + inode + "]");
  }
  std::size_t count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    std::array<char, 64> target{};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (::readlink(path.c_str(), target.data(), target.size() - 1) > 0) count += established.count(target.data());
  }
  ::closedir(folder);
  return count;
}

struct Count {
  std::uint32_t channels;
  std::uint32_t shared_links;
  std::uint32_t rails;
};

class SharingT1 : public ::testing::TestWithParam<Count> {};

TEST_P(SharingT1, LinksAreAsManyAsTheFormulaSaysAndNoneIsLeft) {
  const auto [channels, shared_links, rails] = GetParam();
  Settings settings = over_network(rails);
  settings.rails = rails;
  settings.shared_links = shared_links;
  settings.workers = 1;
  const auto a = open_context(settings);
  const auto b = open_context(settings);
  ASSERT_TRUE(a && b);
  const std::size_t before = connections();
  std::vector<ChannelPair> pairs;
  for (std::uint32_t i = 0; i < channels; ++i) {
    // From both sides: the links carry both directions.
    pairs.push_back(i % 2 == 0 ? connect(*a, *b) : connect(*b, *a));
    ASSERT_TRUE(pairs.back().out && pairs.back().in);
  }
  // Of each channel its own set of links, or `shared_links` sets for all of them.
  const std::uint32_t routes = shared_links == 0 ? channels : std::min(channels, shared_links);
  EXPECT_EQ(a->statistics().routes, routes);
  EXPECT_EQ(b->statistics().routes, routes);
  EXPECT_EQ(a->statistics().private_routes, shared_links == 0 ? channels : 0);
  EXPECT_EQ(a->statistics().channels, channels);
  // A set of links has one each way for every pair of rails (`rails` of them), and one connection or queue pair carries
  // messages and bulk data of both; of a connection both ends are in this process.
  const std::size_t expected = std::size_t{routes} * rails * 2;
  EXPECT_TRUE(eventually([&] { return connections() - before == expected; }))
      << connections() - before << " connections, not " << expected;
  for (const ChannelPair& pair : pairs) {
    EXPECT_EQ(pair.out->statistics().route, pair.in->statistics().route) << "both ends mean the same links";
    EXPECT_EQ(pair.out->statistics().sharers, pair.in->statistics().sharers);
  }
  pairs.clear();
  EXPECT_TRUE(nothing_left(*a, *b));
  EXPECT_TRUE(eventually([&] { return connections() == before; })) << connections() - before << " are left";
}
INSTANTIATE_TEST_SUITE_P(Counts, SharingT1,
                         ::testing::Values(Count{1, 1, 1}, Count{16, 1, 1}, Count{16, 2, 1}, Count{16, 4, 2},
                                           Count{3, 4, 1}, Count{4, 0, 1}, Count{3, 0, 2}, Count{64, 1, 3},
                                           Count{64, 2, 2}, Count{64, 4, 2}),
                         [](const auto& info) {
                           return std::to_string(info.param.channels) + "ChannelsOn" +
                                  std::to_string(info.param.shared_links) + "LinksOver" +
                                  std::to_string(info.param.rails) + "Rails";
                         });

TEST(SharingT1Classes, ChannelsOfDifferentServiceClassesNeverShareALink) {
  const auto a = open_context(over_network(1));
  const auto b = open_context(over_network(1));
  std::vector<ChannelPair> pairs;
  for (const std::uint32_t service_class : {0U, 1U, 0U, 1U, 2U}) {
    pairs.push_back(connect(*a, *b, {.service_class = service_class}));
  }
  EXPECT_EQ(a->statistics().routes, 3U);
  EXPECT_EQ(pairs[0].out->statistics().sharers, 2U);
  EXPECT_EQ(pairs[4].out->statistics().sharers, 1U);
}

/// What a context's report says, but for the rates, which nobody knows beforehand.
TEST(SharingReport, SaysWhoSharesWhichLinks) {
  Settings settings = over_network(1);
  settings.shared_links = 2;
  settings.workers = 1;
  const auto a = open_context(settings);
  const auto b = open_context(settings);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->report(), "no channel was asked for yet\n");
  EXPECT_TRUE(a->listen());
  EXPECT_THAT(a->report(), ::testing::StartsWith("engine 0: 0 channels on 0 routes; 0 stale and 0 malformed messages"));
  std::vector<ChannelPair> pairs;
  for (const std::uint32_t service_class : {0U, 0U, 0U, 1U}) {
    pairs.push_back(connect(*a, *b, {.service_class = service_class}));
    ASSERT_TRUE(pairs.back().out && pairs.back().in);
  }
  const std::vector<std::byte> data = pattern(8'000'000, 1);
  std::vector<std::byte> back(data.size());
  const std::array slots{ReceiveSlot{back, 0}};
  Request* const receive = must(pairs[3].in->receive(slots));
  EXPECT_TRUE(waited(*pairs[3].out, must(pairs[3].out->send(data, 0))));
  EXPECT_TRUE(waited(*pairs[3].in, receive));
  for (const Context* context : {a.get(), b.get()}) {
    const std::string report = context->report();
    EXPECT_THAT(report, ::testing::HasSubstr("engine 0: 4 channels on 3 routes"));
    EXPECT_THAT(report, ::testing::HasSubstr("class 0, shared links 0: 2 channels, 0 operations wait"));
    EXPECT_THAT(report, ::testing::HasSubstr("class 0, shared links 1: 1 channel, 0 operations wait"));
    EXPECT_THAT(report, ::testing::HasSubstr("class 1, shared links 0: 1 channel, 0 operations wait"));
    EXPECT_THAT(report, ::testing::HasSubstr(" to rail 0 of the peer: up, "));
    for (const char* const route : {"route 0,", "route 1,", "route 2,"})
      EXPECT_THAT(report, ::testing::HasSubstr(route)) << "as top and export call it";
    EXPECT_EQ(std::ranges::count(report, '\n'), 1 + 3 * 2) << report;
  }
  EXPECT_THAT(a->report() + b->report(), ::testing::HasSubstr(" 8 MB delivered")) << "by whichever side moved it";
  pairs.clear();
  EXPECT_TRUE(nothing_left(*a, *b));
  EXPECT_THAT(a->report(), ::testing::HasSubstr("engine 0: 0 channels on 0 routes"));
}

TEST(SharingReport, TellsLinksOfOneChannelAlone) {
  Settings settings = over_network(1);
  settings.shared_links = 0;
  settings.workers = 1;
  const auto a = open_context(settings);
  const auto b = open_context(settings);
  ASSERT_TRUE(a && b);
  const ChannelPair first = connect(*a, *b);
  const ChannelPair second = connect(*a, *b);
  EXPECT_THAT(a->report(),
              ::testing::AllOf(::testing::HasSubstr("2 channels on 2 routes"),
                               ::testing::HasSubstr("route 0, class 0, its own links: 1 channel, 0 operations wait"),
                               ::testing::HasSubstr("route 1, class 0, its own links: 1 channel, 0 operations wait")));
}

// ---- T3 ----

/// What every message begins with.
struct Head {
  std::uint32_t channel = 0;
  std::uint32_t direction = 0;
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;
};

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{1},
                         [](std::uint64_t sum, std::byte byte) { return sum * 31 + std::to_integer<unsigned>(byte); });
}

/// One direction of one channel, with several messages under way.
class Flood {
 public:
  Flood(Channel& sender, Channel& receiver, std::uint32_t channel, std::uint32_t direction)
      : sender_(sender),
        receiver_(receiver),
        channel_(channel),
        direction_(direction),
        random_(channel * 2 + direction) {}

  bool done(std::uint64_t messages) const { return received_ == messages && finished_ == messages; }
  void post(std::uint64_t messages) {
    if (posted_ < messages && posted_ - received_ < kDepth) {
      auto& target = targets_[posted_ % kDepth];
      target.assign(kMostBytes, std::byte{0});
      const std::array slots{ReceiveSlot{target, 0}};
      if (Request* request = must(receiver_.receive(slots))) receives_[posted_++ % kDepth] = request;
    }
    if (sent_ < messages && sent_ - finished_ < kDepth) {
      auto& source = sources_[sent_ % kDepth];
      source = pattern(sizeof(Head) + random_.below(kMostBytes - sizeof(Head) + 1), static_cast<std::uint32_t>(sent_));
      Head head{channel_, direction_, sent_, source.size(), 0};
      head.checksum = checksum(std::span(source).subspan(sizeof head));
      std::memcpy(source.data(), &head, sizeof head);
      if (Request* request = must(sender_.send(source, 0))) sends_[sent_++ % kDepth] = request;
    }
  }
  void poll() {
    std::array<std::uint64_t, 1> size{};
    if (received_ < posted_ && *receiver_.test(receives_[received_ % kDepth], size)) check(size[0]);
    if (finished_ < sent_ && *sender_.test(sends_[finished_ % kDepth])) {
      // The user's again: nobody may still read it.
      std::ranges::fill(sources_[finished_++ % kDepth], std::byte{0xdd});
    }
  }

 private:
  static constexpr std::size_t kDepth = 4;
  static constexpr std::size_t kMostBytes = 12'000;

  void check(std::uint64_t size) {
    const auto& target = targets_[received_ % kDepth];
    Head head;
    std::memcpy(&head, target.data(), sizeof head);
    ASSERT_EQ(head.channel, channel_);
    ASSERT_EQ(head.direction, direction_);
    ASSERT_EQ(head.sequence, received_);
    ASSERT_EQ(head.bytes, size);
    ASSERT_EQ(head.checksum, checksum(std::span(target).subspan(sizeof head, size - sizeof head)));
    ++received_;
  }

  Channel& sender_;
  Channel& receiver_;
  std::uint32_t channel_;
  std::uint32_t direction_;
  Random random_;
  std::array<std::vector<std::byte>, kDepth> targets_;
  std::array<std::vector<std::byte>, kDepth> sources_;
  std::array<Request*, kDepth> receives_{};
  std::array<Request*, kDepth> sends_{};
  std::uint64_t posted_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t finished_ = 0;
};

class SharingT3 : public ::testing::TestWithParam<std::string> {};

TEST_P(SharingT3, WhoeverPollsMovesEverybodyAndNobodyGetsWhatIsAnothers) {
#ifdef RAILYARD_SANITIZED
  constexpr std::uint64_t kMessages = 20;
#else
  constexpr std::uint64_t kMessages = 60;
#endif
  constexpr std::uint32_t kChannels = 32;
  const Settings settings = GetParam() == "Memory" ? over_memory() : over_network(2);
  const auto a = open_context(settings);
  const auto b = open_context(settings);
  std::vector<ChannelPair> pairs;
  std::vector<std::unique_ptr<Flood>> floods;
  for (std::uint32_t i = 0; i < kChannels; ++i) {
    pairs.push_back(connect(*a, *b));
    ASSERT_TRUE(pairs.back().out && pairs.back().in);
    floods.push_back(std::make_unique<Flood>(*pairs[i].out, *pairs[i].in, i, 0));
    floods.push_back(std::make_unique<Flood>(*pairs[i].in, *pairs[i].out, i, 1));
  }
  ASSERT_EQ(pairs[0].out->statistics().sharers, kChannels);
  Random random(7);
  const auto until = std::chrono::steady_clock::now() + test_patience() * std::chrono::seconds(60);
  const auto all_done = [&] {
    return std::ranges::all_of(floods, [&](const auto& each) { return each->done(kMessages); });
  };
  while (!all_done() && !HasFatalFailure()) {
    ASSERT_LT(std::chrono::steady_clock::now(), until) << "messages are missing";
    for (auto& flood : floods) flood->post(kMessages);
    // One of them asks again and again; the others' messages move all the same.
    Flood& poller = *floods[random.below(floods.size())];
    for (int i = 0; i < 8; ++i) poller.poll();
    if (random.chance(0.3)) {
      for (auto& flood : floods) flood->poll();
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Rails, SharingT3, ::testing::Values("Memory", "Tcp2"),
                         [](const auto& info) { return info.param; });

// ---- T10 ----

/// Keeps a channel full of messages of one size and counts those that arrive.
class Stream {
 public:
  Stream(const ChannelPair& pair, std::size_t bytes, std::size_t depth)
      : out_(*pair.out), in_(*pair.in), source_(pattern(bytes, 1)), targets_(depth, std::vector<std::byte>(bytes)) {
    for (auto& target : targets_) receives_.push_back(receive(target));
    for (std::size_t i = 0; i < depth; ++i) sends_.push_back(must(out_.send(source_, 0)));
  }
  void turn() {
    while (*out_.test(sends_[sent_ % sends_.size()])) sends_[sent_++ % sends_.size()] = must(out_.send(source_, 0));
    while (*in_.test(receives_[received % receives_.size()])) {
      const std::size_t place = received++ % receives_.size();
      receives_[place] = receive(targets_[place]);
    }
  }
  std::uint64_t received = 0;

 private:
  Request* receive(std::vector<std::byte>& target) {
    const std::array slots{ReceiveSlot{target, 0}};
    return must(in_.receive(slots));
  }
  Channel& out_;
  Channel& in_;
  std::vector<std::byte> source_;
  std::vector<std::vector<std::byte>> targets_;
  std::vector<Request*> sends_;
  std::vector<Request*> receives_;
  std::uint64_t sent_ = 0;
};

/// What shares of equals must reach. A build that is slow on purpose moves little in its time, and shares of little are
/// uneven by chance.
#ifdef RAILYARD_SANITIZED
constexpr double kFair = 0.6;
#else
constexpr double kFair = 0.9;
#endif

/// 1: all the same; 1/n: one has everything.
double jain(std::span<const std::uint64_t> shares) {
  double sum = 0;
  double squares = 0;
  for (const std::uint64_t share : shares) {
    sum += static_cast<double>(share);
    squares += static_cast<double>(share) * static_cast<double>(share);
  }
  return squares == 0 ? 0 : sum * sum / (static_cast<double>(shares.size()) * squares);
}

TEST(SharingT10, EqualsOnOneLinkGetEqualShares) {
  const auto a = open_context(over_network(1));
  const auto b = open_context(over_network(1));
  std::vector<ChannelPair> pairs;
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 16; ++i) {
    pairs.push_back(connect(*a, *b));
    ASSERT_TRUE(pairs.back().out && pairs.back().in);
  }
  for (auto& pair : pairs) streams.push_back(std::make_unique<Stream>(pair, 64 * 1024, 16));
  const auto until = std::chrono::steady_clock::now() + test_patience() * std::chrono::milliseconds(800);
  while (std::chrono::steady_clock::now() < until) {
    for (auto& stream : streams) stream->turn();
  }
  std::vector<std::uint64_t> shares;
  for (auto& stream : streams) shares.push_back(stream->received);
  pairs.clear();  // before the memory of what is under way
  EXPECT_GT(jain(shares), kFair) << ::testing::PrintToString(shares);
  RecordProperty("jain", std::to_string(jain(shares)));
}

TEST(SharingT10, LatencySensitiveChannelsBesideABulkOneGoOnAndGetEqualShares) {
  const auto a = open_context(over_network(1));
  const auto b = open_context(over_network(1));
  std::vector<ChannelPair> pairs;
  for (int i = 0; i < 16; ++i) {
    pairs.push_back(connect(*a, *b));
    ASSERT_TRUE(pairs.back().out && pairs.back().in);
  }
  const auto run = [&](bool with_bulk) {
    std::vector<std::unique_ptr<Stream>> latency_streams;
    std::unique_ptr<Stream> bulk;
    if (with_bulk) bulk = std::make_unique<Stream>(pairs[0], 1 << 20U, 4);
    for (std::size_t i = 1; i < pairs.size(); ++i) latency_streams.push_back(std::make_unique<Stream>(pairs[i], 64, 1));
    const auto until = std::chrono::steady_clock::now() + test_patience() * std::chrono::milliseconds(500);
    while (std::chrono::steady_clock::now() < until) {
      if (bulk) bulk->turn();
      for (auto& latency_stream : latency_streams) latency_stream->turn();
    }
    std::vector<std::uint64_t> shares;
    for (auto& latency_stream : latency_streams) shares.push_back(latency_stream->received);
    EXPECT_EQ(with_bulk, bulk != nullptr && bulk->received > 0);
    if (with_bulk) RecordProperty("bulk channel", std::to_string(bulk->received));
    EXPECT_GT(jain(shares), kFair) << ::testing::PrintToString(shares);
    EXPECT_GT(std::ranges::min(shares), 0U) << "one of them starves";
    for (ChannelPair& pair : pairs) pair = {};  // before the memory of what is under way
    const std::uint64_t total = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
    RecordProperty(with_bulk ? "latency_streams_beside" : "latency_streams_alone", std::to_string(total));
    return total;
  };
  const std::uint64_t beside = run(true);
  for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i] = connect(*a, *b);
  const std::uint64_t alone = run(false);
  EXPECT_GT(beside * 50, alone) << "the bulk channel stands on them";
}

}  // namespace
}  // namespace railyard
