#include "accelerator/waiting_kernels.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace railyard::accelerator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class WaitingKernels : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    ::unsetenv("CUDA_MODULE_LOADING");
    ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  }
};

TEST_F(WaitingKernels, WhatIsMissingIsNamed) {
  EXPECT_THAT(advice_for_waiting_kernels(), HasSubstr("CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32"));
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  EXPECT_THAT(advice_for_waiting_kernels(), Not(HasSubstr("CUDA_MODULE_LOADING")));
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  EXPECT_THAT(advice_for_waiting_kernels(), HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS=32"));
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  EXPECT_EQ(advice_for_waiting_kernels(), "");
  ::setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  EXPECT_THAT(advice_for_waiting_kernels(), HasSubstr("CUDA_MODULE_LOADING=EAGER"));
}

}  // namespace
}  // namespace railyard::accelerator
