// SPDX-License-Identifier: Apache-2.0
#include "tests/regression/merge_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/reference/number_formats.h"

namespace mla::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Places of rows in a buffer: bytes of out, elements of lse.
struct Strides {
  int64_t shard = 0, token = 0, head = 0;
  int64_t end = 0;  // size of the buffer

  int64_t at(int shard_index, int token_index, int head_index) const {
    return shard_index * shard + token_index * token + head_index * head;
  }
};

// Dense, or with gaps and the heads farther apart than the tokens.
Strides strides_of(const MergeCase& c, int shards, int64_t row, int64_t gap) {
  Strides s;
  if (c.strided) {
    s.token = row + gap;
    s.head = c.tokens * s.token + gap;
    s.shard = c.heads * s.head + gap;
  } else {
    s.head = row;
    s.token = c.heads * row;
    s.shard = c.tokens * s.token;
  }
  s.end = shards * s.shard;
  return s;
}

}  // namespace

std::vector<MergeCase> merge_cases() {
  return {
      {.name = "merge_2", .shards = 2, .tokens = 5, .heads = 16},
      {.name = "merge_1", .shards = 1, .tokens = 3, .heads = 7},
      {.name = "merge_8_128_heads", .shards = 8, .tokens = 3, .heads = 128},
      {.name = "merge_33", .shards = 33, .tokens = 2, .heads = 3},
      {.name = "merge_100_far_apart", .shards = 100, .tokens = 1, .heads = 9, .spread = 200},
      {.name = "merge_empty_shards", .shards = 4, .tokens = 9, .heads = 8, .empty_percent = 60},
      {.name = "merge_nothing", .shards = 3, .tokens = 2, .heads = 5, .empty_percent = 100},
      {.name = "merge_nan", .shards = 5, .tokens = 9, .heads = 8, .empty_percent = 40, .poisoned_percent = 5},
      {.name = "merge_strided", .shards = 4, .tokens = 6, .heads = 5, .empty_percent = 20, .strided = true},
      {.name = "merge_no_lse", .shards = 2, .tokens = 2, .heads = 4, .want_lse = false},
      {.name = "merge_pdl", .shards = 2, .tokens = 2, .heads = 4, .use_pdl = true},
      {.name = "merge_max_sms_1", .shards = 2, .tokens = 70, .heads = 16, .max_sms = 1},
  };
}

std::vector<std::string> run_merge(const Driver& driver, const LoaderApi& api, const PreparedKernel& kernel,
                                   const MergeCase& c, uint64_t seed, double* error, double* lse_error) {
  const int dim = kernel.info.head_dim_v;
  const bool f32 = kernel.info.partial_dtype == MLA_DTYPE_F32;
  const int partial_bytes = f32 ? 4 : 2;
  const Strides partial_out = strides_of(c, c.shards, int64_t{dim} * partial_bytes, 16);
  const Strides partial_lse = strides_of(c, c.shards, 1, 3);
  const Strides out = strides_of(c, 1, int64_t{dim} * 2, 32);
  const Strides lse = strides_of(c, 1, 1, 1);

  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<uint8_t> outputs(partial_out.end, 0xff);  // NaN where nothing must be read
  std::vector<float> lses(partial_lse.end, std::nanf(""));
  const auto value_at = [&](int64_t byte) -> double {
    if (f32) {
      float value;
      std::memcpy(&value, outputs.data() + byte, 4);
      return value;
    }
    uint16_t code;
    std::memcpy(&code, outputs.data() + byte, 2);
    return reference::bf16_to_float(code);
  };
  for (int s = 0; s < c.shards; ++s) {
    for (int t = 0; t < c.tokens; ++t) {
      for (int h = 0; h < c.heads; ++h) {
        const int dice = static_cast<int>(random() % 100);
        float& l = lses[partial_lse.at(s, t, h)];
        if (dice < c.poisoned_percent) continue;
        l = static_cast<float>(c.spread * normal(random));
        if (dice - c.poisoned_percent < c.empty_percent) {
          l = -std::numeric_limits<float>::infinity();
          continue;
        }
        for (int d = 0; d < dim; ++d) {
          const float value = static_cast<float>(normal(random));
          const uint16_t code = reference::float_to_bf16(value);
          uint8_t* target = outputs.data() + partial_out.at(s, t, h) + d * partial_bytes;
          f32 ? std::memcpy(target, &value, 4) : std::memcpy(target, &code, 2);
        }
      }
    }
  }

  CUstream stream = nullptr;
  MLA_CU(driver, cuStreamCreate, &stream, kStreamNonBlocking);
  DeviceBuffer d_outputs(driver, outputs.size(), false), d_lses(driver, lses.size() * sizeof(float), false);
  DeviceBuffer d_out(driver, out.end, true), d_lse(driver, lse.end * sizeof(float), true);
  d_outputs.write(outputs.data(), outputs.size());
  d_lses.write(lses.data(), d_lses.bytes());

  std::vector<std::string> faults;
  const auto fault = [&](const std::string& text) {
    if (faults.size() < 8) faults.push_back(text);
  };
  std::vector<uint8_t> got(out.end), first;
  std::vector<float> got_lse(lse.end), first_lse;
  for (int repeat = 0; repeat < 2; ++repeat) {
    d_out.fill(0xff);
    d_lse.fill(0xff);
    MLA_CU(driver, cuCtxSynchronize);
    mla_merge_args args = MLA_MERGE_ARGS_INIT;
    args.flags = c.use_pdl ? MLA_LAUNCH_PDL : 0;
    args.partial_out = d_outputs.address();
    args.partial_lse = d_lses.address();
    args.out = d_out.address();
    args.lse = c.want_lse ? d_lse.address() : 0;
    args.shards = c.shards;
    args.tokens = c.tokens;
    args.heads = c.heads;
    args.max_sms = c.max_sms;
    if (c.strided) {
      args.partial_out_shard_stride = partial_out.shard;
      args.partial_out_token_stride = partial_out.token;
      args.partial_out_head_stride = partial_out.head;
      args.partial_lse_shard_stride = partial_lse.shard;
      args.partial_lse_token_stride = partial_lse.token;
      args.partial_lse_head_stride = partial_lse.head;
      args.out_token_stride = out.token;
      args.out_head_stride = out.head;
      args.lse_token_stride = lse.token;
      args.lse_head_stride = lse.head;
    }
    MLA_API_CALL(api, mla_merge_launch, kernel.kernel, &args, stream);
    MLA_CU(driver, cuStreamSynchronize, stream);
    d_out.read(got.data(), got.size());
    d_lse.read(got_lse.data(), d_lse.bytes());
    if (repeat == 0) {
      first = got;
      first_lse = got_lse;
    }
  }
  driver.cuStreamDestroy(stream);
  if (got != first || std::memcmp(got_lse.data(), first_lse.data(), d_lse.bytes()) != 0) {
    fault("the second launch gives other bits");
  }
  for (const std::string& text : {d_out.check_guards("out"), d_lse.check_guards("lse")}) {
    if (!text.empty()) fault(text);
  }
  if (!c.want_lse && std::any_of(got_lse.begin(), got_lse.end(), [](float x) { return !std::isnan(x); })) {
    fault("lse was not wanted, and something was written there");
  }

  std::vector<double> want(dim);
  for (int t = 0; t < c.tokens; ++t) {
    for (int h = 0; h < c.heads; ++h) {
      const std::string where = "token " + std::to_string(t) + ", head " + std::to_string(h) + ": ";
      double most = -kInf, sum = 0;
      for (int s = 0; s < c.shards; ++s) most = std::fmax(most, lses[partial_lse.at(s, t, h)]);
      std::fill(want.begin(), want.end(), 0.0);
      for (int s = 0; s < c.shards; ++s) {
        const double l = lses[partial_lse.at(s, t, h)];
        if (l == -kInf) continue;
        const double weight = std::exp(l - most);
        sum += weight;
        for (int d = 0; d < dim; ++d) {
          want[d] += weight * value_at(partial_out.at(s, t, h) + d * partial_bytes);
        }
      }
      const double want_lse = sum == 0 ? -kInf : most + std::log(sum);
      double difference = 0, norm = 0;
      for (int d = 0; d < dim; ++d) {
        uint16_t code;
        std::memcpy(&code, got.data() + out.at(0, t, h) + 2 * d, 2);
        const double value = reference::bf16_to_float(code);
        const double expected = sum == 0 ? 0.0 : want[d] / sum;
        if (std::isnan(value) != std::isnan(expected)) {
          fault(where + "out is " + std::to_string(value) + " in column " + std::to_string(d) +
                ", expected " + std::to_string(expected));
          break;
        }
        if (std::isnan(expected)) continue;
        difference += (value - expected) * (value - expected);
        norm += expected * expected;
      }
      const double relative = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
      *error = std::max(*error, relative);
      if (!(relative <= kMaxMerge)) fault(where + "relative error " + std::to_string(relative));
      if (!c.want_lse) continue;
      const double l = got_lse[lse.at(0, t, h)];
      if (std::isnan(l) != std::isnan(want_lse) || std::isinf(l) != std::isinf(want_lse)) {
        fault(where + "lse is " + std::to_string(l) + ", expected " + std::to_string(want_lse));
      } else if (std::isfinite(want_lse)) {
        const double off = std::abs(l - want_lse) / std::max(1.0, std::abs(want_lse));
        *lse_error = std::max(*lse_error, off);
        if (!(off <= kMaxMergeLse)) {
          fault(where + "lse is " + std::to_string(l) + ", expected " + std::to_string(want_lse));
        }
      }
    }
  }
  return faults;
}

}  // namespace mla::test
