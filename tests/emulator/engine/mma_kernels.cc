// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of mma and wgmma. Compiled for several instruction sets and picked at run time; all
// give the same bits, since products are exact in float.
#include "tests/emulator/engine/mma_kernels.h"

#include <algorithm>
#include <bit>

namespace mla::emu {

namespace {

#if defined(__x86_64__) && defined(__GNUC__)
#define MLA_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define MLA_CLONES
#endif

using Eight = float __attribute__((vector_size(32)));

}  // namespace

MLA_CLONES void e4m3_to_floats(const uint8_t* from, float* to, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t v = from[i], magnitude = (v & 0x7f) << 20;
    const float normal = std::bit_cast<float>(magnitude + (120u << 23));
    const float subnormal = std::bit_cast<float>(magnitude + (121u << 23)) - 0x1p-6f;
    const uint32_t bits =
        magnitude < (1u << 23) ? std::bit_cast<uint32_t>(subnormal) : std::bit_cast<uint32_t>(normal);
    to[i] = std::bit_cast<float>((v & 0x7f) == 0x7f ? 0x7fffffffu : bits | (v & 0x80) << 24);
  }
}

MLA_CLONES void mma_16x8(const float* a, const float* b, float* c, uint32_t k_size) {
  const Eight* vb = reinterpret_cast<const Eight*>(b);
  Eight* vc = reinterpret_cast<Eight*>(c);
  for (uint32_t i = 0; i < 16; i += 4) {
    Eight c0 = vc[i], c1 = vc[i + 1], c2 = vc[i + 2], c3 = vc[i + 3];
    const float *a0 = a + i * k_size, *a1 = a0 + k_size, *a2 = a1 + k_size, *a3 = a2 + k_size;
    for (uint32_t k = 0; k < k_size; ++k) {
      Eight row = vb[k];
      c0 += row * a0[k];
      c1 += row * a1[k];
      c2 += row * a2[k];
      c3 += row * a3[k];
    }
    vc[i] = c0;
    vc[i + 1] = c1;
    vc[i + 2] = c2;
    vc[i + 3] = c3;
  }
}

MLA_CLONES void mma_16x8_wide(const float* a, const float* b, float* c, uint32_t k_size) {
  for (uint32_t i = 0; i < 16; ++i) {
    double sum[8];
    for (int j = 0; j < 8; ++j) sum[j] = c[i * 8 + static_cast<uint32_t>(j)];
    for (uint32_t k = 0; k < k_size; ++k) {
      const double x = a[i * k_size + k];
      for (uint32_t j = 0; j < 8; ++j) sum[j] += x * b[k * 8 + j];
    }
    for (uint32_t j = 0; j < 8; ++j) c[i * 8 + j] = static_cast<float>(sum[j]);
  }
}

MLA_CLONES void mma_16xn(const float* a, const float* b, float* c, uint32_t k_size, uint32_t n) {
  const uint32_t columns = n / 8;
  for (uint32_t i = 0; i < 16; i += 4) {
    const float *a0 = a + i * k_size, *a1 = a0 + k_size, *a2 = a1 + k_size, *a3 = a2 + k_size;
    for (uint32_t j = 0; j < columns; ++j) {
      Eight* to = reinterpret_cast<Eight*>(c + i * n) + j;
      Eight c0 = to[0], c1 = to[columns], c2 = to[2 * columns], c3 = to[3 * columns];
      const Eight* row = reinterpret_cast<const Eight*>(b) + j;
      for (uint32_t k = 0; k < k_size; ++k, row += columns) {
        c0 += *row * a0[k];
        c1 += *row * a1[k];
        c2 += *row * a2[k];
        c3 += *row * a3[k];
      }
      to[0] = c0;
      to[columns] = c1;
      to[2 * columns] = c2;
      to[3 * columns] = c3;
    }
  }
}

MLA_CLONES void mma_16xn_wide(const float* a, const float* b, float* c, uint32_t k_size, uint32_t n) {
  for (uint32_t i = 0; i < 16; ++i) {
    for (uint32_t first = 0; first < n; first += 8) {
      double sum[8];
      for (uint32_t j = 0; j < 8; ++j) sum[j] = c[i * n + first + j];
      for (uint32_t k = 0; k < k_size; ++k) {
        const double x = a[i * k_size + k];
        for (uint32_t j = 0; j < 8; ++j) sum[j] += x * b[k * n + first + j];
      }
      for (uint32_t j = 0; j < 8; ++j) c[i * n + first + j] = static_cast<float>(sum[j]);
    }
  }
}

namespace {

constexpr int kNoExponent = -1000;    // of a zero
constexpr int kLeastExponent = -100;  // alignment stops here: float's range must hold the scale

// Exponent of a number as its 8-bit encoding has it: subnormals keep the least one of their format.
int exponent_of(float x, int least) {
  if (x == 0) return kNoExponent;
  const int exponent = static_cast<int>((std::bit_cast<uint32_t>(x) >> 23) & 255) - 127;
  return exponent > least ? exponent : least;
}

bool is_finite(float x) { return (std::bit_cast<uint32_t>(x) & 0x7f800000) != 0x7f800000; }

// One value of mma_16xn_narrow, next to others that are not numbers.
float narrow_sum(const float* x, const float* y, uint32_t stride, float c, uint32_t k_size, int least_x,
                 int least_y) {
  bool finite = is_finite(c);
  int32_t top = exponent_of(c, kLeastExponent);
  for (uint32_t k = 0; k < k_size; ++k) {
    finite &= is_finite(x[k]) && is_finite(y[k * stride]);
    top = std::max(top, exponent_of(x[k], least_x) + exponent_of(y[k * stride], least_y));
  }
  if (!finite) {  // infinities and NaN: any order gives the same
    for (uint32_t k = 0; k < k_size; ++k) c += x[k] * y[k * stride];
    return c;
  }
  top = std::max(top, kLeastExponent);
  const float scale = std::bit_cast<float>(static_cast<uint32_t>(kNarrowBits - top + 127) << 23);
  int32_t sum = static_cast<int32_t>(c * scale);
  for (uint32_t k = 0; k < k_size; ++k) sum += static_cast<int32_t>(x[k] * y[k * stride] * scale);
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(sum)) & 0xfffffc00;
  return std::bit_cast<float>(bits) *
         std::bit_cast<float>(static_cast<uint32_t>(top - kNarrowBits + 127) << 23);
}

}  // namespace

MLA_CLONES void mma_16xn_narrow(const float* a, const float* b, float* c, uint32_t k_size, uint32_t n,
                                int least_a, int least_b) {
  static thread_local std::vector<int32_t> exponents;
  exponents.resize(size_t{k_size} * n + k_size + 16);
  int32_t* eb = exponents.data();
  int32_t* ea = eb + size_t{k_size} * n;
  bool finite_b = true;
  for (uint32_t i = 0; i < k_size * n; ++i) {
    eb[i] = exponent_of(b[i], least_b);
    finite_b &= is_finite(b[i]);
  }
  for (uint32_t row = 0; row < 16; ++row) {
    const float* x = a + row * k_size;
    bool finite = finite_b;
    for (uint32_t k = 0; k < k_size; ++k) {
      ea[k] = exponent_of(x[k], least_a);
      finite &= is_finite(x[k]);
    }
    for (uint32_t first = 0; first < n; first += 8) {
      float* to = c + row * n + first;
      bool plain = finite;
      int32_t top[8], sum[8];
      float scale[8];
      for (uint32_t j = 0; j < 8; ++j) {
        top[j] = exponent_of(to[j], kLeastExponent);
        plain &= is_finite(to[j]);
      }
      if (!plain) {
        for (uint32_t j = 0; j < 8; ++j) {
          to[j] = narrow_sum(x, b + first + j, n, to[j], k_size, least_a, least_b);
        }
        continue;
      }
      for (uint32_t k = 0; k < k_size; ++k) {
        const int32_t* e = eb + k * n + first;
        for (uint32_t j = 0; j < 8; ++j) {
          const int32_t exponent = ea[k] + e[j];
          top[j] = exponent > top[j] ? exponent : top[j];
        }
      }
      for (uint32_t j = 0; j < 8; ++j) {
        top[j] = top[j] > kLeastExponent ? top[j] : kLeastExponent;
        scale[j] = std::bit_cast<float>(static_cast<uint32_t>(kNarrowBits - top[j] + 127) << 23);
        sum[j] = static_cast<int32_t>(to[j] * scale[j]);
      }
      for (uint32_t k = 0; k < k_size; ++k) {
        const float* y = b + k * n + first;
        for (uint32_t j = 0; j < 8; ++j) sum[j] += static_cast<int32_t>(x[k] * y[j] * scale[j]);
      }
      for (uint32_t j = 0; j < 8; ++j) {
        const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(sum[j])) & 0xfffffc00;
        to[j] = std::bit_cast<float>(bits) *
                std::bit_cast<float>(static_cast<uint32_t>(top[j] - kNarrowBits + 127) << 23);
      }
    }
  }
}

}  // namespace mla::emu
