// SPDX-License-Identifier: Apache-2.0
//
// The model of the Hopper family's quantisation against cases worked out by hand.
#include "tests/reference/hopper_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tests/reference/decode_reference.h"
#include "tests/reference/number_formats.h"

namespace mla::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Quantised {
  double level;
  std::vector<double> p;
};

Quantised quantise(HopperRow& row, const std::vector<double>& scores) {
  Quantised result{0, std::vector<double>(scores.size(), -1.0)};
  result.level = quantise_hopper_pair(scores.data(), static_cast<int>(scores.size()), row, result.p.data());
  return result;
}

// The maximum stands for 448 / 8.
TEST(HopperModel, TheFirstReferenceLiesAboveTheMaximum) {
  HopperRow row;
  const Quantised q = quantise(row, {10.0, 9.0, 5.0, -kInf});
  EXPECT_EQ(q.level, 13.0);
  EXPECT_EQ(q.p, (std::vector<double>{56.0, 28.0, 1.75, 0.0}));
  EXPECT_EQ(row.reference, 13.0);
  EXPECT_EQ(row.highest, 10.0);
  EXPECT_TRUE(row.high);
}

// 448 * 2^-3.2 = 48.75...: to the nearest e4m3 value.
TEST(HopperModel, WeightsAreRounded) {
  HopperRow row;
  const Quantised q = quantise(row, {0.0, -0.2});
  EXPECT_EQ(q.p[1], 48.0);
}

TEST(HopperModel, AReferenceIsKeptUntilAScoreIsAboveIt) {
  HopperRow row;
  quantise(row, {10.0});
  Quantised q = quantise(row, {13.0, 10.0});  // as high as the reference: kept
  EXPECT_EQ(q.level, 13.0);
  EXPECT_EQ(q.p, (std::vector<double>{448.0, 56.0}));
  EXPECT_EQ(row.highest, 10.0);
  q = quantise(row, {13.5, 13.0});  // above it; not kFall above the highest, so in one part
  EXPECT_EQ(q.level, 16.5);
  EXPECT_EQ(row.highest, 13.5);
}

// 448 * 2^-10 is 0.4375, below kHigh.
TEST(HopperModel, AReferenceFallsAfterATileFarBelowIt) {
  HopperRow row;
  quantise(row, {10.0});
  Quantised q = quantise(row, {3.0});
  EXPECT_EQ(q.level, 13.0);
  EXPECT_EQ(q.p[0], 0.4375);
  EXPECT_FALSE(row.high);
  q = quantise(row, {3.0});
  EXPECT_EQ(q.level, 6.0);
  EXPECT_EQ(q.p[0], 56.0);
  EXPECT_EQ(row.highest, 10.0);
  // 448 * 2^-9 is 0.875.
  quantise(row, {-3.0});
  EXPECT_TRUE(row.high);
  EXPECT_EQ(quantise(row, {-3.0}).level, 6.0);
}

TEST(HopperModel, ATileWithoutScoresKeepsTheReference) {
  HopperRow row;
  Quantised q = quantise(row, {-kInf, -kInf});
  EXPECT_EQ(q.level, -kInf);
  EXPECT_EQ(q.p, (std::vector<double>{0.0, 0.0}));
  EXPECT_EQ(quantise(row, {10.0}).level, 13.0);
  q = quantise(row, {-kInf});
  EXPECT_EQ(q.level, 13.0);
  EXPECT_EQ(q.p[0], 0.0);
  EXPECT_EQ(quantise(row, {2.0}).level, 5.0);  // nothing was high
}

// A sink 20 above the rest: the rest is 448 / 8 of a second part, and its reference stays.
TEST(HopperModel, ASinkHasAPartOfItsOwn) {
  HopperRow row, other;
  const Quantised rest = quantise(other, {16.5, 10.0});
  const Quantised q = quantise(row, {30.0, 18.5, 10.0, 16.5, -kInf});
  EXPECT_EQ(q.level, 33.0);
  EXPECT_EQ(q.p[0], 56.0);
  EXPECT_EQ(q.p[1], 0.01953125);  // 30 - kSpread is of the first part: 448 * 2^-14.5 is 0.0193
  EXPECT_EQ(q.p[2], std::exp2(16.5 - 30.0) * rest.p[1]);
  EXPECT_EQ(q.p[3], std::exp2(16.5 - 30.0) * 56.0);
  EXPECT_EQ(q.p[4], 0.0);
  EXPECT_EQ(row.reference, 19.5);
  EXPECT_EQ(row.highest, 30.0);
  // The next tile goes with it.
  EXPECT_EQ(quantise(row, {16.0}).level, 19.5);
}

TEST(HopperModel, ASinkInALaterTile) {
  HopperRow row;
  quantise(row, {1.0});
  Quantised q = quantise(row, {30.0, 2.0});
  EXPECT_EQ(q.level, 33.0);
  EXPECT_EQ(q.p[0], 56.0);
  EXPECT_EQ(q.p[1], 56.0 * std::exp2(2.0 - 30.0));
  // The second of that size does not rule: it is no more than kFall above the first.
  q = quantise(row, {33.0, 2.0});
  EXPECT_EQ(q.level, 36.0);
  EXPECT_EQ(q.p[1], 0.0);
}

// A kept reference has no second part, however far apart the scores are.
TEST(HopperModel, NoSecondPartWithoutANewReference) {
  HopperRow row;
  quantise(row, {10.0});
  const Quantised q = quantise(row, {12.0, -10.0});
  EXPECT_EQ(q.level, 13.0);
  EXPECT_EQ(q.p[1], 0.0);
}

TEST(HopperModel, NaNIsNoScore) {
  HopperRow row;
  const Quantised q = quantise(row, {kNaN, 10.0});
  EXPECT_EQ(q.level, 13.0);
  EXPECT_TRUE(std::isnan(q.p[0]));
  EXPECT_EQ(q.p[1], 56.0);
}

// 64 below the highest reference is the least.
TEST(HopperModel, AReferenceStaysNearTheHighest) {
  HopperRow row;
  Quantised q = quantise(row, {100.0, 10.0});
  EXPECT_EQ(q.level, 103.0);
  EXPECT_EQ(row.reference, 39.0);
  EXPECT_EQ(q.p[1], 0.0);  // 448 * 2^-29
  quantise(row, {10.0});
  EXPECT_EQ(row.reference, 39.0);
  EXPECT_EQ(quantise(row, {37.0}).level, 40.0);
}

// One query e0, tiles of one score, values v[1] = 1 in tile 2 and 0 elsewhere: out[1] is the share of
// that tile. The scores of the tiles are 0, 6, 3.75 and 1 (log2).
struct TilesOfEqualScores {
  static constexpr double kScores[4] = {0.0, 6.0, 3.75, 1.0};
  std::vector<uint8_t> q = std::vector<uint8_t>(kDepthK), kv = std::vector<uint8_t>(256 * kDepthK);
  std::vector<int32_t> table = {0, 1, 2, 3}, seq_lens = {256};
  DecodeProblem problem;

  TilesOfEqualScores() {
    q[0] = to_e4m3(1.0);
    for (int i = 0; i < 256; ++i) {
      kv[i * kDepthK] = to_e4m3(kScores[i / 64]);
      kv[i * kDepthK + 1] = to_e4m3(i / 64 == 2 ? 1.0 : 0.0);
    }
    problem.batch = problem.heads = 1;
    problem.pages = problem.max_pages_per_seq = 4;
    problem.q = q.data();
    problem.kv = kv.data();
    problem.page_table = table.data();
    problem.seq_lens = seq_lens.data();
    problem.softmax_scale = std::log(2.0);
  }

  double share(const SplitOffsets& offsets) const {
    ReferenceOptions options;
    options.quantisation = Quantisation::kHopper;
    options.split_offsets = [&](QueryToken, int) { return offsets; };
    return decode_reference(problem, options).model_out[1];
  }
};

TEST(HopperModel, PairsBeginWithThePiece) {
  TilesOfEqualScores tiles;
  const double others = 1.0 + 64.0 + 2.0;
  // Tiles 2 and 3 go with the reference of the pair before, 9: 448 * 2^-5.25 = 11.77 becomes 12.
  const double kept = 12.0 / 448.0 * 512.0;
  EXPECT_NEAR(tiles.share({0, 4}), kept / (others + kept), 1e-12);
  // With tile 1 the same; it is 6 + 3 either way. Tile 3 is by itself.
  EXPECT_NEAR(tiles.share({0, 1, 4}), kept / (others + kept), 1e-12);
  // First of a piece, its maximum is exact; tile 3 is 448 * 2^-5.75 = 8.3, which becomes 8.
  const double own = std::exp2(3.75), last = 8.0 / 448.0 * std::exp2(6.75);
  EXPECT_NEAR(tiles.share({0, 2, 4}), own / (65.0 + own + last), 1e-12);
}

}  // namespace
}  // namespace mla::reference
