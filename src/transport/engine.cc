#include "transport/engine.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "transport/pairing.hpp"

namespace railyard::transport {
namespace {

constexpr std::size_t kMostFlows = 32768;        // of an engine without ranks
constexpr std::size_t kMostLinks = 64;           // to one peer: as many as the scheduler's set of tried ones holds
constexpr std::size_t kReceivesPerRail = 64;     // posted at any time
constexpr std::size_t kReceivesForWrites = 512;  // where writes use them up, too
constexpr std::size_t kFramesPerBlock = 64;
constexpr std::size_t kMostFrames =
    65536;  // unacknowledged or waiting, all peers together; one flow: kMostFrames of submit.cc
constexpr std::size_t kMostReceives = 16384;  // posted or held
constexpr std::size_t kMostReports = 256;
constexpr std::size_t kReportsPerLink = 16;  // one that takes none away must not leave the others without
constexpr std::size_t kReportsPerBlock = 64;
constexpr std::int64_t kLongestSleep = 500'000'000;  ///< with nothing under way: peers that died are found out
constexpr std::int64_t kLeastWatch = 1'000'000;      ///< between two looks at links with something under way
constexpr std::int64_t kMostWatch = 5'000'000;
constexpr std::int64_t kWordWatch =
    50'000;  ///< between two looks at words of GPUs: nothing wakes us when they are there
constexpr std::int64_t kLookEvery = 1'000'000;  // nanoseconds between two looks at the links
/// Longest chunk between memory of GPUs: a copy of it takes 40 us within one, and 1.3 ms between two over PCIe.
constexpr std::size_t kDeviceChunk = std::size_t{64} << 20U;
constexpr std::size_t kOperationsPerBlock = 64;
constexpr std::size_t kMostOperations = 131072;
constexpr std::size_t kSegmentsPerBlock = 64;
constexpr std::size_t kMostSegments = 262144;

}  // namespace

Engine::Engine(EngineParts parts)
    : settings_(std::move(parts.settings)),
      clock_(parts.clock),
      rank_(parts.rank),
      size_(parts.size),
      identity_(parts.identity),
      find_peer_(std::move(parts.find_peer)),
      rails_(std::move(parts.rails)),
      progress_lock_(settings_.threads != "single" || settings_.progress == "thread"),
      flows_(parts.size > 0 ? static_cast<std::size_t>(parts.size) : kMostFlows),
      scheduler_(settings_.batch),
      operations_(kOperationsPerBlock, kMostOperations),
      segments_(kSegmentsPerBlock, kMostSegments),
      slots_(kSlots),
      waiting_(*clock_, progress_lock_, rail_views_, settings_.wait, [this] { return agenda(); }) {
  for (const auto& rail : rails_) rail_views_.push_back(rail.get());
}

Result<std::unique_ptr<Engine>> Engine::open(EngineParts parts) {
  if (parts.rails.empty()) {
    return Error(Status::not_found, "no rail to open: `railyard info` lists what this machine has");
  }
  if (parts.size > UINT16_MAX) {
    return Error(Status::out_of_range, fmt::format("{} ranks: a world holds at most {}", parts.size, UINT16_MAX));
  }
  std::unique_ptr<Engine> engine(new Engine(std::move(parts)));
  if (auto started = engine->start(); !started) return std::move(started.error());
  return engine;
}

Result<void> Engine::start() {
  std::size_t frame_bytes = wire::kFrameBytes;
  for (const auto* rail : rail_views_) frame_bytes = std::min(frame_bytes, rail->capabilities().max_message);
  const std::size_t overhead = wire::kRecordsAt + wire::record_bytes(0) + wire::record_bytes(sizeof(std::uint64_t));
  if (frame_bytes < wire::kFrameBytes) {
    return Error(Status::unsupported, fmt::format("a rail carries messages of {} bytes at most; {} are needed",
                                                  frame_bytes, wire::kFrameBytes));
  }
  // At least a value: `put_value` takes it at the call, so it must travel inside.
  inline_bytes_ = std::clamp<std::size_t>(settings_.inline_bytes, sizeof(std::uint64_t), wire::kFrameBytes - overhead);
  window_ = std::clamp<std::uint32_t>(settings_.window, kFirstGrant, wire::kMaxWindow);
  events_.resize(std::max<std::uint32_t>(settings_.batch, 1));
  failover_ = settings_.failover != "off";
  deadline_floor_ = std::int64_t{settings_.ack_deadline_ms} * 1'000'000;
  peer_timeout_ = std::int64_t{settings_.peer_timeout_ms} * 1'000'000;
  looked_at_ = clock_->now();

  auto frames = memory::Slab::open(rail_views_, wire::kFrameBytes, kFramesPerBlock, kMostFrames);
  if (!frames) return std::move(frames.error());
  frames_.emplace(std::move(*frames));
  // Every flow may send its first grant unasked; the rest is shared out by `grant`.
  const std::size_t budget = std::max(kMostReceives, 2 * kFirstGrant * flows_.size());
  receive_budget_ = static_cast<std::uint32_t>(budget);
  rail_states_.resize(rails_.size());
  std::size_t posted = 0;
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    const auto& capabilities = rails_[i]->capabilities();
    rail_states_[i].most_receives = capabilities.landings_use_receives ? kReceivesForWrites : kReceivesPerRail;
    posted += rail_states_[i].most_receives;
    if (capabilities.chains_posts) bells_.push_back(rails_[i].get());
  }
  auto receives = memory::Slab::open(rail_views_, wire::kFrameBytes, kFramesPerBlock, budget + posted);
  if (!receives) return std::move(receives.error());
  receives_.emplace(std::move(*receives));
  const std::size_t most_reports = std::max(kMostReports, kReportsPerLink * rails_.size() * flows_.size());
  auto reports = memory::Slab::open(rail_views_, wire::kNoticeBytes, kReportsPerBlock, most_reports);
  if (!reports) return std::move(reports.error());
  reports_.emplace(std::move(*reports));
  cache_ = std::make_unique<memory::RegionCache>(rail_views_, fabric::Access{.bulk = true});

  for (std::size_t i = 0; i < rails_.size(); ++i) {
    rail_states_[i].statistics.name = rails_[i]->name();
    rail_states_[i].statistics.provider = rails_[i]->capabilities().provider;
    post_receives(i);
  }
  // The first operations find their structures in place.
  if (!operations_.grow() || !segments_.grow()) return Error(Status::no_memory, "operation pools");
  return {};
}

Engine::~Engine() {
  end_publishing();
  say_goodbye();
  ring();
  for (const auto& route : registry_.routes()) {
    for (Link& link : route->links) drop_link(link);
  }
  // From here on nothing touches the buffers and contexts that are still posted; they go after this.
  for (const auto& rail : rails_) rail->stop();
}

[[gnu::hot]] Result<Flow*> Engine::flow(int peer) {
  if (Flow* known = existing_flow(peer)) return known;
  return make_flow(peer);
}

/// The flow that something arrived for. Null: there is none of that id.
[[gnu::hot]] Flow* Engine::arriving_flow(std::uint32_t id) {
  if (id >= flows_.size()) return nullptr;
  if (Flow* known = flows_[id].load(std::memory_order_relaxed)) return known;
  if (size_ == 0) return nullptr;
  const auto made = make_flow(static_cast<int>(id));
  return made ? *made : nullptr;
}

/// A world's flow: both ends know each other's ranks, and name everything by them.
Result<Flow*> Engine::make_flow(int peer) {
  auto found = find_peer_(peer);
  if (!found) return std::move(found.error());
  const RouteName name = RouteName::make(identity_, found->identity, 0, static_cast<std::uint16_t>(rank_),
                                         static_cast<std::uint16_t>(peer));
  auto route = open_route({peer, fmt::format("rank {}", peer), name, {.peer = found->identity}, 0});
  if (!route) return std::move(route.error());
  Flow* flow = open_flow({*route, static_cast<std::uint16_t>(peer), static_cast<std::uint16_t>(rank_),
                          session(identity_, found->identity), session(found->identity, identity_), nullptr});
  flow->first_link = static_cast<std::uint32_t>(rank_ + peer) % static_cast<std::uint32_t>(flow->shares.size());
  flow->first_chunk = flow->first_link;
  return flow;
}

Result<Route*> Engine::open_route(RouteParts parts) {
  auto found = find_peer_(parts.peer);
  if (!found) return std::move(found.error());
  auto route = std::make_unique<Route>();
  route->peer = parts.peer;
  route->who = std::move(parts.who);
  route->name = parts.name;
  route->key = parts.key;
  route->instance = parts.instance;
  if (registry_.find_inbound(route->name.in) != nullptr) {
    return Error(Status::invalid, fmt::format("there is a route of this name to {} already", route->who));
  }
  if (auto connected = connect_route(*route, *found, false); !connected) {
    // Shared memory that cannot be had (no room for another peer, a user of the same number who is another) is no
    // reason to give up while there is a network.
    log_info("{}: {}", route->who, connected.error().text());
    if (auto again = connect_route(*route, *found, true); !again) return std::move(again.error());
  }
  return registry_.add(std::move(route));
}

Result<std::uint16_t> Engine::reserve_flow() {
  if (ids_made_ < flows_.size()) return static_cast<std::uint16_t>(ids_made_++);
  if (free_ids_.empty()) {
    return Error(Status::no_memory,
                 fmt::format("{} channels are open: that is as many as there can be", flows_.size()));
  }
  const std::uint16_t id = free_ids_.front();
  free_ids_.pop_front();
  return id;
}

Flow* Engine::open_flow(const FlowParts& parts) {
  auto flow = std::make_unique<Flow>();
  flow->peer = parts.route->peer;
  flow->id = parts.id;
  flow->remote_id = parts.remote_id;
  flow->session_out = parts.session_out;
  flow->session_in = parts.session_in;
  flow->route = parts.route;
  flow->shares.resize(parts.route->links.size());
  flow->inbox = parts.inbox;
  flow->first_link = flow->first_chunk = parts.id % static_cast<std::uint32_t>(flow->shares.size());
  flow->head_since = beat_;
  flow->receiver.replies.reserve(8);
  parts.route->flows.push_back(flow.get());
  flow_storage_.push_back(std::move(flow));
  // Release: pairs with `existing_flow`.
  flows_[parts.id].store(flow_storage_.back().get(), std::memory_order_release);
  return flow_storage_.back().get();
}

/// All links of a route, or none.
Result<void> Engine::connect_route(Route& route, const PeerAddress& peer, bool network_only) {
  std::vector<std::string> local_fabrics;
  std::vector<std::string> remote_fabrics;
  for (const auto* rail : rail_views_) local_fabrics.push_back(rail->fabric());
  for (const auto& rail : peer.rails) remote_fabrics.push_back(rail.fabric);
  auto pairs = pair_rails(local_fabrics, remote_fabrics, network_only);
  if (pairs.empty()) {
    return Error(Status::not_found, fmt::format("no rail of {} can be reached", route.who),
                 {.peer = route.peer, .operation = "connect"});
  }
  if (pairs.size() > kMostLinks) pairs.resize(kMostLinks);
  // The peer makes the same pairs; or, where it cannot have shared memory, those without.
  for (const bool without_memory : {false, true}) {
    const auto theirs = pair_rails(local_fabrics, remote_fabrics, without_memory);
    for (std::size_t i = 0; i < std::min(theirs.size(), kMostLinks); ++i) {
      const InboundLink inbound{theirs[i].first, static_cast<std::uint16_t>(i)};
      if (std::ranges::find(route.inbound, inbound) == route.inbound.end()) route.inbound.push_back(inbound);
    }
  }
  const LinkLimits limits{settings_.chunk_min, settings_.chunk_max, pairs.size() == 1};
  // Any link may have to carry on what another began: no chunk is longer than the shortest limit.
  std::size_t most = SIZE_MAX;
  for (const auto& [local, remote] : pairs) most = std::min(most, rails_[local]->capabilities().max_write);
  route.max_write = most;
  // Within a machine a GPU copies straight out of another's memory.
  const bool by_copy_engines = std::ranges::all_of(
      pairs, [&](const auto& pair) { return local_fabrics[pair.first].starts_with(fabric::kSharedMemoryFabric); });
  if (by_copy_engines) route.device_chunk = std::min(most, kDeviceChunk);
  route.links.reserve(pairs.size());
  for (const auto& [local, remote] : pairs) {
    route.links.emplace_back(local, remote, rails_[local]->capabilities().line_rate, most, limits);
    route.moved_by_us |= !rails_[local]->capabilities().progresses_alone;
    if (auto connected = connect_link(route, route.links.back(), peer); !connected) {
      route.links.pop_back();
      for (Link& link : route.links) drop_link(link);
      route.links.clear();
      return connected;
    }
  }
  return {};
}

Result<void> Engine::connect_link(Route& route, Link& link, const PeerAddress& peer) {
  fabric::Rail& rail = *rails_[link.rail()];
  if (link.remote_rail() >= peer.rails.size()) {
    return Error(Status::not_found, fmt::format("{} has no rail {}", route.who, link.remote_rail()));
  }
  const auto connected = rail.connect(peer.rails[link.remote_rail()].address, tag_of(route, link));
  if (!connected) {
    return Error(connected.status(),
                 fmt::format("rail {} cannot reach {}: {}", rail.name(), route.who, connected.error().message()),
                 {.peer = route.peer, .rail = link.rail(), .operation = "connect"});
  }
  auto& refs = rail_states_[link.rail()].links;
  if (refs.size() <= *connected) refs.resize(*connected + 1);
  refs[*connected] = {&route, route.index_of(link)};
  link.restart(*connected);
  link.health.stood = false;
  link.health.since = beat_;
  return {};
}

void Engine::drop_link(Link& link) {
  if (link.health.on(LinkEvent::ended) == LinkAction::disconnect) disconnect(link);
}

void Engine::disconnect(const Link& link) {
  rail_states_[link.rail()].links[link.remote()] = {};
  rails_[link.rail()]->disconnect(link.remote());
}

std::uint64_t Engine::session(const Identity& from, const Identity& to) {
  // FNV-1a over both identities, which are random and known to the job alone: both ends mean the same two processes.
  std::uint64_t hash = 14695981039346656037U;
  for (const auto* identity : {&from, &to}) {
    for (const std::uint8_t byte : identity->bytes) hash = (hash ^ byte) * 1099511628211U;
  }
  return hash;
}

[[gnu::hot]] std::size_t Engine::poll_rails() {
  std::size_t happened = 0;
  ++polls_;
  const std::span<fabric::Event> room(events_);
  const std::size_t rails = rail_views_.size();
  for (std::size_t rail = 0; rail < rails; ++rail) {
    const std::size_t count = rail_views_[rail]->poll(room);
    RailState& state = rail_states_[rail];
    if (count < room.size()) state.emptied = polls_;
    for (std::size_t i = 0; i < count; ++i) handle(rail, room[i]);
    happened += count;
    if (state.posted_receives < state.most_receives) post_receives(rail);
  }
  return happened;
}

[[gnu::hot]] bool Engine::progress() {
  now_ = clock_->now();
  std::size_t happened = poll_rails();
  if (!words_.empty() && end_words()) ++happened;
  if (!ready_.empty() && release_all_ready()) ++happened;
  if (scheduler_.has_work() && transmit()) ++happened;
  idle_passes_ = happened == 0 ? idle_passes_ + 1 : 0;
  if (!reporting_.empty() && report(idle_passes_ >= 1)) ++happened;
  if (has_chores_) [[unlikely]]
    happened += do_chores();
  // Whoever was woken by something is to have it first: the rest is long due anyway, and comes with the next pass.
  if (happened == 0 || !waiting_.just_woke()) {
    if (now_ - looked_at_ >= kLookEvery && failover_) look_after_links();
    if (now_ >= publish_at_) [[unlikely]]
      publish();
  }
  ring();
  waiting_.passed(now_, happened != 0);
  return happened != 0;
}

/// What is rarely there to do. Whoever adds to one of these says so with `has_chores_`.
std::size_t Engine::do_chores() {
  std::size_t happened = 0;
  if (!noticing_.empty() && answer_notices()) ++happened;
  if (!fence_requests_.empty() && answer_fences()) ++happened;
  if (!refusing_.empty() && tell_refusals()) ++happened;
  if (!losing_.empty() && end_losses()) ++happened;
  if (!gossip_.empty()) spread_gossip();
  if (leaving_ != 0) retire();
  has_chores_ = !noticing_.empty() || !fence_requests_.empty() || !refusing_.empty() || !losing_.empty() ||
                !gossip_.empty() || leaving_ != 0;
  return happened;
}

/// How long nothing needs to be done if nobody says anything.
Waiting::Agenda Engine::agenda() const {
  const bool unfinished = scheduler_.has_work() || !reporting_.empty() || !ready_.empty() || has_chores_;
  std::int64_t next_look = kLongestSleep;
  if (!words_.empty()) {
    next_look = kWordWatch;
  } else if (unfinished) {
    next_look = kLeastWatch;
  } else if (!watched_.empty()) {
    next_look = std::clamp(deadline_floor_ / 4, kLeastWatch, kMostWatch);
  }
  // What a reader of the telemetry sees is never older than what happened last.
  if (telemetry_ != nullptr && !telemetry_->settled())
    next_look = std::min(next_look, std::max(publish_at_ - clock_->now(), kLeastWatch));
  return {next_look, outstanding() != 0 || !watched_.empty()};
}

[[gnu::hot]] bool Engine::pass(Pace& pace) {
  bool moved = false;
  if (progress_lock_.try_take()) {
    moved = progress();
    progress_lock_.give();
  }
  pace.passed(moved || outstanding() != 0);
  return moved;
}

[[gnu::hot]] void Engine::post_receives(std::size_t rail) {
  RailState& state = rail_states_[rail];
  while (state.posted_receives < state.most_receives) {
    memory::Buffer* buffer = state.to_post;
    if (buffer != nullptr) {
      state.to_post = buffer->next;
    } else if (buffer = receives_->take(); buffer == nullptr) {
      note_backpressure();
      return;
    }
    if (!post_receive(rail, *buffer)) {
      buffer->next = state.to_post;
      state.to_post = buffer;
      return;
    }
  }
}

[[gnu::hot]] bool Engine::post_receive(std::size_t rail, memory::Buffer& buffer) {
  buffer.tag = static_cast<std::uint8_t>(Tag::receive_buffer);
  buffer.bytes = buffer.capacity;
  if (rails_[rail]->receive(buffer.chunk(rail), &buffer) != fabric::Post::posted) return false;
  ++rail_states_[rail].posted_receives;
  return true;
}

void Engine::wake_peer(int peer) {
  if (peer == rank_) return waiting_.nudge();
  const ProgressGuard hold(progress_lock_);
  const Flow* const known = existing_flow(peer);
  if (known == nullptr || known->failed.load(std::memory_order_relaxed)) return;
  ++counts_.direct_wakes;
  for (const Link& link : known->route->links)
    if (link.up() && rails_[link.rail()]->wake(link.remote())) return;
  check_on(*known->route);  // where no rail rings, anything that arrives there does
}

void Engine::begin_publishing(EngineTelemetry::Parts parts) {
  if (parts.store == nullptr) return;
  telemetry_ = std::make_unique<EngineTelemetry>(std::move(parts));
  namespace field = telemetry::context_field;
  const auto histogram = [this](std::uint32_t of) { return telemetry_->context().histogram(of, field::put_latency); };
  sampler_.start(clock_, {histogram(field::put_latency), histogram(field::get_latency),
                          histogram(field::atomic_latency), histogram(field::message_latency)});
  publish();
}

void Engine::begin_tracing(std::shared_ptr<telemetry::Trace> trace, const std::string& context) {
  trace_.begin(std::move(trace), context, rails(), *clock_);
  if (trace_.on()) sampler_.want_all();
}

void Engine::publish() {
  publish_at_ = telemetry_->publish(*this);
  sampler_.refresh();
}

void Engine::end_publishing() {
  if (telemetry_ == nullptr) return;
  publish();
  sampler_.stop();
  telemetry_.reset();
  publish_at_ = INT64_MAX;
}

WorldStatistics Engine::statistics() const {
  WorldStatistics copy = counts_;
  for (const RailState& rail : rail_states_) copy.rails.push_back(rail.statistics);
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    copy.rails[i].up = !rail_states_[i].down;
    const fabric::OneSided one_sided = rails_[i]->one_sided();
    copy.rails[i].bytes_received += one_sided.written;
    copy.rails[i].bytes_sent += one_sided.read;
    copy.rails[i].sees_one_sided = rails_[i]->capabilities().sees_one_sided;
  }
  for (const auto& route : registry_.routes()) {
    for (const Link& link : route->links) {
      RailStatistics& rail = copy.rails[link.rail()];
      rail.rate = std::max(rail.rate, link.rate());
      rail.deadline = std::max(rail.deadline, static_cast<double>(link.deadline(deadline_floor_)) * 1e-9);
      ++rail.links;
      if (!link.up()) ++rail.links_down;
    }
  }
  return copy;
}

}  // namespace railyard::transport
