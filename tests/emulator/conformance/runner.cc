// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/conformance/runner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "tests/emulator/conformance/values.h"

namespace mla::conformance {
namespace {

constexpr size_t kHead = 12;   // values kept as they are
constexpr size_t kChunks = 8;  // hashes of the rest
constexpr size_t kManyOutputs = 8;

std::string hex(uint64_t value, int bits) {
  char text[20];
  std::snprintf(text, sizeof(text), "%0*llx", (bits + 3) / 4, static_cast<unsigned long long>(value));
  return text;
}

uint32_t hash32(const uint64_t* values, size_t count) {
  uint32_t hash = 0x811c9dc5;
  for (size_t i = 0; i < count; ++i) {
    for (int byte = 0; byte < 8; ++byte) hash = (hash ^ uint8_t(values[i] >> (8 * byte))) * 0x01000193;
  }
  return hash;
}

struct Split {
  size_t head, chunk;
};

Split split_of(const Case& c, size_t count) {
  const bool many = c.out.size() > kManyOutputs;
  const size_t chunks = many ? 2 : kChunks;
  return {std::min(count, many ? size_t(2) : kHead), std::max<size_t>(1, (count + chunks - 1) / chunks)};
}

std::string describe_thread(const Case& c, const std::vector<Values>& inputs, size_t thread) {
  std::string text = "thread " + std::to_string(thread);
  for (size_t i = 0; i < inputs.size(); ++i) {
    text += ", i" + std::to_string(i) + " " + hex(inputs[i][thread], bits_of(c.in[i]));
  }
  return text;
}

// Position on the number line of a float's bits.
int64_t order(uint64_t bits, int width) {
  const uint64_t sign = uint64_t(1) << (width - 1);
  return bits & sign ? -int64_t(bits & (sign - 1)) : int64_t(bits);
}

// Difference in units of the tolerance; infinite when a special value is missed.
double distance(const Case& c, const std::string& type, uint64_t got, uint64_t expected, double scale) {
  const double a = to_double(type, got), b = to_double(type, expected);
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b) ? 0 : HUGE_VAL;
  if (std::isinf(a) || std::isinf(b)) return a == b ? 0 : HUGE_VAL;
  if (c.compare == Compare::kUlp) {
    const int width = bits_of(type);
    return std::fabs(double(order(got, width) - order(expected, width))) / c.tolerance;
  }
  return std::fabs(a - b) / (c.tolerance * (scale > 0 ? scale : 1));
}

double scale_of(const std::string& type, const Values& values) {
  double scale = 0;
  for (const uint64_t value : values) {
    const double magnitude = std::fabs(to_double(type, value));
    if (std::isfinite(magnitude)) scale = std::max(scale, magnitude);
  }
  return scale;
}

std::string compare_numbers(const Case& c, const std::vector<Values>& inputs, size_t output,
                            const Values& got, const Values& expected, double* worst) {
  const std::string type = output_type(c, output);
  const double scale = scale_of(type, expected);
  std::string text;
  size_t differences = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = distance(c, type, got[i], expected[i], scale);
    if (worst) *worst = std::max(*worst, d);
    if (d <= 1) continue;
    if (++differences <= 4) {
      text += "  o" + std::to_string(output) + ": " + hex(got[i], bits_of(type)) + " (" +
              std::to_string(to_double(type, got[i])) + "), expected " + hex(expected[i], bits_of(type)) +
              " (" + std::to_string(to_double(type, expected[i])) + "), " + std::to_string(d) +
              " times the tolerance: " + describe_thread(c, inputs, i) + "\n";
    }
  }
  if (differences > 4) text += "  and " + std::to_string(differences - 4) + " more\n";
  return text;
}

}  // namespace

Session::~Session() { close(); }

void Session::close() {
  if (context_) driver_.cuCtxDestroy(context_);
  context_ = nullptr;
  driver_.clear_fault();
}

std::string Session::open() {
  if (context_) return {};
  CUctxCreateParams params = {};
  if (const CUresult e = driver_.cuCtxCreate(&context_, &params, 0, device_))
    return "cuCtxCreate: " + driver_.describe(e);
  const std::vector<uint8_t> source = make_source();
  if (const CUresult e = driver_.cuMemAlloc(&source_, kSrcBytes)) return "cuMemAlloc: " + driver_.describe(e);
  if (const CUresult e = driver_.cuMemAlloc(&memory_, kMemBytes)) return "cuMemAlloc: " + driver_.describe(e);
  if (const CUresult e = driver_.cuMemcpyHtoD(source_, source.data(), source.size()))
    return "cuMemcpyHtoD: " + driver_.describe(e);
  return {};
}

CaseResult Session::run(const Case& c) {
  CaseResult result;
  result.error = open();
  if (!result.error.empty()) return result;
  CUmodule module = nullptr;
  if (const CUresult e = driver_.cuModuleLoadData(&module, module_text(c).c_str())) {
    result.error = "cuModuleLoadData: " + driver_.describe(e);
    const std::string report = driver_.emulator_report();
    if (!report.empty()) result.error += ": " + report;
    return result;
  }
  result.error = execute(c, module, &result);
  result.ran = result.error.empty();
  if (result.ran) {
    driver_.cuModuleUnload(module);
  } else {
    close();  // the context may be unusable
  }
  return result;
}

std::string Session::execute(const Case& c, CUmodule module, CaseResult* result) {
#define MLA_TRY(call)                                                                                \
  if (const CUresult e = driver_.call) {                                                             \
    const std::string report = driver_.emulator_report();                                            \
    return std::string(#call).substr(0, std::string(#call).find('(')) + ": " + driver_.describe(e) + \
           (report.empty() ? "" : ": " + report);                                                    \
  }
  CUfunction function = nullptr;
  MLA_TRY(cuModuleGetFunction(&function, module, "conformance"));
  const uint32_t threads = c.threads();
  const std::vector<Values> inputs = make_inputs(c, kSeed);
  std::vector<uint64_t> in(std::max<size_t>(1, threads * c.in.size())),
      out(std::max<size_t>(1, threads * c.out.size()));
  for (uint32_t t = 0; t < threads; ++t) {
    for (size_t i = 0; i < c.in.size(); ++i) in[t * c.in.size() + i] = inputs[i][t];
  }
  CUdeviceptr in_address = 0, out_address = 0;
  MLA_TRY(cuMemAlloc(&in_address, in.size() * 8));
  MLA_TRY(cuMemAlloc(&out_address, out.size() * 8));
  MLA_TRY(cuMemcpyHtoD(in_address, in.data(), in.size() * 8));
  MLA_TRY(cuMemsetD8(out_address, 0, out.size() * 8));
  MLA_TRY(cuMemsetD32(memory_, kMemFill, kMemBytes / 4));
  CUtensorMap map = {};
  if (!c.tensor_map.empty()) {
    const TensorMapSpec& spec = c.tensor_map[0];
    // The driver wants an array of strides even where none is used.
    std::vector<cuuint64_t> strides(spec.strides.begin(), spec.strides.end());
    strides.resize(5);
    const std::vector<cuuint64_t> dims(spec.dims.begin(), spec.dims.end());
    const std::vector<cuuint32_t> box(spec.box.begin(), spec.box.end()), steps(spec.dims.size(), 1);
    MLA_TRY(cuTensorMapEncodeTiled(&map, CUtensorMapDataType(spec.type), cuuint32_t(dims.size()),
                                   reinterpret_cast<void*>(spec.over_mem ? memory_ : source_), dims.data(),
                                   strides.data(), box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   CUtensorMapSwizzle(spec.swizzle), CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                   CUtensorMapFloatOOBfill(spec.fill_nan)));
  }
  CUdeviceptr memory = memory_, source = source_;
  void* params[] = {&in_address, &out_address, &memory, &source, &map};
  MLA_TRY(cuLaunchKernel(function, c.grid, 1, 1, c.block, 1, 1, c.dynamic_smem, nullptr, params, nullptr));
  MLA_TRY(cuCtxSynchronize());
  MLA_TRY(cuMemcpyDtoH(out.data(), out_address, out.size() * 8));
  result->outputs.assign(c.out.size(), Values(threads));
  for (uint32_t t = 0; t < threads; ++t) {
    for (size_t i = 0; i < c.out.size(); ++i) result->outputs[i][t] = out[t * c.out.size() + i];
  }
  if (c.uses_mem) {
    std::vector<uint32_t> words(kMemBytes / 4);
    MLA_TRY(cuMemcpyDtoH(words.data(), memory_, kMemBytes));
    result->outputs.emplace_back(words.begin(), words.end());
  }
  MLA_TRY(cuMemFree(in_address));
  MLA_TRY(cuMemFree(out_address));
  return {};
#undef MLA_TRY
}

std::string text_hash(const Case& c) {
  std::string text = module_text(c) + std::to_string(kSeed) + (c.exhaustive ? "e" : "");
  for (const std::string& type : c.in) text += type;
  for (const TensorMapSpec& spec : c.tensor_map) {
    text += std::to_string(spec.type) + std::to_string(spec.swizzle) + std::to_string(spec.fill_nan);
    for (const uint64_t v : spec.dims) text += "," + std::to_string(v);
    for (const uint64_t v : spec.strides) text += "," + std::to_string(v);
    for (const uint32_t v : spec.box) text += "," + std::to_string(v);
  }
  return hex(hash64(text), 64);
}

std::string output_type(const Case& c, size_t output) {
  return output < c.out.size() ? c.out[output] : "b32";
}

std::vector<std::string> encode(const Case& c, size_t output, const Values& values) {
  const int bits = bits_of(output_type(c, output));
  std::vector<std::string> words;
  const bool exact = c.compare == Compare::kExact || output >= c.out.size();
  const Split split = exact ? split_of(c, values.size()) : Split{values.size(), 0};
  for (size_t i = 0; i < split.head; ++i) words.push_back(hex(values[i], bits));
  if (exact) {
    for (size_t at = 0; at < values.size(); at += split.chunk) {
      words.push_back("#" + hex(hash32(values.data() + at, std::min(split.chunk, values.size() - at)), 32));
    }
  }
  return words;
}

std::string compare(const Case& c, const std::vector<Values>& inputs, const CaseResult& result,
                    const Recorded& recorded, double* worst) {
  if (recorded.outputs.size() != result.outputs.size())
    return "  the number of outputs differs from the recorded one: record again\n";
  std::string text;
  for (size_t o = 0; o < result.outputs.size(); ++o) {
    const Values& got = result.outputs[o];
    const std::string type = output_type(c, o);
    const int bits = bits_of(type);
    const std::string name = o < c.out.size() ? "o" + std::to_string(o) : "memory word";
    if (c.compare != Compare::kExact && o < c.out.size()) {
      Values expected;
      for (const std::string& word : recorded.outputs[o]) expected.push_back(std::stoull(word, nullptr, 16));
      if (expected.size() != got.size())
        return "  the number of values differs from the recorded one: record again\n";
      text += compare_numbers(c, inputs, o, got, expected, worst);
      continue;
    }
    const std::vector<std::string> words = encode(c, o, got);
    if (words.size() != recorded.outputs[o].size())
      return "  the number of values differs from the recorded one: record again\n";
    const Split split = split_of(c, got.size());
    size_t shown = 0;
    for (size_t i = 0; i < words.size() && shown < 4; ++i) {
      if (words[i] == recorded.outputs[o][i]) continue;
      ++shown;
      if (i < split.head) {
        text +=
            "  " + name + " " + std::to_string(i) + ": " + words[i] + ", expected " + recorded.outputs[o][i];
        if (o < c.out.size()) text += ": " + describe_thread(c, inputs, i);
        text += "\n";
        continue;
      }
      const size_t first = (i - split.head) * split.chunk;
      text += "  " + name + " " + std::to_string(first) + " to " +
              std::to_string(std::min(first + split.chunk, got.size()) - 1) +
              ": other values than recorded; now\n";
      for (size_t k = first;
           o < c.out.size() && k < std::min(first + std::min<size_t>(split.chunk, 8), got.size()); ++k) {
        text += "    " + hex(got[k], bits) + ": " + describe_thread(c, inputs, k) + "\n";
      }
    }
  }
  return text;
}

std::string compare_values(const Case& c, const std::vector<Values>& inputs,
                           const std::vector<Values>& expected, const CaseResult& result) {
  if (expected.size() != result.outputs.size())
    return "  the expected values are not as many as the outputs\n";
  std::string text;
  for (size_t o = 0; o < expected.size(); ++o) {
    if (c.compare != Compare::kExact) {
      text += compare_numbers(c, inputs, o, result.outputs[o], expected[o], nullptr);
      continue;
    }
    size_t shown = 0;
    for (size_t i = 0; i < expected[o].size() && shown < 4; ++i) {
      if (expected[o][i] == result.outputs[o][i]) continue;
      ++shown;
      const int bits = bits_of(output_type(c, o));
      text += "  o" + std::to_string(o) + ": " + hex(result.outputs[o][i], bits) + ", expected " +
              hex(expected[o][i], bits) + ": " + describe_thread(c, inputs, i) + "\n";
    }
  }
  return text;
}

}  // namespace mla::conformance
