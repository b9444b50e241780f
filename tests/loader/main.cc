// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  // These tests are about the fake driver, whatever the machine has.
  setenv("MLA_CUDA_DRIVER_PATH", MLA_FAKE_CUDA_FILE, 1);
  unsetenv("MLA_BUNDLE_PATH");
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
