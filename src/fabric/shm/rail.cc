/// Set-up of the rail, its links and its inbound links: who may send here, who has left, who is shut out.
#include "fabric/shm/rail.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/bytes.hpp"
#include "base/entropy.hpp"
#include "base/log.hpp"

namespace railyard::fabric::shm {

namespace {

constexpr std::uint32_t kAddressMagic = 0x53535952;  // "RYSS"
constexpr std::uint16_t kAddressVersion = 3;

std::uint64_t random_word() {
  std::uint64_t word = 0;
  while (word == 0) {
    // A system without random bytes has failed long before: every identity is made of them.
    if (!fill_random(std::as_writable_bytes(std::span(&word, 1)))) return 1;
  }
  return word;
}

/// Equal for processes that see the same files: the machine as it runs now, the directory, and the user, whose files
/// nobody else may open.
Result<std::string> fabric_of(const std::string& directory) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  if (!(file >> boot)) return Error(Status::io, "cannot read /proc/sys/kernel/random/boot_id");
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0)
    return Error(Status::io, fmt::format("{}: {}", directory, std::strerror(errno)));
  return fmt::format("{}{}/{}.{}/{}", kSharedMemoryFabric, boot, status.st_dev, status.st_ino, ::geteuid());
}

Result<Identity> parse_address(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  if (reader.u32() != kAddressMagic)
    return Error(Status::invalid, "shared memory: a peer's rail address is no address of this driver");
  if (const auto version = reader.u16(); reader.ok() && version != kAddressVersion)
    return Error(Status::version_mismatch,
                 fmt::format("shared memory: a peer's rail address has version {}, this library speaks {}: use the "
                             "same release on all ranks",
                             version, kAddressVersion));
  Identity identity;
  const auto raw = reader.raw(identity.bytes.size());
  if (!reader.done()) return Error(Status::invalid, "shared memory: a peer's rail address is malformed");
  std::memcpy(identity.bytes.data(), raw.data(), raw.size());
  return identity;
}

}  // namespace

ShmRail::ShmRail(const Options& options) : options_(options), receives_(kDepth) {}

Result<std::unique_ptr<ShmRail>> ShmRail::open(const Options& options) {
  std::unique_ptr<ShmRail> rail(new ShmRail(options));
  if (auto started = rail->start(); !started) return std::move(started.error());
  return rail;
}

Result<void> ShmRail::start() {
  auto fabric = fabric_of(options_.directory);
  if (!fabric) return std::move(fabric.error());
  name_ = "shared memory";
  fabric_ = std::move(*fabric);
  remove_dead_objects(options_.directory);
  Endpoint::Options core_options;
  core_options.directory = options_.directory;
  core_options.can_sleep = true;
  auto core = Endpoint::open(core_options, *this);
  if (!core) return std::move(core.error());
  core_ = std::move(*core);
  identity_ = core_->identity();
  capabilities_.driver = "shm";
  capabilities_.provider = "shared memory";
  capabilities_.sees_one_sided = true;
  capabilities_.delivery_complete = true;
  capabilities_.device_memory = true;
  capabilities_.virtual_addresses = true;
  capabilities_.max_message = kMostMessage;
  capabilities_.max_write = kMostWrite;
  capabilities_.inject_bytes = kMostMessage;
  capabilities_.depth = kDepth;
  capabilities_.fencing = Fencing::exact;
  return {};
}

ShmRail::~ShmRail() { ShmRail::stop(); }

void ShmRail::stop() {
  if (std::exchange(stopped_, true)) return;
  links_.each([](ShmLink& link) { link.guard.store(0); });  // before the memory of what is under way goes
  links_.clear();
  inbound_.clear();
  for (const DeviceCopy& copy : copying_) device_copies_.wait(copy.ticket);
  copying_.clear();
  core_.reset();
  remove_dead_objects(options_.directory);  // of peers that died before anybody had to do with them
  busy_.clear();
  peers_.clear();
  registrations_.clear();
  device_memory_.clear();
  operations_.clear();
  receive_count_ = 0;
  pending_.clear();
}

// ---- Sleeping ----

int ShmRail::descriptor() const { return core_ != nullptr ? core_->bell() : -1; }

bool ShmRail::arm() {
  // What waits for room in a peer's ring is woken by nobody.
  if (stopped_ || !pending_.empty() || !busy_.empty() || !copying_.empty()) return false;
  // Now, when there is nothing else to do, rather than first thing when it is woken.
  if (core_->look_is_due()) return false;
  armed_ = true;
  return core_->fall_asleep();
}

bool ShmRail::wake(RemoteId remote) {
  const ShmLink* const link = links_.find(remote);
  const Peer* const peer = link != nullptr ? link->peer : nullptr;
  if (peer == nullptr || peer->out == nullptr) return false;
  peer->out->wake();
  return true;
}

std::vector<std::byte> ShmRail::address() const {
  ByteWriter writer;
  writer.u32(kAddressMagic);
  writer.u16(kAddressVersion);
  writer.raw(std::as_bytes(std::span(identity_.bytes)));
  return writer.take();
}

// ---- Links ----

Result<RemoteId> ShmRail::connect(std::span<const std::byte> address, LinkTag tag) {
  if (auto running = refuse_if_stopped(); !running) return std::move(running.error());
  const auto identity = parse_address(address);
  if (!identity) return identity.error().copy();
  Peer& peer = peer_of(*identity);
  const auto reached = reach(peer);
  if (!reached) forget_if_gone(peer);
  if (!reached && reached.status() != Status::not_found) return reached.error().copy();
  ShmLink& link = links_.take(tag);
  if (!reached) {
    lose(link, kNobodyThere);
    return link.remote;
  }
  link.peer = &peer;
  link.guard.store(random_word());
  owe(peer, {kHello,
             0,
             {link.number(), tag.id.low},
             {tag.epoch, reinterpret_cast<std::uintptr_t>(&link.guard), link.guard.load(std::memory_order_relaxed),
              tag.id.high}});
  return link.remote;
}

void ShmRail::lose(ShmLink& link, int error) {
  links_.lose(link, {.error = error,
                     .refused = error == kNobodyThere,
                     .unwanted = error == kEpochRefused,
                     // Of a write that its sender holds for done.
                     .blame = error == kBadKey ? Blame::operation : Blame::link});
}

/// The owner of an object holds a lock on it as long as its process lives, whatever that does.
Liveness ShmRail::liveness(RemoteId remote) {
  const ShmLink* const link = links_.find(remote);
  const Peer* const peer = link != nullptr ? link->peer : nullptr;
  if (peer == nullptr || peer->out == nullptr) return Liveness::unknown;
  return peer->out->peer().alive() ? Liveness::alive : Liveness::gone;
}

/// What is stored there is there: no path can lose it.
std::optional<Delivery> ShmRail::delivery(RemoteId remote) {
  if (liveness(remote) != Liveness::alive) return std::nullopt;
  return Delivery{};
}

void ShmRail::lose_links_to(const Peer& peer, int error) {
  links_.each([&](ShmLink& link) {
    if (link.peer != &peer) return;
    link.peer = nullptr;
    lose(link, error);
  });
}

void ShmRail::disconnect(RemoteId remote) {
  ShmLink* const link = links_.find(remote);
  if (link == nullptr) return;
  // Before anybody is told that the memory of what was under way is free: a peer that reads it from now on finds the
  // guard gone. Sequentially consistent, as the reader's fence.
  link->guard.store(0);
  if (link->peer != nullptr) {
    std::erase_if(link->peer->moving, [&](std::uint32_t index) { return operations_[index].link == remote; });
    owe(*link->peer, {kBye, 0, {link->number(), link->connecting() ? 0U : 1U}, {}});
  }
  for (Operation& operation : operations_)
    if (operation.kind != Operation::Kind::free && operation.link == remote && !operation.ended) end(operation);
  links_.release(*link);
}

// ---- Peers ----

ShmRail::Peer& ShmRail::peer_of(const Identity& identity) {
  auto& peer = peers_[identity.bytes];
  if (peer == nullptr) {
    peer = std::make_unique<Peer>();
    peer->identity = identity;
  }
  return *peer;
}

ShmRail::Peer& ShmRail::peer_of(Inbound& from) {
  if (from.user != nullptr) [[likely]]
    return *static_cast<Peer*>(from.user);
  Peer& peer = peer_of(from.sender());
  peer.in = &from;
  from.user = &peer;
  return peer;
}

/// Sees to it that there is a ring to the peer.
Result<void> ShmRail::reach(Peer& peer) {
  if (peer.out != nullptr) return {};
  auto out = core_->connect_identity(peer.identity);
  if (!out) return std::move(out.error());
  peer.out = *out;
  peer.out->user = &peer;
  if (options_.single_copy_from != SIZE_MAX) peer.memory = PeerMemory::probe(peer.out->peer());
  return {};
}

void ShmRail::forget_if_gone(Peer& peer) {
  if (peer.in != nullptr || peer.out != nullptr) return;
  forget_copies(peer);
  std::erase(busy_, &peer);
  peers_.erase(peer.identity.bytes);
}

void ShmRail::left(Inbound& from, bool died) {
  auto* const peer = static_cast<Peer*>(from.user);
  if (peer == nullptr) return;  // it never said anything
  for (const auto& inbound_link : std::exchange(peer->inbound_links, {})) inbound_.left(*inbound_link);
  if (died) lose_links_to(*peer, kPeerGone);  // no answer comes any more, even if only the ring is broken
  peer->jobs.clear();
  peer->in = nullptr;
  from.user = nullptr;
  forget_if_gone(*peer);
}

void ShmRail::lost(Outbound& to) {
  auto* const peer = static_cast<Peer*>(to.user);
  lose_links_to(*peer, kPeerGone);
  peer->out = nullptr;
  peer->owed.clear();
  peer->moving.clear();
  forget_if_gone(*peer);
}

/// A peer that is alive and writes nonsense into its own counters: what is sent there leads nowhere.
void ShmRail::look_at_rings() {
  for (auto it = peers_.begin(); it != peers_.end();) {
    Peer& peer = *(it++)->second;
    if (peer.out == nullptr || !peer.out->broken()) continue;
    lose_links_to(peer, kRingBroken);
    core_->disconnect(*std::exchange(peer.out, nullptr));
    peer.owed.clear();
    peer.moving.clear();
    forget_if_gone(peer);
  }
}

// ---- Inbound links ----

void ShmRail::take_hello(Peer& peer, const Record& record) {
  const std::uint64_t number = record.arguments[0];
  const LinkTag tag{{record.more[3], record.arguments[1]}, static_cast<std::uint32_t>(record.more[0])};
  if (auto reached = reach(peer); !reached) {
    log_warn(in_log(), "a peer cannot be answered: {}", reached.error().text());
    return;
  }
  if (!inbound_.welcome(tag)) {
    owe(peer, {kShut, 0, {number, kEpochRefused}, {}});
    return;
  }
  ShmInboundLink& inbound_link = *peer.inbound_links.emplace_back(std::make_unique<ShmInboundLink>());
  inbound_link.peer = &peer;
  inbound_link.number = number;
  inbound_link.guard_address = record.more[1];
  inbound_link.guard = record.more[2];
  inbound_.seat(inbound_link, tag, [this](ShmInboundLink& other) { shut(other, kEpochRefused); });
  tell_shares(peer);
  owe(peer, {kWelcome, 0, {number, peer.memory.readable() ? 1U : 0U}, {}});
}

void ShmRail::shut(ShmInboundLink& inbound_link, Trouble why) {
  owe(*inbound_link.peer, {kShut, 0, {inbound_link.number, static_cast<std::uint64_t>(why)}, {}});
  inbound_.left(inbound_link);
  drop(inbound_link);
}

void ShmRail::drop(ShmInboundLink& inbound_link) {
  Peer& peer = *inbound_link.peer;
  std::erase_if(peer.jobs, [&](const Job& job) { return job.number == inbound_link.number; });
  std::erase_if(peer.inbound_links, [&](const auto& one) { return one.get() == &inbound_link; });
}

void ShmRail::take_bye(Peer& peer, const Record& record) {
  ShmInboundLink* const inbound_link = inbound_link_of(peer, record.arguments[0]);
  if (inbound_link == nullptr) return;
  record.arguments[1] != 0 ? inbound_.left(*inbound_link) : inbound_.withdraw(*inbound_link);
  drop(*inbound_link);
}

/// Exact: everything that lands here is stored by this process, in its own `poll`, and only for inbound links that
/// stand. What a shut inbound link has in its ring is taken out unread; a long write that was half done stays half
/// done.
bool ShmRail::fence(LinkTag tag) {
  return inbound_.fence(tag, [this](ShmInboundLink& one) { shut(one, kFenced); }) && !copies_of(tag);
}

// ---- Memory ----

Result<Registration> ShmRail::register_memory(std::span<std::byte> memory, Access access) {
  if (auto running = refuse_if_stopped(); !running) return std::move(running.error());
  Registration registration;
  registration.remote_base = reinterpret_cast<std::uintptr_t>(memory.data());
  if (access.device >= 0) {
    auto device = device_memory(memory);
    if (!device) return std::move(device.error());
    registration.descriptor[static_cast<std::size_t>(Lane::data)] = *device;
  }
  if (!access.remote) return registration;
  registration.key = registrations_.add(memory, access.device, static_cast<std::uint32_t>(random_word()));
  registration.id[static_cast<std::size_t>(Lane::data)] = 1;
  return registration;
}

void ShmRail::revoke(const Registration& registration) {
  if (stopped_) return;
  void* const device = registration.descriptor[static_cast<std::size_t>(Lane::data)];
  if (registration.id[static_cast<std::size_t>(Lane::data)] != 0) {
    registrations_.remove(registration.key);
    if (device != nullptr) wait_for_copies(registration.key);
  }
  if (device != nullptr) release(*static_cast<DeviceMemory*>(device));
}

std::string ShmRail::describe_error(int error) const {
  static constexpr const char* kTexts[] = {"no error",
                                           "no such endpoint in shared memory",
                                           "the peer's endpoint is gone",
                                           "the ring to the peer is broken",
                                           "the peer refuses this epoch of the link",
                                           "the peer has shut out the link",
                                           "no registered memory there",
                                           "the peer cannot read this process's memory",
                                           "more requests than a link may have",
                                           "a message longer than its receive",
                                           "the link was ended",
                                           "the rail is stopped",
                                           "the peer cannot map this process's GPU memory",
                                           "the GPU failed"};
  static_assert(std::size(kTexts) == kTroubles);
  const bool known = error >= 0 && error < kTroubles;
  return known ? kTexts[error] : fmt::format("error {}", error);
}

}  // namespace railyard::fabric::shm
