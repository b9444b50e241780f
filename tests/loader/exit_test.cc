// SPDX-License-Identifier: Apache-2.0
//
// The end of a process, and of the library in one: no call of the driver from destructors, no matter how
// the process ends; nothing left behind by dlclose.
#include <cstdlib>

#include "tests/loader/loader_fixture.h"

namespace mla::test {
namespace {

TEST(Exit, NothingIsCalledWhileTheProcessEnds) {
  TestBundle files;
  files.add("k");
  files.write();
  const std::string log = files.file("calls.log");
  // The client closes nothing, on purpose: a leak checker has no business there.
  const std::string command = "ASAN_OPTIONS=detect_leaks=0 FAKE_CUDA_LOG='" + log +
                              "' FAKE_CUDA_DEVICE=12.0 '" MLA_EXIT_CLIENT "' '" + files.path() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const std::string calls = read_text(log);
  EXPECT_NE(calls.find("cuLaunchKernelEx\n"), std::string::npos) << calls;
  const std::string end = "end of main\n";
  const size_t at = calls.find(end);
  ASSERT_NE(at, std::string::npos) << calls;
  EXPECT_EQ(calls.substr(at + end.size()), "");
}

TEST(Exit, NothingGrowsWithDlopenAndDlclose) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer keeps memory of its own";
#endif
  TestBundle files;
  files.add("k");
  files.write();
  const std::string command = "'" MLA_DLCLOSE_CLIENT "' '" MLA_LIBRARY_FILE "' '" + files.path() + "'";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace mla::test
