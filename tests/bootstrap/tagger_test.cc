#include "launcher/tagger.hpp"

#include <gtest/gtest.h>

namespace railyard::launcher {
namespace {

TEST(LineTagger, TagsWholeLines) {
  LineTagger tagger(3);
  EXPECT_EQ(tagger.feed("one\ntw"), "[3] one\n");
  EXPECT_EQ(tagger.feed("o\n\n"), "[3] two\n[3] \n");
  EXPECT_EQ(tagger.finish(), "");
}

TEST(LineTagger, ALineWithoutEndIsWrittenAtTheEnd) {
  LineTagger tagger(0);
  EXPECT_EQ(tagger.feed("rest"), "");
  EXPECT_EQ(tagger.finish(), "[0] rest\n");
  EXPECT_EQ(tagger.finish(), "");
}

TEST(LineTagger, ALineThatNeverEndsIsCut) {
  LineTagger tagger(1);
  const std::string lines = tagger.feed(std::string(LineTagger::kMostHeld, 'x'));
  EXPECT_EQ(lines.size(), LineTagger::kMostHeld + 5);
  EXPECT_EQ(tagger.finish(), "");
}

}  // namespace
}  // namespace railyard::launcher
