#include "railyard/settings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/log.hpp"

namespace railyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Starts with no RAILYARD_* variable, collects warnings, puts the environment back.
class SettingsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string line = *variable;
      if (line.starts_with("RAILYARD_")) saved_.push_back(line);
    }
    clear();
    set_log_sink([this](LogLevel, std::string_view line) { warnings_.emplace_back(line); });
  }
  void TearDown() override {
    set_log_sink({});
    clear();
    for (const std::string& line : saved_) {
      const std::size_t equals = line.find('=');
      setenv(line.substr(0, equals).c_str(), line.substr(equals + 1).c_str(), 1);
    }
  }
  static void clear() {
    std::vector<std::string> names;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string line = *variable;
      if (line.starts_with("RAILYARD_")) names.push_back(line.substr(0, line.find('=')));
    }
    for (const std::string& name : names) unsetenv(name.c_str());
  }
  static Settings::Entry entry(const Settings& settings, const std::string& name) {
    for (const Settings::Entry& entry : settings.list()) {
      if (entry.name == name) return entry;
    }
    ADD_FAILURE() << "no " << name;
    return {};
  }

  std::vector<std::string> saved_;
  std::vector<std::string> warnings_;
};

TEST_F(SettingsTest, AnEmptyEnvironmentGivesTheDefaults) {
  const auto settings = Settings::from_environment();
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->driver, "auto");
  EXPECT_EQ(settings->batch, 32U);
  EXPECT_EQ(settings->rank, -1);
  for (const Settings::Entry& entry : settings->list()) {
    EXPECT_EQ(entry.source, "default") << entry.name;
    EXPECT_EQ(entry.value, entry.by_default) << entry.name;
    EXPECT_FALSE(entry.meaning.empty()) << entry.name;
  }
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(SettingsTest, ReadsEveryKindOfValue) {
  setenv("RAILYARD_PROVIDER", "tcp", 1);
  setenv("RAILYARD_RAILS", "4", 1);
  setenv("RAILYARD_CHUNK_MIN", "64K", 1);
  setenv("RAILYARD_CHUNK_MAX", "2M", 1);
  setenv("RAILYARD_THREADS", "single", 1);
  setenv("RAILYARD_RANK", "3", 1);
  setenv("RAILYARD_SIZE", "8", 1);
  const auto settings = Settings::from_environment();
  ASSERT_TRUE(settings) << settings.error().text();
  EXPECT_EQ(settings->provider, "tcp");
  EXPECT_EQ(settings->rails, 4U);
  EXPECT_EQ(settings->chunk_min, 65536U);
  EXPECT_EQ(settings->chunk_max, 2097152U);
  EXPECT_EQ(settings->threads, "single");
  EXPECT_EQ(settings->rank, 3);
  EXPECT_EQ(settings->size, 8);
  EXPECT_EQ(entry(*settings, "RAILYARD_RAILS").source, "environment");
  EXPECT_EQ(entry(*settings, "RAILYARD_RAILS").value, "4");
  EXPECT_EQ(entry(*settings, "RAILYARD_RAILS").by_default, "0");
}

TEST_F(SettingsTest, EveryListedSettingCanBeSetToItsOwnValue) {
  for (const Settings::Entry& entry : Settings().list()) {
    if (entry.by_default.empty()) continue;
    Settings settings;
    EXPECT_TRUE(settings.set(entry.name, entry.by_default)) << entry.name;
  }
}

struct BadValue {
  const char* name;
  const char* value;
  const char* allowed;
};

class SettingsBadValue : public SettingsTest, public ::testing::WithParamInterface<BadValue> {};

TEST_P(SettingsBadValue, IsAnErrorThatNamesVariableValueAndWhatIsAllowed) {
  setenv(GetParam().name, GetParam().value, 1);
  const auto settings = Settings::from_environment();
  ASSERT_FALSE(settings);
  EXPECT_EQ(settings.status(), Status::invalid);
  EXPECT_THAT(settings.error().message(), AllOf(HasSubstr(std::string(GetParam().name) + "='" + GetParam().value + "'"),
                                                HasSubstr(GetParam().allowed)));
}

INSTANTIATE_TEST_SUITE_P(
    All, SettingsBadValue,
    ::testing::Values(BadValue{"RAILYARD_RAILS", "many", "0 to 256"}, BadValue{"RAILYARD_RAILS", "-1", "0 to 256"},
                      BadValue{"RAILYARD_RAILS", "257", "0 to 256"}, BadValue{"RAILYARD_RAILS", "", "0 to 256"},
                      BadValue{"RAILYARD_RAILS", "4 ", "0 to 256"}, BadValue{"RAILYARD_RAILS", "4K", "0 to 256"},
                      BadValue{"RAILYARD_RAILS", "99999999999999999999", "0 to 256"},
                      BadValue{"RAILYARD_BATCH", "0", "1 to 4096"}, BadValue{"RAILYARD_WINDOW", "5000", "2 to 4096"},
                      BadValue{"RAILYARD_CHUNK_MIN", "9223372036854775807K", "K (1024) or M"},
                      BadValue{"RAILYARD_CHUNK_MIN", "K", "K (1024) or M"},
                      BadValue{"RAILYARD_CHUNK_MIN", "0K", "256 to"},
                      BadValue{"RAILYARD_CHUNK_MAX", "1.5M", "K (1024) or M"},
                      BadValue{"RAILYARD_INLINE_BYTES", "65K", "0 to 65536"},
                      BadValue{"RAILYARD_THREADS", "two", "single, multiple"},
                      BadValue{"RAILYARD_LOG", "WARN", "error, warn, info, debug"},
                      BadValue{"RAILYARD_BOOTSTRAP", "mpi", "(empty), tcp, pmix, single"},
                      BadValue{"RAILYARD_RANK", "-1", "0 to 1048575"}, BadValue{"RAILYARD_SIZE", "0", "1 to 1048576"}));

TEST_F(SettingsTest, ValuesThatContradictEachOtherAreErrors) {
  setenv("RAILYARD_RANK", "8", 1);
  setenv("RAILYARD_SIZE", "8", 1);
  EXPECT_THAT(Settings::from_environment().error().message(),
              AllOf(HasSubstr("RAILYARD_RANK=8"), HasSubstr("RAILYARD_SIZE=8"), HasSubstr("0 to 7")));
  clear();
  setenv("RAILYARD_CHUNK_MIN", "2M", 1);
  EXPECT_THAT(Settings::from_environment().error().message(),
              AllOf(HasSubstr("RAILYARD_CHUNK_MIN=2097152"), HasSubstr("RAILYARD_CHUNK_MAX=1048576")));
}

TEST_F(SettingsTest, UnknownNamesAreReportedWithTheNearestKnownOne) {
  setenv("RAILYARD_RIALS", "4", 1);
  ASSERT_TRUE(Settings::from_environment());
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("RAILYARD_RIALS"), HasSubstr("did you mean RAILYARD_RAILS?"))));
}

TEST_F(SettingsTest, UnknownNamesAreNotReportedToThoseWhoWantErrorsOnly) {
  setenv("RAILYARD_RIALS", "4", 1);
  setenv("RAILYARD_LOG", "error", 1);
  ASSERT_TRUE(Settings::from_environment());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(SettingsTest, LaboratoryVariablesAreKnown) {
  setenv("RAILYARD_LAB_NETNS", "a,b", 1);
  setenv("RAILYARD_LAB_LINKS", "x", 1);
  ASSERT_TRUE(Settings::from_environment());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(SettingsTest, SetWorksAsTheEnvironmentWould) {
  Settings settings;
  EXPECT_TRUE(settings.set("RAILYARD_BATCH", "64"));
  EXPECT_EQ(settings.batch, 64U);
  EXPECT_EQ(entry(settings, "RAILYARD_BATCH").source, "set");
  EXPECT_EQ(settings.set("RAILYARD_BATCH", "x").status(), Status::invalid);
  EXPECT_EQ(settings.batch, 64U);
  const auto unknown = settings.set("RAILYARD_BACH", "1");
  EXPECT_EQ(unknown.status(), Status::not_found);
  EXPECT_THAT(unknown.error().message(), HasSubstr("RAILYARD_BATCH"));
}

TEST_F(SettingsTest, SetOverridesTheEnvironmentAndSaysSo) {
  setenv("RAILYARD_BATCH", "16", 1);
  auto settings = Settings::from_environment();
  ASSERT_TRUE(settings);
  ASSERT_TRUE(settings->set("RAILYARD_BATCH", "8"));
  EXPECT_EQ(entry(*settings, "RAILYARD_BATCH").source, "set");
  EXPECT_EQ(entry(*settings, "RAILYARD_BATCH").value, "8");
}

TEST_F(SettingsTest, AFieldWrittenByTheProgramShowsAsSet) {
  Settings settings;
  settings.rails = 3;
  EXPECT_EQ(entry(settings, "RAILYARD_RAILS").source, "set");
}

TEST_F(SettingsTest, TheJobKeyIsNeverShown) {
  setenv("RAILYARD_JOB_KEY", "sesame", 1);
  const auto settings = Settings::from_environment();
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->job_key, "sesame");
  for (const Settings::Entry& entry : settings->list()) EXPECT_EQ(entry.value.find("sesame"), std::string::npos);
  EXPECT_EQ(entry(*settings, "RAILYARD_JOB_KEY").value, "(set, not shown)");
}

TEST_F(SettingsTest, PortsThatAreNoRangeAreRefused) {
  for (const char* good : {"", "50000", "50000-50000", "1-65535"}) {
    setenv("RAILYARD_PORTS", good, 1);
    EXPECT_TRUE(Settings::from_environment()) << good;
  }
  for (const char* bad : {"0-5", "5-", "-5", "7-6", "1-65536", "a-b", "50000-50010x", " 50000", "50000,50001"}) {
    setenv("RAILYARD_PORTS", bad, 1);
    const auto settings = Settings::from_environment();
    ASSERT_FALSE(settings) << bad;
    EXPECT_THAT(settings.error().message(),
                AllOf(HasSubstr(std::string("RAILYARD_PORTS='") + bad), HasSubstr("50000-50099")));
  }
}

}  // namespace
}  // namespace railyard
