#include "bench/referee.hpp"

#include <fmt/core.h>

#include "base/bytes.hpp"

namespace railyard::bench {

namespace {

Error garbled() { return Error(Status::version_mismatch, "the ranks of this bench run different programs"); }

std::vector<std::byte> encode(const Plan& plan) {
  ByteWriter out;
  out.u8(plan.stop ? 1 : 0);
  out.u32(static_cast<std::uint32_t>(plan.contestant));
  out.u8(static_cast<std::uint8_t>(plan.round.test));
  for (const std::uint64_t field : {std::uint64_t{plan.round.bytes}, std::uint64_t{plan.round.slots},
                                    std::uint64_t{plan.round.depth}, plan.round.count, plan.round.serial}) {
    out.u64(field);
  }
  return out.take();
}

Result<Plan> decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  Plan plan;
  plan.stop = in.u8() != 0;
  plan.contestant = in.u32();
  const std::uint8_t test = in.u8();
  plan.round.bytes = in.u64();
  plan.round.slots = in.u64();
  plan.round.depth = in.u64();
  plan.round.count = in.u64();
  plan.round.serial = in.u64();
  if (!in.done() || test > static_cast<std::uint8_t>(Test::rate)) return garbled();
  plan.round.test = static_cast<Test>(test);
  return plan;
}

}  // namespace

Result<Plan> Referee::agree(const Plan& mine) {
  auto all = bootstrap_.allgather(encode(mine), deadline_);
  if (!all) return std::move(all.error());
  return decode((*all)[0]);
}

Result<void> Referee::verdict(const Result<void>& mine) {
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(mine.status()));
  out.text(mine.ok() ? "" : mine.error().message());
  auto all = bootstrap_.allgather(out.bytes(), deadline_);
  if (!all) return std::move(all.error());
  for (std::size_t rank = 0; rank < all->size(); ++rank) {
    ByteReader in((*all)[rank]);
    const std::uint8_t status = in.u8();
    const std::string text = in.text();
    if (!in.done() || status > static_cast<std::uint8_t>(Status::no_memory)) return garbled();
    if (status == 0) continue;
    both_know_ = true;
    return Error(static_cast<Status>(status), fmt::format("rank {}: {}", rank, text));
  }
  return {};
}

Result<std::vector<std::byte>> Referee::exchange(std::span<const std::byte> mine) {
  auto all = bootstrap_.allgather(mine, deadline_);
  if (!all) return std::move(all.error());
  return std::move((*all)[rank() == 0 ? 1 : 0]);
}

}  // namespace railyard::bench
