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

TEST(Abi, Layouts) {
  EXPECT_EQ(sizeof(mla_open_options), 16u);
  EXPECT_EQ(offsetof(mla_open_options, manifest_sha256), 8u);
  EXPECT_EQ(sizeof(mla_bundle_info), 72u);
  EXPECT_EQ(offsetof(mla_bundle_info, name), 24u);
  EXPECT_EQ(offsetof(mla_bundle_info, path), 64u);
  EXPECT_EQ(sizeof(mla_kernel_info), 120u);
  EXPECT_EQ(offsetof(mla_kernel_info, id), 8u);
  EXPECT_EQ(offsetof(mla_kernel_info, family), 48u);
  EXPECT_EQ(offsetof(mla_kernel_info, priority), 112u);
  EXPECT_EQ(sizeof(mla_problem), 56u);
  EXPECT_EQ(offsetof(mla_problem, q_dtype), 16u);
  EXPECT_EQ(offsetof(mla_problem, mma), 52u);
  EXPECT_EQ(sizeof(mla_prepare_options), 16u);
  EXPECT_EQ(offsetof(mla_prepare_options, context), 8u);
  EXPECT_EQ(sizeof(mla_prepared_info), 48u);
  EXPECT_EQ(offsetof(mla_prepared_info, workspace_bytes), 32u);
  EXPECT_EQ(sizeof(mla_launch_args), 192u);
  EXPECT_EQ(offsetof(mla_launch_args, q), 8u);
  EXPECT_EQ(offsetof(mla_launch_args, workspace_bytes), 96u);
  EXPECT_EQ(offsetof(mla_launch_args, pages), 144u);
  EXPECT_EQ(offsetof(mla_launch_args, softmax_scale), 172u);
  EXPECT_EQ(offsetof(mla_launch_args, max_sms), 188u);
}

// An INIT macro with too few or too many values would put them into other fields.
TEST(Abi, InitMacros) {
  const mla_problem problem = MLA_PROBLEM_INIT;
  EXPECT_EQ(problem.struct_size, sizeof problem);
  EXPECT_EQ(problem.features, 0u);
  EXPECT_EQ(problem.cc_major, 0);
  EXPECT_EQ(problem.q_dtype, MLA_DTYPE_E4M3);
  EXPECT_EQ(problem.kv_dtype, MLA_DTYPE_E4M3);
  EXPECT_EQ(problem.out_dtype, MLA_DTYPE_BF16);
  EXPECT_EQ(problem.head_dim_k, 576);
  EXPECT_EQ(problem.head_dim_v, 512);
  EXPECT_EQ(problem.heads, 128);
  EXPECT_EQ(problem.q_len, 1);
  EXPECT_EQ(problem.page_size, 64);
  EXPECT_EQ(problem.family, MLA_FAMILY_ANY);
  EXPECT_EQ(problem.mma, MLA_MMA_ANY);
  const mla_launch_args args = MLA_LAUNCH_ARGS_INIT;
  EXPECT_EQ(args.struct_size, sizeof args);
  EXPECT_EQ(args.max_pages_per_seq, 0);
  EXPECT_EQ(args.softmax_scale, 0.0f);
  EXPECT_EQ(args.q_scale, 1.0f);
  EXPECT_EQ(args.kv_scale, 1.0f);
  EXPECT_EQ(args.max_splits, 0);
  EXPECT_EQ(args.max_sms, 0);
  const mla_open_options open = MLA_OPEN_OPTIONS_INIT;
  EXPECT_EQ(open.struct_size, sizeof open);
  const mla_prepare_options prepare = MLA_PREPARE_OPTIONS_INIT;
  EXPECT_EQ(prepare.struct_size, sizeof prepare);
  const mla_bundle_info bundle = MLA_BUNDLE_INFO_INIT;
  EXPECT_EQ(bundle.struct_size, sizeof bundle);
  EXPECT_EQ(bundle.path, nullptr);
  const mla_kernel_info kernel = MLA_KERNEL_INFO_INIT;
  EXPECT_EQ(kernel.struct_size, sizeof kernel);
  EXPECT_EQ(kernel.reserved, 0);
  const mla_prepared_info prepared = MLA_PREPARED_INFO_INIT;
  EXPECT_EQ(prepared.struct_size, sizeof prepared);
  EXPECT_EQ(prepared.workspace_alignment, 0u);
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
  EXPECT_ERROR(
      mla_select(bundle_.get(), &problem.known, &index), MLA_ERROR_INVALID_ARGUMENT,
      "problem.struct_size is 72 and byte 64 is not zero; this library (0.1.0) knows the first 56 bytes of "
      "mla_problem: leave newer fields zero, or use a newer library");
}

TEST_F(Growth, NonsenseSizes) {
  mla_problem problem = problem_for(12, 0);
  uint32_t index = 9;
  for (const uint32_t size : {0u, 4u, 55u, 4097u, 0xffffffffu}) {
    problem.struct_size = size;
    EXPECT_ERROR(mla_select(bundle_.get(), &problem, &index), MLA_ERROR_INVALID_ARGUMENT,
                 "problem.struct_size is " + std::to_string(size) +
                     "; must be sizeof(mla_problem), 56 in this library (0.1.0)");
  }
  mla_bundle_info info = MLA_BUNDLE_INFO_INIT;
  info.struct_size = 71;
  EXPECT_ERROR(mla_bundle_get_info(bundle_.get(), &info), MLA_ERROR_INVALID_ARGUMENT,
               "info.struct_size is 71; must be sizeof(mla_bundle_info), 72 in this library (0.1.0)");
  mla_open_options options = MLA_OPEN_OPTIONS_INIT;
  options.struct_size = 0;
  mla_bundle* bundle = nullptr;
  EXPECT_ERROR(mla_bundle_open("x", &options, &bundle), MLA_ERROR_INVALID_ARGUMENT,
               "options.struct_size is 0; must be sizeof(mla_open_options), 16 in this library (0.1.0)");
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
