#include "sim/brief_windows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "sim/stage.hpp"
#include "window/assemble.hpp"
#include "window/world_state.hpp"

namespace railyard::sim {

namespace {

constexpr std::size_t kPartBytes = 128 * 1024;
constexpr std::size_t kConstantPart = 8 * 1024;  ///< that gets read and nobody writes
constexpr std::size_t kSignals = 96;
constexpr std::size_t kBareBytes = 4096;
constexpr std::size_t kBareSignals = 4;
constexpr std::size_t kMostBegun = 256;
constexpr std::uint32_t kNoExposedRegion = 0x7ffffff0;
/// What memory holds once its owner uses it for something else.
constexpr std::byte kReused{0x77};
constexpr std::uint64_t kReusedWord = 0x7777777777777777ULL;
constexpr std::byte kSpoilt{0xdb};

transport::Engine& engine_of(Stage& stage, int rank) {
  return window_detail::WorldAccess::state(stage.world(rank)).engine();
}

}  // namespace

Result<std::unique_ptr<BriefWindows>> BriefWindows::open(Stage& stage) {
  std::unique_ptr<BriefWindows> opened(new BriefWindows(stage));
  opened->parts_.resize(stage.plan.ranks);
  opened->under_way_.resize(stage.plan.ranks);
  opened->begun_.reserve(kMostBegun);
  const auto& programs = stage.plan.fabric.programs;
  if (programs.deregisters) {
    if (auto done = opened->open_windows(); !done) return std::move(done.error());
  }
  if (programs.refusals) {
    if (auto done = opened->expose(); !done) return std::move(done.error());
  }
  return opened;
}

Result<void> BriefWindows::open_windows() {
  std::vector<WindowAssembly> assemblies;
  std::vector<std::vector<std::byte>> contributions;
  for (int rank = 0; rank < static_cast<int>(parts_.size()); ++rank) {
    Part& own = part(rank);
    own.memory.resize(kPartBytes);
    own.signals.resize(kSignals);
    own.used = kConstantPart;
    Pattern(stage_.plan.seed, static_cast<std::uint64_t>(rank), 1).fill(std::span(own.memory).first(kConstantPart));
    WindowOptions options;
    options.signals = kSignals;
    options.signal_memory = own.signals;
    assemblies.push_back(WindowAssembly::begin(stage_.world(rank), own.memory, options));
    contributions.push_back(assemblies.back().contribution());
  }
  for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
    auto window = assemblies[rank].finish(contributions);
    if (!window) return std::move(window.error());
    parts_[rank].window.emplace(std::move(*window));
  }
  return {};
}

Result<void> BriefWindows::expose() {
  for (int rank = 0; rank < static_cast<int>(parts_.size()); ++rank) {
    Part& own = part(rank);
    own.bare.assign(kBareBytes, kReused);
    own.bare_signals.assign(kBareSignals, kReusedWord);
    transport::Engine& engine = engine_of(stage_, rank);
    const transport::ProgressGuard hold(engine.progress_lock());
    auto region = memory::Region::open(engine.rails(), own.bare, {.remote = true, .bulk = true});
    if (!region) return std::move(region.error());
    own.region = std::move(*region);
    for (std::size_t rail = 0; rail < engine.rails().size(); ++rail) {
      own.keys.push_back({own.region->on(rail).key, own.region->on(rail).remote_base});
      own.wrong_keys.push_back({own.keys.back().key ^ (std::uint64_t{1} << 60U), own.keys.back().base});
    }
    const auto id = engine.exposed().expose({own.bare, own.bare_signals});
    if (!id) return id.error().copy();
    own.exposed_region = *id;
  }
  return {};
}

void BriefWindows::turn(int rank) {
  Random& random = stage_.random;
  const auto ranks = static_cast<std::uint64_t>(parts_.size());
  if (ranks < 2) return;
  const auto& programs = stage_.plan.fabric.programs;
  auto target = static_cast<int>(random.below(ranks - 1));
  if (target >= rank) ++target;
  const bool room = begun_.size() < kMostBegun;
  if (programs.deregisters && room && part(rank).window && random.chance(0.1)) begin(rank, target);
  if (programs.refusals && room && random.chance(0.04)) forge(rank, target);
  if (programs.deregisters && !part(rank).ended && random.chance(0.004)) end_part(rank);
  look(rank);
}

/// An honest operation on the target's part, which may have ended by now or end meanwhile.
void BriefWindows::begin(int rank, int target) {
  Random& random = stage_.random;
  Part& there = part(target);
  Window& window = *part(rank).window;
  Begun begun;
  begun.kind = static_cast<Kind>(random.below(static_cast<std::uint64_t>(Kind::kinds)));
  begun.source = rank;
  begun.target = target;
  begun.value = 1 + random.below(UINT32_MAX);
  const bool small = random.chance(0.5);
  begun.bytes = 1 + random.below(small ? 64 : 9'000);
  const bool word = begun.kind == Kind::atomic || begun.kind == Kind::fetch;
  if (word) begun.bytes = sizeof(std::uint64_t);
  const bool reads = begun.kind == Kind::get;
  if (reads) {
    begun.bytes = std::min(begun.bytes, kConstantPart);
  } else if (begun.kind != Kind::signal) {
    begun.offset = there.used;
    if (begun.offset + begun.bytes > kPartBytes) return;
  }
  const bool signals = begun.kind == Kind::signal || begun.kind == Kind::put_signal;
  if (signals && there.used_signals == kSignals) return;
  if (signals) begun.signal = there.used_signals;
  begun.pattern = Pattern(stage_.plan.seed, static_cast<std::uint64_t>(rank), (std::uint64_t{1} << 40U) + ++count_);
  begun.local = std::make_unique<std::byte[]>(begun.bytes);
  const std::span<std::byte> local(begun.local.get(), begun.bytes);
  begun.pattern.fill(local);
  const SignalUpdate update{begun.signal, begun.value, SignalOp::add};
  Result<Ticket> ticket = Ticket{};
  switch (begun.kind) {
    case Kind::put:
      ticket = window.put(target, begun.offset, local.data(), begun.bytes);
      break;
    case Kind::relaxed:
      ticket = window.put(target, begun.offset, local.data(), begun.bytes, Order::relaxed);
      break;
    case Kind::put_signal:
      ticket = window.put_signal(target, begun.offset, local.data(), begun.bytes, update);
      break;
    case Kind::signal:
      ticket = window.signal(target, update);
      break;
    case Kind::atomic:
      ticket = window.atomic<std::uint64_t>(target, begun.offset, AtomicOp::add, begun.value);
      break;
    case Kind::fetch:
      ticket = window.atomic_word(target, begun.offset, AtomicOp::add, 8, begun.value, 0, local.data());
      break;
    default:
      ticket = window.get(target, 0, local.data(), begun.bytes);
      break;
  }
  if (!ticket) return;  // no room, or the target is lost: the main program sees to that
  begun.ticket = *ticket;
  if (!reads && begun.kind != Kind::signal) there.used = (begun.offset + begun.bytes + 7) / 8 * 8;
  if (signals) ++there.used_signals;
  ++under_way_[static_cast<std::size_t>(rank)];
  stage_.note_change();
  begun_.push_back(std::move(begun));
}

/// An operation that no window of the library would let through: as from a peer that is mistaken, or behind the times.
void BriefWindows::forge(int rank, int target) {
  transport::Engine& engine = engine_of(stage_, rank);
  const transport::ProgressGuard hold(engine.progress_lock());
  const auto flow = engine.peers().flow(window_detail::WorldAccess::state(stage_.world(rank)).flow_of(target));
  if (!flow || (*flow)->failed.load(std::memory_order_relaxed)) return;
  Begun begun;
  begun.forged = static_cast<Forged>(stage_.random.below(static_cast<std::uint64_t>(Forged::kinds)));
  begun.source = rank;
  begun.target = target;
  begun.bytes = 1 + stage_.random.below(64);
  begun.local = std::make_unique<std::byte[]>(kBareBytes);
  std::memset(begun.local.get(), static_cast<int>(kSpoilt), kBareBytes);
  begun.ticket.peer = target;
  ++count_;
  if (!forge_on(engine, **flow, begun)) return;
  ++under_way_[static_cast<std::size_t>(rank)];
  stage_.note_change();
  begun_.push_back(std::move(begun));
}

bool BriefWindows::forge_on(transport::Engine& engine, transport::Flow& flow, Begun& begun) {
  const Part& there = part(begun.target);
  const std::span<std::byte> local(begun.local.get(), begun.bytes);
  std::uint64_t& number = begun.ticket.number;
  transport::Bulk bulk;
  bulk.local = begun.local.get();
  bulk.bytes = kBareBytes;
  const auto with_region = [&](auto&& attempt) {
    auto region = engine.cache().find({bulk.local, bulk.bytes});
    if (!region) return false;
    bulk.region = std::move(*region);
    return attempt();
  };
  switch (begun.forged) {
    case Forged::no_window: {
      const transport::PutRecord put{kNoExposedRegion, 0, local};
      return engine.submissions().try_records(flow, &put, nullptr, number);
    }
    case Forged::out_of_range: {
      const transport::PutRecord put{there.exposed_region, kBareBytes - begun.bytes + 1, local};
      return engine.submissions().try_records(flow, &put, nullptr, number);
    }
    case Forged::no_signal: {
      const transport::SignalRecord signal{there.exposed_region, kBareSignals, SignalOp::add, 1};
      return engine.submissions().try_records(flow, nullptr, &signal, number);
    }
    case Forged::signal_code: {
      const transport::SignalRecord signal{there.exposed_region, 0, static_cast<SignalOp>(9), 1};
      return engine.submissions().try_records(flow, nullptr, &signal, number);
    }
    case Forged::misaligned:
      return engine.submissions().try_atomic(flow, {there.exposed_region, 4, AtomicOp::add, {1, 0, 0, 8}}, nullptr,
                                             begun.ticket);
    case Forged::atomic_code:
      return engine.submissions().try_atomic(flow, {there.exposed_region, 8, static_cast<AtomicOp>(77), {1, 0, 0, 8}},
                                             nullptr, begun.ticket);
    case Forged::atomic_width:
      return engine.submissions().try_atomic(flow, {there.exposed_region, 8, AtomicOp::add, {1, 0, 0, 3}}, nullptr,
                                             begun.ticket);
    case Forged::fetch_misaligned:
      return engine.submissions().try_atomic(flow, {there.exposed_region, 2, AtomicOp::add, {1, 0, 0, 8}},
                                             begun.local.get(), begun.ticket);
    case Forged::write_no_key:
      bulk.remote = {there.exposed_region, there.wrong_keys};
      return with_region([&] { return engine.submissions().try_write(flow, bulk, nullptr, number); });
    case Forged::write_out_of_range:
      bulk.remote = {there.exposed_region, there.keys};
      bulk.remote_offset = kBareBytes;  // all of it: what is in range may be written
      return with_region([&] { return engine.submissions().try_write(flow, bulk, nullptr, number); });
    case Forged::read_no_key:
      bulk.remote = {there.exposed_region, there.wrong_keys};
      return with_region([&] {
        return engine.submissions().try_unordered(flow, bulk, transport::Operation::Kind::read, begun.ticket);
      });
    default: {
      // A good record in the same frame does not make up for the bad one.
      const transport::SignalRecord signal{there.exposed_region, kBareSignals + 7, SignalOp::add, 1};
      const transport::PutRecord put{kNoExposedRegion, 0, local};
      return engine.submissions().try_records(flow, &put, &signal, number);
    }
  }
}

/// The rank's part ends while others use it, and the memory is used for something else at once.
void BriefWindows::end_part(int rank) {
  Part& own = part(rank);
  own.ended = true;
  own.window.reset();
  own.left = own.memory;
  own.left_signals = own.signals;
  std::ranges::fill(own.memory, kReused);
  std::ranges::fill(own.signals, kReusedWord);
  stage_.note_change();
}

void BriefWindows::look(int rank) {
  for (Begun& begun : begun_) {
    if (begun.source != rank || begun.over) continue;
    take_answer(begun, stage_.window(rank).test(begun.ticket, Completion::remote));
  }
}

void BriefWindows::take_answer(Begun& begun, const Result<bool>& done) {
  if (done && !*done) return;
  begun.over = true;
  --under_way_[static_cast<std::size_t>(begun.source)];
  stage_.note_change();
  if (!done) {
    const bool lost = done.status() == Status::peer_lost;
    const bool excused = lost && stage_.may_be_lost(begun.source, begun.target);
    const bool right = begun.forged != Forged::kinds || part(begun.target).ended || part(begun.source).ended;
    if (!excused && (lost || !right)) {
      stage_.findings.add(Finding::lost, fmt::format("{} failed: {}", name(begun), done.error().text()));
    }
  } else if (begun.forged != Forged::kinds) {
    stage_.findings.add(Finding::lost,
                        fmt::format("{}, which its target must refuse, is reported as done", name(begun)));
  } else if (begun.kind == Kind::get) {
    const Pattern constant(stage_.plan.seed, static_cast<std::uint64_t>(begun.target), 1);
    if (!constant.matches({begun.local.get(), begun.bytes})) {
      stage_.findings.add(Finding::corrupt, fmt::format("{}: got wrong bytes", name(begun)));
    }
  } else if (!applied(begun)) {
    stage_.findings.add(Finding::lost, fmt::format("{} is reported as done and took no effect{}", name(begun),
                                                   part(begun.target).ended ? " before its window ended" : ""));
  }
  if (begun.local != nullptr) {
    std::memset(begun.local.get(), static_cast<int>(kSpoilt), begun.forged == Forged::kinds ? begun.bytes : kBareBytes);
  }
}

bool BriefWindows::applied(const Begun& begun) const {
  const Part& there = part(begun.target);
  const std::vector<std::byte>& memory = there.ended ? there.left : there.memory;
  const std::vector<std::uint64_t>& signals = there.ended ? there.left_signals : there.signals;
  if (begun.signal != SIZE_MAX && signals[begun.signal] != begun.value) return false;
  if (begun.kind == Kind::signal) return true;
  const auto bytes = std::span(memory).subspan(begun.offset, begun.bytes);
  if (begun.kind != Kind::atomic && begun.kind != Kind::fetch) return begun.pattern.matches(bytes);
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data(), sizeof word);
  return word == begun.value;
}

std::string BriefWindows::name(const Begun& begun) const {
  static constexpr std::array<const char*, static_cast<std::size_t>(Kind::kinds)> kNames = {
      "put", "relaxed put", "put_signal", "signal", "atomic", "fetch", "get"};
  static constexpr std::array<const char*, static_cast<std::size_t>(Forged::kinds)> kForged = {
      "put to no window",       "put out of range",  "signal that does not exist",
      "signal of unknown code", "misaligned atomic", "atomic of unknown code",
      "atomic of odd width",    "misaligned fetch",  "write to no key",
      "write out of range",     "read of no key",    "put and signal to nothing"};
  const bool honest = begun.forged == Forged::kinds;
  return fmt::format(
      "rank {} to {}: a {} of {} bytes{}", begun.source, begun.target,
      honest ? kNames[static_cast<std::size_t>(begun.kind)] : kForged[static_cast<std::size_t>(begun.forged)],
      begun.bytes, honest ? " to a brief window" : "");
}

void BriefWindows::report_stuck(int rank) {
  for (const Begun& begun : begun_) {
    if (begun.source == rank && !begun.over) {
      stage_.findings.add(Finding::lost, fmt::format("{}: not complete", name(begun)));
    }
  }
}

void BriefWindows::finish(int rank) {
  const Part& own = part(rank);
  const auto other = [](std::byte byte) { return byte != kReused; };
  const auto other_word = [](std::uint64_t word) { return word != kReusedWord; };
  if (own.ended && (std::ranges::any_of(own.memory, other) || std::ranges::any_of(own.signals, other_word))) {
    stage_.findings.add(Finding::ghost, fmt::format("rank {}: memory of a window that had ended was changed", rank));
  }
  if (std::ranges::any_of(own.bare, other) || std::ranges::any_of(own.bare_signals, other_word)) {
    stage_.findings.add(Finding::corrupt, fmt::format("rank {}: an operation that was refused changed memory", rank));
  }
}

void BriefWindows::close() {
  for (int rank = 0; rank < static_cast<int>(parts_.size()); ++rank) {
    Part& own = part(rank);
    own.window.reset();
    if (own.region == nullptr) continue;
    transport::Engine& engine = engine_of(stage_, rank);
    const transport::ProgressGuard hold(engine.progress_lock());
    engine.exposed().conceal(own.exposed_region);
    own.region.reset();
  }
}

}  // namespace railyard::sim
