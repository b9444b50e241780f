// SPDX-License-Identifier: Apache-2.0
//
// The regression suite: every kernel of a bundle on every case, through the C ABI, on whatever
// driver is present. Exit code 0: nothing failed (kernels that cannot run here are skipped, with the
// reason). MLA_REQUIRE_EXECUTED=1 makes it a failure when no kernel was executed, MLA_REQUIRE_EXECUTED=all
// when one was not. MLA_EMULATOR_FULL=1 makes --grid=emulator mean emulator-full.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

#include "manifest/files.h"
#include "manifest/manifest.h"
#include "tests/regression/cases.h"
#include "tests/regression/decode_runner.h"
#include "tests/regression/merge_case.h"
#include "tests/regression/recorded.h"
#include "tests/regression/verify.h"

namespace mla::test {
namespace {

struct Settings {
  std::string bundle = default_bundle_path();
  std::string loader = default_loader_path();
  std::string driver;
  std::string grid = "quick";
  std::string report;
  uint64_t seed = 1;
  double budget = 1e10 * std::max(1u, std::thread::hardware_concurrency());
  bool verbose = false;
  std::string require_executed;
  int max_sms = 0;  // cap of the cases that have none of their own
  std::string record_outputs, check_outputs;
};

// What happened to one kernel.
struct KernelRecord {
  mla_kernel_info info = MLA_KERNEL_INFO_INIT;
  cubin::Facts facts;  // from the manifest
  std::optional<PreparedKernel> prepared;
  CUcontext context = nullptr;
  std::string device;
  std::string cannot_run;  // why no device can run it
  std::string failed;      // why a device that should run it could not
  bool resolved = false;
  int ran = 0, skipped = 0, failures = 0;
  std::map<std::string, int> skip_reasons;
  Errors errors;
};

struct Suite {
  Settings settings;
  Driver driver;
  std::string no_driver;  // why there is none
  LoaderApi api;
  mla_bundle* bundle = nullptr;
  std::vector<KernelRecord> kernels;
  std::string recorded_device;  // of the outputs to compare with
  Samples recorded;             // those outputs, or the ones to be written
  double worst_recorded_error = -1;
  int compared = 0;
  std::string lost;  // a driver error that ended all further work on the device
};

Suite suite;

// Whether a kernel for `target` ("sm_90a") can run on a compute capability.
bool target_matches(const mla_kernel_info& info, const DeviceInfo& device) {
  const int sm = static_cast<int>(info.sm);
  const int cc = device.cc_major * 10 + device.cc_minor;
  const char suffix = info.target[std::string(info.target).size() - 1];
  if (suffix == 'a') return cc == sm;
  return device.cc_major == sm / 10 && cc >= sm;
}

// Finds the device for a kernel and prepares it there, once.
void resolve(uint32_t index) {
  KernelRecord& kernel = suite.kernels[index];
  if (kernel.resolved) return;
  kernel.resolved = true;
  if (!suite.no_driver.empty()) {
    kernel.cannot_run = suite.no_driver;
    return;
  }
  if (kernel.info.unusable[0] != '\0') {
    kernel.failed = kernel.info.unusable;
    return;
  }
  std::string found;
  for (int ordinal = 0; ordinal < suite.driver.devices; ++ordinal) {
    const DeviceInfo device = device_info(suite.driver, ordinal);
    const std::string name = device.name + " (compute capability " + std::to_string(device.cc_major) + "." +
                             std::to_string(device.cc_minor) + ", " + std::to_string(device.sm_count) +
                             " SMs)";
    found += (found.empty() ? "" : ", ") + name;
    if (!target_matches(kernel.info, device)) continue;
    MLA_CU(suite.driver, cuDevicePrimaryCtxRetain, &kernel.context, device.device);
    MLA_CU(suite.driver, cuCtxSetCurrent, kernel.context);
    try {
      mla_kernel* handle = nullptr;
      MLA_API_CALL(suite.api, mla_prepare_index, suite.bundle, index, nullptr, &handle);
      kernel.prepared = describe(suite.api, suite.bundle, handle);
      kernel.device = name;
    } catch (const LoaderError& error) {
      kernel.failed = error.what();
    }
    return;
  }
  kernel.cannot_run = std::string("no device for ") + kernel.info.target + "; found " + found;
}

// A case of a kernel of the bundle, on the device that it is prepared on.
class KernelTest : public testing::Test {
 public:
  // `why_not`: why the kernel cannot serve the case; "" if it can.
  KernelTest(uint32_t index, std::string name, std::string why_not)
      : index_(index), name_(std::move(name)), why_not_(std::move(why_not)) {}

  void TestBody() final {
    KernelRecord& kernel = suite.kernels[index_];
    try {
      prepare(kernel);
      if (!HasFailure() && !IsSkipped()) run(kernel);
    } catch (const DriverError& error) {
      // A call may fail by itself (no memory), or leave a context that nothing works in any more.
      if (suite.driver.cuCtxSynchronize() != 0) suite.lost = error.what() + std::string(" in ") + name_;
      ADD_FAILURE() << error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (HasFailure()) {
      ++kernel.failures;
    } else if (!IsSkipped()) {
      ++kernel.ran;
    }
  }

 protected:
  // The kernel is prepared and its context current.
  virtual void run(KernelRecord& kernel) = 0;

  const std::string& name() const { return name_; }
  uint64_t seed() const { return suite.settings.seed + std::hash<std::string>{}(name_); }

 private:
  void prepare(KernelRecord& kernel) {
    ASSERT_EQ(suite.lost, "") << "the device was lost in an earlier test";
    resolve(index_);
    if (!kernel.cannot_run.empty()) {
      ++kernel.skipped;
      GTEST_SKIP() << kernel.cannot_run;
    }
    ASSERT_EQ(kernel.failed, "");
    if (!why_not_.empty()) {
      ++kernel.skipped;
      ++kernel.skip_reasons[why_not_];
      GTEST_SKIP() << why_not_;
    }
    MLA_CU(suite.driver, cuCtxSetCurrent, kernel.context);
  }

  const uint32_t index_;
  const std::string name_;
  const std::string why_not_;
};

class DecodeTest : public KernelTest {
 public:
  DecodeTest(uint32_t index, std::string name, DecodeCase c, std::string why_not)
      : KernelTest(index, std::move(name), std::move(why_not)), c_(std::move(c)) {}

 private:
  void run(KernelRecord& kernel) override {
    const PreparedKernel& prepared = *kernel.prepared;
    const reference::Format q_format = format_of(prepared.info.q_dtype);
    const reference::Format kv_format = format_of(prepared.info.kv_dtype);
    const Layout layout = make_layout(c_, prepared.info.rows, q_format, kv_format);
    size_t free_bytes = 0, total_bytes = 0;
    MLA_CU(suite.driver, cuMemGetInfo, &free_bytes, &total_bytes);
    if (c_.stream_count * static_cast<double>(layout.kv_bytes + layout.v_bytes) > 0.9 * free_bytes) {
      ++kernel.skipped;
      ++kernel.skip_reasons["not enough device memory"];
      GTEST_SKIP() << "the device has " << free_bytes << " bytes free, the case needs "
                   << layout.kv_bytes + layout.v_bytes << " and more";
    }

    std::vector<std::unique_ptr<DecodeRunner>> runners;
    for (int i = 0; i < c_.stream_count; ++i) {
      runners.push_back(std::make_unique<DecodeRunner>(suite.driver, suite.api, prepared, c_, layout,
                                                       !suite.driver.emulated()));
    }
    if (c_.use_graph) {
      for (auto& runner : runners) runner->capture();
    }
    for (size_t step = 0; step < c_.steps.size(); ++step) {
      std::vector<DecodeData> data;
      for (size_t i = 0; i < runners.size(); ++i) {
        data.push_back(make_data(c_, layout, q_format, kv_format, step, seed() + 1000 * i));
        runners[i]->upload(data[i]);
      }
      std::vector<Outputs> first;
      for (int repeat = 0; repeat < c_.repeat_count; ++repeat) {
        for (auto& runner : runners) runner->poison_outputs();
        for (auto& runner : runners) c_.use_graph ? runner->replay() : runner->launch();
        for (auto& runner : runners) runner->synchronize();
        for (size_t i = 0; i < runners.size(); ++i) {
          Outputs outputs = runners[i]->fetch();
          if (repeat == 0) {
            first.push_back(std::move(outputs));
          } else {
            ASSERT_EQ(outputs.out == first[i].out, true) << "out differs between repeat 0 and " << repeat;
            ASSERT_EQ(same_bits(outputs.lse, first[i].lse), true)
                << "lse differs between repeat 0 and " << repeat;
            ASSERT_EQ(outputs.bad_pages, first[i].bad_pages) << "in repeat " << repeat;
          }
        }
      }
      if (c_.compare_alone) compare_alone(*runners[0], first[0]);
      if (step == 0) compare_with_recorded(kernel, first[0]);
      for (size_t i = 0; i < runners.size(); ++i) {
        for (const std::string& fault : runners[i]->check_memory())
          ADD_FAILURE() << "step " << step << ": " << fault;
        VerifyOptions options;
        options.rule = {
            static_cast<int32_t>(kernel.facts.rows), static_cast<int32_t>(kernel.facts.tile_tokens),
            static_cast<int32_t>(kernel.facts.item_overhead), static_cast<int32_t>(kernel.facts.min_share),
            static_cast<int32_t>(kernel.facts.max_flat_merge)};
        options.workers = launch_workers(prepared, c_);
        const char* accumulator = std::getenv("MLA_EMU_MMA_ACCUMULATOR");
        options.narrow =
            suite.driver.emulated() && accumulator != nullptr && accumulator == std::string("narrow");
        options.family = prepared.info.family;
        options.mma = prepared.info.mma;
        options.budget = suite.settings.budget;
        options.seed = suite.settings.seed;
        const Verdict verdict = verify(data[i], first[i], options);
        for (const std::string& fault : verdict.faults) ADD_FAILURE() << "step " << step << ": " << fault;
        kernel.errors.merge(verdict.errors);
        if (suite.settings.verbose) {
          std::printf("  step %zu: %s (%lld rows)\n", step, verdict.errors.text().c_str(),
                      static_cast<long long>(verdict.rows_compared));
        }
      }
    }
  }

  // Whatever the batch and the workers, request 0 has the same bits.
  void compare_alone(DecodeRunner& runner, const Outputs& want) {
    for (const int max_sms : {0, 4, 12}) {
      runner.poison_outputs();
      runner.launch_alone(max_sms);
      runner.synchronize();
      const Outputs got = runner.fetch();
      const size_t rows = got.lse.size() / c_.batch();
      const size_t values = got.out.size() / c_.batch();
      EXPECT_EQ(std::memcmp(got.out.data(), want.out.data(), values * sizeof(uint16_t)), 0)
          << "out of request 0 differs without the rest of the batch, with max_sms " << max_sms;
      EXPECT_EQ(std::memcmp(got.lse.data(), want.lse.data(), rows * sizeof(float)), 0)
          << "lse of request 0 differs without the rest of the batch, with max_sms " << max_sms;
    }
  }

  void compare_with_recorded(const KernelRecord& kernel, const Outputs& outputs) {
    const Settings& settings = suite.settings;
    const std::string full_name = std::string(kernel.info.id) + "." + name();
    if (!settings.record_outputs.empty()) suite.recorded[full_name] = sample_outputs(outputs);
    if (settings.check_outputs.empty()) return;
    const auto recorded = suite.recorded.find(full_name);
    if (recorded == suite.recorded.end()) return;
    double error = 0;
    const std::string fault = compare_samples(sample_outputs(outputs), recorded->second, &error);
    suite.worst_recorded_error = std::max(suite.worst_recorded_error, error);
    ++suite.compared;
    EXPECT_EQ(fault, "") << "recorded on " << suite.recorded_device;
  }

  static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
  }

  const DecodeCase c_;
};

class MergeTest : public KernelTest {
 public:
  MergeTest(uint32_t index, MergeCase c) : KernelTest(index, c.name, ""), c_(c) {}

 private:
  void run(KernelRecord& kernel) override {
    const auto faults = run_merge(suite.driver, suite.api, *kernel.prepared, c_, seed(),
                                  &kernel.errors.exact_row, &kernel.errors.lse);
    for (const std::string& fault : faults) ADD_FAILURE() << fault;
  }

  const MergeCase c_;
};

std::string test_name(std::string text) {
  for (char& c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return text;
}

void register_tests() {
  const unsigned grid = suite.settings.grid == "full"    ? kFull
                        : suite.settings.grid == "quick" ? kQuick
                                                         : kEmulator;
  for (uint32_t index = 0; index < suite.kernels.size(); ++index) {
    const mla_kernel_info& info = suite.kernels[index].info;
    if (info.kind == MLA_KIND_MERGE) {
      for (const MergeCase& c : merge_cases()) {
        const std::string full_name = std::string(c.name) + "/" + info.target;
        testing::RegisterTest(test_name(info.id).c_str(), full_name.c_str(), nullptr, nullptr, __FILE__,
                              __LINE__, [=]() -> testing::Test* { return new MergeTest(index, c); });
      }
      continue;
    }
    const KernelLimits limits{info.page_size_multiple, info.page_size_max, info.features};
    for (const NamedCase& named : all_cases()) {
      if (!(named.grids & grid)) continue;
      std::vector<int> page_sizes = {named.test.page_tokens};
      // Pages of more than two tiles are alike, but for those that are no multiple of a tile.
      if (named.every_page_size) {
        page_sizes = grid == kEmulator ? std::vector<int>{16, 48, 64, 128, 944}
                                       : std::vector<int>{16, 32, 48, 64, 80, 128, 256, 512, 944, 1024};
      }
      for (const int page_size : page_sizes) {
        DecodeCase c = named.test;
        c.page_size(page_size);
        if (!(info.features & MLA_FEATURE_LSE)) c.no_lse();
        if (c.sms_cap == 0) c.max_sms(suite.settings.max_sms);
        std::string name = named.name;
        if (named.every_page_size) name += "_page_" + std::to_string(page_size);
        const std::string suite_name = test_name(info.id);
        const std::string full_name = name + "/" + info.target;
        std::string reason = why_not(c, limits);
        if (reason.empty() && named.deep && suite.settings.grid == "emulator" &&
            !takes_deep_case(info.id, name)) {
          reason = "left to other kernels on the emulated driver (--grid=emulator-full runs it)";
        }
        testing::RegisterTest(suite_name.c_str(), full_name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                              [=]() -> testing::Test* { return new DecodeTest(index, name, c, reason); });
      }
    }
  }
}

// Opens the bundle and describes its kernels. Empty string on success.
std::string open_bundle() {
  if (std::string error = suite.api.open(suite.settings.loader); !error.empty()) return error;
  try {
    MLA_API_CALL(suite.api, mla_bundle_open, suite.settings.bundle.c_str(), nullptr, &suite.bundle);
    mla_bundle_info info = MLA_BUNDLE_INFO_INIT;
    MLA_API_CALL(suite.api, mla_bundle_get_info, suite.bundle, &info);
    suite.kernels.resize(info.kernel_count);
    for (uint32_t i = 0; i < info.kernel_count; ++i) {
      MLA_API_CALL(suite.api, mla_bundle_get_kernel, suite.bundle, i, &suite.kernels[i].info);
    }
    // The schedule's constants are in the manifest alone: the C ABI has no use for them.
    std::vector<std::byte> bytes;
    manifest::Manifest manifest;
    const std::string path = suite.settings.bundle + "/" + std::string(manifest::kManifestFile);
    if (Status status = files::read_file(path, manifest::kMaxManifestBytes, &bytes); !status.ok()) {
      return status.message();
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (Status status = manifest::parse(text, path, &manifest); !status.ok()) return status.message();
    for (KernelRecord& kernel : suite.kernels) {
      for (const manifest::Kernel& entry : manifest.kernels) {
        if (entry.id == kernel.info.id) kernel.facts = entry.facts;
      }
    }
    std::printf("bundle %s %s, %u kernels, toolkit %s\n", info.name, info.version, info.kernel_count,
                info.toolkit);
  } catch (const LoaderError& error) {
    return error.what();
  }
  return suite.kernels.empty() ? "the bundle has no kernel" : "";
}

// The closing summary; returns the number of kernels executed.
size_t summarise(std::string* text) {
  size_t executed = 0;
  const auto line = [&](const std::string& s) { *text += s + "\n"; };
  line("");
  line("Kernels of " + suite.settings.bundle + " (grid " + suite.settings.grid + "):");
  for (const KernelRecord& kernel : suite.kernels) {
    const std::string head = std::string("  ") + kernel.info.id + " [" + kernel.info.target + "]: ";
    if (kernel.ran + kernel.failures == 0) {
      const std::string reason =
          !kernel.cannot_run.empty() ? kernel.cannot_run : "no test of it was selected";
      line(head + "not executed (" + std::to_string(kernel.skipped) + " cases skipped): " + reason);
      continue;
    }
    if (kernel.ran > 0) ++executed;
    line(head + std::to_string(kernel.ran) + " cases passed, " + std::to_string(kernel.failures) +
         " failed, " + std::to_string(kernel.skipped) + " skipped, on " +
         (kernel.device.empty() ? "no device" : kernel.device));
    for (const auto& [reason, count] : kernel.skip_reasons) {
      line("      " + std::to_string(count) + " skipped: " + reason);
    }
    line("      worst errors: " + kernel.errors.text());
  }
  line("kernels executed: " + std::to_string(executed) + " / " + std::to_string(suite.kernels.size()));
  return executed;
}

int run(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  Settings& s = suite.settings;
  if (const char* grid = std::getenv("MLA_GRID")) s.grid = grid;
  if (const char* required = std::getenv("MLA_REQUIRE_EXECUTED")) s.require_executed = required;
  CLI::App app("Regression suite over a bundle of MLA decode kernels, through the C ABI.");
  app.add_option("--bundle", s.bundle, "Folder of the bundle")->capture_default_str();
  app.add_option("--loader", s.loader, "Path of libmla_loader.so")->capture_default_str();
  app.add_option("--driver", s.driver, "CUDA driver (default: MLA_CUDA_DRIVER_PATH, else libcuda.so.1)");
  app.add_option("--grid", s.grid, "Cases that run (environment: MLA_GRID)")
      ->check(CLI::IsMember({"emulator", "emulator-full", "quick", "full"}))
      ->capture_default_str();
  app.add_option("--report", s.report, "File for the closing summary");
  app.add_option("--seed", s.seed, "Seed of the random data")->capture_default_str();
  app.add_option("--budget", s.budget,
                 "Multiply-adds of the reference per launch; heads are sampled beyond it")
      ->capture_default_str();
  app.add_option("--max-sms", s.max_sms, "Most SMs used by cases without a cap of their own; 0: all")
      ->capture_default_str();
  app.add_option("--record-outputs", s.record_outputs,
                 "Write a sample of the outputs of all cases to this file");
  app.add_option("--check-outputs", s.check_outputs, "Compare outputs with those recorded in this file");
  app.add_flag("--verbose", s.verbose, "Print the errors of every case");
  CLI11_PARSE(app, argc, argv);
  const char* all_deep = std::getenv("MLA_EMULATOR_FULL");
  if (all_deep && std::string(all_deep) == "1" && s.grid == "emulator") s.grid = "emulator-full";
  // The loader and this program must use the same driver.
  if (!s.driver.empty()) setenv("MLA_CUDA_DRIVER_PATH", s.driver.c_str(), 1);

  if (const std::string error = open_bundle(); !error.empty()) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 2;
  }
  suite.no_driver = suite.driver.open(s.driver);
  if (suite.no_driver.empty()) {
    std::printf("driver %s, CUDA %d.%d\n", suite.driver.path.c_str(), suite.driver.version / 1000,
                suite.driver.version % 1000 / 10);
  } else {
    std::printf("%s\n", suite.no_driver.c_str());
  }
  if (!s.check_outputs.empty()) {
    const std::string error = read_samples(s.check_outputs, &suite.recorded_device, &suite.recorded);
    if (!error.empty()) {
      std::fprintf(stderr, "%s\n", error.c_str());
      return 2;
    }
  }
  register_tests();
  int result = RUN_ALL_TESTS();

  std::string summary;
  const size_t executed = summarise(&summary);
  std::fputs(summary.c_str(), stdout);
  if (!s.check_outputs.empty()) {
    std::printf("outputs compared with those of %s: %d cases, worst relative L2 error %.3g\n",
                suite.recorded_device.c_str(), suite.compared, suite.worst_recorded_error);
    if (suite.compared == 0) result = 1;
  }
  if (!s.record_outputs.empty()) {
    std::string device = "no device";
    for (const KernelRecord& kernel : suite.kernels) {
      if (!kernel.device.empty()) device = kernel.device;
    }
    const std::string error = write_samples(s.record_outputs, device, suite.recorded);
    std::printf("outputs of %zu cases recorded%s%s\n", suite.recorded.size(), error.empty() ? "" : ": ",
                error.c_str());
    if (!error.empty()) return 2;
  }
  if (!s.report.empty()) std::ofstream(s.report) << summary;
  if (suite.lost.empty()) suite.api.mla_bundle_close(suite.bundle);
  const size_t required = s.require_executed == "all" ? suite.kernels.size()
                          : s.require_executed == "1" ? 1
                                                      : 0;
  if (executed < required) {
    std::printf("MLA_REQUIRE_EXECUTED=%s: %zu kernels were executed, %zu are required\n",
                s.require_executed.c_str(), executed, required);
    return 1;
  }
  return result;
}

}  // namespace
}  // namespace mla::test

int main(int argc, char** argv) { return mla::test::run(argc, argv); }
