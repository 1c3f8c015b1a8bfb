/// What the commands print with.
#include "text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "bench/pattern.hpp"
#include "histogram.hpp"
#include "json.hpp"
#include "json_reader.hpp"
#include "run_command.hpp"
#include "svg.hpp"

namespace railyard::testing {
namespace {

using tool::bar;
using tool::Histogram;
using tool::JsonWriter;
using tool::Table;

TEST(JsonWriter, WritesWhatAReaderReadsBack) {
  JsonWriter json;
  json.begin_object()
      .field("text", "a \"quoted\" \\ line\nwith\ta \x01 in it")
      .field("count", std::uint64_t{18446744073709551615ULL})
      .field("less", -3)
      .field("number", 0.1)
      .field("yes", true);
  json.key("none").null();
  json.key("not_a_number").value(std::numeric_limits<double>::quiet_NaN());
  json.key("empty").begin_array().end_array();
  json.key("list").begin_array().value(1).begin_object().end_object().end_array();
  const std::string text = json.end_object().finish();
  const auto read = JsonReader::read(text);
  ASSERT_TRUE(read) << text;
  EXPECT_EQ((*read)["text"].text(), "a \"quoted\" \\ line\nwith\ta \x01 in it");
  EXPECT_THAT(text, ::testing::HasSubstr("18446744073709551615"));
  EXPECT_EQ((*read)["less"].number(), -3);
  EXPECT_EQ((*read)["number"].number(), 0.1);
  EXPECT_TRUE((*read)["yes"].flag());
  EXPECT_TRUE((*read)["none"].is_null());
  EXPECT_TRUE((*read)["not_a_number"].is_null());
  EXPECT_EQ((*read)["empty"].array().size(), 0U);
  EXPECT_EQ((*read)["list"].array().size(), 2U);
}

TEST(Table, LinesUp) {
  Table table({{"name"}, {"n", Table::Align::right}, {"bar"}});
  table.add({"a", "1000", "██"});
  table.rule();
  table.add({"longer", "7"});
  EXPECT_EQ(table.text(),
            "name       n  bar\n"
            "-----------------\n"
            "a       1000  ██\n"
            "-----------------\n"
            "longer     7\n");
}

TEST(Bar, IsAsLongAsItsShare) {
  EXPECT_EQ(bar(0, 4, true), "");
  EXPECT_EQ(bar(1, 4, true), "████");
  EXPECT_EQ(bar(0.5, 4, true), "██");
  EXPECT_EQ(bar(0.625, 4, true), "██▌");
  EXPECT_EQ(bar(0.5, 4, false), "##");
  EXPECT_EQ(bar(7, 4, false), "####");
  EXPECT_EQ(bar(-1, 4, false), "");
  EXPECT_EQ(bar(std::numeric_limits<double>::quiet_NaN(), 4, false), "");
}

TEST(Readable, KeepsTheUnitInStep) {
  EXPECT_EQ(tool::readable_bytes(0), "0 B");
  EXPECT_EQ(tool::readable_bytes(1023), "1023 B");
  EXPECT_EQ(tool::readable_bytes(1024), "1 KiB");
  EXPECT_EQ(tool::readable_bytes(1536.0 * 1024), "1.50 MiB");
  EXPECT_EQ(tool::readable_nanoseconds(999), "999 ns");
  EXPECT_EQ(tool::readable_nanoseconds(12345), "12.3 us");
  EXPECT_EQ(tool::readable_nanoseconds(2.5e9), "2.50 s");
}

TEST(Files, SayWhyTheyCannotBeWritten) {
  const ScratchFolder scratch;
  const std::string file = scratch.file("x");
  EXPECT_TRUE(tool::check_writable("-"));
  EXPECT_TRUE(tool::check_writable(file));
  EXPECT_FALSE(std::filesystem::exists(file)) << "asking must not make the file";
  EXPECT_TRUE(tool::write_text(file, "content"));
  EXPECT_EQ(read_file(file), "content");
  EXPECT_FALSE(tool::check_writable(scratch.file("")));
  EXPECT_FALSE(tool::check_writable(scratch.file("no/such/folder")));
  const auto written = tool::write_text(scratch.file("no/such/folder"), "content");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.status(), Status::io);
}

TEST(Histogram, FindsPercentilesToThreePercent) {
  Histogram histogram;
  EXPECT_EQ(histogram.quantile(0.5), 0);
  for (std::uint64_t value = 1; value <= 100'000; ++value) histogram.add(value * 10);
  EXPECT_EQ(histogram.count(), 100'000U);
  for (const double quantile : {0.01, 0.5, 0.9, 0.99, 1.0}) {
    EXPECT_NEAR(histogram.quantile(quantile), quantile * 1e6, quantile * 1e6 * 0.032) << quantile;
  }
}

TEST(Histogram, TakesAnyValueAndAddsUp) {
  Histogram one;
  one.add(0);
  one.add(31);
  one.add(std::numeric_limits<std::uint64_t>::max());
  Histogram other = Histogram::from_buckets(one.buckets());
  EXPECT_EQ(other.count(), 3U);
  other.merge(one);
  EXPECT_EQ(other.count(), 6U);
  EXPECT_EQ(other.quantile(0.01), 0);
  EXPECT_EQ(other.quantile(0.5), 31);
}

TEST(Svg, EscapesText) {
  tool::Svg svg(10, 10);
  svg.text({1, 1}, "a < b & c > d");
  EXPECT_THAT(svg.finish(), ::testing::HasSubstr("a &lt; b &amp; c &gt; d"));
}

TEST(Pattern, CanBeCheckedFromAnyWord) {
  std::vector<std::byte> memory(1003);
  bench::fill_pattern(memory, 5);
  EXPECT_FALSE(bench::find_difference(memory, 5));
  EXPECT_FALSE(bench::find_difference(std::span(memory).subspan(64, 500), 5, 8));
  EXPECT_TRUE(bench::find_difference(std::span(memory).subspan(64, 500), 5, 7));
  memory.back() ^= std::byte{1};
  EXPECT_EQ(bench::find_difference(memory, 5), 1000U);
}

}  // namespace
}  // namespace railyard::testing
