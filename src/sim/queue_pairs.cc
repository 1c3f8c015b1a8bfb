#include "sim/queue_pairs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "fabric/sim/fabric.hpp"
#include "message/worker.hpp"

namespace railyard::sim {

namespace {

using fabric::LinkTag;
using fabric::RemoteId;
using Address = std::vector<std::byte>;

/// The two rails and the two links, in an order that does not depend on whose end it is.
using PairName = std::tuple<Address, Address, fabric::LinkName, fabric::LinkName>;

PairName pair_of(const Address& from, const Address& to, const LinkTag& tag) {
  const auto [low, high] = std::minmax(from, to);
  const auto [first, second] = std::minmax(tag.id, tag.facing);
  return {low, high, first, second};
}

/// Of all rails: the links that stand on each pair.
using Ledger = std::map<PairName, std::size_t>;

/// A rail that enters its links in the ledger.
class LedgerRail final : public fabric::Rail {
 public:
  LedgerRail(std::unique_ptr<fabric::Rail> rail, Ledger& ledger) : rail_(std::move(rail)), ledger_(ledger) {}

  Result<RemoteId> connect(std::span<const std::byte> address, LinkTag tag) override {
    auto remote = rail_->connect(address, tag);
    if (remote) {
      const PairName pair = pair_of(rail_->address(), {address.begin(), address.end()}, tag);
      ++ledger_[pair];
      links_[*remote] = pair;
    }
    return remote;
  }
  void disconnect(RemoteId remote) override {
    rail_->disconnect(remote);
    const auto link = links_.extract(remote);
    if (!link.empty() && --ledger_[link.mapped()] == 0) ledger_.erase(link.mapped());
  }

  const fabric::Capabilities& capabilities() const override { return rail_->capabilities(); }
  std::string name() const override { return rail_->name(); }
  std::string fabric() const override { return rail_->fabric(); }
  Address address() const override { return rail_->address(); }
  bool fence(LinkTag tag) override { return rail_->fence(tag); }
  void forget(fabric::LinkName link) override { rail_->forget(link); }
  Result<fabric::Registration> register_memory(std::span<std::byte> memory, fabric::Access access) override {
    return rail_->register_memory(memory, access);
  }
  void revoke(const fabric::Registration& registration) override { rail_->revoke(registration); }
  fabric::Post send(RemoteId remote, const fabric::LocalChunk& message, fabric::PostContext* worker) override {
    return rail_->send(remote, message, worker);
  }
  fabric::Post receive(const fabric::LocalChunk& buffer, fabric::PostContext* worker) override {
    return rail_->receive(buffer, worker);
  }
  fabric::Post write(const fabric::RemoteChunk& to, const fabric::LocalChunk& from, fabric::WriteOptions options,
                     fabric::PostContext* worker) override {
    return rail_->write(to, from, options, worker);
  }
  fabric::Post read(const fabric::RemoteChunk& from, const fabric::LocalChunk& to,
                    fabric::PostContext* worker) override {
    return rail_->read(from, to, worker);
  }
  std::size_t poll(std::span<fabric::Event> events) override { return rail_->poll(events); }
  void stop() override { rail_->stop(); }
  std::string describe_error(int error) const override { return rail_->describe_error(error); }
  std::string failure() const override { return rail_->failure(); }

 private:
  std::unique_ptr<fabric::Rail> rail_;
  Ledger& ledger_;
  std::map<RemoteId, PairName> links_;
};

/// One process of the job, with the engine that its channels are on.
class Process {
 public:
  static Result<Process> open(fabric::sim::SimFabric& network, Ledger& ledger, std::uint32_t number,
                              const QueuePairCase& shape) {
    message::WorkerParts parts;
    parts.settings.driver = "sim";
    parts.settings.threads = "single";
    parts.settings.shared_links = shape.shared_links;
    parts.clock = &network.clock();
    for (std::uint32_t i = 0; i < shape.rails; ++i) {
      auto rail = network.open_rail(std::size_t{number} * shape.rails + i);
      if (!rail) return std::move(rail.error());
      parts.rails.push_back(std::make_unique<LedgerRail>(std::move(*rail), ledger));
    }
    Random random(number);
    for (auto& byte : parts.identity.bytes) byte = static_cast<std::uint8_t>(random.next());
    parts.seed = random.next();
    auto worker = message::Worker::open(std::move(parts));
    if (!worker) return std::move(worker.error());
    return Process(std::move(*worker));
  }
  ~Process() {
    if (worker_ != nullptr) worker_->close();
  }
  Process(Process&&) = default;
  Process& operator=(Process&&) = default;

  /// A channel to another process: the set-up messages go from hand to hand.
  Result<void> connect(Process& to) {
    auto joining = worker_->begin(0, true);
    if (!joining) return std::move(joining.error());
    const auto hello = message::read_hello(worker_->hello(*joining));
    if (!hello) return hello.error().copy();
    const auto answer = to.worker_->answer(*hello);
    if (!answer) return answer.error().copy();
    const auto channel = worker_->conclude(*joining, answer->welcome);
    if (!channel) return channel.error().copy();
    if (*channel == nullptr) return Error(Status::invalid, "two processes do not agree on the links they share");
    return {};
  }

 private:
  explicit Process(std::shared_ptr<message::Worker> worker) : worker_(std::move(worker)) {}
  std::shared_ptr<message::Worker> worker_;
};

fabric::sim::FabricOptions network_of(const QueuePairCase& shape) {
  fabric::sim::FabricOptions options;
  for (std::uint32_t process = 0; process <= shape.peers(); ++process) {
    for (std::uint32_t number = 0; number < shape.rails; ++number) {
      fabric::sim::RailOptions rail;
      rail.process = static_cast<int>(process);
      rail.number = static_cast<int>(number);
      options.rails.push_back(rail);
    }
  }
  return options;
}

}  // namespace

Result<QueuePairs> count_queue_pairs(const QueuePairCase& shape) {
  if (shape.ranks < 2 * kRanksPerNode || shape.ranks % kRanksPerNode != 0) {
    return Error(Status::out_of_range,
                 fmt::format("{} ranks: use a multiple of {}, for two nodes at least", shape.ranks, kRanksPerNode));
  }
  fabric::sim::SimFabric network(network_of(shape));
  Ledger ledger;
  std::vector<Process> processes;
  for (std::uint32_t number = 0; number <= shape.peers(); ++number) {
    auto process = Process::open(network, ledger, number, shape);
    if (!process) return std::move(process.error());
    processes.push_back(std::move(*process));
  }
  Process& measured = processes.front();
  for (std::size_t peer = 1; peer < processes.size(); ++peer) {
    for (std::uint32_t i = 0; i < shape.channels; ++i) {
      if (auto there = measured.connect(processes[peer]); !there) return std::move(there.error());
      if (auto back = processes[peer].connect(measured); !back) return std::move(back.error());
    }
  }
  // The peers know nobody but the measured process: every pair has one end there.
  QueuePairs count{.links = 0, .pairs = ledger.size()};
  for (const auto& [pair, links] : ledger) count.links += links;
  return count;
}

}  // namespace railyard::sim
