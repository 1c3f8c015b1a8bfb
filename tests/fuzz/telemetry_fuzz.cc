// Feeds the reader of telemetry files any bytes: as a whole file, and as changes of a good one, which reach further.
// Nothing may crash, and what is readable can be summed up.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <vector>

#include "telemetry/reader.hpp"
#include "telemetry/store.hpp"
#include "telemetry/summary.hpp"

namespace railyard::telemetry {
namespace {

const std::vector<std::byte>& good_file() {
  static const std::vector<std::byte> file = [] {
    const auto store = Store::open("");
    std::vector<Record> records;
    for (const GroupSchema& group : schema())
      records.push_back(store->add(group.group, {{"context", "world 0"}, {"rail", "0"}}));
    count_in(records[0].histogram(context_field::put_latency, context_field::put_latency), 1000);
    return store->copy();
  }();
  return file;
}

void look(std::span<const std::byte> bytes) {
  const auto seen = read(bytes);
  if (seen) static_cast<void>(summary(*seen));
}

}  // namespace
}  // namespace railyard::telemetry

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace railyard::telemetry;
  look(std::as_bytes(std::span(bytes, size)));
  FuzzedDataProvider data(bytes, size);
  std::vector<std::byte> file = good_file();
  const std::size_t structure = 32 * 1024;  // header, groups, fields and the first records
  while (data.remaining_bytes() > 0) {
    const auto at = data.ConsumeIntegralInRange<std::size_t>(0, structure);
    file[at] = static_cast<std::byte>(data.ConsumeIntegral<std::uint8_t>());
  }
  look(file);
  return 0;
}
