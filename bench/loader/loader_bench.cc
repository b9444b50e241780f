// SPDX-License-Identifier: Apache-2.0
//
// Host times of the loader, with Google Benchmark:
//
//   open      a bundle of 500 kernels of 115 KB, written on the fly, with and without hashing
//   select    among 500 kernels
//   launch    mla_launch against a bare cuLaunchKernelEx of the same kernel with ready parameters
//
//   loader_bench [--fake] [--bundle FOLDER] [Google Benchmark's options]
//
// Launches run on whatever driver the loader finds (MLA_CUDA_DRIVER_PATH, else libcuda.so.1), on
// device 0 with the bundle given (else MLA_BUNDLE_PATH). --fake takes the fake driver of the tests,
// which executes nothing, with a bundle written on the fly: then `launch` is the loader's own time.
#include <benchmark/benchmark.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "loader/include/mla_loader.h"
#include "loader/src/cuda_abi.h"
#include "loader/src/params.h"
#include "manifest/manifest.h"
#include "tests/loader/test_bundle.h"

namespace {

namespace cuda = mla::cuda;
using mla::test::TestBundle;

constexpr int kKernels = 500;
constexpr size_t kCubinBytes = 115000;

std::string g_bundle_path;  // of the launches; "": MLA_BUNDLE_PATH

[[noreturn]] void die(const std::string& message) {
  std::fprintf(stderr, "loader_bench: %s\n", message.c_str());
  std::exit(1);
}

void check(mla_status status) {
  if (status != MLA_SUCCESS) die(std::string(mla_status_name(status)) + ": " + mla_last_error());
}

// 500 kernels of every target and row tile, so that a selection passes many over.
TestBundle& large_bundle() {
  static TestBundle files;
  if (!files.manifest().kernels.empty()) return files;
  const std::pair<uint32_t, const char*> targets[] = {
      {120, "f"}, {120, "a"}, {121, "a"}, {90, "a"}, {100, "f"}};
  for (int i = 0; i < kKernels; ++i) {
    const auto& [sm, suffix] = targets[i % 5];
    mla::manifest::Kernel& kernel = files.add("kernel_" + std::to_string(i), sm, suffix);
    kernel.facts.rows = i < kKernels / 2 ? 64 : 128;
    kernel.facts.tile_cost = static_cast<uint32_t>(1000 + i);
    kernel.facts.priority = i;
  }
  files.write(kCubinBytes);
  return files;
}

void open_bundle(benchmark::State& state, uint32_t flags) {
  const std::string path = large_bundle().path();
  mla_open_options options = MLA_OPEN_OPTIONS_INIT;
  options.flags = flags;
  for (auto _ : state) {
    mla_bundle* bundle = nullptr;
    check(mla_bundle_open(path.c_str(), &options, &bundle));
    state.PauseTiming();
    check(mla_bundle_close(bundle));
    state.ResumeTiming();
  }
}

void BM_open(benchmark::State& state) { open_bundle(state, 0); }
BENCHMARK(BM_open)->Unit(benchmark::kMillisecond)->UseRealTime();

void BM_open_skip_hash(benchmark::State& state) { open_bundle(state, MLA_OPEN_SKIP_HASH); }
BENCHMARK(BM_open_skip_hash)->Unit(benchmark::kMillisecond)->UseRealTime();

// The argument is the number of heads: every kernel of the best target is compared, whatever it is.
// -1: a kernel that is not there (with the message that lists all reasons).
void BM_select(benchmark::State& state) {
  mla_open_options options = MLA_OPEN_OPTIONS_INIT;
  options.flags = MLA_OPEN_SKIP_HASH;
  mla_bundle* bundle = nullptr;
  check(mla_bundle_open(large_bundle().path().c_str(), &options, &bundle));
  mla_problem problem = MLA_PROBLEM_INIT;
  problem.cc_major = 12;
  problem.heads = state.range(0) < 0 ? 128 : static_cast<int32_t>(state.range(0));
  if (state.range(0) < 0) problem.page_size = 1;
  uint32_t index = 0;
  const mla_status expected = state.range(0) < 0 ? MLA_ERROR_NO_KERNEL : MLA_SUCCESS;
  for (auto _ : state) {
    if (mla_select(bundle, &problem, &index) != expected) state.SkipWithError(mla_last_error());
    benchmark::DoNotOptimize(index);
  }
  check(mla_bundle_close(bundle));
}
BENCHMARK(BM_select)->ArgName("heads")->Arg(16)->Arg(128)->Arg(-1);

// The 500 kernels all for one target: row tiles from 1 to 125 with four costs each, all of which fit;
// the cheapest comes last.
void BM_select_one_target(benchmark::State& state) {
  TestBundle files;
  for (int i = 0; i < kKernels; ++i) {
    mla::cubin::Facts& facts = files.add("kernel_" + std::to_string(i)).facts;
    facts.rows = static_cast<uint32_t>(i / 4 + 1);
    facts.tile_cost = i + 1 < kKernels ? static_cast<uint32_t>(20000 - i) : 1;
  }
  files.write();
  mla_bundle* bundle = nullptr;
  check(mla_bundle_open(files.path().c_str(), nullptr, &bundle));
  mla_problem problem = MLA_PROBLEM_INIT;
  problem.cc_major = 12;
  problem.heads = 128;
  uint32_t index = 0;
  for (auto _ : state) {
    check(mla_select(bundle, &problem, &index));
    benchmark::DoNotOptimize(index);
  }
  if (index != kKernels - 1) state.SkipWithError("another kernel was selected");
  check(mla_bundle_close(bundle));
}
BENCHMARK(BM_select_one_target);

// ---- launch ------------------------------------------------------------------------------------

// The driver as an application uses it, beside the loader's own binding.
struct Driver {
#define MLA_MEMBER(name, version, ...) cuda::name##Function name = nullptr;
  MLA_CUDA_REQUIRED(MLA_MEMBER)
#undef MLA_MEMBER
  cuda::Result (*cuDeviceGet)(cuda::Device*, int) = nullptr;
  cuda::Result (*cuDevicePrimaryCtxRetain)(cuda::Context*, cuda::Device) = nullptr;
  cuda::Result (*cuCtxSetCurrent)(cuda::Context) = nullptr;
  cuda::Result (*cuStreamCreate)(cuda::Stream*, unsigned) = nullptr;
  cuda::Result (*cuStreamSynchronize)(cuda::Stream) = nullptr;
  cuda::Result (*cuMemAlloc)(cuda::DevicePtr*, size_t) = nullptr;

  // "" or why there is none.
  std::string load() {
    const char* path = std::getenv("MLA_CUDA_DRIVER_PATH");
    void* library = dlopen(path != nullptr ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return dlerror();
    using ProcAddress = cuda::Result (*)(const char*, void**, int, uint64_t, int*);
    const auto proc_address = reinterpret_cast<ProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
    if (proc_address == nullptr) return "the driver has no cuGetProcAddress_v2";
    std::string missing;
    const auto find = [&](auto* function, const char* name, int version) {
      int query = 0;
      void* found = nullptr;
      const cuda::Result result = proc_address(name, &found, version, cuda::kProcAddressLegacyStream, &query);
      if (result != cuda::kSuccess || found == nullptr) missing += std::string(" ") + name;
      *reinterpret_cast<void**>(function) = found;
    };
#define MLA_FIND(name, version, ...) find(&name, #name, version);
    MLA_CUDA_REQUIRED(MLA_FIND)
#undef MLA_FIND
    find(&cuDeviceGet, "cuDeviceGet", 2000);
    find(&cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000);
    find(&cuCtxSetCurrent, "cuCtxSetCurrent", 4000);
    find(&cuStreamCreate, "cuStreamCreate", 2000);
    find(&cuStreamSynchronize, "cuStreamSynchronize", 2000);
    find(&cuMemAlloc, "cuMemAlloc", 3020);
    return missing.empty() ? "" : "the driver lacks" + missing;
  }
};

void check_driver(cuda::Result result, const char* call) {
  if (result != cuda::kSuccess) die(std::string(call) + " failed: " + std::to_string(result));
}
#define CHECK_DRIVER(call) check_driver(driver.call, #call)

// One kernel, prepared by the loader and loaded once more by hand.
struct LaunchSetup {
  Driver driver;
  std::unique_ptr<TestBundle> files;
  mla_bundle* bundle = nullptr;
  mla_kernel* kernel = nullptr;
  cuda::Stream stream = nullptr;
  mla_launch_args args = MLA_LAUNCH_ARGS_INIT;
  cuda::Kernel bare_kernel = nullptr;
  cuda::LaunchConfig config{};
  mla::loader::ParamsBuffer params{};

  // "" or why launches cannot be measured here.
  std::string set_up();

  void launch_bare() {
    void* arguments[] = {params.bytes};
    CHECK_DRIVER(
        cuLaunchKernelEx(&config, reinterpret_cast<cuda::Function>(bare_kernel), arguments, nullptr));
  }
  void launch_checked() { check(mla_launch(kernel, &args, stream)); }
};

// Parameters for the bare launch, from the function that the loader uses.
std::string fill_params(LaunchSetup& setup, const mla_kernel_info& info, const mla_prepared_info& prepared) {
  const std::string path = g_bundle_path + "/manifest.json";
  mla::manifest::Manifest manifest;
  if (const mla::Status status = mla::manifest::parse(mla::test::read_text(path), path, &manifest);
      !status.ok()) {
    return status.message();
  }
  mla_bundle_info bundle = MLA_BUNDLE_INFO_INIT;
  check(mla_bundle_get_info(setup.bundle, &bundle));
  const mla::manifest::Kernel& kernel = manifest.kernels.at(prepared.kernel_index);
  const mla::loader::ParamsFunction* function =
      mla::loader::find_params(kernel.facts.params_struct, kernel.facts.params_version);
  if (function == nullptr || function->decode == nullptr)
    return std::string(info.id) + " is no decode kernel";
  const mla::loader::Driver* driver = nullptr;
  if (const mla::loader::Error error = mla::loader::Driver::get(&driver); !error.ok()) return error.message();
  const mla::loader::ParamsTarget target = {
      &kernel.facts,
      kernel.id,
      driver,
      prepared.device,
      mla::align_up(bundle.workspace_zeroed_bytes, mla::kWorkspaceAlign),
      prepared.workspace_bytes};
  mla::loader::Error error = function->decode(target, setup.args, setup.params.bytes);
  if (error.ok() && function->encode != nullptr) error = function->encode(target, setup.params.bytes);
  return error.ok() ? "" : error.message();
}

std::string LaunchSetup::set_up() {
  if (std::string reason = driver.load(); !reason.empty()) return reason;
  if (const cuda::Result result = driver.cuInit(0); result != cuda::kSuccess) {
    return "cuInit failed: " + std::to_string(result);
  }
  const char* variable = std::getenv("MLA_BUNDLE_PATH");
  if (g_bundle_path == "fake") {
    files = std::make_unique<TestBundle>();
    files->add("k");
    files->write();
    g_bundle_path = files->path();
  } else if (g_bundle_path.empty()) {
    if (variable == nullptr) return "no bundle: give --bundle or set MLA_BUNDLE_PATH (or take --fake)";
    g_bundle_path = variable;
  }
  cuda::Device device = 0;
  cuda::Context context = nullptr;
  CHECK_DRIVER(cuDeviceGet(&device, 0));
  CHECK_DRIVER(cuDevicePrimaryCtxRetain(&context, device));
  CHECK_DRIVER(cuCtxSetCurrent(context));
  CHECK_DRIVER(cuStreamCreate(&stream, 1));

  check(mla_bundle_open(g_bundle_path.c_str(), nullptr, &bundle));
  mla_problem problem = MLA_PROBLEM_INIT;
  problem.heads = 16;
  if (mla_prepare(bundle, &problem, nullptr, &kernel) != MLA_SUCCESS) return mla_last_error();
  mla_prepared_info prepared = MLA_PREPARED_INFO_INIT;
  mla_kernel_info info = MLA_KERNEL_INFO_INIT;
  check(mla_kernel_get_info(kernel, &prepared));
  check(mla_bundle_get_kernel(bundle, prepared.kernel_index, &info));

  // A problem so small that the device keeps up with the host.
  const auto allocate = [&](size_t bytes) {
    cuda::DevicePtr address = 0;
    CHECK_DRIVER(cuMemAlloc(&address, bytes));
    CHECK_DRIVER(cuMemsetD8Async(address, 0, bytes, stream));
    return static_cast<uint64_t>(address);
  };
  const size_t element = info.kv_dtype == MLA_DTYPE_E4M3 ? 1 : 2;
  args.batch = args.q_len = args.max_pages_per_seq = 1;
  args.pages = 1;
  args.heads = problem.heads;
  args.page_size = std::max(64, info.page_size_multiple);
  args.softmax_scale = 1.0f;
  args.q = allocate(static_cast<size_t>(args.heads) * 576 * 2);
  args.kv = allocate(static_cast<size_t>(args.page_size) * 576 * element);
  args.page_table = allocate(4);
  args.seq_lens = allocate(4);
  args.out = allocate(static_cast<size_t>(args.heads) * 512 * 2);
  args.workspace_bytes = prepared.workspace_bytes;
  args.workspace = allocate(std::max<uint64_t>(prepared.workspace_bytes, 256));
  check(mla_workspace_init(bundle, args.workspace, args.workspace_bytes, stream));
  CHECK_DRIVER(cuStreamSynchronize(stream));

  const std::string image = mla::test::read_text(g_bundle_path + "/" + info.file);
  cuda::Library library = nullptr;
  CHECK_DRIVER(cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CHECK_DRIVER(cuLibraryGetKernel(&bare_kernel, library, info.symbol));
  CHECK_DRIVER(
      cuKernelSetAttribute(cuda::kFunctionMaxDynamicSharedSizeBytes, info.dynamic_smem, bare_kernel, device));
  // The same parameters as the loader's own, made once by the loader's own code.
  if (std::string reason = fill_params(*this, info, prepared); !reason.empty()) return reason;
  config.grid_x = static_cast<unsigned>(prepared.max_workers * info.cluster_size);
  config.grid_y = config.grid_z = 1;
  config.block_x = static_cast<unsigned>(info.threads);
  config.block_y = config.block_z = 1;
  config.shared_bytes = static_cast<unsigned>(info.dynamic_smem);
  config.stream = stream;
  return "";
}

LaunchSetup* launch_setup(std::string* reason) {
  static std::string why;
  static LaunchSetup* const setup = [] {
    auto made = std::make_unique<LaunchSetup>();
    why = made->set_up();
    return why.empty() ? made.release() : nullptr;
  }();
  *reason = why;
  return setup;
}

// Seconds a launch. Batches are shorter than the driver's queue, which is empty when one begins, so
// the time is the host's alone.
constexpr int kBatch = 100;
template <typename Launch>
double time_batch(LaunchSetup& setup, Launch&& launch) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kBatch; ++i) launch();
  const auto end = std::chrono::steady_clock::now();
  check_driver(setup.driver.cuStreamSynchronize(setup.stream), "cuStreamSynchronize");
  return std::chrono::duration<double>(end - begin).count() / kBatch;
}

// Bare and checked launches in turn; the time is that of mla_launch, counters give both and the
// difference in microseconds, medians over the batches.
void BM_launch(benchmark::State& state) {
  std::string reason;
  LaunchSetup* const setup = launch_setup(&reason);
  if (setup == nullptr) {
    state.SkipWithError(reason.c_str());
    return;
  }
  std::vector<double> bare, checked;
  for (auto _ : state) {
    bare.push_back(time_batch(*setup, [&] { setup->launch_bare(); }));
    checked.push_back(time_batch(*setup, [&] { setup->launch_checked(); }));
    state.SetIterationTime(checked.back());
  }
  const auto median_us = [](std::vector<double>& values) {
    std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
    return values[values.size() / 2] * 1e6;
  };
  state.counters["bare_us"] = median_us(bare);
  state.counters["launch_us"] = median_us(checked);
  state.counters["over_us"] = median_us(checked) - median_us(bare);
}
BENCHMARK(BM_launch)->UseManualTime()->Unit(benchmark::kMicrosecond)->MinTime(0.002);

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    if (std::strcmp(argv[i], "--fake") == 0) {
      setenv("MLA_CUDA_DRIVER_PATH", MLA_FAKE_CUDA_FILE, 1);
      g_bundle_path = "fake";
    } else if (std::strcmp(argv[i], "--bundle") == 0 && i + 1 < argc) {
      g_bundle_path = argv[++i];
    } else {
      rest.push_back(argv[i]);
    }
  }
  int count = static_cast<int>(rest.size());
  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
