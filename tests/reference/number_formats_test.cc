// SPDX-License-Identifier: Apache-2.0
#include "tests/reference/number_formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace mla::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(E4M3, KnownValues) {
  EXPECT_EQ(e4m3_to_float(0x00), 0.0f);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);  // smallest subnormal
  EXPECT_EQ(e4m3_to_float(0x07), 7 * 0x1p-9f);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6f);  // smallest normal
  EXPECT_EQ(e4m3_to_float(0x38), 1.0f);
  EXPECT_EQ(e4m3_to_float(0x39), 1.125f);
  EXPECT_EQ(e4m3_to_float(0xb8), -1.0f);
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_float(0xfe), -448.0f);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xff)));
  EXPECT_TRUE(std::signbit(e4m3_to_float(0x80)));
}

TEST(E4M3, EveryCodeSurvivesTheRoundTrip) {
  for (int code = 0; code < 256; ++code) {
    const double value = e4m3_to_float(static_cast<uint8_t>(code));
    if (std::isnan(value)) {
      EXPECT_EQ(to_e4m3(value), kE4M3NaN);
    } else {
      EXPECT_EQ(to_e4m3(value), code);
    }
  }
}

// Between neighbours: the midpoint goes to the even code, everything else to the nearer one.
TEST(E4M3, RoundsToNearestEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const double low = e4m3_to_float(static_cast<uint8_t>(code));
    const double high = e4m3_to_float(static_cast<uint8_t>(code + 1));
    const double middle = (low + high) / 2;
    EXPECT_EQ(to_e4m3(middle), code % 2 == 0 ? code : code + 1) << "midpoint above code " << code;
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 0.0)), code) << "below the midpoint above code " << code;
    EXPECT_EQ(to_e4m3(std::nextafter(middle, kInf)), code + 1) << "above the midpoint above code " << code;
    EXPECT_EQ(to_e4m3(-std::nextafter(middle, kInf)), (code + 1) | 0x80);
  }
}

TEST(E4M3, Saturates) {
  EXPECT_EQ(to_e4m3(448.0), 0x7e);
  EXPECT_EQ(to_e4m3(449.0), 0x7e);
  EXPECT_EQ(to_e4m3(464.0), 0x7e);
  EXPECT_EQ(to_e4m3(1e30), 0x7e);
  EXPECT_EQ(to_e4m3(-1e30), 0xfe);
  EXPECT_EQ(to_e4m3(kInf), 0x7e);
  EXPECT_EQ(to_e4m3(-kInf), 0xfe);
  EXPECT_EQ(to_e4m3(kNaN), 0x7f);
}

TEST(E4M3, SmallMagnitudes) {
  EXPECT_EQ(to_e4m3(0x1p-10), 0x00);  // tie between 0 and 2^-9: even
  EXPECT_EQ(to_e4m3(std::nextafter(0x1p-10, 1.0)), 0x01);
  EXPECT_EQ(to_e4m3(3 * 0x1p-10), 0x02);   // tie between 1 and 2 steps
  EXPECT_EQ(to_e4m3(7.5 * 0x1p-9), 0x08);  // rounds up into the normals
  EXPECT_EQ(to_e4m3(0x1p-1074), 0x00);
  EXPECT_EQ(to_e4m3(-0x1p-1074), 0x80);
}

TEST(BF16, KnownValues) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bf16(-2.0f), 0xc000);
  EXPECT_EQ(bf16_to_float(0x3f80), 1.0f);
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f), 0x3f80);      // tie: even
  EXPECT_EQ(float_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);  // tie: even
  EXPECT_EQ(float_to_bf16(std::nextafter(1.0f + 0x1p-8f, 2.0f)), 0x3f81);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::quiet_NaN()), 0x7fff);
}

TEST(BF16, EveryCodeSurvivesTheRoundTrip) {
  for (int code = 0; code < 65536; ++code) {
    const float value = bf16_to_float(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      EXPECT_EQ(float_to_bf16(value), 0x7fff);
    } else {
      EXPECT_EQ(float_to_bf16(value), code);
    }
  }
}

}  // namespace
}  // namespace mla::reference
