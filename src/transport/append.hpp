/// Records that a frame under construction takes. The caller has seen that there is room.
#pragma once

#include <cstring>

#include "transport/operation.hpp"
#include "transport/records.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

/// `joined`: it belongs to the same operation as the record before it.
inline void append_put(Operation& frame, const PutRecord& put, bool joined = false) {
  const wire::Put record{put.exposed_region, put.offset};
  std::byte* body = wire::FrameWriter::append(frame.frame->data, frame.frame->bytes,
                                              wire::joined(record.header(put.bytes.size()), joined));
  wire::copy_body(body, put.bytes.data(), put.bytes.size());
  ++frame.records;
}

inline void append_signal(Operation& frame, const SignalRecord& signal, bool joined) {
  const wire::Signal record{signal.exposed_region, signal.index, signal.op};
  std::byte* body =
      wire::FrameWriter::append(frame.frame->data, frame.frame->bytes, wire::joined(record.header(), joined));
  std::memcpy(body, &signal.value, sizeof signal.value);
  ++frame.records;
}

inline void append_message(Operation& frame, const MessageRecord& message) {
  const std::size_t bytes = message.body.size() + message.more.size();
  const wire::Message record{message.kind, message.number, message.word};
  std::byte* body = wire::FrameWriter::append(frame.frame->data, frame.frame->bytes, record.header(bytes));
  if (!message.body.empty()) wire::copy_body(body, message.body.data(), message.body.size());
  if (!message.more.empty()) wire::copy_body(body + message.body.size(), message.more.data(), message.more.size());
  ++frame.records;
}

}  // namespace railyard::transport
