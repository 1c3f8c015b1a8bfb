/// The same small writes through a rail of queue pairs and by bare verbs calls, on the double's devices: run under
/// callgrind by `bench/verbs/compare`, which reads how many instructions `post` and `take` were, and how many of them
/// the double's own (what the library of a device would take).
///
/// Either side is told an address, a key and a context with each write, and marks each context when its write is done.
/// Bytes move between the two, outside of what is counted.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "doubles/verbs/bare.hpp"
#include "doubles/verbs/verbs_double.hpp"
#include "fabric/rail.hpp"

namespace {

using namespace railyard;                // NOLINT(google-build-using-namespace)
using namespace railyard::verbs_double;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kMost = 16;  // writes under way
constexpr std::uint32_t kBytes = 8;

struct Write : fabric::PostContext {
  bool done = false;
};

void check(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "cost: %s\n", what);
  std::exit(1);
}

/// Someone who writes.
class Writer {
 public:
  virtual ~Writer() = default;
  /// Posts so many writes.
  virtual void post(std::size_t count) = 0;
  /// Takes what is done; returns how many writes.
  virtual std::size_t take() = 0;
  virtual bool landed() const = 0;

  std::array<Write, kMost> writes;
};

/// `kLinks`: that many to the same rail, posted to in turn.
template <std::size_t kDoorbell, std::size_t kLinks = 1>
class ByRail final : public Writer {
 public:
  ByRail() {
    Settings settings;
    settings.driver = "verbs";
    settings.interfaces = "fake0";
    settings.rails = 2;
    settings.shared_memory = "off";
    auto rails = fabric::open_rails(settings);
    if (!rails) check(false, rails.error().text().c_str());
    near_ = std::move((*rails)[0]);
    far_ = std::move((*rails)[1]);
    auto source = near_->register_memory(source_, {});
    auto target = far_->register_memory(target_, {.remote = true});
    check(source.ok() && target.ok(), "memory cannot be registered");
    near_registration_ = *source;
    far_registration_ = *target;
    from_ = {source_.data(), kBytes, source->descriptor[static_cast<std::size_t>(fabric::Lane::data)]};
    for (fabric::RemoteChunk& to : to_) {
      const auto peer = near_->connect(far_->address(), {static_cast<std::uint64_t>(&to - to_.data()) + 1, 1});
      check(peer.ok(), "connect failed");
      to = {*peer, target->remote_base, target->key};
      writes[0].done = false;
      while (near_->write(to, from_, {}, writes.data()) == fabric::Post::busy) {
        take();
        far_->poll(events_);
      }
      while (!writes[0].done) take();
    }
  }
  ~ByRail() override {
    near_->revoke(near_registration_);
    far_->revoke(far_registration_);
  }
  ByRail(const ByRail&) = delete;
  ByRail& operator=(const ByRail&) = delete;

  [[gnu::noinline]] void post(std::size_t count) override {
    fabric::Rail& rail = *near_;
    for (std::size_t i = 0; i < count;) {
      for (const std::size_t end = i + kDoorbell; i < end; ++i) {
        if (rail.write(to_[i % kLinks], from_, {}, &writes[i]) != fabric::Post::posted) std::abort();
      }
      rail.ring();
    }
  }
  [[gnu::noinline]] std::size_t take() override {
    const std::size_t count = near_->poll(events_);
    for (std::size_t i = 0; i < count; ++i) {
      if (events_[i].kind != fabric::Event::Kind::written) std::abort();
      static_cast<Write*>(events_[i].context)->done = true;
    }
    return count;
  }
  bool landed() const override { return target_ == source_; }

 private:
  std::vector<std::byte> source_ = std::vector<std::byte>(kBytes, std::byte{7});
  std::vector<std::byte> target_ = std::vector<std::byte>(kBytes);
  std::unique_ptr<fabric::Rail> near_;
  std::unique_ptr<fabric::Rail> far_;
  fabric::Registration near_registration_;
  fabric::Registration far_registration_;
  fabric::LocalChunk from_;
  std::array<fabric::RemoteChunk, kLinks> to_;
  std::array<fabric::Event, kMost> events_;
};

/// A program without a library. As it is usually written: a work request made for each write, and a completion for
/// each.
class Bare : public Writer {
 public:
  explicit Bare(Network& network)
      : line_(network.library(), 0, 0, {.send_depth = 256, .completions = 512, .inline_bytes = 64}) {
    line_.near.memory[0] = std::byte{7};
    from_ = line_.near.sge(0, kBytes);
    to_ = reinterpret_cast<std::uint64_t>(line_.far.memory.data());
    key_ = line_.far.region->rkey;
  }

  [[gnu::noinline]] void post(std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      ibv_sge sge{from_.addr, from_.length, from_.lkey};
      ibv_send_wr request{};
      request.wr_id = reinterpret_cast<std::uint64_t>(&writes[i]);
      request.sg_list = &sge;
      request.num_sge = 1;
      request.opcode = IBV_WR_RDMA_WRITE;
      request.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
      request.wr.rdma.remote_addr = to_;
      request.wr.rdma.rkey = key_;
      ibv_send_wr* bad = nullptr;
      if (ibv_post_send(line_.out, &request, &bad) != 0) std::abort();
    }
  }
  [[gnu::noinline]] std::size_t take() override {
    const int count = ibv_poll_cq(line_.near.queue, kMost, completions_.data());
    for (int i = 0; i < count; ++i) {
      const ibv_wc& completion = completions_[static_cast<std::size_t>(i)];
      if (completion.status != IBV_WC_SUCCESS) std::abort();
      reinterpret_cast<Write*>(completion.wr_id)->done = true;
    }
    return static_cast<std::size_t>(count);
  }
  bool landed() const override { return line_.far.memory[0] == line_.near.memory[0]; }

 protected:
  Line line_;
  ibv_sge from_{};
  std::uint64_t to_ = 0;
  std::uint32_t key_ = 0;
  std::array<ibv_wc, kMost> completions_{};
};

/// The same over two connections in turn.
class BareInTurn final : public Bare {
 public:
  explicit BareInTurn(Network& network) : Bare(network) {
    ibv_qp* const in = line_.far.make_pair();
    outs_ = {line_.out, line_.near.make_pair()};
    check(in != nullptr && outs_[1] != nullptr && line_.near.to_init(outs_[1]) == 0 && line_.far.to_init(in) == 0 &&
              line_.near.to_receive(outs_[1], line_.far.gid, in->qp_num) == 0 &&
              line_.far.to_receive(in, line_.near.gid, outs_[1]->qp_num) == 0 && line_.near.to_send(outs_[1]) == 0,
          "no second connection");
  }

  [[gnu::noinline]] void post(std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      ibv_sge sge{from_.addr, from_.length, from_.lkey};
      ibv_send_wr request{};
      request.wr_id = reinterpret_cast<std::uint64_t>(&writes[i]);
      request.sg_list = &sge;
      request.num_sge = 1;
      request.opcode = IBV_WR_RDMA_WRITE;
      request.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
      request.wr.rdma.remote_addr = to_;
      request.wr.rdma.rkey = key_;
      ibv_send_wr* bad = nullptr;
      if (ibv_post_send(outs_[i % 2], &request, &bad) != 0) std::abort();
    }
  }

 private:
  std::array<ibv_qp*, 2> outs_{};
};

/// The least that can be done: chains made beforehand, in which only what may differ is filled in. One completion
/// speaks for a chain.
template <std::size_t kDoorbell>
class Prepared : public Bare {
 public:
  explicit Prepared(Network& network) : Bare(network) {
    for (std::size_t i = 0; i < kDoorbell; ++i) {
      requests_[i].sg_list = &sges_[i];
      requests_[i].num_sge = 1;
      requests_[i].opcode = IBV_WR_RDMA_WRITE;
      requests_[i].send_flags = IBV_SEND_INLINE;
      requests_[i].next = i + 1 < kDoorbell ? &requests_[i + 1] : nullptr;
    }
    requests_.back().send_flags |= IBV_SEND_SIGNALED;
  }

  [[gnu::noinline]] void post(std::size_t count) override {
    for (std::size_t i = 0; i < count;) {
      for (ibv_send_wr* request = requests_.data(); request != nullptr; request = request->next) {
        *request->sg_list = from_;
        request->wr_id = reinterpret_cast<std::uint64_t>(&writes[i++]);
        request->wr.rdma.remote_addr = to_;
        request->wr.rdma.rkey = key_;
      }
      ibv_send_wr* bad = nullptr;
      if (ibv_post_send(line_.out, requests_.data(), &bad) != 0) std::abort();
    }
  }
  [[gnu::noinline]] std::size_t take() override {
    const int count = ibv_poll_cq(line_.near.queue, kMost, completions_.data());
    for (int i = 0; i < count; ++i) {
      const ibv_wc& completion = completions_[static_cast<std::size_t>(i)];
      if (completion.status != IBV_WC_SUCCESS) std::abort();
      auto* const last = reinterpret_cast<Write*>(completion.wr_id);
      for (Write* write = last - (kDoorbell - 1); write <= last; ++write) write->done = true;
    }
    return static_cast<std::size_t>(count) * kDoorbell;
  }

 protected:
  std::array<ibv_send_wr, kDoorbell> requests_{};
  std::array<ibv_sge, kDoorbell> sges_{};
};

/// Such chains, each request made for its write.
class Chained final : public Prepared<kMost> {
 public:
  using Prepared::Prepared;

  [[gnu::noinline]] void post(std::size_t count) override {
    for (std::size_t i = 0; i < count;) {
      ibv_send_wr* last = nullptr;
      for (std::size_t place = 0; place < kMost; ++place) {
        ibv_send_wr& request = requests_[place];
        ibv_sge& sge = sges_[place];
        sge = from_;
        request = {};
        request.wr_id = reinterpret_cast<std::uint64_t>(&writes[i++]);
        request.sg_list = &sge;
        request.num_sge = 1;
        request.opcode = IBV_WR_RDMA_WRITE;
        request.send_flags = IBV_SEND_INLINE;
        request.wr.rdma.remote_addr = to_;
        request.wr.rdma.rkey = key_;
        if (last != nullptr) last->next = &request;
        last = &request;
      }
      last->send_flags |= IBV_SEND_SIGNALED;
      ibv_send_wr* bad = nullptr;
      if (ibv_post_send(line_.out, requests_.data(), &bad) != 0) std::abort();
    }
  }
};

std::unique_ptr<Writer> writer_named(std::string_view name, Network& network) {
  if (name == "rail") return std::make_unique<ByRail<1>>();
  if (name == "rail-chain") return std::make_unique<ByRail<kMost>>();
  if (name == "rail-turns") return std::make_unique<ByRail<1, 2>>();
  if (name == "bare-turns") return std::make_unique<BareInTurn>(network);
  if (name == "bare-chain") return std::make_unique<Chained>(network);
  if (name == "bare") return std::make_unique<Bare>(network);
  if (name == "prepared") return std::make_unique<Prepared<1>>(network);
  if (name == "prepared-chain") return std::make_unique<Prepared<kMost>>(network);
  return nullptr;
}

void round(Network& network, Writer& writer, std::size_t count) {
  for (Write& write : writer.writes) write.done = false;
  writer.post(count);
  network.advance();
  std::size_t taken = 0;
  while (taken < count) taken += writer.take();
  for (std::size_t i = 0; i < count; ++i) check(writer.writes[i].done, "a write was not told of");
}

}  // namespace

/// callgrind begins to count here (--zero-before).
extern "C" [[gnu::noinline]] void begin_to_count() { asm volatile(""); }

int main(int argc, char** argv) try {
  const std::size_t writes = argc == 4 ? std::strtoull(argv[2], nullptr, 10) : 0;
  const std::size_t rounds = argc == 4 ? std::strtoull(argv[3], nullptr, 10) : 0;
  const bool chained = argc == 4 && std::string_view(argv[1]).find("chain") != std::string_view::npos;
  Network network({.devices = 1});
  {
    const auto writer = rounds > 0 ? writer_named(argv[1], network) : nullptr;
    if (writer == nullptr || (writes != kMost && (writes != 1 || chained))) {
      std::fprintf(
          stderr,
          "usage: cost rail|bare|prepared|rail-turns|bare-turns|rail-chain|bare-chain|prepared-chain WRITES ROUNDS\n"
          "  WRITES are posted, each with a doorbell or all with one, and then waited for: %zu, or without a "
          "chain 1.\n",
          kMost);
      return 2;
    }
    network.motion(Motion::by_hand);
    for (int i = 0; i < 64; ++i) round(network, *writer, writes);
    begin_to_count();
    for (std::size_t i = 0; i < rounds; ++i) round(network, *writer, writes);
    check(writer->landed(), "what was written is not there");
    network.motion(Motion::by_itself);
  }
  check(network.violations().empty() && network.alive() == 0, "the double was misused");
  return 0;
} catch (const std::exception& problem) {
  std::fprintf(stderr, "cost: %s\n", problem.what());
  return 1;
}
