// SPDX-License-Identifier: Apache-2.0
//
// Times decode launches on the GPU, through the C ABI: a CUDA graph of back-to-back launches,
// replayed; and launches by themselves. Random data, shuffled pages. --check compares the result
// with the references. Exit code 0; 1: an error is too large; 2: something failed; 3: the bundle has no
// kernel for any of the shapes on this device.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "manifest/files.h"
#include "manifest/manifest.h"
#include "tests/regression/decode_runner.h"
#include "tests/regression/verify.h"

namespace mla::test {
namespace {

struct Shape {
  int batch, q_len;
  int32_t seq_len;
  int heads;
  bool ragged = false;  // uniform in [seq_len / 8, seq_len]
  std::string text() const {
    return std::to_string(batch) + "," + std::to_string(q_len) + "," + std::to_string(seq_len) + "," +
           std::to_string(heads) + (ragged ? ",ragged" : "");
  }
};

// The shapes of the project's targets, by board.
const std::vector<Shape> kH200Shapes = {
    {128, 1, 8192, 128},      {128, 2, 8192, 128}, {128, 1, 32768, 128},      {128, 1, 8192, 64},
    {128, 1, 8192, 32},       {128, 1, 8192, 16},  {64, 1, 16384, 128, true}, {128, 1, 16384, 16, true},
    {8, 1, 65536, 128, true}, {32, 1, 4096, 128},  {16, 1, 8192, 128},        {64, 1, 1024, 128},
    {16, 1, 8192, 16},        {4, 1, 8192, 128},   {1, 1, 65536, 128},        {1, 1, 131072, 16},
    {1, 1, 8192, 128},        {1, 1, 8192, 16},    {1, 1, 1024, 128}};
const std::vector<Shape> kSm120Shapes = {
    {1, 1, 4096, 128},    {1, 1, 8192, 128},    {1, 1, 131072, 128}, {32, 1, 4096, 128}, {128, 1, 8192, 128},
    {128, 1, 32768, 128}, {256, 1, 65536, 128}, {128, 1, 8192, 64},  {128, 1, 8192, 32}, {128, 1, 8192, 16}};

// Parses "batch,q_len,seq_len,heads[,ragged]"; nothing and a sentence on failure.
bool parse_shape(const std::string& text, Shape* shape, std::string* error) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  shape->ragged = parts.size() == 5 && parts[4] == "ragged";
  const bool right = parts.size() == 4 || shape->ragged;
  int numbers[4] = {};
  for (int i = 0; right && i < 4; ++i) {
    char* end = nullptr;
    const long value = std::strtol(parts[i].c_str(), &end, 10);
    if (parts[i].empty() || *end || value < 1 || value > (1 << 24)) break;
    numbers[i] = static_cast<int>(value);
  }
  if (!right || numbers[3] == 0 || numbers[0] * numbers[1] * numbers[2] == 0) {
    *error = "--shape is \"" + text + "\"; expected batch,q_len,seq_len,heads[,ragged], numbers from 1 on";
    return false;
  }
  shape->batch = numbers[0];
  shape->q_len = numbers[1];
  shape->seq_len = numbers[2];
  shape->heads = numbers[3];
  return true;
}

struct Options {
  std::string bundle = default_bundle_path();
  std::string loader = default_loader_path();
  std::string driver;
  std::vector<std::string> shapes;
  std::string preset;
  std::string kernel;  // id; empty: the loader selects
  int page_size = 64;
  double sigma = 1.0;
  int launches = 20;
  int replays = 20;
  int singles = 20;
  int device = 0;
  int max_splits = 0;
  double peak_tbs = 0;
  double peak_tflops = 0;
  bool pdl = false;
  bool check = false;
  std::string report;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d", std::gmtime(&now));
  return text;
}

// Version of the kernel driver ("580.65.06"), or what the CUDA driver says of itself.
std::string driver_version(const Driver& driver) {
  std::string version;
  std::ifstream("/sys/module/nvidia/version") >> version;
  const std::string cuda =
      "CUDA " + std::to_string(driver.version / 1000) + "." + std::to_string(driver.version % 1000 / 10);
  return version.empty() ? cuda : version + " (" + cuda + ")";
}

class Timer {
 public:
  explicit Timer(const Driver& driver) : driver_(driver) {
    MLA_CU(driver_, cuEventCreate, &start_, 0);
    MLA_CU(driver_, cuEventCreate, &stop_, 0);
  }
  ~Timer() {
    driver_.cuEventDestroy(start_);
    driver_.cuEventDestroy(stop_);
  }
  // Microseconds of GPU time between the first and the last thing that `work` puts on the stream.
  template <typename Work>
  double time(CUstream stream, const Work& work) {
    MLA_CU(driver_, cuEventRecord, start_, stream);
    work();
    MLA_CU(driver_, cuEventRecord, stop_, stream);
    MLA_CU(driver_, cuEventSynchronize, stop_);
    float milliseconds = 0;
    MLA_CU(driver_, cuEventElapsedTime, &milliseconds, start_, stop_);
    return milliseconds * 1e3;
  }

 private:
  const Driver& driver_;
  CUevent start_ = nullptr, stop_ = nullptr;
};

struct Work {
  double flops = 0;
  double bytes = 0;  // KV, Q and output, once
};

Work work_of(const DecodeData& data) {
  double tokens = 0;
  for (const int32_t len : data.seq_lens) tokens += len;
  const double rows = static_cast<double>(data.layout.rows());
  Work work;
  work.flops =
      2.0 * data.layout.heads * data.c->query_len * tokens * (reference::kDepthK + reference::kDepthV);
  work.bytes = tokens * reference::kDepthK * data.layout.element_bytes +
               rows * (reference::kDepthK * data.layout.q_element_bytes + reference::kDepthV * 2.0);
  return work;
}

// How a kernel divides the work, which the reference follows.
ScheduleRule rule_of(const cubin::Facts& facts) {
  const auto i32 = [](uint32_t value) { return static_cast<int32_t>(value); };
  return {i32(facts.rows), i32(facts.tile_tokens), i32(facts.item_overhead), i32(facts.min_share),
          i32(facts.max_flat_merge)};
}

int run(const Options& options) {
  std::vector<Shape> shapes;
  for (const std::string& text : options.shapes) {
    std::string error;
    if (!parse_shape(text, &shapes.emplace_back(), &error)) throw std::runtime_error(error);
  }

  Driver driver;
  LoaderApi api;
  if (!options.driver.empty()) setenv("MLA_CUDA_DRIVER_PATH", options.driver.c_str(), 1);
  if (const std::string error = driver.open(options.driver); !error.empty()) throw std::runtime_error(error);
  if (const std::string error = api.open(options.loader); !error.empty()) throw std::runtime_error(error);
  if (options.device < 0 || options.device >= driver.devices) {
    throw std::runtime_error("--device is " + std::to_string(options.device) + "; there are " +
                             std::to_string(driver.devices) + " devices");
  }
  const DeviceInfo device = device_info(driver, options.device);
  CUcontext context = nullptr;
  MLA_CU(driver, cuDevicePrimaryCtxRetain, &context, device.device);
  MLA_CU(driver, cuCtxSetCurrent, context);

  mla_bundle* bundle = nullptr;
  MLA_API_CALL(api, mla_bundle_open, options.bundle.c_str(), nullptr, &bundle);

  manifest::Manifest manifest;
  if (options.check) {
    const std::string path = options.bundle + "/manifest.json";
    std::vector<std::byte> bytes;
    Status status = files::read_file(path, manifest::kMaxManifestBytes, &bytes);
    if (status.ok()) {
      const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      status = manifest::parse(text, path, &manifest);
    }
    if (!status.ok()) throw std::runtime_error(status.message());
  }

  const std::string preset = !options.preset.empty() ? options.preset
                             : shapes.empty()        ? (device.cc_major == 12 ? "sm120" : "h200")
                                                     : "";
  if (preset == "h200") shapes.insert(shapes.end(), kH200Shapes.begin(), kH200Shapes.end());
  if (preset == "sm120") shapes.insert(shapes.end(), kSm120Shapes.begin(), kSm120Shapes.end());

  // Ceilings of the H200 as measured with a copy kernel and cuBLAS; others must be given.
  const bool h200 = device.name.find("H200") != std::string::npos;
  const double peak_tbs = options.peak_tbs > 0 ? options.peak_tbs : h200 ? 4.30 : 0;
  const double peak_tflops = options.peak_tflops > 0 ? options.peak_tflops : h200 ? 1408 : 0;

  std::printf("%s, %d SMs, driver %s, %s\n", device.name.c_str(), device.sm_count,
              driver_version(driver).c_str(), today().c_str());
  if (options.replays > 0) {
    std::printf("us: graph of %d launches, %d replays, median per launch; single us: median of %d launches\n",
                options.launches, options.replays, options.singles);
  } else {
    std::printf("us: median of %d launches by themselves\n", options.singles);
  }
  std::printf("%-26s %-50s %9s %9s %8s %8s %8s%s\n", "batch,q_len,seq_len,heads", "kernel", "us", "single us",
              "TFLOPS", "GB/s", "x floor", options.check ? "  errors" : "");

  nlohmann::json report = {{"board", device.name},
                           {"sms", device.sm_count},
                           {"driver", driver_version(driver)},
                           {"date", today()},
                           {"launches", options.launches},
                           {"replays", options.replays},
                           {"page_size", options.page_size},
                           {"sigma", options.sigma},
                           {"rows", nlohmann::json::array()}};
  int wrong = 0, timed = 0;
  for (const Shape& shape : shapes) {
    mla_problem problem = MLA_PROBLEM_INIT;
    problem.heads = shape.heads;
    problem.q_len = shape.q_len;
    problem.page_size = options.page_size;
    problem.batch = shape.batch;
    problem.seq_len = shape.ragged ? (shape.seq_len / 8 + shape.seq_len) / 2 : shape.seq_len;
    PreparedKernel kernel;
    mla_kernel* handle = nullptr;
    try {
      if (options.kernel.empty()) {
        MLA_API_CALL(api, mla_prepare, bundle, &problem, nullptr, &handle);
      } else {
        mla_bundle_info info = MLA_BUNDLE_INFO_INIT;
        MLA_API_CALL(api, mla_bundle_get_info, bundle, &info);
        uint32_t index = 0;
        for (; index < info.kernel_count; ++index) {
          MLA_API_CALL(api, mla_bundle_get_kernel, bundle, index, &kernel.info);
          if (options.kernel == kernel.info.id) break;
        }
        if (index == info.kernel_count)
          throw std::runtime_error("--kernel is \"" + options.kernel + "\"; the bundle has no such id");
        MLA_API_CALL(api, mla_prepare_index, bundle, index, nullptr, &handle);
      }
    } catch (const LoaderError& error) {
      if (error.status != MLA_ERROR_NO_KERNEL) throw;
      std::printf("%-26s no kernel for %d heads on this device\n", shape.text().c_str(), shape.heads);
      continue;
    }
    ++timed;
    kernel = describe(api, bundle, handle);

    DecodeCase c;
    shape.ragged ? c.ragged(shape.batch, std::max(1, shape.seq_len / 8), shape.seq_len)
                 : c.equal(shape.batch, shape.seq_len);
    c.q_len(shape.q_len).heads(shape.heads).page_size(options.page_size).max_splits(options.max_splits);
    c.no_bad_page_counter();
    c.sigma = options.sigma;
    c.flat = options.sigma < 0.8;
    c.use_pdl = options.pdl;
    if (!(kernel.info.features & MLA_FEATURE_LSE)) c.no_lse();
    const reference::Format q_format = format_of(kernel.info.q_dtype),
                            kv_format = format_of(kernel.info.kv_dtype);
    const Layout layout = make_layout(c, kernel.info.rows, q_format, kv_format);
    const DecodeData data = make_data(c, layout, q_format, kv_format, 0, 1);
    DecodeRunner runner(driver, api, kernel, c, layout, false);
    runner.upload(data);
    runner.poison_outputs();

    runner.launch();
    runner.synchronize();
    Verdict verdict;
    if (options.check) {
      VerifyOptions verify_options;
      verify_options.rule = rule_of(manifest.kernels.at(kernel.prepared.kernel_index).facts);
      verify_options.workers = launch_workers(kernel, c);
      verify_options.family = kernel.info.family;
      verify_options.mma = kernel.info.mma;
      verdict = verify(data, runner.fetch(), verify_options);
      wrong += !verdict.faults.empty();
    }

    Timer timer(driver);
    std::vector<double> singles, graphs;
    for (int i = 0; i < options.singles; ++i) {
      singles.push_back(timer.time(runner.stream(), [&] { runner.launch(); }));
    }
    if (options.replays > 0) {
      runner.capture(options.launches);
      runner.replay();
      runner.synchronize();
      for (int i = 0; i < options.replays; ++i) {
        graphs.push_back(timer.time(runner.stream(), [&] { runner.replay(); }) / options.launches);
      }
    }
    const double us = graphs.empty() ? median(singles) : median(graphs);
    const Work work = work_of(data);
    const double floor = peak_tbs > 0 && peak_tflops > 0
                             ? std::max(work.bytes / peak_tbs / 1e6, work.flops / peak_tflops / 1e6)
                             : 0;
    char ratio[32] = "-";
    if (floor > 0) std::snprintf(ratio, sizeof(ratio), "%.2f", us / floor);
    std::printf("%-26s %-50s %9.2f %9.2f %8.1f %8.0f %8s%s%s\n", shape.text().c_str(), kernel.info.id, us,
                median(singles), us > 0 ? work.flops / us / 1e6 : 0, us > 0 ? work.bytes / us / 1e3 : 0,
                ratio, options.check ? "  " : "", options.check ? verdict.errors.text().c_str() : "");
    for (const std::string& fault : verdict.faults) std::printf("    wrong: %s\n", fault.c_str());
    std::fflush(stdout);
    nlohmann::json row = {{"batch", shape.batch},
                          {"q_len", shape.q_len},
                          {"seq_len", shape.seq_len},
                          {"heads", shape.heads},
                          {"ragged", shape.ragged},
                          {"kernel", kernel.info.id},
                          {"us", us},
                          {"single_us", median(singles)},
                          {"tflops", work.flops / us / 1e6},
                          {"gb_per_s", work.bytes / us / 1e3}};
    if (floor > 0) row["floor_us"] = floor;
    if (options.check) row["errors"] = verdict.errors.text();
    report["rows"].push_back(std::move(row));
  }
  MLA_API_CALL(api, mla_bundle_close, bundle);
  if (!options.report.empty()) {
    std::ofstream file(options.report);
    file << report.dump(2) << "\n";
    if (!file.flush()) throw std::runtime_error("cannot write " + options.report);
  }
  return wrong ? 1 : timed == 0 ? 3 : 0;
}

}  // namespace
}  // namespace mla::test

int main(int argc, char** argv) {
  mla::test::Options options;
  CLI::App app("Times MLA decode launches on the GPU.");
  app.add_option("--bundle", options.bundle, "Folder of the bundle")->capture_default_str();
  app.add_option("--loader", options.loader, "Path of libmla_loader.so")->capture_default_str();
  app.add_option("--driver", options.driver,
                 "CUDA driver (default: MLA_CUDA_DRIVER_PATH, else libcuda.so.1)");
  app.add_option("--shape", options.shapes, "batch,q_len,seq_len,heads[,ragged]; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--preset", options.preset,
                 "Shapes of the targets (default: those of the board without --shape)")
      ->check(CLI::IsMember({"h200", "sm120"}));
  app.add_option("--kernel", options.kernel, "Id of the kernel (default: as the loader selects)");
  app.add_option("--page-size", options.page_size, "Tokens per page")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  app.add_option("--sigma", options.sigma, "Deviation of the random data")->capture_default_str();
  app.add_option("--launches", options.launches, "Launches in the graph")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--replays", options.replays, "Replays of the graph; 0: no graph")->capture_default_str();
  app.add_option("--singles", options.singles, "Launches timed by themselves")->capture_default_str();
  app.add_option("--device", options.device, "Ordinal of the device")->capture_default_str();
  app.add_option("--max-splits", options.max_splits, "Most splits of a query token; 0: no cap")
      ->capture_default_str();
  app.add_option("--peak-tbs", options.peak_tbs, "Memory bandwidth of the board, TB/s, for the floor");
  app.add_option("--peak-tflops", options.peak_tflops, "Dense rate of the board, TFLOPS, for the floor");
  app.add_flag("--pdl", options.pdl, "Launch with programmatic stream serialisation");
  app.add_flag("--check", options.check, "Compare with the references");
  app.add_option("--report", options.report, "Write the results to this JSON file");
  CLI11_PARSE(app, argc, argv);
  try {
    return mla::test::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mla-bench: %s\n", error.what());
    return 2;
  }
}
