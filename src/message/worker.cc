#include "message/worker.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"

namespace railyard::message {
namespace {

constexpr std::uint64_t kPrime = 1099511628211ULL;

/// FNV-1a: not a secret, a check that both ends mean the same thing.
std::uint64_t mix(std::uint64_t hash, std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * kPrime;
  return hash;
}
std::uint64_t mix(std::uint64_t hash, std::uint64_t value) { return mix(hash, std::as_bytes(std::span(&value, 1))); }

/// Times that two ends which each made a route at the same moment try to agree before they give it up.
constexpr std::uint32_t kMostAttempts = 16;
/// Nanoseconds between two looks at channels that wait for time to pass.
constexpr std::int64_t kLookEvery = 1'000'000;
/// The same between two questions whether a peer that is waited for is still there.
constexpr std::int64_t kAskEvery = 1'000'000'000;
/// Passes between two looks at the clock.
constexpr std::uint32_t kPassesPerLook = 64;

}  // namespace

Worker::Worker(const WorkerParts& parts)
    : settings_(parts.settings),
      identity_(parts.identity),
      worker_index_(parts.worker_index),
      random_(parts.seed),
      patience_(parts.patience != nullptr ? parts.patience : &own_patience_) {}

Result<std::shared_ptr<Worker>> Worker::open(WorkerParts parts) {
  std::shared_ptr<Worker> worker(new Worker(parts));
  if (auto started = worker->start(std::move(parts)); !started) return std::move(started.error());
  return worker;
}

Result<void> Worker::start(WorkerParts parts) {
  transport::EngineParts engine;
  engine.settings = settings_;
  engine.clock = parts.clock;
  engine.rails = std::move(parts.rails);
  engine.size = 0;
  engine.identity = identity_;
  engine.find_peer = [this](int peer) { return find_peer(peer); };
  auto opened = transport::Engine::open(std::move(engine));
  if (!opened) return std::move(opened.error());
  engine_ = std::move(*opened);
  contribution_ = Directory::contribution(identity_, engine_->rails());
  engine_->waiting().set_awake([this] { return called_.load(std::memory_order_seq_cst) != nullptr; });
  return {};
}

Worker::~Worker() = default;

void Worker::close() {
  const transport::ProgressGuard hold(engine_->progress_lock());
  engine_->end_publishing();
  published_.clear();
  for (auto& [key, channel] : channels_) channel->end_at_once("the context was closed");
  serve();
}

// ---- Telemetry ----

void Worker::begin_publishing(const Settings& settings, std::shared_ptr<telemetry::Store> store) {
  const std::string name = fmt::format("channels {}", store->next_context());
  const transport::ProgressGuard hold(engine_->progress_lock());
  engine_->begin_publishing(
      {std::move(store), name, settings.summary == "1", [this](WorldStatistics&) { publish_channels(); }});
}

void Worker::publish_channels() {
  transport::EngineTelemetry* const telemetry = engine_->telemetry();
  if (telemetry == nullptr) return;  // the first one, which has nothing to tell
  std::erase_if(published_, [this](const auto& each) {
    const auto known = channels_.find(const_cast<ChannelState*>(each.first));  // an address comes again
    const transport::Flow* const flow = known == channels_.end() ? nullptr : known->second->flow();
    return flow == nullptr || flow->session_in != each.second.session;
  });
  namespace field = telemetry::channel_field;
  for (const auto& [key, channel] : channels_) {
    transport::Flow* const flow = channel->flow();
    if (flow == nullptr) continue;
    const auto [at, made] = published_.try_emplace(channel.get());
    if (made) {
      at->second = {flow->session_in, telemetry->store().add(telemetry::Group::channel, telemetry->labels_of(*flow))};
    }
    const ChannelStatistics counts = channel->counts();
    telemetry::Record& record = at->second.record;
    flow->inbox_latency = record.histogram<telemetry::Octaves>(field::latency, field::latency);
    record.set(field::messages_sent, counts.messages_sent);
    record.set(field::messages_received, counts.messages_received);
    record.set(field::bytes_sent, counts.bytes_sent);
    record.set(field::bytes_received, counts.bytes_received);
    record.set(field::eager_sent, counts.eager_sent);
    record.set(field::unexpected, counts.unexpected);
  }
}

// ---- Peers ----

Result<int> Worker::meet(const Identity& identity, std::uint32_t worker_index,
                         std::span<const std::byte> contribution) {
  for (auto& [number, peer] : peers_) {
    if (peer.identity != identity || peer.worker_index != worker_index) continue;
    if (std::ranges::equal(peer.contribution, contribution)) return number;
    return Error(Status::invalid, fmt::format("two processes say that they are {}: their links are not to be mixed up",
                                              identity.text()));
  }
  // Those whose routes are gone will not be asked for again. Looked for only when there must be many.
  if (peers_.size() > 2 * engine_->peers().registry().size())
    std::erase_if(peers_, [this](const auto& entry) {
      return std::ranges::none_of(engine_->peers().registry().routes(),
                                  [&](const auto& route) { return route->peer == entry.first; });
    });
  peers_[++last_peer_] = {identity, worker_index, {contribution.begin(), contribution.end()}};
  return last_peer_;
}

Result<transport::PeerAddress> Worker::find_peer(int peer) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return Error(Status::not_found, "a peer that nobody has met");
  return parse_contribution(found->second.contribution);
}

Result<transport::Route*> Worker::open_route(int peer, const transport::RouteKey& key, std::uint64_t instance) {
  transport::RouteParts parts;
  parts.peer = peer;
  parts.who = fmt::format("peer {}", key.peer.text().substr(0, 8));
  const auto label = static_cast<std::uint16_t>(key.number);
  parts.name = transport::RouteName::make(identity_, key.peer, instance, label, label);
  parts.key = key;
  parts.instance = instance;
  auto route = engine_->peers().open_route(std::move(parts));
  if (route) ++routes_opened_;
  return route;
}

/// The ends of a route's links, in an order that does not depend on who looks.
std::uint64_t Worker::digest(const transport::Route& route) const {
  const auto peer = find_peer(route.peer);
  if (!peer) return 0;
  const bool lower = identity_ < route.key.peer;
  std::uint64_t hash = mix(14695981039346656037ULL, route.instance);
  for (const transport::Link& link : route.links) {
    const auto mine = engine_->rails()[link.rail()]->address();
    const auto theirs = peer->rails[link.remote_rail()].address;
    hash = lower ? mix(mix(hash, mine), theirs) : mix(mix(hash, theirs), std::span<const std::byte>(mine));
  }
  return hash;
}

// ---- Set-up messages ----

std::uint32_t Worker::links_shared(std::uint32_t theirs) const { return std::min(settings_.shared_links, theirs); }

Result<Joining> Worker::begin(std::uint32_t service_class, bool shared) {
  auto flow = engine_->peers().flows().reserve();
  if (!flow) return std::move(flow.error());
  Joining joining;
  Hello& hello = joining.hello;
  hello.identity = identity_;
  hello.worker_index = worker_index_;
  hello.service_class = service_class;
  hello.shared_links = shared ? settings_.shared_links : 0;
  hello.flow = *flow;
  hello.session = random_.next();
  hello.contribution = contribution_;
  return joining;
}

std::shared_ptr<ChannelState> Worker::open_channel(transport::Route& route, std::uint16_t flow,
                                                   std::uint64_t session_in, std::uint16_t remote_flow,
                                                   std::uint64_t session_out) {
  const auto peer = find_peer(route.peer);
  auto channel = std::make_shared<ChannelState>(shared_from_this(), peer->rails.size());
  channel->attach(*engine_->peers().open_flow({&route, flow, remote_flow, session_out, session_in, channel.get()}));
  channels_[channel.get()] = channel;
  log_debug("channel to {}: opened, flow {}, {}", route.who, flow,
            route.key.number == transport::RouteKey::kPrivate ? "links of its own"
                                                              : fmt::format("shared links {}", route.key.number));
  ++channels_opened_;
  return channel;
}

/// The links for a channel that somebody asks for; `key` gets their number. Two ends that let each other in at the same
/// moment have made two routes of one number: the lower instance is meant, whichever end has it.
Result<transport::Route*> Worker::route_for(const Hello& hello, int peer, transport::RouteKey& key) {
  const std::uint32_t shared = links_shared(hello.shared_links);
  if (shared == 0) return open_route(peer, key, random_.next());
  key.number = hello.number;
  const bool offered = hello.instance != 0 && hello.number < shared;
  const transport::Route* const known = offered ? engine_->peers().registry().known(key, hello.instance) : nullptr;
  const bool usable = offered && (known == nullptr || known->may_be_joined());
  if (!usable) key.number = engine_->peers().registry().least_used(key, shared);
  transport::Route* const mine = engine_->peers().registry().find(key);
  if (mine != nullptr && (!usable || mine->instance <= hello.instance)) return mine;
  return open_route(peer, key, usable ? hello.instance : random_.next());
}

Result<Worker::Answer> Worker::answer(const Hello& hello) {
  if (auto checked = parse_contribution(hello.contribution); !checked) return std::move(checked.error());
  const auto peer = meet(hello.identity, hello.worker_index, hello.contribution);
  if (!peer) return peer.error().copy();
  auto flow = engine_->peers().flows().reserve();
  if (!flow) return std::move(flow.error());
  transport::RouteKey key{hello.identity, hello.worker_index, hello.service_class, transport::RouteKey::kPrivate};
  const auto route = route_for(hello, *peer, key);
  if (!route) {
    engine_->peers().flows().release(*flow);
    return route.error().copy();
  }
  const std::uint64_t session = random_.next();
  Answer answer;
  answer.channel = open_channel(**route, *flow, session, hello.flow, hello.session);
  answer.welcome = write_setup_message(Welcome{identity_, worker_index_, *flow, session, key.number, (*route)->instance,
                                               digest(**route), contribution_});
  return answer;
}

/// The two ends do not mean the same links yet: the next set-up message says which ones this end has.
std::shared_ptr<ChannelState> Worker::ask_again(Joining& joining, const transport::Route* mine) {
  if (++joining.attempts >= kMostAttempts) joining.hello.shared_links = 0;
  joining.hello.number = mine != nullptr ? mine->key.number : 0;
  joining.hello.instance = mine != nullptr ? mine->instance : 0;
  return {};
}

Result<std::shared_ptr<ChannelState>> Worker::conclude(Joining& joining, std::span<const std::byte> setup_message) {
  auto welcome = read_welcome(setup_message);
  if (!welcome) return std::move(welcome.error());
  if (auto checked = parse_contribution(welcome->contribution); !checked) return std::move(checked.error());
  const Hello& hello = joining.hello;
  const bool shared = welcome->number != transport::RouteKey::kPrivate;
  if (shared && welcome->number >= hello.shared_links) {
    return Error(Status::invalid,
                 fmt::format("the listener named shared link {} of {}", welcome->number, hello.shared_links));
  }
  const auto peer = meet(welcome->identity, welcome->worker_index, welcome->contribution);
  if (!peer) return peer.error().copy();
  const transport::RouteKey key{welcome->identity, welcome->worker_index, hello.service_class, welcome->number};
  const transport::Route* const mine = shared ? engine_->peers().registry().find(key) : nullptr;
  if (mine != nullptr && mine->instance < welcome->instance) return ask_again(joining, mine);
  transport::Route* route = engine_->peers().registry().known(key, welcome->instance);
  // A process that connects to itself finds the route that it made when it answered: one for both ends.
  const bool own = !shared && welcome->identity == identity_ && welcome->worker_index == worker_index_;
  const bool usable = route == nullptr || route->may_be_joined() || (own && !route->over && !route->closing);
  if (!usable) return ask_again(joining, nullptr);
  if (route == nullptr) {
    auto opened = open_route(*peer, key, welcome->instance);
    if (!opened) return std::move(opened.error());
    route = *opened;
  }
  auto channel = open_channel(*route, hello.flow, hello.session, welcome->flow, welcome->session);
  if (!shared || digest(*route) == welcome->digest) return channel;
  // Not the same links: this channel gets its own, and whoever is on those stays there.
  ++joins_refused_;
  log_info("{}: the two ends do not mean the same links; the channel gets its own", route->who);
  channel->end_at_once("the links did not match");
  joining.hello.flow = Joining::kNoFlow;
  auto again = begin(hello.service_class, false);
  if (!again) return std::move(again.error());
  joining = std::move(*again);
  return std::shared_ptr<ChannelState>();
}

// ---- Moving on ----

void Worker::call(ChannelState& channel) {
  if (channel.called.exchange(true, std::memory_order_acq_rel)) return;
  ChannelState* head = called_.load(std::memory_order_relaxed);
  do {
    channel.next_call = head;
    // Release: whoever takes the list sees the link. Sequentially consistent: `nudge` sees who began to sleep before
    // this, and who begins later sees this.
  } while (!called_.compare_exchange_weak(head, &channel, std::memory_order_seq_cst, std::memory_order_relaxed));
  engine_->waiting().nudge();
}

void Worker::take_calls() {
  if (called_.load(std::memory_order_relaxed) == nullptr) return;
  ChannelState* channel = called_.exchange(nullptr, std::memory_order_acquire);
  while (channel != nullptr) {
    ChannelState* const next = channel->next_call;
    // Before its ring is read: a call that comes later is seen by the next pass.
    channel->called.store(false, std::memory_order_release);
    touch(*channel);
    channel = next;
  }
}

void Worker::touch(ChannelState& channel) {
  if (channel.ready) return;
  channel.ready = true;
  ready_.push(channel);
}

void Worker::linger(ChannelState& channel) {
  if (channel.lingers) return;
  channel.lingers = true;
  lingering_.push_back(&channel);
  engine_->waiting().limit_sleep(kLookEvery);
}

void Worker::touch_lingering() {
  const std::int64_t now = engine_->clock().now();
  if (now - lingering_seen_ < kLookEvery) return;
  lingering_seen_ = now;
  for (ChannelState* channel : lingering_) {
    channel->lingers = false;
    touch(*channel);
  }
  lingering_.clear();
  engine_->waiting().limit_sleep(INT64_MAX);
}

bool Worker::serve() {
  take_calls();
  if (!lingering_.empty()) touch_lingering();
  if (ready_.empty()) return false;
  engine_->begin_batch();
  // Those that come meanwhile have the next turn.
  for (ChannelState* channel = ready_.take_all(); channel != nullptr;) {
    ChannelState* const next = std::exchange(channel->next_ready, nullptr);
    channel->ready = false;
    if (!channel->advance()) touch(*channel);
    if (channel->over()) {
      if (channel->ready) ready_.erase(*channel);
      if (channel->lingers) std::erase(lingering_, channel);
      channels_.erase(channel);
    }
    channel = next;
  }
  engine_->end_batch();
  return true;
}

/// Whoever waits for a message has nothing under way itself: that its peer is gone would come to nobody's notice.
void Worker::ask_after_peers() {
  if (++passes_ % kPassesPerLook != 0 && !engine_->waiting().just_woke()) return;
  const std::int64_t now = engine_->clock().now();
  if (now - asked_at_ < kAskEvery) return;
  asked_at_ = now;
  for (const auto& [key, channel] : channels_) channel->ask_after_peer();
}

bool Worker::owes() {
  const transport::ProgressGuard hold(engine_->progress_lock());
  return std::ranges::any_of(channels_, [](const auto& entry) { return entry.second->owes(); });
}

std::int64_t Worker::patience() {
  return patience_->left(engine_->clock().now(), std::int64_t{settings_.timeout_ms} * 1'000'000);
}

void Worker::spend_patience(std::int64_t nanoseconds) { patience_->spend(engine_->clock().now(), nanoseconds); }

bool Worker::pass() {
  ask_after_peers();
  const bool called = called_.load(std::memory_order_relaxed) != nullptr && serve();
  const bool moved = engine_->progress();
  return serve() || moved || called;
}

bool Worker::try_pass() {
  if (!engine_->progress_lock().try_take()) return false;
  const bool moved = pass();
  engine_->progress_lock().give();
  return moved;
}

}  // namespace railyard::message
