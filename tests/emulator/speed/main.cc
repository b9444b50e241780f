// SPDX-License-Identifier: Apache-2.0
//
// mla-emu-speed: how fast the emulated driver executes the kernels of a bundle. One decode launch per
// kernel; prints instructions, processor seconds and the rate, with date and processor, as a Markdown table.
#include <dlfcn.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "tests/regression/decode_runner.h"

namespace mla::test {
namespace {

struct Options {
  std::string driver, loader, bundle;
  int batch = 4;
  int seq_len = 1024;
  int repeats = 3;
  bool profile = false;
};

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

struct Statistics {
  uint64_t warp_instructions = 0, lane_instructions = 0;
  double seconds = 0;  // of processor time: launches run in the thread that submits them
};

double processor_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

int run(const Options& options) {
  if (options.profile) setenv("MLA_EMU_PROFILE", "1", 1);
  void* library = dlopen(options.driver.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto statistics =
      library ? reinterpret_cast<void (*)(uint64_t*, uint64_t*, double*)>(dlsym(library, "mlaEmuStatistics"))
              : nullptr;
  if (!statistics) {
    std::fprintf(stderr, "%s is not the emulated driver\n", options.driver.c_str());
    return 2;
  }
  const auto read = [&] {
    Statistics s;
    statistics(&s.warp_instructions, &s.lane_instructions, nullptr);
    s.seconds = processor_seconds();
    return s;
  };
  setenv("MLA_CUDA_DRIVER_PATH", options.driver.c_str(), 1);
  Driver driver;
  LoaderApi api;
  if (const std::string error = api.open(options.loader); !error.empty()) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 2;
  }
  if (const std::string error = driver.open(options.driver); !error.empty()) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 2;
  }
  mla_bundle* bundle = nullptr;
  MLA_API_CALL(api, mla_bundle_open, options.bundle.c_str(), nullptr, &bundle);
  mla_bundle_info info = MLA_BUNDLE_INFO_INIT;
  MLA_API_CALL(api, mla_bundle_get_info, bundle, &info);

  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof(date), "%Y-%m-%d", std::gmtime(&now));
  std::printf("%s, %s, one core; batch %d, %d tokens, best of %d launches\n\n", date, processor().c_str(),
              options.batch, options.seq_len, options.repeats);
  std::printf(
      "| kernel | warp instructions | lane instructions | processor seconds | million lane instructions/s "
      "|\n| --- | "
      "--- | --- | --- | --- |\n");
  int executed = 0;
  for (uint32_t index = 0; index < info.kernel_count; ++index) {
    PreparedKernel kernel;
    MLA_API_CALL(api, mla_bundle_get_kernel, bundle, index, &kernel.info);
    for (int device = 0; device < driver.devices; ++device) {
      CUcontext context = nullptr;
      MLA_CU(driver, cuDevicePrimaryCtxRetain, &context, device);
      MLA_CU(driver, cuCtxSetCurrent, context);
      mla_kernel* handle = nullptr;
      if (api.mla_prepare_index(bundle, index, nullptr, &handle) != MLA_SUCCESS) continue;
      kernel.kernel = handle;
      MLA_API_CALL(api, mla_kernel_get_info, kernel.kernel, &kernel.prepared);
      DecodeCase c;
      c.equal(options.batch, options.seq_len).heads(kernel.info.rows);
      const auto q_format = format_of(kernel.info.q_dtype), kv_format = format_of(kernel.info.kv_dtype);
      const Layout layout = make_layout(c, kernel.info.rows, q_format, kv_format);
      const DecodeData data = make_data(c, layout, q_format, kv_format, 0, 1);
      DecodeRunner runner(driver, api, kernel, c, layout, false);
      runner.upload(data);
      Statistics best;
      for (int i = 0; i < options.repeats; ++i) {
        const Statistics before = read();
        runner.launch();
        runner.synchronize();
        const Statistics after = read();
        const Statistics one = {after.warp_instructions - before.warp_instructions,
                                after.lane_instructions - before.lane_instructions,
                                after.seconds - before.seconds};
        if (i == 0 || one.seconds < best.seconds) best = one;
      }
      std::printf("| `%s` | %.2f M | %.1f M | %.2f | %.0f |\n", kernel.info.id,
                  double(best.warp_instructions) * 1e-6, double(best.lane_instructions) * 1e-6, best.seconds,
                  double(best.lane_instructions) * 1e-6 / best.seconds);
      std::fflush(stdout);
      ++executed;
      break;
    }
  }
  api.mla_bundle_close(bundle);
  return executed ? 0 : 1;
}

}  // namespace
}  // namespace mla::test

int main(int argc, char** argv) {
  mla::test::Options options;
  const std::string build = mla::test::program_folder() + "/..";
  options.driver = build + "/lib/emulator/libcuda.so.1";
  options.loader = mla::test::default_loader_path();
  options.bundle = mla::test::default_bundle_path();
  CLI::App app{"Measures the emulated driver on the kernels of a bundle"};
  app.add_option("--driver", options.driver, "the emulated libcuda.so.1")->capture_default_str();
  app.add_option("--loader", options.loader)->capture_default_str();
  app.add_option("--bundle", options.bundle)->capture_default_str();
  app.add_option("--batch", options.batch)->capture_default_str();
  app.add_option("--seq-len", options.seq_len)->capture_default_str();
  app.add_option("--repeats", options.repeats)->capture_default_str();
  app.add_flag("--profile", options.profile, "also print the instructions that took the most time");
  CLI11_PARSE(app, argc, argv);
  try {
    return mla::test::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
