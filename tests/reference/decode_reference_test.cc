// SPDX-License-Identifier: Apache-2.0
//
// The reference itself against values worked out by hand, and against a direct textbook
// evaluation of the formulas for random problems.
#include "tests/reference/decode_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/common/mla_softmax.h"
#include "tests/reference/number_formats.h"

namespace mla::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// A small e4m3 problem that owns its memory. Every byte not set is NaN.
struct Fixture {
  DecodeProblem problem;
  std::vector<uint8_t> q, kv, v;
  std::vector<int32_t> page_table, seq_lens;

  Fixture(int q_len, int heads, int page_size, int64_t pages, std::vector<int32_t> lens, int max_pages)
      : q(lens.size() * q_len * heads * kDepthK, 0),
        kv(static_cast<size_t>(pages) * page_size * kDepthK, kE4M3NaN),
        page_table(lens.size() * max_pages, 0x7fffffff),
        seq_lens(std::move(lens)) {
    problem.batch = static_cast<int>(seq_lens.size());
    problem.q_len = q_len;
    problem.heads = heads;
    problem.page_size = page_size;
    problem.pages = pages;
    problem.max_pages_per_seq = max_pages;
    problem.q = q.data();
    problem.kv = kv.data();
    problem.page_table = page_table.data();
    problem.seq_lens = seq_lens.data();
  }

  uint8_t* token(int64_t page, int slot) { return &kv[(page * problem.page_size + slot) * kDepthK]; }
  void zero_token(int64_t page, int slot) { std::memset(token(page, slot), 0, kDepthK); }
};

// One query e0, keys with key[0] = 0 and 1 and values v[1] = 1 and 2. With softmax_scale = ln 3 the
// weights are 1/4 and 3/4.
TEST(DecodeReference, TwoTokensByHand) {
  Fixture f(1, 1, 16, 3, {2}, 1);
  f.page_table[0] = 2;
  f.q[0] = to_e4m3(1.0);
  f.zero_token(2, 0);
  f.zero_token(2, 1);
  f.token(2, 1)[0] = to_e4m3(1.0);
  f.token(2, 0)[1] = to_e4m3(1.0);
  f.token(2, 1)[1] = to_e4m3(2.0);
  f.problem.softmax_scale = std::log(3.0);
  const ReferenceResult r = decode_reference(f.problem, {});
  ASSERT_EQ(r.out.size(), static_cast<size_t>(kDepthV));
  EXPECT_NEAR(r.out[0], 0.75, 1e-14);
  EXPECT_NEAR(r.out[1], 1.75, 1e-14);
  EXPECT_EQ(r.out[2], 0.0);
  EXPECT_NEAR(r.lse[0], std::log(4.0), 1e-14);
}

// The same with scales: score = softmax_scale * q_scale * kv_scale * dot, out times kv_scale.
TEST(DecodeReference, ScalesEnterScoreAndOutput) {
  Fixture f(1, 1, 16, 1, {2}, 1);
  f.page_table[0] = 0;
  f.q[0] = to_e4m3(1.0);
  f.zero_token(0, 0);
  f.zero_token(0, 1);
  f.token(0, 1)[0] = to_e4m3(1.0);
  f.problem.q_scale = 0.5;
  f.problem.kv_scale = 4.0;
  f.problem.softmax_scale = std::log(3.0) / 2.0;
  const ReferenceResult r = decode_reference(f.problem, {});
  EXPECT_NEAR(r.out[0], 4.0 * 0.75, 1e-14);
  EXPECT_NEAR(r.lse[0], std::log(4.0), 1e-14);
}

// Three tokens with v[0] = 1, 2, 4 and equal scores: query token t of two sees 2 + t of them.
TEST(DecodeReference, CausalMask) {
  Fixture f(2, 1, 16, 1, {3}, 1);
  f.page_table[0] = 0;
  for (int slot = 0; slot < 3; ++slot) {
    f.zero_token(0, slot);
    f.token(0, slot)[1] = to_e4m3(1 << slot);
  }
  const ReferenceResult r = decode_reference(f.problem, {});
  EXPECT_NEAR(r.out[1], 1.5, 1e-14);
  EXPECT_NEAR(r.out[kDepthV + 1], 7.0 / 3.0, 1e-14);
  EXPECT_NEAR(r.lse[0], std::log(2.0), 1e-14);
  EXPECT_NEAR(r.lse[1], std::log(3.0), 1e-14);
}

TEST(DecodeReference, NothingVisibleGivesZeroAndMinusInfinity) {
  Fixture f(3, 2, 16, 1, {0, 2}, 1);
  f.page_table[1] = 0;
  f.zero_token(0, 0);
  f.zero_token(0, 1);
  ReferenceOptions options;
  options.split_offsets = [](QueryToken, int) { return SplitOffsets{}; };
  EXPECT_EQ(visible_tokens(f.problem, {0, 2}), 0);
  EXPECT_EQ(visible_tokens(f.problem, {1, 0}), 0);
  EXPECT_EQ(visible_tokens(f.problem, {1, 1}), 1);
  EXPECT_EQ(visible_tokens(f.problem, {1, 2}), 2);
  const ReferenceResult r = decode_reference(f.problem, options);
  for (int row = 0; row < 8; ++row) {  // request 0, and query token 0 of request 1
    EXPECT_EQ(r.lse[row], -kInf);
    for (int d = 0; d < kDepthV; ++d) {
      EXPECT_EQ(r.out[row * kDepthV + d], 0.0);
      EXPECT_EQ(r.model_out[row * kDepthV + d], 0.0);
    }
  }
  EXPECT_NEAR(r.lse[8], 0.0, 1e-14);
  EXPECT_NEAR(r.lse[10], std::log(2.0), 1e-14);
}

// A table of one page of 16: what a request has beyond it is masked, and the mask does not shift.
TEST(DecodeReference, TokensBeyondThePageTableAreMasked) {
  Fixture f(2, 1, 16, 1, {17}, 1);
  f.page_table[0] = 0;
  for (int slot = 0; slot < 16; ++slot) f.zero_token(0, slot);
  EXPECT_EQ(visible_tokens(f.problem, {0, 0}), 16);
  EXPECT_EQ(visible_tokens(f.problem, {0, 1}), 17);
  EXPECT_TRUE(has_bad_tokens(f.problem));
  const ReferenceResult r = decode_reference(f.problem, {});
  EXPECT_NEAR(r.lse[0], std::log(16.0), 1e-14);
  EXPECT_NEAR(r.lse[1], std::log(16.0), 1e-14);
  f.seq_lens[0] = 16;
  EXPECT_FALSE(has_bad_tokens(f.problem));
}

TEST(DecodeReference, WhichTokensAreVisible) {
  Fixture f(3, 1, 16, 1, {10, -5, -2147483647 - 1}, 1);
  EXPECT_EQ(visible_tokens(f.problem, {0, 0}), 8);
  EXPECT_EQ(visible_tokens(f.problem, {1, 2}), 0);
  EXPECT_EQ(visible_tokens(f.problem, {2, 0}), 0);
  f.problem.causal = false;
  EXPECT_EQ(visible_tokens(f.problem, {0, 0}), 10);
  f.problem.causal = true;
  const int32_t offsets[] = {0, 2, 2, 3};
  f.problem.q_offsets = offsets;
  EXPECT_EQ(query_count(f.problem, 0), 2);
  EXPECT_EQ(query_index(f.problem, {2, 0}), 2);
  EXPECT_EQ(visible_tokens(f.problem, {0, 0}), 9);
  EXPECT_EQ(decode_reference(f.problem, {}).query_tokens.size(), 3u);
  // Blocks of 3 tokens, to two ranks in turn: 0-2 and 6-8 to one, 3-5 and 9 to the other.
  f.problem.cp_size = 2;
  f.problem.cp_interleave = 3;
  EXPECT_EQ(visible_tokens(f.problem, {0, 1}), 6);
  EXPECT_EQ(visible_tokens(f.problem, {0, 0}), 6);
  f.problem.cp_rank = 1;
  EXPECT_EQ(visible_tokens(f.problem, {0, 1}), 4);
  EXPECT_EQ(visible_tokens(f.problem, {0, 0}), 3);
}

// NaN in what a query token sees, in a full tile or a partial one, gives NaN for it and no other.
TEST(DecodeReference, NaNStaysWhereItIsSeen) {
  Fixture f(2, 1, 16, 1, {2}, 1);
  f.page_table[0] = 0;
  f.zero_token(0, 0);
  f.zero_token(0, 1);
  f.token(0, 1)[600 - kDepthV] = kE4M3NaN;
  ReferenceOptions options;
  options.split_offsets = [](QueryToken, int) { return SplitOffsets{0, 1}; };
  const ReferenceResult r = decode_reference(f.problem, options);
  EXPECT_EQ(r.lse[0], 0.0);
  EXPECT_EQ(r.out[0], 0.0);
  EXPECT_TRUE(std::isnan(r.lse[1]));
  EXPECT_TRUE(std::isnan(r.out[kDepthV]));
  EXPECT_TRUE(std::isnan(r.model_out[kDepthV]));
}

// Page size 16, 40 tokens, the middle page bad: only 16 + 8 tokens count.
TEST(DecodeReference, BadPagesAreMaskedAndCounted) {
  for (const int32_t bad : {-1, -2147483647 - 1, 4, 2147483647}) {
    Fixture f(2, 1, 16, 4, {40}, 3);
    f.page_table[0] = 1;
    f.page_table[1] = bad;
    f.page_table[2] = 3;
    for (int slot = 0; slot < 16; ++slot) f.zero_token(1, slot);
    for (int slot = 0; slot < 8; ++slot) f.zero_token(3, slot);
    for (int slot = 0; slot < 8; ++slot) f.token(3, slot)[7] = to_e4m3(3.0);
    const ReferenceResult r = decode_reference(f.problem, {});
    EXPECT_NEAR(r.lse[0], std::log(23.0), 1e-14);
    EXPECT_NEAR(r.lse[1], std::log(24.0), 1e-14);
    EXPECT_NEAR(r.out[kDepthV + 7], 1.0, 1e-14);
    EXPECT_TRUE(has_bad_tokens(f.problem));
  }
}

TEST(DecodeReference, AllPagesBadGivesZero) {
  Fixture f(1, 1, 64, 1, {100}, 2);
  f.page_table[0] = -1;
  f.page_table[1] = 1;
  ReferenceOptions options;
  options.split_offsets = [](QueryToken, int) { return SplitOffsets{0, 1, 2}; };
  const ReferenceResult r = decode_reference(f.problem, options);
  EXPECT_EQ(r.lse[0], -kInf);
  EXPECT_EQ(r.out[5], 0.0);
  EXPECT_EQ(r.model_out[5], 0.0);
  EXPECT_TRUE(has_bad_tokens(f.problem));
}

TEST(DecodeReference, SplitsThatDoNotCoverTheTilesAreRefused) {
  Fixture f(1, 1, 64, 2, {70}, 2);
  ReferenceOptions options;
  options.split_offsets = [](QueryToken, int) { return SplitOffsets{0, 1}; };
  try {
    decode_reference(f.problem, options);
    FAIL() << "no exception";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "split_offsets of request 0 must rise from 0 to its 2 tiles");
  }
}

// Two tokens with p = 448 and 448 * 0.03 = 13.44, which e4m3 rounds to 13: the weights become
// 448/461 and 13/461, while lse keeps the exact sum.
TEST(QuantisationModel, OneTileByHand) {
  Fixture f(1, 1, 16, 1, {2}, 1);
  f.page_table[0] = 0;
  f.q[0] = to_e4m3(1.0);
  f.zero_token(0, 0);
  f.zero_token(0, 1);
  f.token(0, 1)[0] = to_e4m3(1.0);
  f.token(0, 0)[1] = to_e4m3(1.0);
  f.problem.softmax_scale = std::log(0.03);
  ReferenceOptions options;
  options.split_offsets = [](QueryToken, int) { return SplitOffsets{0, 1}; };
  const ReferenceResult r = decode_reference(f.problem, options);
  EXPECT_NEAR(r.model_out[0], 13.0 / 461.0, 1e-12);
  EXPECT_NEAR(r.model_out[1], 448.0 / 461.0, 1e-12);
  EXPECT_NEAR(r.out[0], 0.03 / 1.03, 1e-12);
  EXPECT_NEAR(r.lse[0], std::log(1.03), 1e-12);
}

// Token 0 has score 0 and value 0, the 127 others score -20 (in powers of two) and value 1: too little
// for e4m3 beside 448. In its own tile they are the second part, and the reference falls to them.
TEST(QuantisationModel, ASinkDoesNotEraseTheRest) {
  Fixture f(1, 1, 64, 2, {128}, 2);
  f.page_table[0] = 0;
  f.page_table[1] = 1;
  f.q[kDepthV] = to_e4m3(1.0);
  for (int i = 0; i < 128; ++i) {
    f.zero_token(i / 64, i % 64);
    if (i == 0) continue;
    f.token(i / 64, i % 64)[1] = to_e4m3(1.0);
    f.token(i / 64, i % 64)[kDepthV] = to_e4m3(-20.0);
  }
  f.problem.softmax_scale = std::log(2.0);
  const double weight = 127 * std::exp2(-20.0);
  ReferenceOptions options;
  for (const SplitOffsets& splits : {SplitOffsets{0, 2}, SplitOffsets{0, 1, 2}}) {
    options.split_offsets = [&](QueryToken, int) { return splits; };
    ReferenceResult r = decode_reference(f.problem, options);
    EXPECT_NEAR(r.model_out[1], weight / (1 + weight), 1e-14);
    EXPECT_NEAR(r.lse[0], std::log1p(weight), 1e-14);
    // The sink in the last tile.
    f.page_table[0] = 1;
    f.page_table[1] = 0;
    r = decode_reference(f.problem, options);
    EXPECT_NEAR(r.model_out[1], weight / (1 + weight), 1e-14);
    f.page_table[0] = 0;
    f.page_table[1] = 1;
  }
}

TEST(QuantisationModel, ReferencesRiseAndFallWithinBounds) {
  using R = RowReference<float>;
  const auto next = [](R before, float most) {
    const R r = next_reference(before, most);
    return std::pair(r.value, r.most);
  };
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const R none = {-inf, -inf};
  EXPECT_EQ(next(none, 3.f), std::pair(3.f, 3.f));
  EXPECT_EQ(next(none, -inf), std::pair(-inf, -inf));
  EXPECT_EQ(next(none, nan), std::pair(-inf, -inf));
  EXPECT_EQ(next({3.f, 3.f}, 5.f), std::pair(5.f, 5.f));
  EXPECT_EQ(next({3.f, 3.f}, -0.5f), std::pair(3.f, 3.f));
  EXPECT_EQ(next({3.f, 3.f}, -1.f), std::pair(-1.f, 3.f));
  EXPECT_EQ(next({3.f, 3.f}, -inf), std::pair(3.f, 3.f));
  EXPECT_EQ(next({3.f, 3.f}, nan), std::pair(3.f, 3.f));
  EXPECT_EQ(next({3.f, 3.f}, -100.f), std::pair(-61.f, 3.f));
  EXPECT_EQ(next({-61.f, 3.f}, -100.f), std::pair(-61.f, 3.f));
  EXPECT_EQ(next({-61.f, 3.f}, -50.f), std::pair(-50.f, 3.f));
  EXPECT_TRUE(needs_second_part(none, -1000.f));
  EXPECT_FALSE(needs_second_part(none, -inf));
  EXPECT_TRUE(needs_second_part(R{0.f, 9.f}, 1.1f));
  EXPECT_FALSE(needs_second_part(R{0.f, 9.f}, 1.f));
}

// 64 tokens with score 0 in the first tile, one with score ln 10 in the second. Against the running
// maximum the 64 are exact (448 each, rescaled to 44.8 afterwards); against the final maximum 44.8
// would round to 44.
TEST(QuantisationModel, RunningMaximumOfTilesInOrder) {
  Fixture f(1, 1, 64, 2, {65}, 2);
  f.page_table[0] = 0;
  f.page_table[1] = 1;
  f.q[0] = to_e4m3(1.0);
  for (int slot = 0; slot < 64; ++slot) {
    f.zero_token(0, slot);
    f.token(0, slot)[1] = to_e4m3(1.0);
  }
  f.zero_token(1, 0);
  f.token(1, 0)[0] = to_e4m3(1.0);
  f.problem.softmax_scale = std::log(10.0);
  ReferenceOptions options;
  options.split_offsets = [](QueryToken, int) { return SplitOffsets{0, 2}; };
  ReferenceResult r = decode_reference(f.problem, options);
  EXPECT_NEAR(r.model_out[1], 6.4 / 7.4, 1e-12);
  EXPECT_NEAR(r.model_out[0], 1.0 / 7.4, 1e-12);
  EXPECT_NEAR(r.lse[0], std::log(74.0), 1e-12);

  // Tiles in the other order: the large score comes first, so 44.8 is rounded to 44. (The reference
  // falls by four powers of two, not by 3.3.) The others of its tile have 448 * 10^-4, rounded to
  // 11/256.
  f.page_table[0] = 1;
  f.page_table[1] = 0;
  for (int slot = 1; slot < 64; ++slot) f.zero_token(1, slot);
  for (int slot = 1; slot < 64; ++slot) f.token(1, slot)[0] = to_e4m3(-3.0);
  f.seq_lens[0] = 128;
  r = decode_reference(f.problem, options);
  EXPECT_NEAR(r.model_out[1], 64 * 44.0 / (448.0 + 63 * 11.0 / 256 + 64 * 44.0), 1e-12);
  EXPECT_NEAR(r.out[1], 64.0 / (10.0 + 63 * 0.001 + 64.0), 1e-12);

  // In splits of their own the 64 are exact again: each tile has its own maximum.
  options.split_offsets = [](QueryToken, int) { return SplitOffsets{0, 1, 2}; };
  r = decode_reference(f.problem, options);
  EXPECT_NEAR(r.model_out[1], 64.0 / (10.0 + 63 * 11.0 / 256 / 44.8 + 64.0), 1e-12);
}

// Textbook evaluation in two passes, straight from the formulas.
void naive(const DecodeProblem& p, int request, int token, int head, double* out, double* lse) {
  const int size = p.kv_format == Format::kE4M3 ? 1 : 2;
  const int q_size = p.q_format == Format::kE4M3 ? 1 : 2;
  const auto read = [](const void* base, int64_t byte, Format format) -> double {
    const uint8_t* at = static_cast<const uint8_t*>(base) + byte;
    if (format == Format::kE4M3) return e4m3_to_float(*at);
    uint16_t code;
    std::memcpy(&code, at, 2);
    return bf16_to_float(code);
  };
  std::vector<double> score;
  std::vector<int64_t> where;
  for (int i = 0; i < p.seq_lens[request] - (p.q_len - 1) + token; ++i) {
    const int64_t id = p.page_table[request * p.page_table_stride + i / p.page_size];
    if (id < 0 || id >= p.pages) continue;
    const int64_t at = id * p.kv_page_stride + i % p.page_size * p.kv_token_stride;
    double dot = 0;
    for (int d = 0; d < kDepthK; ++d) {
      const int64_t q_at = ((static_cast<int64_t>(request) * p.q_len + token) * p.heads + head) * kDepthK + d;
      dot += read(p.q, q_at * q_size, p.q_format) * read(p.kv, at + d * size, p.kv_format);
    }
    score.push_back(dot * p.softmax_scale * p.q_scale * p.kv_scale);
    where.push_back(p.v ? id * p.v_page_stride + i % p.page_size * p.v_token_stride : at);
  }
  double sum = 0;
  std::fill(out, out + kDepthV, 0.0);
  for (size_t i = 0; i < score.size(); ++i) {
    sum += std::exp(score[i]);
    for (int d = 0; d < kDepthV; ++d) {
      out[d] += p.kv_scale * std::exp(score[i]) * read(p.v ? p.v : p.kv, where[i] + d * size, p.kv_format);
    }
  }
  for (int d = 0; d < kDepthV && sum > 0; ++d) out[d] /= sum;
  *lse = std::log(sum);
}

class RandomProblems : public testing::TestWithParam<Format> {};

TEST_P(RandomProblems, AgreeWithTheTextbook) {
  const Format format = GetParam();
  const int size = format == Format::kE4M3 ? 1 : 2;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::vector<uint8_t>& bytes) {
    if (format == Format::kE4M3) {
      for (uint8_t& byte : bytes) byte = to_e4m3(normal(random));
    } else {
      for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
        const uint16_t code = float_to_bf16(normal(random));
        std::memcpy(&bytes[i], &code, 2);
      }
    }
  };
  for (const bool separate_values : {false, true}) {
    DecodeProblem p;
    p.batch = 3;
    p.q_len = 2;
    p.heads = 5;
    p.page_size = 32;
    p.pages = 40;
    p.max_pages_per_seq = 9;
    p.page_table_stride = 11;
    p.q_format = p.kv_format = format;
    p.kv_token_stride = 592 * size;
    p.kv_page_stride = 33 * p.kv_token_stride;
    p.v_token_stride = 528 * size;
    p.v_page_stride = 34 * p.v_token_stride;
    p.softmax_scale = 0.03;
    p.q_scale = 1.5;
    p.kv_scale = 0.75;
    std::vector<uint8_t> q(static_cast<size_t>(p.batch) * p.q_len * p.heads * kDepthK * size);
    std::vector<uint8_t> kv(p.pages * p.kv_page_stride), v(p.pages * p.v_page_stride);
    std::vector<int32_t> lens = {1, 65, 270}, table(33);
    for (int32_t& id : table) id = static_cast<int32_t>(random() % 44) - 2;
    fill(q);
    fill(kv);
    fill(v);
    p.q = q.data();
    p.kv = kv.data();
    if (separate_values) p.v = v.data();
    p.page_table = table.data();
    p.seq_lens = lens.data();
    ReferenceOptions options;
    options.heads = {4, 0, 2};
    options.split_offsets = [&](QueryToken t, int) {
      const int tiles = static_cast<int>((visible_tokens(p, t) + 63) / 64);
      return tiles > 3 ? SplitOffsets{0, 1, 3, tiles} : SplitOffsets{0, tiles};
    };
    const ReferenceResult r = decode_reference(p, options);
    ASSERT_EQ(r.query_tokens.size(), 6u);
    ASSERT_EQ(r.model_out.size(), format == Format::kE4M3 ? r.out.size() : 0u);
    std::vector<double> out(kDepthV);
    for (size_t i = 0; i < r.query_tokens.size(); ++i) {
      for (size_t h = 0; h < r.heads.size(); ++h) {
        const size_t row = i * r.heads.size() + h;
        double lse;
        naive(p, r.query_tokens[i].request, r.query_tokens[i].token, r.heads[h], out.data(), &lse);
        if (std::isinf(lse)) {
          EXPECT_EQ(r.lse[row], lse);
        } else {
          EXPECT_NEAR(r.lse[row], lse, 1e-12);
        }
        double model_error = 0, norm = 0;
        for (int d = 0; d < kDepthV; ++d) {
          EXPECT_NEAR(r.out[row * kDepthV + d], out[d], 1e-12);
          if (r.model_out.empty()) continue;
          model_error += std::pow(r.model_out[row * kDepthV + d] - out[d], 2);
          norm += out[d] * out[d];
        }
        // Quantising P is visible, and small.
        if (norm > 0 && !r.model_out.empty() && visible_tokens(p, r.query_tokens[i]) > 100) {
          EXPECT_GT(std::sqrt(model_error / norm), 1e-4);
          EXPECT_LT(std::sqrt(model_error / norm), 4e-2);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, RandomProblems, testing::Values(Format::kE4M3, Format::kBF16),
                         [](const auto& info) { return info.param == Format::kE4M3 ? "e4m3" : "bf16"; });

// The result does not depend on the number of threads, nor (the exact one) on the splits.
TEST(DecodeReference, ThreadsAndSplitsDoNotMatter) {
  Fixture f(1, 40, 64, 10, {600, 7}, 10);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (uint8_t& byte : f.kv) byte = to_e4m3(normal(random));
  for (uint8_t& byte : f.q) byte = to_e4m3(normal(random));
  for (int i = 0; i < 20; ++i) f.page_table[i] = i * 7 % 10;
  f.problem.softmax_scale = 0.04;
  ReferenceOptions options;
  options.threads = 1;
  const ReferenceResult one = decode_reference(f.problem, options);
  options.threads = 5;
  EXPECT_EQ(decode_reference(f.problem, options).out, one.out);
  options.split_offsets = [&](QueryToken t, int) {
    return t.request == 0 ? SplitOffsets{0, 4, 5, 10} : SplitOffsets{0, 1};
  };
  const ReferenceResult split = decode_reference(f.problem, options);
  for (size_t i = 0; i < one.out.size(); ++i) ASSERT_NEAR(split.out[i], one.out[i], 1e-12);
  for (size_t i = 0; i < one.lse.size(); ++i) ASSERT_NEAR(split.lse[i], one.lse[i], 1e-12);
}

}  // namespace
}  // namespace mla::reference
