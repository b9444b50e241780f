// SPDX-License-Identifier: Apache-2.0
//
// The scales of a launch. A pointer wins over the number in the parameters; what it points to is
// known on the device alone, so the product must hold for anything.
#pragma once

#include "kernels/common/work.cuh"

namespace mla {

// Takes the power of two out of x: what is left has its sign and lies in [1, 2). 0, Inf and NaN stay.
__device__ __forceinline__ float take_exponent(float x, int& exponent) {
  if ((__float_as_uint(x) & 0x7fffffff) - 1 < 0x007fffff) {  // subnormal
    x *= 0x1p64f;
    exponent -= 64;
  }
  const uint32_t bits = __float_as_uint(x);
  const int biased = bits >> 23 & 255;
  if (biased == 255 || x == 0.f) return x;
  exponent += biased - 127;
  return __uint_as_float((bits & 0x807fffff) | 127u << 23);
}

__device__ __forceinline__ float load_scale(uint64_t pointer, float otherwise) {
  return pointer != 0 ? *reinterpret_cast<const float*>(pointer) : otherwise;
}

__device__ __forceinline__ float load_kv_scale(const DecodeParams& params) {
  return load_scale(params.kv_scale_ptr, params.kv_scale);
}

// softmax_scale * q_scale * kv_scale * log2(e): scores in units of log2. Neither overflows nor
// vanishes on the way when the true factor does not. Bounded by 2^100, so that no score overflows:
// beyond 2^98 the largest score has all the weight (unequal scores of e4m3 or bf16 inputs then differ
// by more than a float's exponents), whatever the factor. NaN without an initialised workspace.
__device__ __forceinline__ float load_score_scale(const DecodeParams& params) {
  if (!workspace_ready(params)) return __int_as_float(0x7fffffff);
  constexpr float kLog2E = 1.4426950408889634f;
  int exponent = 0;
  const float mantissa = take_exponent(params.softmax_scale, exponent) *
                         take_exponent(load_scale(params.q_scale_ptr, params.q_scale), exponent) *
                         take_exponent(load_kv_scale(params), exponent) * kLog2E;
  exponent = min(max(exponent, -252), 96);
  const int part = exponent / 2;
  return mantissa * __int_as_float((part + 127) << 23) * __int_as_float((exponent - part + 127) << 23);
}

}  // namespace mla
