// SPDX-License-Identifier: Apache-2.0
//
// Preparation: once, on every device, in every context, from every thread, and after every failure
// of the driver.
#include <filesystem>
#include <set>
#include <thread>

#include "kernels/common/mla_params.h"
#include "loader/src/cuda_abi.h"
#include "manifest/sha256.h"
#include "tests/loader/loader_fixture.h"

namespace mla::test {
namespace {

class PrepareTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    files_.add("k");
    files_.write();
    bundle_ = open_bundle(files_);
  }

  mla_status prepare(mla_kernel** kernel, void* context = nullptr) {
    const mla_problem problem = any_problem();
    mla_prepare_options options = MLA_PREPARE_OPTIONS_INIT;
    options.context = context;
    return mla_prepare(bundle_.get(), &problem, &options, kernel);
  }
  std::string cubin() { return files_.file(files_.manifest().kernels[0].file); }

  TestBundle files_;
  Bundle bundle_;
  mla_kernel* kernel_ = nullptr;
};

constexpr const char* kPlace = "device 0 (compute capability 12.0)";

TEST_F(PrepareTest, LoadsChecksAndReports) {
  fake_set_max_clusters(0, 46);
  ASSERT_OK(prepare(&kernel_));
  mla_prepared_info info = MLA_PREPARED_INFO_INIT;
  ASSERT_OK(mla_kernel_get_info(kernel_, &info));
  EXPECT_EQ(info.kernel_index, 0u);
  EXPECT_EQ(info.device, 0);
  EXPECT_EQ(info.cc_major, 12);
  EXPECT_EQ(info.cc_minor, 0);
  EXPECT_EQ(info.sm_count, 188);
  EXPECT_EQ(info.max_workers, 46);
  EXPECT_EQ(info.workspace_bytes, 4096u + 1000 + 46 * 600000);
  EXPECT_EQ(info.workspace_alignment, 256u);
  EXPECT_EQ(fake_kernel_attribute(0, cuda::kFunctionMaxDynamicSharedSizeBytes), 100224);
  EXPECT_EQ(fake_kernel_attribute(0, cuda::kFunctionPreferredSharedMemoryCarveout), 100);
  EXPECT_EQ(fake_calls("cuLibraryLoadData"), 1);
  EXPECT_EQ(fake_calls("cuKernelGetFunction"), 1);
  EXPECT_EQ(fake_calls("cuFuncLoad"), 1);
  EXPECT_EQ(fake_calls("cuLaunchKernelEx"), 0);
  bundle_.reset();
  EXPECT_EQ(fake_live_libraries(), 0);
}

TEST_F(PrepareTest, NothingIsLoadedThatWasNotAskedFor) {
  files_.add("other", 120, "f").facts.rows = 64;
  files_.add("hopper", 90, "a");
  files_.write();
  bundle_ = open_bundle(files_);
  EXPECT_EQ(fake_all_calls(), 0);
  ASSERT_OK(prepare(&kernel_));
  EXPECT_EQ(fake_calls("cuLibraryLoadData"), 1);
  EXPECT_EQ(fake_live_libraries(), 1);
}

TEST_F(PrepareTest, OnceUnderSixteenThreads) {
  std::vector<mla_kernel*> kernels(16);
  std::vector<std::thread> threads;
  for (mla_kernel*& kernel : kernels) {
    threads.emplace_back([this, &kernel] {
      for (int i = 0; i < 20; ++i) EXPECT_OK(prepare(&kernel, context_));
      EXPECT_EQ(fake_pushed(), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake_calls("cuLibraryLoadData"), 1);
  EXPECT_EQ(fake_calls("cuLibraryGetKernel"), 1);
  EXPECT_EQ(std::set<mla_kernel*>(kernels.begin(), kernels.end()).size(), 1u);
}

TEST_F(PrepareTest, TwoDevices) {
  fake_set_device_count(2);
  fake_set_max_clusters(1, 12);
  fake_set_compute_capability(1, 12, 1);
  void* second = fake_new_context(1);
  mla_kernel* other = nullptr;
  ASSERT_OK(prepare(&kernel_));
  ASSERT_OK(prepare(&other, second));
  EXPECT_NE(kernel_, other);
  EXPECT_EQ(fake_current(), context_);
  mla_prepared_info info = MLA_PREPARED_INFO_INIT;
  ASSERT_OK(mla_kernel_get_info(other, &info));
  EXPECT_EQ(info.device, 1);
  EXPECT_EQ(info.cc_minor, 1);
  EXPECT_EQ(info.max_workers, 12);
  // One module, but attributes on each device: a device that was left out fails at its first launch.
  EXPECT_EQ(fake_calls("cuLibraryLoadData"), 1);
  for (const int device : {0, 1}) {
    EXPECT_EQ(fake_kernel_attribute(device, cuda::kFunctionMaxDynamicSharedSizeBytes), 100224);
    EXPECT_EQ(fake_kernel_attribute(device, cuda::kFunctionPreferredSharedMemoryCarveout), 100);
  }
  mla_kernel* again = nullptr;
  ASSERT_OK(prepare(&again, second));
  EXPECT_EQ(again, other);
}

TEST_F(PrepareTest, TwoContextsOfOneDevice) {
  void* second = fake_new_context(0);
  mla_kernel* other = nullptr;
  ASSERT_OK(prepare(&kernel_));
  ASSERT_OK(prepare(&other, second));
  EXPECT_NE(kernel_, other);
  EXPECT_EQ(fake_calls("cuLibraryLoadData"), 1);
  EXPECT_EQ(fake_calls("cuKernelSetAttribute"), 2) << "attributes are per device";
  EXPECT_EQ(fake_calls("cuFuncLoad"), 2) << "code is loaded per context";
}

TEST_F(PrepareTest, NewContextAtTheSameAddress) {
  ASSERT_OK(prepare(&kernel_));
  fake_renew_context(context_);
  mla_kernel* again = nullptr;
  ASSERT_OK(prepare(&again));
  EXPECT_NE(again, kernel_);
  EXPECT_EQ(fake_calls("cuFuncLoad"), 2);
}

TEST_F(PrepareTest, NoContext) {
  fake_set_current(nullptr);
  EXPECT_ERROR(
      prepare(&kernel_), MLA_ERROR_INVALID_ARGUMENT,
      "options.context is null and no CUDA context is current on this thread; give a context, or make one "
      "current first (cuCtxSetCurrent; with the runtime API cudaSetDevice)");
  EXPECT_OK(prepare(&kernel_, context_));
  EXPECT_EQ(fake_current(), nullptr);
}

TEST_F(PrepareTest, Arguments) {
  mla_problem problem = any_problem();
  mla_prepare_options options = MLA_PREPARE_OPTIONS_INIT;
  EXPECT_ERROR(mla_prepare(nullptr, &problem, &options, &kernel_), MLA_ERROR_INVALID_ARGUMENT,
               "bundle is null");
  EXPECT_ERROR(mla_prepare(bundle_.get(), nullptr, &options, &kernel_), MLA_ERROR_INVALID_ARGUMENT,
               "problem is null");
  EXPECT_ERROR(mla_prepare(bundle_.get(), &problem, &options, nullptr), MLA_ERROR_INVALID_ARGUMENT,
               "kernel is null");
  EXPECT_ERROR(mla_prepare_index(bundle_.get(), 1, nullptr, &kernel_), MLA_ERROR_INVALID_ARGUMENT,
               "index is 1; the bundle has 1 kernels");
  EXPECT_ERROR(mla_prepare_index(nullptr, 0, nullptr, &kernel_), MLA_ERROR_INVALID_ARGUMENT,
               "bundle is null");
  EXPECT_ERROR(mla_prepare_index(bundle_.get(), 0, nullptr, nullptr), MLA_ERROR_INVALID_ARGUMENT,
               "kernel is null");
  options.flags = 2;
  EXPECT_ERROR(mla_prepare(bundle_.get(), &problem, &options, &kernel_), MLA_ERROR_INVALID_ARGUMENT,
               "options.flags is 0x2; allowed: 0");
  EXPECT_ERROR(mla_prepare_index(bundle_.get(), 0, &options, &kernel_), MLA_ERROR_INVALID_ARGUMENT,
               "options.flags is 0x2; allowed: 0");
  problem.heads = 200;
  EXPECT_ERROR(mla_prepare(bundle_.get(), &problem, nullptr, &kernel_), MLA_ERROR_INVALID_ARGUMENT,
               "problem.heads is 200; allowed: 1 ... 128");
  mla_prepared_info info = MLA_PREPARED_INFO_INIT;
  EXPECT_ERROR(mla_kernel_get_info(nullptr, &info), MLA_ERROR_INVALID_ARGUMENT, "kernel is null");
  EXPECT_EQ(kernel_, nullptr);
}

TEST_F(PrepareTest, ComputeCapabilityOfTheProblem) {
  mla_problem problem = problem_for(12, 1);
  EXPECT_ERROR(
      mla_prepare(bundle_.get(), &problem, nullptr, &kernel_), MLA_ERROR_WRONG_DEVICE,
      "problem asks for compute capability 12.1; the context belongs to device 0 (compute capability 12.0)");
  problem = problem_for(12, 0);
  EXPECT_OK(mla_prepare(bundle_.get(), &problem, nullptr, &kernel_));
}

TEST_F(PrepareTest, NoKernelForTheDevice) {
  fake_set_compute_capability(0, 8, 9);
  EXPECT_ERROR(prepare(&kernel_), MLA_ERROR_NO_KERNEL,
               "no kernel for device 0 (compute capability 8.9) and this problem:\n"
               "passed over: k: built for sm_120f, which runs on compute capability 12.0 and later ones of "
               "its family, "
               "not on 8.9\n");
  EXPECT_ERROR(mla_prepare_index(bundle_.get(), 0, nullptr, &kernel_), MLA_ERROR_NO_KERNEL,
               "k: built for sm_120f, which runs on compute capability 12.0 and later ones of its family, "
               "not on device "
               "0 (compute capability 8.9)");
  EXPECT_EQ(fake_calls("cuLibraryLoadData"), 0);
}

TEST_F(PrepareTest, UnusableKernelByIndex) {
  files_.manifest().kernels[0].facts.params_bytes = 400;
  files_.write();
  bundle_ = open_bundle(files_);
  EXPECT_ERROR(mla_prepare_index(bundle_.get(), 0, nullptr, &kernel_), MLA_ERROR_NO_KERNEL,
               "k: its parameter struct has 400 bytes; this library passes 640");
}

// ---- limits ------------------------------------------------------------------------------------

TEST_F(PrepareTest, DeviceLimits) {
  const std::string intro = std::string("no kernel for this problem can be prepared on ") + kPlace + ":\n";
  const auto expect = [&](int attribute, int value, int good, const std::string& sentence) {
    fake_set_device_attribute(0, attribute, value);
    EXPECT_ERROR(prepare(&kernel_), MLA_ERROR_DEVICE_LIMIT, intro + sentence + "\n");
    EXPECT_ERROR(mla_prepare_index(bundle_.get(), 0, nullptr, &kernel_), MLA_ERROR_DEVICE_LIMIT, sentence);
    fake_set_device_attribute(0, attribute, good);
  };
  expect(
      cuda::kDeviceMaxSharedMemoryPerBlockOptin, 100000, 101376,
      std::string("k: needs 100224 bytes of shared memory per CTA, at most 100000 can be had on ") + kPlace);
  expect(cuda::kDeviceMaxThreadsPerBlock, 256, 1024,
         std::string("k: needs 384 threads per CTA, at most 256 can be had on ") + kPlace);
  expect(cuda::kDeviceClusterLaunch, 0, 1,
         std::string("k: needs thread block clusters, which cannot be had on ") + kPlace);
  expect(cuda::kDeviceTensorMapAccessSupported, 0, 1,
         std::string("k: needs tensor maps (TMA), which cannot be had on ") + kPlace);
  EXPECT_EQ(fake_calls("cuLibraryLoadData"), 0);
  fake_set_max_clusters(0, 0);
  EXPECT_ERROR(
      mla_prepare_index(bundle_.get(), 0, nullptr, &kernel_), MLA_ERROR_DEVICE_LIMIT,
      std::string(
          "k: no cluster of 4 CTAs of 384 threads and 100224 bytes of dynamic shared memory fits on ") +
          kPlace);
  EXPECT_EQ(fake_live_libraries(), 0);
  fake_set_max_clusters(0, 5);
  EXPECT_OK(prepare(&kernel_));
}

TEST_F(PrepareTest, WorkersAreBoundedByTheKernelsOwnLimit) {
  fake_set_max_clusters(0, 100000);
  ASSERT_OK(prepare(&kernel_));
  mla_prepared_info info = MLA_PREPARED_INFO_INIT;
  ASSERT_OK(mla_kernel_get_info(kernel_, &info));
  EXPECT_EQ(info.max_workers, 256) << "as many as the kernel says";
  EXPECT_EQ(info.workspace_bytes, 4096u + 1000 + 256 * 600000);
}

// ---- the manifest against the driver -----------------------------------------------------------

TEST_F(PrepareTest, ManifestMustBeTrue) {
  const auto expect = [&](int attribute, int value, int good, const std::string& what) {
    fake_set_function_attribute(attribute, value);
    EXPECT_ERROR(prepare(&kernel_), MLA_ERROR_INVALID_BUNDLE, cubin() + ": manifest.json says " + what);
    fake_set_function_attribute(attribute, good);
    EXPECT_EQ(fake_live_libraries(), 0);
  };
  expect(cuda::kFunctionNumRegs, 200, 168, "168 registers per thread of k, the driver says 200");
  expect(cuda::kFunctionSharedSizeBytes, 2048, 0,
         "0 bytes of static shared memory of k, the driver says 2048");
  expect(cuda::kFunctionMaxThreadsPerBlock, 256, 384, "384 threads per CTA of k, the driver says 256");
  expect(cuda::kFunctionRequiredClusterWidth, 2, 4, "4 CTAs per cluster of k, the driver says 2");
  fake_set_params(1, 648);
  EXPECT_ERROR(prepare(&kernel_), MLA_ERROR_INVALID_BUNDLE,
               cubin() + ": manifest.json says 640 bytes of parameters of k, the driver says 648");
  fake_set_params(1, 640);
  // Drivers may count the kilobyte that the system takes.
  fake_set_function_attribute(cuda::kFunctionSharedSizeBytes, 1024);
  EXPECT_OK(prepare(&kernel_));
}

TEST_F(PrepareTest, FileIsCheckedAgain) {
  // Changed after the bundle was opened; and never checked before.
  for (const uint32_t flags : {0u, MLA_OPEN_SKIP_HASH}) {
    files_.write();
    bundle_ = open_bundle(files_, flags);
    std::string bytes = read_text(cubin());
    bytes[300] ^= 1;
    write_text(cubin(), bytes);
    EXPECT_ERROR(prepare(&kernel_), MLA_ERROR_INVALID_BUNDLE,
                 cubin() + ": has sha256 " + sha256_hex(bytes) + "; manifest.json says " +
                     files_.manifest().kernels[0].sha256 + " at /kernels/0/sha256");
    EXPECT_EQ(fake_calls("cuLibraryLoadData"), 0);
    files_.write();
    EXPECT_OK(prepare(&kernel_)) << "a mended file is taken";
    bundle_.reset();
    fake_reset();
    fake_set_current(context_ = fake_new_context(0));
  }
}

// The folder that was opened is gone and another lies in its place: an identical copy serves, another
// bundle is named as what it is.
TEST_F(PrepareTest, FolderThatWasReplaced) {
  const std::string path = files_.path(), aside = path + "_aside";
  const auto replace = [&](const std::filesystem::path& by) {
    std::filesystem::rename(path, aside);
    std::filesystem::copy(by, path, std::filesystem::copy_options::recursive);
    std::filesystem::remove_all(aside);
  };
  const std::string copy = path + "_copy";
  std::filesystem::copy(path, copy, std::filesystem::copy_options::recursive);
  replace(copy);
  std::filesystem::remove_all(copy);
  EXPECT_OK(prepare(&kernel_));

  bundle_ = open_bundle(files_);
  const std::string opened = sha256_hex(read_text(files_.file("manifest.json")));
  TestBundle other;
  other.add("other");
  other.write();
  replace(other.path());
  const std::string now = sha256_hex(read_text(files_.file("manifest.json")));
  mla_kernel* kernel = nullptr;
  EXPECT_ERROR(prepare(&kernel), MLA_ERROR_INVALID_BUNDLE,
               files_.file("manifest.json") + ": has sha256 " + now + ", and " + opened +
                   " when the bundle was opened: it was replaced by another bundle since; open it again");
  std::filesystem::remove_all(path);
  EXPECT_ERROR(prepare(&kernel), MLA_ERROR_IO,
               cubin() + ": cannot be opened: No such file or directory (errno 2)");
}

TEST_F(PrepareTest, ErrorBuffer) {
  char buffer[128] = "#";
  mla_problem problem = any_problem();
  mla_prepare_options options = MLA_PREPARE_OPTIONS_INIT;
  options.error = buffer;
  options.error_size = sizeof buffer;
  problem.heads = 200;
  EXPECT_EQ(mla_prepare(bundle_.get(), &problem, &options, &kernel_), MLA_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(buffer, "problem.heads is 200; allowed: 1 ... 128");
  EXPECT_EQ(mla_prepare_index(bundle_.get(), 7, &options, &kernel_), MLA_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(buffer, "index is 7; the bundle has 1 kernels");
  // Without options that of the problem serves.
  char of_problem[128] = "#";
  problem.error = of_problem;
  problem.error_size = sizeof of_problem;
  EXPECT_EQ(mla_prepare(bundle_.get(), &problem, nullptr, &kernel_), MLA_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(of_problem, "problem.heads is 200; allowed: 1 ... 128");
  uint32_t index = 0;
  problem = problem_for(8, 0);
  problem.error = of_problem;
  problem.error_size = sizeof of_problem;
  EXPECT_EQ(mla_select(bundle_.get(), &problem, &index), MLA_ERROR_NO_KERNEL);
  EXPECT_EQ(std::string(of_problem), std::string(mla_last_error()).substr(0, sizeof of_problem - 1));
}

// ---- failures of the driver --------------------------------------------------------------------

struct Failure {
  const char* function;
  int nth;
  const char* call;  // as the message names it
};

// Every call that preparing makes, in order.
const Failure kFailures[] = {
    {"cuCtxGetCurrent", 1, "cuCtxGetCurrent"},
    {"cuCtxGetId", 1, "cuCtxGetId"},
    {"cuCtxGetDevice", 1, "cuCtxGetDevice"},
    {"cuDeviceGetAttribute", 1, "cuDeviceGetAttribute(COMPUTE_CAPABILITY_MAJOR)"},
    {"cuDeviceGetAttribute", 2, "cuDeviceGetAttribute(COMPUTE_CAPABILITY_MINOR)"},
    {"cuDeviceGetAttribute", 3, "cuDeviceGetAttribute(MULTIPROCESSOR_COUNT)"},
    {"cuDeviceGetAttribute", 4, "cuDeviceGetAttribute(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)"},
    {"cuDeviceGetAttribute", 5, "cuDeviceGetAttribute(MAX_THREADS_PER_BLOCK)"},
    {"cuDeviceGetAttribute", 6, "cuDeviceGetAttribute(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)"},
    {"cuDeviceGetAttribute", 7, "cuDeviceGetAttribute(MAX_THREADS_PER_MULTIPROCESSOR)"},
    {"cuDeviceGetAttribute", 8, "cuDeviceGetAttribute(MAX_REGISTERS_PER_MULTIPROCESSOR)"},
    {"cuDeviceGetAttribute", 9, "cuDeviceGetAttribute(MAX_BLOCKS_PER_MULTIPROCESSOR)"},
    {"cuDeviceGetAttribute", 10, "cuDeviceGetAttribute(CLUSTER_LAUNCH)"},
    {"cuDeviceGetAttribute", 11, "cuDeviceGetAttribute(TENSOR_MAP_ACCESS_SUPPORTED)"},
    {"cuStreamIsCapturing", 1, "cuStreamIsCapturing"},
    {"cuThreadExchangeStreamCaptureMode", 1, "cuThreadExchangeStreamCaptureMode"},
    {"cuLibraryLoadData", 1, "k: cuLibraryLoadData"},
    {"cuLibraryGetKernel", 1, "k: cuLibraryGetKernel"},
    {"cuKernelSetAttribute", 1, "k: cuKernelSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES)"},
    {"cuKernelSetAttribute", 2, "k: cuKernelSetAttribute(PREFERRED_SHARED_MEMORY_CARVEOUT)"},
    {"cuKernelGetAttribute", 1, "k: cuKernelGetAttribute(NUM_REGS)"},
    {"cuKernelGetAttribute", 2, "k: cuKernelGetAttribute(SHARED_SIZE_BYTES)"},
    {"cuKernelGetAttribute", 3, "k: cuKernelGetAttribute(MAX_THREADS_PER_BLOCK)"},
    {"cuKernelGetAttribute", 4, "k: cuKernelGetAttribute(REQUIRED_CLUSTER_WIDTH)"},
    {"cuKernelGetAttribute", 5, "k: cuKernelGetAttribute(REQUIRED_CLUSTER_HEIGHT)"},
    {"cuKernelGetAttribute", 6, "k: cuKernelGetAttribute(REQUIRED_CLUSTER_DEPTH)"},
    {"cuKernelGetParamInfo", 1, "k: cuKernelGetParamInfo"},
    {"cuKernelGetFunction", 1, "k: cuKernelGetFunction"},
    {"cuFuncLoad", 1, "k: cuFuncLoad"},
    {"cuOccupancyMaxActiveClusters", 1, "k: cuOccupancyMaxActiveClusters"},
};

TEST_F(PrepareTest, EveryFailureIsToldAndCanBeRepeated) {
  int calls = 0;
  for (const Failure& failure : kFailures) {
    SCOPED_TRACE(testing::Message() << failure.function << " " << failure.nth);
    bundle_ = open_bundle(files_);
    fake_fail(failure.function, failure.nth, 999);
    const bool of_kernel = failure.call[0] == 'k';
    EXPECT_ERROR(prepare(&kernel_), MLA_ERROR_DRIVER,
                 std::string(failure.call) + " failed: 999 CUDA_ERROR_UNKNOWN" +
                     (of_kernel ? " on " + std::string(kPlace) : ""));
    EXPECT_EQ(kernel_, nullptr);
    EXPECT_EQ(fake_live_libraries(), 0) << "something stayed loaded";
    EXPECT_EQ(fake_pushed(), 0);
    EXPECT_EQ(fake_capture_mode(), 0);
    ASSERT_OK(prepare(&kernel_)) << "the call could not be repeated";
    kernel_ = nullptr;
    ++calls;
  }
  EXPECT_EQ(calls, 30);
}

// The table above is complete: a successful first preparation makes these calls and no others.
TEST_F(PrepareTest, EveryCallIsInTheTable) {
  fake_fail("cuLibraryUnload", 1, 999);  // and the exit is not part of it
  const int before = fake_all_calls();
  ASSERT_OK(prepare(&kernel_));
  int known = 0;
  std::set<std::string> names;
  for (const Failure& failure : kFailures) names.insert(failure.function);
  for (const std::string& name : names) known += fake_calls(name.c_str());
  // The first preparation of the process also binds: cuInit, cuDriverGetVersion.
  known += fake_calls("cuInit") + fake_calls("cuDriverGetVersion");
  EXPECT_EQ(fake_all_calls() - before, known);
  EXPECT_ERROR(mla_bundle_close(bundle_.release()), MLA_ERROR_DRIVER,
               "cuLibraryUnload failed: 999 CUDA_ERROR_UNKNOWN");
}

TEST_F(PrepareTest, GivenContextThatCannotBeEntered) {
  fake_set_current(nullptr);
  fake_fail("cuCtxPushCurrent", 1, 201);
  EXPECT_ERROR(prepare(&kernel_, context_), MLA_ERROR_DRIVER, "cuCtxPushCurrent failed: 201");
}

TEST_F(PrepareTest, UnloadAfterTheDriverHasGone) {
  ASSERT_OK(prepare(&kernel_));
  fake_fail("cuLibraryUnload", 1, 4);
  EXPECT_OK(mla_bundle_close(bundle_.release()));
}

TEST_F(PrepareTest, FailureOnASecondDeviceLeavesTheFirst) {
  fake_set_device_count(2);
  void* second = fake_new_context(1);
  ASSERT_OK(prepare(&kernel_));
  mla_kernel* other = nullptr;
  fake_fail("cuFuncLoad", 1, 2);
  EXPECT_ERROR(prepare(&other, second), MLA_ERROR_DRIVER,
               "k: cuFuncLoad failed: 2 CUDA_ERROR_OUT_OF_MEMORY on device 1 (compute capability 12.0)");
  EXPECT_EQ(fake_live_libraries(), 1);
  mla_kernel* again = nullptr;
  EXPECT_OK(prepare(&again));
  EXPECT_EQ(again, kernel_);
  EXPECT_OK(prepare(&other, second));
}

// ---- refusals ----------------------------------------------------------------------------------

class RefusalTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    files_.add("arch", 120, "a").symbol = "symbol_arch";
    files_.add("family", 120, "f").symbol = "symbol_family";
    files_.write();
    bundle_ = open_bundle(files_);
  }
  std::string prepared_id() {
    mla_prepared_info info = MLA_PREPARED_INFO_INIT;
    EXPECT_OK(mla_kernel_get_info(kernel_, &info));
    return files_.manifest().kernels[info.kernel_index].id;
  }
  mla_status prepare() {
    const mla_problem problem = any_problem();
    return mla_prepare(bundle_.get(), &problem, nullptr, &kernel_);
  }
  TestBundle files_;
  Bundle bundle_;
  mla_kernel* kernel_ = nullptr;
};

TEST_F(RefusalTest, NextCandidateForEveryRefusal) {
  for (const int result : {200, 209, 218, 222}) {
    for (const char* function :
         {"cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction", "cuFuncLoad"}) {
      fake_reset();
      fake_set_current(context_ = fake_new_context(0));
      bundle_ = open_bundle(files_);
      fake_refuse(function, "symbol_arch", result);
      ASSERT_OK(prepare()) << function << " " << result;
      EXPECT_EQ(prepared_id(), "family");
      EXPECT_EQ(fake_live_libraries(), 1) << "the refused module stayed loaded";
      // Later calls find what is prepared and do not try the refused one again.
      const int loads = fake_calls("cuLibraryLoadData");
      ASSERT_OK(prepare());
      EXPECT_EQ(prepared_id(), "family");
      EXPECT_EQ(fake_calls("cuLibraryLoadData"), loads);
      bundle_.reset();
    }
  }
  bundle_ = open_bundle(files_);
}

TEST_F(RefusalTest, OtherErrorsAreNotPassedOver) {
  for (const int result : {1, 2, 999}) {
    fake_refuse("cuLibraryLoadData", "symbol_arch", result);
    EXPECT_EQ(prepare(), MLA_ERROR_DRIVER);
    fake_reset();
    fake_set_current(context_ = fake_new_context(0));
  }
}

TEST_F(RefusalTest, AllRefusalsAreReported) {
  fake_refuse("cuLibraryLoadData", "symbol_arch", 209);
  fake_refuse("cuFuncLoad", "symbol_family", 200);
  const std::string arch =
      "arch: cuLibraryLoadData failed: 209 CUDA_ERROR_NO_BINARY_FOR_GPU, no kernel image is available for "
      "execution on "
      "the device on device 0 (compute capability 12.0); built by toolkit 13.0.88 for drivers from 580.65.06 "
      "on, this "
      "driver supports CUDA 13.0";
  EXPECT_ERROR(
      prepare(), MLA_ERROR_NO_KERNEL,
      "no kernel for this problem can be prepared on device 0 (compute capability 12.0):\n" + arch +
          "\nfamily: cuFuncLoad failed: 200 CUDA_ERROR_INVALID_IMAGE on device 0 (compute capability 12.0); "
          "built by toolkit 13.0.88 for drivers from 580.65.06 on, this driver supports CUDA 13.0\n");
  EXPECT_EQ(fake_live_libraries(), 0);
  EXPECT_ERROR(mla_prepare_index(bundle_.get(), 0, nullptr, &kernel_), MLA_ERROR_DRIVER, arch);
}

TEST_F(RefusalTest, DeviceLimitIsPassedOverToo) {
  files_.manifest().kernels[1].facts.dynamic_smem = 90000;
  files_.write();
  bundle_ = open_bundle(files_);
  fake_set_device_attribute(0, cuda::kDeviceMaxSharedMemoryPerBlockOptin, 99000);
  ASSERT_OK(prepare());
  EXPECT_EQ(prepared_id(), "family");
}

// ---- stream capture ----------------------------------------------------------------------------

TEST_F(PrepareTest, CaptureBeforePrepare) {
  fake_set_capture(kFakeCaptureBlocking);
  EXPECT_ERROR(prepare(&kernel_), MLA_ERROR_NOT_PREPARED,
               "a kernel cannot be loaded while a stream is captured (cuStreamIsCapturing failed: 906 "
               "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT): call mla_prepare before the capture begins");
  fake_set_capture(kFakeCapturePerThread);
  EXPECT_ERROR(
      prepare(&kernel_), MLA_ERROR_NOT_PREPARED,
      "a kernel cannot be loaded while a stream is captured (the default stream of this thread): call "
      "mla_prepare before the capture begins");
  EXPECT_EQ(fake_calls("cuLibraryLoadData"), 0) << "loading would have broken the capture";
  fake_set_capture(kFakeCaptureStrict);
  EXPECT_ERROR(prepare(&kernel_), MLA_ERROR_NOT_PREPARED,
               "a kernel cannot be loaded while a stream is captured (cuLibraryLoadData failed: 900 "
               "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED): call mla_prepare before the capture begins");
  EXPECT_EQ(kernel_, nullptr);
  // One on a non-blocking stream, this thread's own too, cannot be seen and is not disturbed: the load is
  // made in the relaxed mode, as the header says.
  fake_set_capture(kFakeCaptureHidden);
  EXPECT_OK(prepare(&kernel_));
}

TEST_F(PrepareTest, PreparedKernelIsFoundDuringCapture) {
  ASSERT_OK(prepare(&kernel_));
  fake_set_capture(kFakeCaptureBlocking);
  mla_kernel* again = nullptr;
  EXPECT_OK(prepare(&again));
  EXPECT_EQ(again, kernel_);
}

}  // namespace
}  // namespace mla::test
