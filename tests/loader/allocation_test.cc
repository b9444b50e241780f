// SPDX-License-Identifier: Apache-2.0
//
// What must not allocate: selection that succeeds, launches, workspace initialisation. And that a
// failure of any allocation is an error, whatever the number of processors. This program replaces
// malloc, which the loader's own C++ runtime calls too, and what tells the number of processors.
#include <dlfcn.h>

#include <atomic>
#include <cerrno>
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
std::atomic<int> g_left = -1;  // allocations until the one that fails, on any thread; < 0: none does
std::atomic<bool> g_failed = false;
std::atomic<int> g_processors = 0;  // 0: as many as there are

// Counts an allocation; true if it is to fail.
bool fails() {
  ++g_allocations;
  if (g_left < 0 || g_left-- != 0) return false;
  g_failed = true;
  errno = ENOMEM;
  return true;
}
}  // namespace

extern "C" {
void* malloc(size_t bytes) {
  if (fails()) return nullptr;
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  if (fails()) return nullptr;
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  if (fails()) return nullptr;
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  if (fails()) return nullptr;
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  if (fails()) return ENOMEM;
  *out = __libc_memalign(alignment, bytes);
  return *out == nullptr ? 12 : 0;
}
void free(void* old) { __libc_free(old); }
int get_nprocs() {
  using GetNprocs = int (*)();
  static const auto real = reinterpret_cast<GetNprocs>(dlsym(RTLD_NEXT, "get_nprocs"));
  return g_processors != 0 ? g_processors.load() : real();
}
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

// Runs `call` with its first allocation failing, then its second and so on, until none fails.
template <typename Call>
int fail_every_allocation(Call&& call) {
  for (int n = 0;; ++n) {
    g_failed = false;
    g_left = n;
    const mla_status status = call();
    g_left = -1;
    if (!g_failed) return n;
    EXPECT_TRUE(status == MLA_ERROR_OUT_OF_MEMORY || status == MLA_SUCCESS)
        << "allocation " << n << ": " << mla_status_name(status) << ": " << mla_last_error();
  }
}

TEST(Allocation, EveryFailureOfOpenIsAnError) {
  TestBundle files;
  for (int i = 0; i < 3; ++i) files.add("k" + std::to_string(i));
  const std::string path = files.path();
  files.write(1500000);                   // more than 4 MiB: checked by several threads
  mla_bundle_open("", nullptr, nullptr);  // this thread's last error is there
  for (const int processors : {1, 2, 8, 64}) {
    SCOPED_TRACE(processors);
    g_processors = processors;
    const int allocations = fail_every_allocation([&] {
      mla_bundle* bundle = nullptr;
      const mla_status status = mla_bundle_open(path.c_str(), nullptr, &bundle);
      const int left = g_left.exchange(-1);
      if (status == MLA_SUCCESS) {
        EXPECT_OK(mla_bundle_close(bundle));
      }
      EXPECT_EQ(status == MLA_SUCCESS, bundle != nullptr);
      g_left = left;
      return status;
    });
    EXPECT_GT(allocations, 20) << "the loader's allocations do not fail, so this test shows nothing";
  }
  g_processors = 0;
}

TEST(Allocation, EveryFailureOfAnErrorIsAnError) {
  TestBundle files;
  files.add("k");
  files.write();
  const Bundle bundle = open_bundle(files);
  const mla_problem nowhere = problem_for(7, 0);
  uint32_t index = 0;
  const auto call = [&] {
    const mla_status status = mla_select(bundle.get(), &nowhere, &index);
    return status == MLA_ERROR_NO_KERNEL ? MLA_SUCCESS : status;
  };
  EXPECT_GT(fail_every_allocation(call), 3);
}

}  // namespace
}  // namespace mla::test
