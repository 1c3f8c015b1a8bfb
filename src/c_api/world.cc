/// Settings, bootstrap and world of the C API.
#include <algorithm>
#include <limits>

#include "c_api/handles.hpp"

namespace railyard::c_api {

namespace {

/// A bootstrap made of C callbacks. Their allgather has one length for all; ours may differ by rank.
class CallbackBootstrap final : public Bootstrap {
 public:
  explicit CallbackBootstrap(const ry_bootstrap& calls)
      : calls_(calls), description_(calls.description == nullptr ? "callbacks" : calls.description) {}

  int rank() const override { return calls_.rank; }
  int size() const override { return calls_.size; }
  std::string describe() const override { return description_; }

  Result<std::vector<std::vector<std::byte>>> allgather(std::span<const std::byte> mine, Deadline deadline) override {
    const auto ranks = static_cast<std::size_t>(calls_.size);
    const std::uint64_t length = mine.size();
    std::vector<std::uint64_t> lengths(ranks);
    if (auto done = gather(&length, sizeof(length), lengths.data(), deadline); !done) return std::move(done.error());
    const std::uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
    if (longest > kLongest) return Error(Status::invalid, description_ + ": allgather returned a senseless length");
    std::vector<std::byte> padded(longest);
    std::copy(mine.begin(), mine.end(), padded.begin());
    std::vector<std::byte> all(longest * ranks);
    if (longest > 0) {
      if (auto done = gather(padded.data(), longest, all.data(), deadline); !done) return std::move(done.error());
    }
    std::vector<std::vector<std::byte>> out;
    for (std::size_t i = 0; i < ranks; ++i) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(i * longest);
      out.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(lengths[i]));
    }
    return out;
  }

  Result<void> barrier(Deadline deadline) override {
    return checked("barrier", calls_.barrier(calls_.context, milliseconds(deadline)));
  }

 private:
  /// Far more than any world's set-up: what is above it did not come from us.
  static constexpr std::uint64_t kLongest = std::uint64_t{1} << 30U;
  static constexpr std::int64_t kDefaultNanoseconds = 60'000'000'000;

  static std::int64_t milliseconds(Deadline deadline) {
    const std::int64_t nanoseconds = deadline.nanoseconds(kDefaultNanoseconds);
    return nanoseconds == std::numeric_limits<std::int64_t>::max() ? RY_NEVER : nanoseconds / 1'000'000;
  }

  Result<void> gather(const void* mine, std::size_t bytes, void* all, Deadline deadline) {
    return checked("allgather", calls_.allgather(calls_.context, mine, bytes, all, milliseconds(deadline)));
  }

  Result<void> checked(const char* call, ry_status status) const {
    if (status == RY_OK) return {};
    const Status known = status > RY_OK && status <= RY_NO_MEMORY ? static_cast<Status>(status) : Status::io;
    return Error(known, "bootstrap '" + description_ + "': " + call + " failed");
  }

  ry_bootstrap calls_;
  std::string description_;
};

ry_status open_world(const char* call, WorldOptions options, const ry_bootstrap* bootstrap, ry_world** out) {
  std::unique_ptr<Bootstrap> callbacks;
  if (bootstrap != nullptr) {
    if (bootstrap->allgather == nullptr || bootstrap->barrier == nullptr) {
      return fail_invalid(call, "the bootstrap needs both an allgather and a barrier");
    }
    if (bootstrap->size < 1 || bootstrap->rank < 0 || bootstrap->rank >= bootstrap->size) {
      return fail_invalid(call, "the bootstrap's rank must be 0 to size - 1");
    }
    callbacks = std::make_unique<CallbackBootstrap>(*bootstrap);
  }
  options.bootstrap = callbacks.get();
  auto world = World::open(options);
  if (!world) return fail(world.error());
  *out = new ry_world{std::move(callbacks), std::move(*world)};
  return RY_OK;
}

}  // namespace

}  // namespace railyard::c_api

using railyard::Deadline;
using railyard::Settings;
using railyard::WorldOptions;
using namespace railyard::c_api;  // NOLINT(google-build-using-namespace): these are the C side's own helpers

extern "C" {

ry_status ry_settings_from_environment(ry_settings** settings) {
  if (settings == nullptr) return fail_invalid(__func__, "no place for the settings");
  return guarded(__func__, [&]() -> ry_status {
    auto parsed = Settings::from_environment();
    if (!parsed) return fail(parsed.error());
    *settings = new ry_settings{std::move(*parsed)};
    return RY_OK;
  });
}

ry_status ry_settings_set(ry_settings* settings, const char* name, const char* value) {
  if (settings == nullptr || name == nullptr || value == nullptr) return fail_invalid(__func__, "an argument is NULL");
  return guarded(__func__, [&]() -> ry_status { return status_of(settings->settings.set(name, value)); });
}

void ry_settings_free(ry_settings* settings) { delete settings; }

ry_status ry_world_open(const ry_settings* settings, const ry_bootstrap* bootstrap, ry_world** world) {
  if (world == nullptr) return fail_invalid(__func__, "no place for the world");
  const WorldOptions options{.settings = settings == nullptr ? nullptr : &settings->settings};
  return guarded(__func__, [&]() -> ry_status { return open_world("ry_world_open", options, bootstrap, world); });
}

ry_status ry_world_open_on(ry_context* context, const ry_bootstrap* bootstrap, ry_world** world) {
  if (context == nullptr || world == nullptr) return fail_invalid(__func__, "an argument is NULL");
  const WorldOptions options{.context = context->context.get()};
  return guarded(__func__, [&]() -> ry_status { return open_world("ry_world_open_on", options, bootstrap, world); });
}

void ry_world_free(ry_world* world) { delete world; }

int ry_world_rank(const ry_world* world) { return world == nullptr ? -1 : world->world.rank(); }

int ry_world_size(const ry_world* world) { return world == nullptr ? -1 : world->world.size(); }

size_t ry_world_rail_count(const ry_world* world) { return world == nullptr ? 0 : world->world.rail_count(); }

void ry_world_progress(ry_world* world) {
  if (world != nullptr) world->world.progress();
}

ry_status ry_world_descriptor(ry_world* world, int* descriptor) {
  if (world == nullptr || descriptor == nullptr) return fail_invalid(__func__, "an argument is NULL");
  return guarded(__func__, [&]() -> ry_status {
    auto opened = world->world.descriptor();
    if (!opened) return fail(opened.error());
    *descriptor = *opened;
    return RY_OK;
  });
}

int ry_world_arm(ry_world* world) { return world != nullptr && world->world.arm() ? 1 : 0; }

ry_status ry_world_remember(ry_world* world, const void* memory, size_t bytes) {
  if (world == nullptr || memory == nullptr) return fail_invalid(__func__, "an argument is NULL");
  return guarded(__func__, [&]() -> ry_status {
    return status_of(world->world.remember({static_cast<const std::byte*>(memory), bytes}));
  });
}

void ry_world_forget(ry_world* world, const void* memory, size_t bytes) {
  if (world != nullptr) world->world.forget({static_cast<const std::byte*>(memory), bytes});
}

ry_status ry_world_barrier(ry_world* world, int64_t deadline_ms) {
  Deadline deadline;
  if (world == nullptr) return fail_invalid(__func__, "no world");
  if (!to_deadline(deadline_ms, deadline)) return fail_invalid(__func__, "no such deadline");
  return guarded(__func__, [&]() -> ry_status { return status_of(world->world.barrier(deadline)); });
}

ry_status ry_world_split(ry_world* world, int color, int key, ry_world** part) {
  if (world == nullptr || part == nullptr) return fail_invalid(__func__, "an argument is NULL");
  return guarded(__func__, [&]() -> ry_status {
    auto made = world->world.split(color, key);
    if (!made) return fail(made.error());
    *part = made->has_value() ? new ry_world{nullptr, std::move(**made)} : nullptr;
    return RY_OK;
  });
}

int ry_world_translate(const ry_world* world, int rank, const ry_world* other) {
  if (world == nullptr) return -1;
  return other == nullptr ? world->world.world_rank(rank) : world->world.translate(rank, other->world);
}

ry_status ry_world_read_statistics(const ry_world* world, ry_world_statistics* statistics) {
  if (world == nullptr || statistics == nullptr) return fail_invalid(__func__, "an argument is NULL");
  return guarded(__func__, [&]() -> ry_status {
    const railyard::WorldStatistics now = world->world.statistics();
    *statistics = {now.operations_completed, now.acknowledgements_sent,
                   now.held_out_of_order,    now.dropped_stale,
                   now.dropped_malformed,    now.backpressure,
                   now.links_suspected,      now.links_lost,
                   now.links_rejoined,       now.fences,
                   now.segments_replayed,    now.peers_lost,
                   now.peers_stalled};
    return RY_OK;
  });
}

ry_status ry_world_read_rail(const ry_world* world, size_t rail, ry_rail_statistics* statistics) {
  if (world == nullptr || statistics == nullptr) return fail_invalid(__func__, "an argument is NULL");
  return guarded(__func__, [&]() -> ry_status {
    const railyard::WorldStatistics now = world->world.statistics();
    if (rail >= now.rails.size()) {
      fail_invalid("ry_world_read_rail", "there is no rail of that number");
      return RY_OUT_OF_RANGE;
    }
    const railyard::RailStatistics& one = now.rails[rail];
    *statistics = {};
    copy_text(statistics->name, one.name);
    copy_text(statistics->provider, one.provider);
    statistics->bytes_sent = one.bytes_sent;
    statistics->bytes_received = one.bytes_received;
    statistics->frames_sent = one.frames_sent;
    statistics->writes_sent = one.writes_sent;
    statistics->reads_sent = one.reads_sent;
    statistics->rate = one.rate;
    statistics->up = one.up ? 1 : 0;
    statistics->links = one.links;
    statistics->links_down = one.links_down;
    statistics->links_suspected = one.links_suspected;
    statistics->links_lost = one.links_lost;
    statistics->segments_replayed = one.segments_replayed;
    return RY_OK;
  });
}

}  // extern "C"
