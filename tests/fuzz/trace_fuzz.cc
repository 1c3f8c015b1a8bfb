// Feeds the reader of trace files any bytes: as a whole file, and as changes of a good one, which reach further.
// Nothing may crash, and what is readable can be put together.
#include <fuzzer/FuzzedDataProvider.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "telemetry/timeline.hpp"
#include "telemetry/trace.hpp"
#include "telemetry/trace_reader.hpp"

namespace railyard::telemetry {
namespace {

std::vector<std::byte> make_good_file() {
  std::string folder = (std::filesystem::temp_directory_path() / "railyard-trace-fuzz-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) std::abort();
  std::vector<std::byte> bytes;
  {
    const auto trace = Trace::open(folder, 1);
    trace->name_rail(trace->add_context("rank 0"), 0, "tcp lo");
    for (std::uint8_t i = 0; i < 100; ++i) {
      TraceRecord record;
      record.kind = static_cast<TraceKind>(1 + i % static_cast<std::uint8_t>(kLastTraceKind));
      record.time = record.peer = i;
      record.id = record.more = i / 4U;
      trace->record(record);
    }
    std::ifstream in(trace->path(), std::ios::binary);
    const std::vector<char> read{std::istreambuf_iterator<char>(in), {}};
    const auto as_bytes = std::as_bytes(std::span(read));
    bytes.assign(as_bytes.begin(), as_bytes.end());
  }
  std::filesystem::remove_all(folder);
  return bytes;
}

void look(std::span<const std::byte> bytes, std::uint64_t head) {
  const auto seen = read_trace(bytes, head);
  if (!seen) return;
  const Timeline timeline = assemble(*seen);
  if (seen->records.size() + seen->overwritten + seen->missing != seen->recorded) std::abort();
  for (const auto* spans : {&timeline.operations, &timeline.segments})
    for (const Span& span : *spans)
      if (span.end < span.begin) std::abort();
}

}  // namespace
}  // namespace railyard::telemetry

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace railyard::telemetry;
  static const std::vector<std::byte> good = make_good_file();
  FuzzedDataProvider data(bytes, size);
  const auto head = data.ConsumeIntegral<std::uint64_t>();
  look(std::as_bytes(std::span(bytes, size)), head);
  std::vector<std::byte> file = good;
  const std::size_t structure = sizeof(TraceHeader) + 256;  // and the first names
  const std::size_t entries = file.size() - 64 * sizeof(TraceEntry);
  while (data.remaining_bytes() > 0) {
    const bool in_entries = data.ConsumeBool();
    const auto at = in_entries ? data.ConsumeIntegralInRange<std::size_t>(entries, file.size() - 1)
                               : data.ConsumeIntegralInRange<std::size_t>(0, structure);
    file[at] = static_cast<std::byte>(data.ConsumeIntegral<std::uint8_t>());
  }
  look(file, head % 256);
  return 0;
}
