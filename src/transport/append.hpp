/// Records that a frame under construction takes. The caller has seen that there is room.
#pragma once

#include <cstring>

#include "transport/operation.hpp"
#include "transport/records.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

/// `joined`: it belongs to the same operation as the record before it.
inline void append_put(Operation& frame, const PutRecord& put, bool joined = false) {
  const auto kind = joined ? wire::joined(wire::RecordKind::put) : wire::RecordKind::put;
  std::byte* body = wire::FrameWriter::append(
      frame.frame->data, frame.frame->bytes,
      {kind, 0, static_cast<std::uint16_t>(put.bytes.size()), put.exposed_region, put.offset});
  wire::copy_body(body, put.bytes.data(), put.bytes.size());
  ++frame.records;
}

inline void append_signal(Operation& frame, const SignalRecord& signal, bool joined) {
  const auto kind = joined ? wire::joined(wire::RecordKind::signal) : wire::RecordKind::signal;
  std::byte* body = wire::FrameWriter::append(
      frame.frame->data, frame.frame->bytes,
      {kind, static_cast<std::uint8_t>(signal.op), sizeof signal.value, signal.exposed_region, signal.index});
  std::memcpy(body, &signal.value, sizeof signal.value);
  ++frame.records;
}

inline void append_message(Operation& frame, const MessageRecord& message) {
  const std::size_t bytes = message.body.size() + message.more.size();
  std::byte* body = wire::FrameWriter::append(
      frame.frame->data, frame.frame->bytes,
      {wire::RecordKind::message, message.detail, static_cast<std::uint16_t>(bytes), message.number, message.offset});
  if (!message.body.empty()) wire::copy_body(body, message.body.data(), message.body.size());
  if (!message.more.empty()) wire::copy_body(body + message.body.size(), message.more.data(), message.more.size());
  ++frame.records;
}

}  // namespace railyard::transport
