/// Verbs rails on devices of the double, and links between them, for tests of the driver itself.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "doubles/verbs/verbs_double.hpp"
#include "fabric/rail.hpp"
#include "fabric/verbs/rail.hpp"

namespace railyard::fabric {

class VerbsRails : public ::testing::Test {
 protected:
  using Device = verbs_double::Kind;
  static constexpr std::uint8_t kFed = 77;  ///< the tag of a receive that is offered again and again

  /// A rail with registered memory.
  struct Side {
    std::unique_ptr<Rail> rail;
    std::vector<std::byte> memory = std::vector<std::byte>(1 << 16);
    Registration registration;
    std::vector<Event> log;
    std::deque<PostContext> fed;
    std::deque<PostContext> posts;

    PostContext* fresh() { return &posts.emplace_back(); }
    LocalChunk chunk(std::size_t offset, std::size_t bytes) {
      return {memory.data() + offset, bytes, registration.descriptor[0]};
    }
    LocalChunk fodder() { return chunk(memory.size() - 64, 64); }
    RemoteChunk to(RemoteId remote, const Side& peer, std::size_t offset) const {
      return {remote, peer.registration.remote_base + offset, peer.registration.key};
    }
    std::size_t seen(Event::Kind kind) const {
      return static_cast<std::size_t>(std::ranges::count(log, kind, &Event::kind));
    }
    std::size_t told(const PostContext* context) const {
      return static_cast<std::size_t>(std::ranges::count(log, context, &Event::context));
    }
    const Event* find(Event::Kind kind) const {
      const auto found = std::ranges::find(log, kind, &Event::kind);
      return found == log.end() ? nullptr : &*found;
    }
    std::size_t lost(RemoteId remote) const {
      return static_cast<std::size_t>(std::ranges::count_if(
          log, [&](const Event& event) { return event.kind == Event::Kind::lost && event.remote == remote; }));
    }
    std::uint64_t name() const { return verbs::VerbsRailAddress::parse(rail->address(), false, "")->name; }
  };

  void TearDown() override {
    for (Side& side : sides_)
      if (side.rail) side.rail->stop();
    sides_.clear();
    EXPECT_EQ(network_.violations(), std::vector<std::string>());
    EXPECT_EQ(network_.alive(), 0u);
  }

  static Settings settings_of(const std::string& devices) {
    Settings settings;
    settings.driver = "verbs";
    settings.interfaces = devices;
    settings.shared_memory = "off";
    settings.rails = 1;
    return settings;
  }
  static Result<std::unique_ptr<Rail>> open_rail(std::size_t device) {
    auto rails = open_rails(settings_of("fake" + std::to_string(device)));
    if (!rails) return std::move(rails.error());
    return std::move(rails->front());
  }
  /// A rail on this device, with so many receives on offer all the time.
  Side& open(std::size_t device, std::size_t receives = 32) {
    Side& side = sides_.emplace_back();
    auto rail = open_rail(device);
    EXPECT_TRUE(rail.ok()) << rail.error().text();
    side.rail = std::move(*rail);
    auto registration = side.rail->register_memory(side.memory, {.remote = true});
    EXPECT_TRUE(registration.ok()) << registration.error().text();
    side.registration = *registration;
    feed(side, receives);
    return side;
  }
  static void feed(Side& side, std::size_t receives) {
    while (side.fed.size() < receives) {
      side.fed.emplace_back().tag = kFed;
      ASSERT_EQ(side.rail->receive(side.fodder(), &side.fed.back()), Post::posted);
    }
  }
  void close(Side& side) {
    sides_.remove_if([&](const Side& one) { return &one == &side; });
  }

  static void poll(Side& side) {
    std::array<Event, 32> events;
    const std::size_t count = side.rail->poll(events);
    for (std::size_t i = 0; i < count; ++i) {
      side.log.push_back(events[i]);
      PostContext* const context = events[i].context;
      if (context != nullptr && context->tag == kFed) (void)side.rail->receive(side.fodder(), context);
    }
  }
  bool pump(const std::function<bool()>& done, std::chrono::milliseconds most = std::chrono::seconds(20)) {
    const auto give_up = std::chrono::steady_clock::now() + most;
    while (!done()) {
      for (Side& side : sides_)
        if (side.rail) poll(side);
      if (std::chrono::steady_clock::now() > give_up) return false;
    }
    return true;
  }
  /// So long at least, and so often that everything that is looked at now and then has been.
  void pump_for(std::chrono::milliseconds time) {
    constexpr int kTurns = 300;
    const auto until = std::chrono::steady_clock::now() + time;
    (void)pump([&, turns = 0]() mutable { return ++turns > kTurns && std::chrono::steady_clock::now() > until; });
  }

  static RemoteId connect(Side& from, const Side& to, LinkTag tag) {
    auto remote = from.rail->connect(to.rail->address(), tag);
    EXPECT_TRUE(remote.ok()) << remote.error().text();
    return remote.ok() ? *remote : ~RemoteId{0};
  }
  /// Whether a message gets through this link.
  bool delivers(Side& from, Side& to, RemoteId remote) {
    const std::size_t before = to.seen(Event::Kind::received);
    PostContext* const context = from.fresh();
    Post answer = Post::busy;
    if (!pump([&] { return (answer = from.rail->send(remote, from.chunk(0, 8), context)) != Post::busy; }))
      return false;
    if (answer != Post::posted) return false;
    return pump([&] { return from.told(context) == 1 && to.seen(Event::Kind::received) > before; });
  }
  /// Posts writes until the link takes no more.
  static std::vector<PostContext*> fill(Side& from, const Side& to, RemoteId remote, std::size_t most = 100'000) {
    std::vector<PostContext*> posted;
    while (posted.size() < most) {
      PostContext* const context = from.fresh();
      if (from.rail->write(from.to(remote, to, 0), from.chunk(0, 8), {}, context) != Post::posted) break;
      posted.push_back(context);
    }
    from.rail->ring();
    return posted;
  }
  /// All of them come out of polls, each once.
  void expect_back_once(const Side& side, const std::vector<PostContext*>& contexts) {
    EXPECT_TRUE(pump([&] {
      return std::ranges::all_of(contexts, [&](const PostContext* context) { return side.told(context) > 0; });
    }));
    pump_for(std::chrono::milliseconds(5));
    for (const PostContext* context : contexts) ASSERT_EQ(side.told(context), 1u);
  }
  bool fenced(Side& side, LinkTag tag) {
    return pump([&] { return side.rail->fence(tag); });
  }
  std::size_t pairs(std::size_t device) const { return network_.count(device, Device::connected_pair).alive; }
  bool pairs_become(std::size_t count) {
    return pump([&] { return network_.count(Device::connected_pair).alive == count; });
  }

  verbs_double::Network network_{{.devices = 3}};
  std::list<Side> sides_;
};

}  // namespace railyard::fabric
