#include <gtest/gtest.h>

#include <string_view>

#include "roles.hpp"

int main(int argc, char** argv) {
  constexpr std::string_view kRole = "--role=";
  if (argc == 2 && std::string_view(argv[1]).starts_with(kRole)) {
    return railyard::bootstrap::run_role(std::string_view(argv[1]).substr(kRole.size()));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
