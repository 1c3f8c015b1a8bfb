/// Applier: what the records of a frame do here. Each is checked against what is exposed (promise 9); what cannot be
/// applied is refused. Puts and signals in the host's memory have a short way, which is written out here. The rest is
/// in apply.cc, and what changes words in the memory of a GPU in words.cc: its flow stands still until the word is in
/// place.
#pragma once

#include <cstdint>
#include <cstring>

#include "transport/completions.hpp"
#include "transport/core.hpp"
#include "transport/exposed_memory.hpp"
#include "transport/flow.hpp"
#include "transport/refusals.hpp"
#include "transport/transmitter.hpp"

namespace railyard::transport {

class Applier {
 public:
  Applier(Core& core, ExposedMemory& memory, Completions& completions, Transmitter& transmitter, Refusals& refusals)
      : core_(core), memory_(memory), completions_(completions), transmitter_(transmitter), refusals_(refusals) {}

  /// Applies a frame from the record at hand on. False: it waits, and keeps its buffer, until a word of a GPU's memory
  /// is in place.
  bool apply(Flow& flow, FrameProgress frame);
  /// The same, not written out: for frames that were held, or held up.
  bool apply_rest(Flow& flow, FrameProgress frame);
  /// That word is in place, or cannot be: goes on with the flow's frame. False: it waits again.
  bool resume(Flow& flow, const DeviceWords::End& end);

 private:
  enum class Applied : std::uint8_t { yes, refused, later };

  static bool apply_plain(const ExposedMemory& memory, const Ranks* world, const wire::RecordReader::Record& record);

  // apply.cc
  Applied apply_record(Flow& flow, FrameProgress frame);
  /// `rest`: what follows in the frame.
  Applied apply_any(Flow& flow, const wire::RecordReader::Record& record, const wire::RecordReader& rest,
                    FailureCause& cause);
  bool apply_atomic(Flow& flow, const ExposedRegion* region, const wire::RecordReader::Record& record, bool& answered);
  void apply_reply(Flow& flow, const wire::RecordReader::Record& record);
  void refuse(Flow& flow, const FrameProgress& frame, std::uint32_t count, FailureCause cause);
  void refuse_rest(Flow& flow, const FrameProgress& frame);

  // words.cc
  Applied begin_put(Flow& flow, const ExposedRegion& region, const wire::RecordReader::Record& record,
                    wire::RecordReader rest);
  bool begin_word(Flow& flow, const ExposedRegion& region, const wire::RecordReader::Record& record);

  Core& core_;
  ExposedMemory& memory_;
  Completions& completions_;
  Transmitter& transmitter_;
  Refusals& refusals_;
};

/// A put or a signal in the host's memory, as nearly all records are. False: it is none, or must be refused; nothing
/// has happened, and `apply_record` knows more.
[[gnu::always_inline]] inline bool Applier::apply_plain(const ExposedMemory& memory, const Ranks* world,
                                                        const wire::RecordReader::Record& record) {
  const bool put = record.header.kind == wire::RecordKind::put;
  if (!put && record.header.kind != wire::RecordKind::signal) return false;
  const ExposedRegion* const region = memory.find(wire::Put::of(record.header).exposed_region, world);
  if (region == nullptr) return false;
  if (put) return apply_put(*region, wire::Put::of(record.header).offset, record.body);
  std::uint64_t value = 0;
  if (region->mirrored != nullptr || record.body.size() != sizeof value) return false;
  std::memcpy(&value, record.body.data(), sizeof value);
  const auto signal = wire::Signal::of(record.header);
  return apply_signal(*region, signal.index, signal.op, value);
}

/// Where the frame stands is written down only for records that have no short way: else all of it is in registers.
[[gnu::always_inline]] inline bool Applier::apply(Flow& flow, FrameProgress frame) {
  wire::RecordReader reader = frame.reader();
  wire::RecordReader::Record record;
  const ExposedMemory& memory = memory_;
  const Ranks* const world = flow.route->world;
  bool skip = frame.skip;
  const std::byte* at = frame.at;
  std::uint32_t index = frame.index;
  for (; reader.next(record); at = reader.at(), ++index) {
    if (skip) [[unlikely]]
      skip = record.joined || index == 0;
    if (!skip && apply_plain(memory, world, record)) [[likely]]
      continue;
    if (!skip && flow.inbox != nullptr && record.header.kind == wire::RecordKind::message) {
      if (flow.inbox->on_message(wire::Message::of(record.header), record.body)) [[likely]]
        continue;
      ++core_.counts.dropped_malformed;
      refuse(flow, {frame.buffer, at, index, skip}, 1, FailureCause::malformed);
      skip = true;
      continue;
    }
    const Applied applied = apply_record(flow, {frame.buffer, at, index, skip});
    if (applied == Applied::later) return !flow.applying;
    skip |= applied == Applied::refused;
  }
  if (!reader.ok()) [[unlikely]]
    refuse_rest(flow, {frame.buffer, at, index, skip});
  return true;
}

}  // namespace railyard::transport
