#include "telemetry/reader.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/fd.hpp"
#include "telemetry/process_text.hpp"

namespace railyard::telemetry {
namespace {

/// No version so far is larger; a reader takes no more memory than that for any file.
constexpr std::size_t kMostBytes = 64U << 20U;
constexpr std::uint32_t kMostWordsOfGroup = 1U << 16U;

Error malformed(std::string_view what) {
  return Error(Status::invalid, fmt::format("not a telemetry file that can be read: {}", what));
}

/// Bytes of one structure, in a file that may have longer ones or end in the middle.
class Source {
 public:
  explicit Source(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool has(std::uint64_t at, std::uint64_t count, std::uint64_t each) const {
    return at <= bytes_.size() && (each == 0 || count <= (bytes_.size() - at) / each);
  }
  template <typename Plain>
  void copy(Plain& to, std::uint64_t at) const {
    std::memcpy(static_cast<void*>(&to), bytes_.data() + at, sizeof to);
  }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

std::vector<std::pair<std::string, std::string>> labels_of(const std::array<char, 172>& raw) {
  std::vector<std::pair<std::string, std::string>> labels;
  std::string_view text(raw.data(), ::strnlen(raw.data(), raw.size()));
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find('\t'));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    const std::size_t equals = one.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    std::string value(one.substr(equals + 1));
    std::string key(one.substr(0, equals));
    for (std::string* part : {&key, &value})
      std::ranges::replace_if(
          *part, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }, '?');
    labels.emplace_back(std::move(key), std::move(value));
  }
  return labels;
}

Result<void> read_groups(const Source& source, const Header& header, Snapshot& snapshot) {
  if (header.group_bytes < sizeof(GroupEntry) || !source.has(header.groups_at, header.groups, header.group_bytes) ||
      header.field_bytes < sizeof(FieldEntry) || !source.has(header.fields_at, header.fields, header.field_bytes)) {
    return malformed("its list of fields is beyond its end");
  }
  for (std::uint64_t i = 0; i < header.groups; ++i) {
    GroupEntry entry;
    source.copy(entry, header.groups_at + i * header.group_bytes);
    if (entry.words > kMostWordsOfGroup) return malformed(fmt::format("group {} has {} values", i, entry.words));
    snapshot.groups.push_back({text_of(entry.name), {}, entry.words});
  }
  for (std::uint64_t i = 0; i < header.fields; ++i) {
    FieldEntry entry;
    source.copy(entry, header.fields_at + i * header.field_bytes);
    if (entry.group >= snapshot.groups.size()) return malformed(fmt::format("field {} is of no group", i));
    GroupInfo& group = snapshot.groups[entry.group];
    if (entry.words == 0 || std::uint32_t{entry.word} + entry.words > group.words)
      return malformed(fmt::format("field {} is outside its group", i));
    // A kind of a later version is left out; so is a histogram with other buckets.
    if (entry.kind < Kind::counter || entry.kind > Kind::histogram) continue;
    const bool known = entry.kind != Kind::histogram ? entry.words == 1
                                                     : entry.words == Buckets::kWords || entry.words == Octaves::kWords;
    if (!known) continue;
    group.fields.push_back(
        {text_of(entry.name), text_of(entry.unit), text_of(entry.help), entry.kind, entry.word, entry.words});
  }
  return {};
}

Result<void> read_records(const Source& source, const Header& header, Snapshot& snapshot) {
  if (header.record_bytes < sizeof(RecordEntry) ||
      !source.has(header.records_at, header.most_records, header.record_bytes) ||
      !source.has(header.values_at, header.words, sizeof(std::uint64_t))) {
    return malformed("its records are beyond its end");
  }
  std::uint64_t taken = 0;
  for (std::uint64_t i = 0; i < header.most_records; ++i) {
    RecordEntry entry;
    source.copy(entry, header.records_at + i * header.record_bytes);
    const std::uint32_t generation = entry.generation.load(std::memory_order_relaxed);
    if (entry.used.load(std::memory_order_relaxed) == 0) continue;
    if (generation != entry.changed.load(std::memory_order_relaxed)) continue;  // rewritten while it was copied
    if (entry.group >= snapshot.groups.size()) return malformed(fmt::format("record {} is of no group", i));
    const std::uint32_t words = snapshot.groups[entry.group].words;
    if (entry.at > header.words || words > header.words - entry.at)
      return malformed(fmt::format("values of record {} are beyond its end", i));
    // No two records share values: together they are no more than the file has.
    taken += words;
    if (taken > header.words) return malformed("its records share values");
    RecordInfo record;
    record.group = entry.group;
    record.labels = labels_of(entry.labels);
    record.words.resize(words);
    for (std::uint32_t word = 0; word < words; ++word)
      source.copy(record.words[word], header.values_at + (std::uint64_t{entry.at} + word) * sizeof(std::uint64_t));
    snapshot.records.push_back(std::move(record));
  }
  return {};
}

}  // namespace

std::uint64_t Distribution::percentile(double part) const {
  std::uint64_t total = 0;
  for (const std::uint64_t bucket : buckets) total += bucket;
  if (total == 0) return 0;
  const auto wanted = static_cast<std::uint64_t>(std::ceil(part * static_cast<double>(total)));
  std::uint64_t seen = 0;
  for (std::uint32_t i = 0; i < buckets.size(); ++i) {
    seen += buckets[i];
    if (seen >= std::max<std::uint64_t>(wanted, 1)) return end_of(i);
  }
  return end_of(static_cast<std::uint32_t>(buckets.size() - 1));
}

std::string_view RecordInfo::label(std::string_view name) const {
  for (const auto& [key, value] : labels)
    if (key == name) return value;
  return {};
}

std::vector<const RecordInfo*> Snapshot::of(std::string_view group) const {
  std::vector<const RecordInfo*> found;
  for (const RecordInfo& record : records)
    if (groups[record.group].name == group) found.push_back(&record);
  return found;
}

const FieldInfo* Snapshot::field(const RecordInfo& record, std::string_view name) const {
  const auto& fields = groups[record.group].fields;
  const auto found = std::ranges::find(fields, name, &FieldInfo::name);
  return found == fields.end() ? nullptr : &*found;
}

std::uint64_t Snapshot::value(const RecordInfo& record, std::string_view name) const {
  const FieldInfo* const known = field(record, name);
  return known == nullptr ? 0 : record.words[known->word];
}

double Snapshot::real(const RecordInfo& record, std::string_view name) const {
  const FieldInfo* const known = field(record, name);
  if (known == nullptr) return 0;
  const std::uint64_t word = record.words[known->word];
  return known->kind == Kind::real ? std::bit_cast<double>(word) : static_cast<double>(word);
}

Distribution Snapshot::distribution(const RecordInfo& record, const FieldInfo& field) {
  const auto words = std::span(record.words).subspan(field.word, field.words);
  if (field.kind != Kind::histogram) return {};
  return {words[0], words[1], {words.begin() + 2, words.end()}};
}

Distribution Snapshot::distribution(const RecordInfo& record, std::string_view name) const {
  const FieldInfo* const known = field(record, name);
  return known == nullptr ? Distribution() : distribution(record, *known);
}

Result<Snapshot> read(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Header)) return malformed(fmt::format("{} bytes are too few", bytes.size()));
  Header header;
  const Source source(bytes);
  source.copy(header, 0);
  if (header.magic != kMagic) return malformed("it does not begin as one does");
  if (header.version != kVersion)
    return malformed(fmt::format("version {}, this is for version {}", header.version, kVersion));
  Snapshot snapshot;
  snapshot.version = header.version;
  snapshot.pid = header.pid;
  snapshot.started = header.started;
  snapshot.opened = header.opened;
  snapshot.published = header.published.load(std::memory_order_relaxed);
  snapshot.dropped = header.dropped.load(std::memory_order_relaxed);
  snapshot.rank = header.rank.load(std::memory_order_relaxed);
  snapshot.size = header.size.load(std::memory_order_relaxed);
  snapshot.host = text_of(header.host);
  snapshot.command = text_of(header.command);
  if (auto groups = read_groups(source, header, snapshot); !groups) return std::move(groups.error());
  if (auto records = read_records(source, header, snapshot); !records) return std::move(records.error());
  return snapshot;
}

Result<Snapshot> read_file(const std::string& path) {
  const auto system_error = [&](const char* call) {
    return Error(errno == ENOENT ? Status::not_found : Status::io,
                 fmt::format("{}: {}: {}", path, call, std::strerror(errno)));
  };
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return system_error("open");
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return system_error("stat");
  if (!S_ISREG(about.st_mode)) return Error(Status::invalid, fmt::format("{}: not a file", path));
  std::vector<std::byte> bytes(std::min<std::size_t>(static_cast<std::size_t>(about.st_size), kMostBytes));
  const ssize_t got = ::pread(file.get(), bytes.data(), bytes.size(), 0);
  if (got < 0) return system_error("read");
  auto snapshot = read(std::span(bytes).first(static_cast<std::size_t>(got)));
  if (!snapshot) return Error(snapshot.status(), fmt::format("{}: {}", path, snapshot.error().message()));
  return snapshot;
}

}  // namespace railyard::telemetry
