// SPDX-License-Identifier: Apache-2.0
//
// What must not allocate: selection that succeeds, launches, workspace initialisation. This program
// replaces malloc, which the loader's own C++ runtime calls too.
#include <cstdlib>

#include "tests/loader/loader_fixture.h"

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* old);
}

namespace {
thread_local int g_allocations = 0;
}

extern "C" {
void* malloc(size_t bytes) {
  ++g_allocations;
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  ++g_allocations;
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  ++g_allocations;
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  ++g_allocations;
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  ++g_allocations;
  *out = __libc_memalign(alignment, bytes);
  return *out == nullptr ? 12 : 0;
}
void free(void* old) { __libc_free(old); }
}

namespace mla::test {
namespace {

TEST_F(DriverTest, LaunchAndSelectAllocateNothing) {
  TestBundle files;
  for (int i = 0; i < 50; ++i)
    files.add("k" + std::to_string(i), i % 2 == 0 ? 120 : 90, i % 2 == 0 ? "f" : "a");
  files.write();
  const Bundle bundle = open_bundle(files);
  int before = g_allocations;
  mla_bundle_open("", nullptr, nullptr);
  EXPECT_GT(g_allocations, before) << "the loader's allocations are not counted, so this test shows nothing";

  mla_problem problem = any_problem();
  mla_kernel* kernel = nullptr;
  ASSERT_OK(mla_prepare(bundle.get(), &problem, nullptr, &kernel));
  void* stream = fake_new_stream(context_);
  mla_launch_args args = MLA_LAUNCH_ARGS_INIT;
  args.q = args.kv = args.v = args.page_table = args.seq_lens = args.out = args.lse = 0x7f0000000000;
  args.workspace = 0x7f0010000000;
  args.workspace_bytes = uint64_t{1} << 40;
  args.pages = args.batch = args.q_len = args.max_pages_per_seq = 1;
  args.heads = 128;
  args.page_size = 64;
  args.softmax_scale = 1.0f;
  args.flags = MLA_LAUNCH_PDL;
  problem.cc_major = 12;
  uint32_t index = 0;

  before = g_allocations;
  mla_status status = MLA_SUCCESS;
  for (int i = 0; i < 100; ++i) {
    status |= mla_select(bundle.get(), &problem, &index);
    status |= mla_workspace_init(bundle.get(), args.workspace, args.workspace_bytes, stream);
    status |= mla_launch(kernel, &args, stream);
  }
  const int allocations = g_allocations - before;
  EXPECT_EQ(status, MLA_SUCCESS) << mla_last_error();
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(fake_calls("cuLaunchKernelEx"), 100);
}

}  // namespace
}  // namespace mla::test
