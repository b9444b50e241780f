// SPDX-License-Identifier: Apache-2.0
//
// PTX wrappers: arithmetic.
#pragma once

#include <cstdint>

namespace mla::ptx {

__device__ __forceinline__ float ex2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

__device__ __forceinline__ float lg2(float x) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// Two floats to e4m3, round to nearest even, saturating; lo in the low byte.
__device__ __forceinline__ uint16_t cvt_e4m3x2(float lo, float hi) {
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
  return r;
}

// Two e4m3 values to two halves, exactly; the low byte in the low half.
__device__ __forceinline__ uint32_t cvt_f16x2_from_e4m3x2(uint16_t v) {
  uint32_t r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(v));
  return r;
}

// Two floats to bf16, round to nearest even; lo in the low half.
__device__ __forceinline__ uint32_t cvt_bf16x2(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

// Volatile: read where it stands, not carried there.
__device__ __forceinline__ int lane_id() {
  int r;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(r));
  return r;
}

__device__ __forceinline__ int thread_id() {
  int r;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(r));
  return r;
}

// `x`, of which the compiler then knows nothing.
__device__ __forceinline__ int opaque(int x) {
  int r;
  asm("mov.b32 %0, %1;" : "=r"(r) : "r"(x));
  return r;
}

}  // namespace mla::ptx
