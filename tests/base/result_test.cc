#include "railyard/result.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace railyard {
namespace {

TEST(Status, EveryStatusHasAWordOfItsOwn) {
  std::set<std::string> words;
  for (int status = 0; status <= static_cast<int>(Status::no_memory); ++status) {
    words.insert(to_string(static_cast<Status>(status)));
  }
  EXPECT_EQ(words.size(), static_cast<std::size_t>(Status::no_memory) + 1);
  EXPECT_FALSE(words.contains("unknown status"));
}

TEST(Error, TextCarriesStatusMessageAndPlace) {
  const Error error(Status::timeout, "nothing came", {.peer = 3, .rail = 1, .operation = "put", .sequence = 42});
  EXPECT_EQ(error.text(), "timeout: nothing came (put, peer 3, rail 1, sequence 42)");
  EXPECT_EQ(error.message(), "nothing came");
  EXPECT_EQ(error.where().peer, 3);
}

TEST(Error, TextLeavesOutWhatDoesNotApply) {
  EXPECT_EQ(Error(Status::invalid, "bad").text(), "invalid: bad");
  EXPECT_EQ(Error(Status::busy).text(), "busy");
  EXPECT_EQ(Error(Status::busy).message(), "");
  EXPECT_EQ(Error(Status::peer_lost, "gone", {.peer = 0}).text(), "peer lost: gone (peer 0)");
}

TEST(Error, CopyHasTheSameContent) {
  const Error error(Status::io, "disk", {.rail = 2});
  EXPECT_EQ(error.copy().text(), error.text());
  EXPECT_EQ(Error(Status::busy).copy().status(), Status::busy);
}

TEST(Result, HoldsAValueOrAnError) {
  Result<std::unique_ptr<int>> value(std::make_unique<int>(5));
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value.status(), Status::ok);
  EXPECT_EQ(*std::move(value).value(), 5);

  const Result<int> failed(Error(Status::not_found, "no such thing"));
  EXPECT_FALSE(failed);
  EXPECT_EQ(failed.error().message(), "no such thing");

  EXPECT_TRUE(Result<void>().ok());
  EXPECT_EQ(Result<void>(Error(Status::busy)).status(), Status::busy);
}

TEST(ResultDeathTest, AValueTakenFromAnErrorEndsWithTheErrorsText) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  Result<std::string> failed(Error(Status::out_of_range, "rank 7 of 2", {.operation = "open"}));
  const Result<std::string>& unchangeable = failed;
  EXPECT_DEATH((void)failed->size(), "out of range: rank 7 of 2 \\(open\\)");
  EXPECT_DEATH((void)unchangeable->size(), "rank 7 of 2");
  EXPECT_DEATH((void)(*failed).size(), "rank 7 of 2");
  EXPECT_DEATH((void)(*unchangeable).size(), "rank 7 of 2");
  EXPECT_DEATH((void)std::move(failed).value().size(), "rank 7 of 2");
  Result<std::string> good(std::string("here"));
  EXPECT_DEATH((void)good.error().status(), "succeeded");
}

}  // namespace
}  // namespace railyard
