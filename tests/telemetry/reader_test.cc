/// The reader takes a file of any content: it says what is wrong, or leaves out what makes no sense.
#include "telemetry/reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/random.hpp"
#include "telemetry/store.hpp"
#include "telemetry/summary.hpp"

namespace railyard::telemetry {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> good_file() {
  const auto store = Store::open("");
  auto context = store->add(Group::context, {{"context", "world 0"}});
  auto rail = store->add(Group::rail, {{"context", "world 0"}, {"rail", "0"}, {"device", "tcp lo"}});
  context.set(context_field::operations_completed, std::uint64_t{12});
  rail.set(rail_field::bytes_sent, std::uint64_t{5} << 20U);
  count_in(context.histogram(context_field::put_latency, context_field::put_latency), 20'000);
  return store->copy();
}

template <typename Plain>
void change(std::vector<std::byte>& file, std::size_t at, Plain value) {
  std::memcpy(file.data() + at, &value, sizeof value);
}

void expect_error(const std::vector<std::byte>& file, const char* text) {
  const auto seen = read(file);
  ASSERT_FALSE(seen);
  EXPECT_EQ(seen.status(), Status::invalid);
  EXPECT_THAT(seen.error().message(), HasSubstr(text));
}

TEST(Reader, SaysWhatIsWrong) {
  std::vector<std::byte> file = good_file();
  ASSERT_TRUE(read(file));
  expect_error({}, "0 bytes are too few");
  expect_error({file.begin(), file.begin() + 1000}, "beyond its end");
  auto other = file;
  change(other, offsetof(Header, magic), 'X');
  expect_error(other, "does not begin as one does");
  other = file;
  change(other, offsetof(Header, version), kVersion + 1);
  expect_error(other, "version 2, this is for version 1");
  other = file;
  change(other, offsetof(Header, most_records), UINT32_MAX);
  expect_error(other, "records are beyond its end");
  other = file;
  change(other, offsetof(Header, fields_at), UINT32_MAX);
  expect_error(other, "list of fields is beyond its end");
  other = file;
  change(other, offsetof(Header, group_bytes), std::uint32_t{0});
  expect_error(other, "list of fields is beyond its end");
  Header header;
  std::memcpy(static_cast<void*>(&header), file.data(), sizeof header);
  other = file;
  change(other, header.records_at + offsetof(RecordEntry, group), std::uint32_t{77});
  expect_error(other, "record 0 is of no group");
  other = file;
  change(other, header.records_at + offsetof(RecordEntry, at), header.words);
  expect_error(other, "values of record 0 are beyond its end");
  other = file;
  change(other, header.fields_at + offsetof(FieldEntry, words), std::uint16_t{9999});
  expect_error(other, "field 0 is outside its group");
}

TEST(Reader, LeavesOutWhatItDoesNotKnow) {
  std::vector<std::byte> file = good_file();
  Header header;
  std::memcpy(static_cast<void*>(&header), file.data(), sizeof header);
  change(file, header.fields_at + offsetof(FieldEntry, kind), std::uint8_t{200});
  // Rewritten while it was copied.
  change(file, header.records_at + header.record_bytes + offsetof(RecordEntry, changed), std::uint32_t{99});
  const auto seen = read(file);
  ASSERT_TRUE(seen) << seen.error().text();
  EXPECT_TRUE(seen->of("rail").empty());
  ASSERT_EQ(seen->of("context").size(), 1U);
  EXPECT_EQ(seen->field(*seen->of("context")[0], "operations_completed"), nullptr);
  EXPECT_NE(seen->field(*seen->of("context")[0], "operations_outstanding"), nullptr);
}

/// A later version may add fields at the end of every structure.
TEST(Reader, TakesLongerEntries) {
  const std::vector<std::byte> file = good_file();
  Header header;
  std::memcpy(static_cast<void*>(&header), file.data(), sizeof header);
  std::vector<std::byte> longer(file.begin(), file.begin() + header.records_at);
  constexpr std::size_t kMore = 64;
  for (std::size_t i = 0; i < header.most_records; ++i) {
    const auto at = file.begin() + static_cast<std::ptrdiff_t>(header.records_at + i * header.record_bytes);
    longer.insert(longer.end(), at, at + header.record_bytes);
    longer.resize(longer.size() + kMore, std::byte{0xee});
  }
  change(longer, offsetof(Header, values_at), static_cast<std::uint32_t>(longer.size()));
  change(longer, offsetof(Header, record_bytes), static_cast<std::uint32_t>(header.record_bytes + kMore));
  longer.insert(longer.end(), file.begin() + header.values_at, file.end());
  const auto seen = read(longer);
  ASSERT_TRUE(seen) << seen.error().text();
  ASSERT_EQ(seen->of("rail").size(), 1U);
  EXPECT_EQ(seen->value(*seen->of("rail")[0], "bytes_sent"), std::uint64_t{5} << 20U);
}

TEST(Reader, AnyFewBytesChanged) {
  const std::vector<std::byte> file = good_file();
  Random random(3);
  int readable = 0;
  for (int i = 0; i < 3000; ++i) {
    auto other = file;
    for (int changes = 0; changes < 4; ++changes) {
      // Mostly where structure is, not values.
      const std::size_t at = random.below(random.below(4) == 0 ? other.size() : 30'000);
      other[at] = static_cast<std::byte>(random.below(256));
    }
    if (random.below(8) == 0) other.resize(random.below(other.size()));
    const auto seen = read(other);
    if (!seen) continue;
    ++readable;
    (void)summary(*seen);
  }
  EXPECT_GT(readable, 100);
}

TEST(Summary, TellsWhatWasMoved) {
  const auto seen = read(good_file());
  ASSERT_TRUE(seen);
  const std::string text = summary(*seen);
  EXPECT_THAT(text, HasSubstr("world 0: 12 operations"));
  EXPECT_THAT(text, HasSubstr("rail 0 (tcp lo): sent 5.00 MiB"));
  EXPECT_THAT(text, HasSubstr("put: half within"));
  EXPECT_EQ(summary(*seen, "another"), "");
}

}  // namespace
}  // namespace railyard::telemetry
