#include "base/id_table.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <memory>
#include <set>
#include <string>

namespace railyard {
namespace {

TEST(IdTable, FindsWhatWasInserted) {
  IdTable<std::unique_ptr<int>> table;
  const std::uint32_t a = table.insert(std::make_unique<int>(1)).value();
  const std::uint32_t b = table.insert(std::make_unique<int>(2)).value();
  EXPECT_NE(a, b);
  EXPECT_EQ(**table.find(a), 1);
  EXPECT_EQ(**table.find(b), 2);
  EXPECT_EQ(table.size(), 2U);
}

TEST(IdTable, NoIdIsZeroAndUnknownOnesAreNull) {
  IdTable<int> table;
  EXPECT_EQ(table.find(0), nullptr);
  EXPECT_EQ(table.find(UINT32_MAX), nullptr);
  const std::uint32_t id = table.insert(1).value();
  EXPECT_NE(id, 0U);
  EXPECT_NE(id >> 16U, 0U);
  EXPECT_EQ(table.find(id & 0xffffU), nullptr);
  EXPECT_EQ(table.find(id + 1), nullptr);
}

TEST(IdTable, AStaleIdIsNotItsSuccessor) {
  IdTable<int> table(1);
  const std::uint32_t first = table.insert(1).value();
  EXPECT_TRUE(table.erase(first));
  EXPECT_EQ(table.find(first), nullptr);
  EXPECT_FALSE(table.erase(first));
  const std::uint32_t second = table.insert(2).value();
  EXPECT_EQ(first & 0xffffU, second & 0xffffU);
  EXPECT_EQ(table.find(first), nullptr);
  EXPECT_EQ(*table.find(second), 2);
}

TEST(IdTable, GenerationsComeRoundWithoutZero) {
  IdTable<int> table(1);
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 65535; ++i) {
    const std::uint32_t id = table.insert(i).value();
    ASSERT_NE(id >> 16U, 0U);
    ASSERT_TRUE(seen.insert(id).second);
    table.erase(id);
  }
  EXPECT_TRUE(seen.contains(table.insert(0).value()));
}

TEST(IdTable, BoundIsAnErrorAndRoomComesBack) {
  IdTable<int> table(3);
  const std::uint32_t first = table.insert(0).value();
  ASSERT_TRUE(table.insert(1));
  ASSERT_TRUE(table.insert(2));
  EXPECT_EQ(table.insert(3).status(), Status::no_memory);
  EXPECT_TRUE(table.erase(first));
  EXPECT_TRUE(table.insert(3));
}

TEST(IdTable, HoldsAllSixteenBits) {
  IdTable<int> table;
  for (std::size_t i = 0; i < IdTable<int>::kMost; ++i) ASSERT_TRUE(table.insert(static_cast<int>(i)));
  EXPECT_EQ(table.insert(0).status(), Status::no_memory);
  EXPECT_EQ(table.size(), 65536U);
}

TEST(IdTable, EntriesDoNotMove) {
  IdTable<int> table;
  const std::uint32_t id = table.insert(5).value();
  const int* const place = table.find(id);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(table.insert(i));
  EXPECT_EQ(table.find(id), place);
}

TEST(IdTable, FreedIndicesRestAsLongAsTheyCan) {
  IdTable<int> table;
  const std::uint32_t a = table.insert(1).value();
  const std::uint32_t b = table.insert(2).value();
  table.erase(b);
  table.erase(a);
  EXPECT_EQ(table.insert(3).value() & 0xffffU, b & 0xffffU);
  EXPECT_EQ(table.insert(4).value() & 0xffffU, a & 0xffffU);
}

TEST(IdTable, BehavesLikeAMap) {
  EXPECT_TRUE(rc::check([] {
    IdTable<int> table(8);
    std::map<std::uint32_t, int> model;
    std::vector<std::uint32_t> all;
    const auto steps = *rc::gen::container<std::vector<std::pair<bool, unsigned>>>(
        rc::gen::pair(rc::gen::arbitrary<bool>(), rc::gen::inRange(0U, 1000U)));
    for (const auto& [insert, number] : steps) {
      if (insert) {
        const auto id = table.insert(static_cast<int>(number));
        RC_ASSERT(id.ok() == (model.size() < 8));
        if (id) {
          RC_ASSERT(model.emplace(*id, static_cast<int>(number)).second);
          all.push_back(*id);
        }
      } else if (!all.empty()) {
        const std::uint32_t id = all[number % all.size()];
        RC_ASSERT(table.erase(id) == (model.erase(id) == 1));
      }
      for (const std::uint32_t id : all) {
        const auto expected = model.find(id);
        const int* found = table.find(id);
        RC_ASSERT((found != nullptr) == (expected != model.end()));
        if (found != nullptr) RC_ASSERT(*found == expected->second);
      }
      std::map<std::uint32_t, int> visited;
      table.for_each([&](std::uint32_t id, int value) { visited.emplace(id, value); });
      RC_ASSERT(visited == model);
      RC_ASSERT(table.size() == model.size());
    }
  }));
}

}  // namespace
}  // namespace railyard
