/// Reads a telemetry file of any content: what makes no sense is an error that says what, or is left out; nothing in
/// the file is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "railyard/result.hpp"
#include "telemetry/layout.hpp"

namespace railyard::telemetry {

struct FieldInfo {
  std::string name;
  std::string unit;
  std::string help;
  Kind kind = Kind::counter;
  std::uint32_t word = 0;
  std::uint32_t words = 1;
};

struct GroupInfo {
  std::string name;
  std::vector<FieldInfo> fields;
  std::uint32_t words = 0;
};

struct Distribution {
  std::uint64_t count = 0;
  std::uint64_t sum = 0;
  std::vector<std::uint64_t> buckets;
  /// The least value that is beyond the bucket.
  std::uint64_t end_of(std::uint32_t bucket) const {
    return buckets.size() == Octaves::kCount ? Octaves::end_of(bucket) : Buckets::end_of(bucket);
  }
  /// The value below which so much of it lies (0 to 1), as the end of its bucket; 0: there is nothing.
  std::uint64_t percentile(double part) const;
};

struct RecordInfo {
  std::size_t group = 0;  ///< among the snapshot's
  std::vector<std::pair<std::string, std::string>> labels;
  std::vector<std::uint64_t> words;

  std::string_view label(std::string_view name) const;
};

/// Everything a file said at one moment.
struct Snapshot {
  std::uint32_t version = 0;
  std::uint32_t pid = 0;
  std::uint64_t started = 0;
  std::int64_t opened = 0;     ///< wall clock, nanoseconds since 1970
  std::int64_t published = 0;  ///< the same
  std::uint32_t dropped = 0;
  std::int32_t rank = -1;
  std::int32_t size = 0;
  std::string host;
  std::string command;
  std::vector<GroupInfo> groups;
  std::vector<RecordInfo> records;

  /// Records of the group of that name.
  std::vector<const RecordInfo*> of(std::string_view group) const;
  const FieldInfo* field(const RecordInfo& record, std::string_view name) const;
  /// A field's value; 0 where this version has no such field.
  std::uint64_t value(const RecordInfo& record, std::string_view name) const;
  std::int64_t signed_value(const RecordInfo& record, std::string_view name) const {
    return static_cast<std::int64_t>(value(record, name));
  }
  double real(const RecordInfo& record, std::string_view name) const;
  Distribution distribution(const RecordInfo& record, std::string_view name) const;
  static Distribution distribution(const RecordInfo& record, const FieldInfo& field);
};

Result<Snapshot> read(std::span<const std::byte> bytes);
Result<Snapshot> read_file(const std::string& path);

}  // namespace railyard::telemetry
