// SPDX-License-Identifier: Apache-2.0
//
// What is pinned for a major version: numbers, names, layouts, INIT macros; growth of structs; the
// last error.
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/loader/loader_fixture.h"

namespace mla::test {
namespace {

TEST(Abi, StatusNumbersAndNames) {
  const std::pair<mla_status, const char*> pinned[] = {{0, "MLA_SUCCESS"},
                                                       {1, "MLA_ERROR_INVALID_ARGUMENT"},
                                                       {2, "MLA_ERROR_INVALID_BUNDLE"},
                                                       {3, "MLA_ERROR_IO"},
                                                       {4, "MLA_ERROR_NO_KERNEL"},
                                                       {5, "MLA_ERROR_NO_DRIVER"},
                                                       {6, "MLA_ERROR_DRIVER"},
                                                       {7, "MLA_ERROR_NOT_PREPARED"},
                                                       {8, "MLA_ERROR_WRONG_DEVICE"},
                                                       {9, "MLA_ERROR_DEVICE_LIMIT"},
                                                       {10, "MLA_ERROR_WORKSPACE"},
                                                       {11, "MLA_ERROR_OUT_OF_MEMORY"},
                                                       {12, "MLA_ERROR_INTERNAL"},
                                                       {13, "MLA_ERROR_UNKNOWN"},
                                                       {-1, "MLA_ERROR_UNKNOWN"}};
  for (const auto& [status, name] : pinned) EXPECT_STREQ(mla_status_name(status), name);
}

TEST(Abi, Versions) {
  EXPECT_EQ(mla_version(), static_cast<uint32_t>(MLA_VERSION));
  EXPECT_EQ(MLA_VERSION, MLA_VERSION_MAJOR * 1000000 + MLA_VERSION_MINOR * 1000 + MLA_VERSION_PATCH);
  EXPECT_STREQ(mla_version_string(), MLA_VERSION_STRING);
  EXPECT_EQ(std::string(MLA_VERSION_STRING), std::to_string(MLA_VERSION_MAJOR) + "." +
                                                 std::to_string(MLA_VERSION_MINOR) + "." +
                                                 std::to_string(MLA_VERSION_PATCH));
  EXPECT_STREQ(MLA_VERSION_STRING, MLA_PROJECT_VERSION) << "the header and CMakeLists.txt disagree";
}

// The rest is in loader/abi.json, which is checked against the header.
TEST(Abi, Layouts) {
  EXPECT_EQ(sizeof(mla_open_options), 32u);
  EXPECT_EQ(sizeof(mla_bundle_info), 72u);
  EXPECT_EQ(sizeof(mla_kernel_info), 176u);
  EXPECT_EQ(sizeof(mla_problem), 112u);
  EXPECT_EQ(sizeof(mla_prepare_options), 32u);
  EXPECT_EQ(sizeof(mla_prepared_info), 48u);
  EXPECT_EQ(sizeof(mla_workspace_query), 48u);
  EXPECT_EQ(sizeof(mla_launch_args), 304u);
  EXPECT_EQ(offsetof(mla_launch_args, q), 8u);
  EXPECT_EQ(offsetof(mla_launch_args, pages), 216u);
  EXPECT_EQ(offsetof(mla_launch_args, error), 288u);
  EXPECT_EQ(sizeof(mla_merge_args), 152u);
}

// Zero is the default of every field: an INIT macro gives the size and nothing else.
template <typename T>
void expect_zeros_but_size(const T& init) {
  T zero;
  std::memset(&zero, 0, sizeof zero);
  zero.struct_size = sizeof zero;
  EXPECT_EQ(std::memcmp(&init, &zero, sizeof zero), 0);
}

TEST(Abi, InitMacros) {
#define MLA_INIT(type, macro)    \
  do {                           \
    SCOPED_TRACE(#macro);        \
    const type init = macro;     \
    expect_zeros_but_size(init); \
  } while (false)
  MLA_INIT(mla_open_options, MLA_OPEN_OPTIONS_INIT);
  MLA_INIT(mla_bundle_info, MLA_BUNDLE_INFO_INIT);
  MLA_INIT(mla_kernel_info, MLA_KERNEL_INFO_INIT);
  MLA_INIT(mla_problem, MLA_PROBLEM_INIT);
  MLA_INIT(mla_prepare_options, MLA_PREPARE_OPTIONS_INIT);
  MLA_INIT(mla_prepared_info, MLA_PREPARED_INFO_INIT);
  MLA_INIT(mla_workspace_query, MLA_WORKSPACE_QUERY_INIT);
  MLA_INIT(mla_launch_args, MLA_LAUNCH_ARGS_INIT);
  MLA_INIT(mla_merge_args, MLA_MERGE_ARGS_INIT);
#undef MLA_INIT
}

// The structs of a later header: the same fields, then more.
struct LaterProblem {
  mla_problem known;
  int32_t more[4];
};
struct LaterBundleInfo {
  mla_bundle_info known;
  uint64_t more[2];
};

class Growth : public ::testing::Test {
 protected:
  void SetUp() override {
    files_.add("k");
    files_.write();
    bundle_ = open_bundle(files_);
  }
  TestBundle files_;
  Bundle bundle_;
};

TEST_F(Growth, LargerInputWithZeroTail) {
  LaterProblem problem = {problem_for(12, 0), {0, 0, 0, 0}};
  problem.known.struct_size = sizeof problem;
  uint32_t index = 9;
  EXPECT_OK(mla_select(bundle_.get(), &problem.known, &index));
  EXPECT_EQ(index, 0u);
}

TEST_F(Growth, LargerInputThatSaysMore) {
  LaterProblem problem = {problem_for(12, 0), {0, 0, 1, 0}};
  problem.known.struct_size = sizeof problem;
  uint32_t index = 9;
  EXPECT_ERROR(mla_select(bundle_.get(), &problem.known, &index), MLA_ERROR_INVALID_ARGUMENT,
               "problem.struct_size is 128 and byte 120 is not zero; this library (0.1.0) knows the first "
               "112 bytes of "
               "mla_problem: leave newer fields zero, or use a newer library");
}

TEST_F(Growth, NonsenseSizes) {
  mla_problem problem = problem_for(12, 0);
  uint32_t index = 9;
  for (const uint32_t size : {0u, 4u, 103u, 4097u, 0xffffffffu}) {
    problem.struct_size = size;
    EXPECT_ERROR(mla_select(bundle_.get(), &problem, &index), MLA_ERROR_INVALID_ARGUMENT,
                 "problem.struct_size is " + std::to_string(size) +
                     "; must be sizeof(mla_problem), 112 in this library (0.1.0)");
  }
  mla_bundle_info info = MLA_BUNDLE_INFO_INIT;
  info.struct_size = 71;
  EXPECT_ERROR(mla_bundle_get_info(bundle_.get(), &info), MLA_ERROR_INVALID_ARGUMENT,
               "info.struct_size is 71; must be sizeof(mla_bundle_info), 72 in this library (0.1.0)");
  mla_open_options options = MLA_OPEN_OPTIONS_INIT;
  options.struct_size = 0;
  mla_bundle* bundle = nullptr;
  EXPECT_ERROR(mla_bundle_open("x", &options, &bundle), MLA_ERROR_INVALID_ARGUMENT,
               "options.struct_size is 0; must be sizeof(mla_open_options), 32 in this library (0.1.0)");
}

TEST_F(Growth, LargerOutputHasAZeroTail) {
  LaterBundleInfo info;
  std::memset(&info, 0xff, sizeof info);
  info.known.struct_size = sizeof info;
  EXPECT_OK(mla_bundle_get_info(bundle_.get(), &info.known));
  EXPECT_EQ(info.known.struct_size, sizeof info);
  EXPECT_EQ(info.known.kernel_count, 1u);
  EXPECT_EQ(info.more[0], 0u);
  EXPECT_EQ(info.more[1], 0u);
}

TEST(LastError, BelongsToItsThread) {
  EXPECT_EQ(mla_bundle_open("", nullptr, nullptr), MLA_ERROR_INVALID_ARGUMENT);
  std::string others = "?";
  std::thread([&] {
    others = mla_last_error();
    mla_bundle* bundle = nullptr;
    mla_bundle_open("/no/such/folder", nullptr, &bundle);
  }).join();
  EXPECT_EQ(others, "");
  EXPECT_STREQ(mla_last_error(), "bundle is null");
}

TEST(LastError, IsCopiedOut) {
  EXPECT_EQ(mla_bundle_open("", nullptr, nullptr), MLA_ERROR_INVALID_ARGUMENT);
  uint64_t needed = 0;
  EXPECT_OK(mla_last_error_copy(nullptr, 0, &needed));
  EXPECT_EQ(needed, sizeof "bundle is null");
  std::vector<char> whole(needed, '#');
  EXPECT_OK(mla_last_error_copy(whole.data(), whole.size(), nullptr));
  EXPECT_STREQ(whole.data(), "bundle is null");
  char part[7] = "######";
  EXPECT_OK(mla_last_error_copy(part, sizeof part, &needed));
  EXPECT_STREQ(part, "bundle");
  char none = '#';
  EXPECT_OK(mla_last_error_copy(&none, 0, nullptr));
  EXPECT_EQ(none, '#');
}

}  // namespace
}  // namespace mla::test
