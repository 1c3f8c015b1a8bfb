#include "bootstrap/protocol.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/bytes.hpp"

namespace railyard::bootstrap {

namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kMostListed = 16;

bool is_call(std::uint8_t value) {
  return value >= static_cast<std::uint8_t>(Call::join) && value <= static_cast<std::uint8_t>(Call::barrier);
}

}  // namespace

const char* to_string(Call call) {
  switch (call) {
    case Call::join:
      return "join";
    case Call::allgather:
      return "allgather";
    case Call::barrier:
      return "barrier";
  }
  return "unknown call";
}

std::vector<std::byte> encode(const Claim& claim) {
  ByteWriter writer;
  writer.i32(claim.rank);
  writer.i32(claim.size);
  return writer.take();
}

std::vector<std::byte> encode(const Enter& enter) {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(enter.call));
  writer.u64(enter.sequence);
  writer.u64(enter.timeout_ns);
  writer.blob(enter.contribution);
  return writer.take();
}

std::vector<std::byte> encode_result(Call call, std::uint64_t sequence,
                                     std::span<const std::vector<std::byte>> contributions) {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(call));
  writer.u64(sequence);
  writer.u32(static_cast<std::uint32_t>(contributions.size()));
  for (const auto& contribution : contributions) writer.blob(contribution);
  return writer.take();
}

std::optional<Claim> parse_claim(std::span<const std::byte> claim) {
  ByteReader reader(claim);
  Claim parsed;
  parsed.rank = reader.i32();
  parsed.size = reader.i32();
  const bool sense = parsed.size >= 1 && parsed.size <= kMostRanks && parsed.rank >= 0 && parsed.rank < parsed.size;
  if (!reader.done() || !sense) return std::nullopt;
  return parsed;
}

std::optional<Enter> parse_enter(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  Enter enter;
  const std::uint8_t call = reader.u8();
  enter.sequence = reader.u64();
  enter.timeout_ns = reader.u64();
  const auto contribution = reader.blob(kMostContribution);
  if (!reader.done() || !is_call(call)) return std::nullopt;
  enter.call = static_cast<Call>(call);
  enter.contribution.assign(contribution.begin(), contribution.end());
  return enter;
}

std::optional<GatherResult> parse_result(std::span<const std::byte> payload, std::int32_t size) {
  ByteReader reader(payload);
  GatherResult result;
  const std::uint8_t call = reader.u8();
  result.sequence = reader.u64();
  const std::uint32_t count = reader.u32();
  if (!reader.ok() || !is_call(call)) return std::nullopt;
  result.call = static_cast<Call>(call);
  // Only an allgather carries contributions: one of each rank. Checked before anything is allocated for them.
  const std::uint32_t expected = result.call == Call::allgather ? static_cast<std::uint32_t>(size) : 0;
  if (count != expected || reader.remaining() / kLengthBytes < count) return std::nullopt;
  result.contributions.reserve(count);
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
    const auto contribution = reader.blob(kMostContribution);
    result.contributions.emplace_back(contribution.begin(), contribution.end());
  }
  if (!reader.done()) return std::nullopt;
  return result;
}

std::string list_ranks(std::span<const std::int32_t> ranks) {
  const std::size_t shown = std::min(ranks.size(), kMostListed);
  std::string list;
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) list += i + 1 == ranks.size() ? " and " : ", ";
    list += fmt::format("rank {}", ranks[i]);
  }
  if (shown < ranks.size()) list += fmt::format(" and {} more", ranks.size() - shown);
  return list;
}

std::string show_duration(std::uint64_t nanoseconds) {
  const double milliseconds = std::round(static_cast<double>(nanoseconds) / 1e6);
  if (milliseconds < 1000) return fmt::format("{:.0f} ms", milliseconds);
  // Tenths matter up to ten seconds only: what is left of a minute after connecting should still read as a minute.
  if (milliseconds < 10'000) return fmt::format("{:g} s", std::round(milliseconds / 100) / 10);
  return fmt::format("{:.0f} s", milliseconds / 1000);
}

}  // namespace railyard::bootstrap
