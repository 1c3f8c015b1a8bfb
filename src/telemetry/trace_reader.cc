#include "telemetry/trace_reader.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/fd.hpp"
#include "telemetry/process_text.hpp"

namespace railyard::telemetry {
namespace {

/// RAILYARD_TRACE_BYTES is at most 2 GiB; a reader takes no more memory than that for any file.
constexpr std::size_t kMostTraceBytes = (std::size_t{2} << 30U) + (1U << 20U);

Error not_a_trace(std::string_view what) {
  return Error(Status::invalid, fmt::format("not a trace file that can be read: {}", what));
}

/// Whether so many things of that length lie in the file.
bool has(std::span<const std::byte> bytes, std::uint64_t at, std::uint64_t count, std::uint64_t each) {
  return at <= bytes.size() && count <= (bytes.size() - at) / each;
}

void read_names(std::span<const std::byte> bytes, const TraceHeader& header, TraceFile& file) {
  const std::uint32_t count = std::min(header.names.load(std::memory_order_relaxed), header.most_names);
  for (std::uint64_t i = 0; i < count; ++i) {
    TraceName name;
    std::memcpy(&name, bytes.data() + header.names_at + i * header.name_bytes, sizeof name);
    if (name.of == TraceName::context) file.contexts[name.context_number] = text_of(name.text);
    if (name.of == TraceName::rail) file.rails[{name.context_number, name.number}] = text_of(name.text);
  }
}

void read_entries(std::span<const std::byte> bytes, const TraceHeader& header, std::uint64_t head, TraceFile& file) {
  file.recorded = header.head.load(std::memory_order_relaxed);
  const std::uint64_t after = std::max(head, file.recorded);
  file.overwritten = std::min(after > header.capacity ? after - header.capacity : 0, file.recorded);
  for (std::uint64_t number = file.overwritten; number < file.recorded; ++number) {
    TraceEntry entry;
    std::memcpy(static_cast<void*>(&entry),
                bytes.data() + header.entries_at + number % header.capacity * header.entry_bytes, sizeof entry);
    // No clock that counts from the start of its machine shows less than nothing.
    const bool whole = entry.stamp.load(std::memory_order_relaxed) == number + 1 && entry.record.time >= 0;
    if (whole && entry.record.kind >= TraceKind::submitted && entry.record.kind <= kLastTraceKind)
      file.records.push_back(entry.record);
    else
      ++file.missing;
  }
}

}  // namespace

Result<TraceFile> read_trace(std::span<const std::byte> bytes, std::uint64_t head) {
  if (bytes.size() < sizeof(TraceHeader)) return not_a_trace(fmt::format("{} bytes are too few", bytes.size()));
  TraceHeader header;
  std::memcpy(static_cast<void*>(&header), bytes.data(), sizeof header);
  if (header.magic != kTraceMagic) return not_a_trace("it does not begin as one does");
  if (header.version != kTraceVersion)
    return not_a_trace(fmt::format("version {}, this is for version {}", header.version, kTraceVersion));
  if (header.name_bytes < sizeof(TraceName) || !has(bytes, header.names_at, header.most_names, header.name_bytes))
    return not_a_trace("its names are beyond its end");
  if (header.capacity == 0 || header.entry_bytes < sizeof(TraceEntry) ||
      !has(bytes, header.entries_at, header.capacity, header.entry_bytes)) {
    return not_a_trace("its entries are beyond its end");
  }
  TraceFile file;
  file.pid = header.pid;
  file.started = header.started;
  file.opened_wall = header.opened_wall;
  file.opened_monotonic = header.opened_monotonic;
  file.rank = header.rank.load(std::memory_order_relaxed);
  file.size = header.size.load(std::memory_order_relaxed);
  file.host = text_of(header.host);
  file.command = text_of(header.command);
  read_names(bytes, header, file);
  read_entries(bytes, header, head, file);
  return file;
}

Result<TraceFile> read_trace_file(const std::string& path) {
  const auto system_error = [&](const char* call) {
    return Error(errno == ENOENT ? Status::not_found : Status::io,
                 fmt::format("{}: {}: {}", path, call, std::strerror(errno)));
  };
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return system_error("open");
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return system_error("stat");
  if (!S_ISREG(about.st_mode)) return Error(Status::invalid, fmt::format("{}: not a file", path));
  std::vector<std::byte> bytes(std::min<std::size_t>(static_cast<std::size_t>(about.st_size), kMostTraceBytes));
  std::size_t copied = 0;
  while (copied < bytes.size()) {
    const ssize_t got = ::pread(file.get(), bytes.data() + copied, bytes.size() - copied, static_cast<off_t>(copied));
    if (got < 0) return system_error("read");
    if (got == 0) break;
    copied += static_cast<std::size_t>(got);
  }
  std::uint64_t head = 0;
  if (::pread(file.get(), &head, sizeof head, offsetof(TraceHeader, head)) < 0) return system_error("read");
  auto trace = read_trace(std::span(bytes).first(copied), head);
  if (!trace) return Error(trace.status(), fmt::format("{}: {}", path, trace.error().message()));
  return trace;
}

}  // namespace railyard::telemetry
