// SPDX-License-Identifier: Apache-2.0
//
// PTX wrappers: matrix instructions of a warpgroup. d = a * b (+ d if accumulate), e4m3 operands, float
// accumulation. N, the columns of d, follows from the size of d: a thread holds N / 2 of 64 * N.
#pragma once

#include <cstdint>

namespace mla::ptx {

// Descriptors of K-major operands in shared memory whose rows (of 128 or 64 bytes) carry the swizzle of
// their own width. The low word has the address: that of the first row, 1024-byte (512-byte) aligned,
// plus the offset of the k step within the row; k steps and panels are additions of bytes / 16 to it.
// The high word is a constant.
__device__ __forceinline__ uint32_t wgmma_address(uint32_t address) {
  return (address & 0x3ffff) >> 4 | 1u << 16;
}

template <int kRowBytes>
constexpr uint32_t wgmma_layout() {
  static_assert(kRowBytes == 128 || kRowBytes == 64, "swizzles of 128 and 64 bytes");
  return 8 * kRowBytes / 16 | (kRowBytes == 128 ? 1u : 2u) << 30;  // bytes of eight rows / 16, swizzle
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending groups of this warp are under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of registers over a wait or a fence.
template <int kCount>
__device__ __forceinline__ void pin(float (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

// Operands a and b in shared memory (ss); a in registers (rs).
template <int kRowBytes>
__device__ __forceinline__ void wgmma_ss(float (&d)[8], uint32_t a, uint32_t b, uint32_t accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\nmov.b64 a, {%8, %10};\nmov.b64 b, {%9, %10};\n"
      "setp.ne.u32 p, %11, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7}, a, b, p, 1, "
      "1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(a), "r"(b), "n"(wgmma_layout<kRowBytes>()), "r"(accumulate));
}

template <int kRowBytes>
__device__ __forceinline__ void wgmma_rs(float (&d)[8], const uint32_t (&a)[4], uint32_t b,
                                         uint32_t accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 b;\nmov.b64 b, {%12, %13};\nsetp.ne.u32 p, %14, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, "
      "%11}, b, p, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(wgmma_layout<kRowBytes>()), "r"(accumulate));
}

template <int kRowBytes>
__device__ __forceinline__ void wgmma_ss(float (&d)[16], uint32_t a, uint32_t b, uint32_t accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\nmov.b64 a, {%16, %18};\nmov.b64 b, {%17, %18};\n"
      "setp.ne.u32 p, %19, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
      "%11, %12, %13, %14, %15}, a, b, p, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a), "r"(b), "n"(wgmma_layout<kRowBytes>()), "r"(accumulate));
}

template <int kRowBytes>
__device__ __forceinline__ void wgmma_rs(float (&d)[16], const uint32_t (&a)[4], uint32_t b,
                                         uint32_t accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 b;\nmov.b64 b, {%20, %21};\nsetp.ne.u32 p, %22, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
      "%11, %12, %13, %14, %15}, {%16, %17, %18, %19}, b, p, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(wgmma_layout<kRowBytes>()), "r"(accumulate));
}

template <int kRowBytes>
__device__ __forceinline__ void wgmma_ss(float (&d)[32], uint32_t a, uint32_t b, uint32_t accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\nmov.b64 a, {%32, %34};\nmov.b64 b, {%33, %34};\n"
      "setp.ne.u32 p, %35, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
      "%11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "
      "%31}, a, b, p, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
        "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31])
      : "r"(a), "r"(b), "n"(wgmma_layout<kRowBytes>()), "r"(accumulate));
}

template <int kRowBytes>
__device__ __forceinline__ void wgmma_rs(float (&d)[32], const uint32_t (&a)[4], uint32_t b,
                                         uint32_t accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 b;\nmov.b64 b, {%36, %37};\nsetp.ne.u32 p, %38, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
      "%11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "
      "%31}, {%32, %33, %34, %35}, b, p, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
        "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(wgmma_layout<kRowBytes>()), "r"(accumulate));
}

}  // namespace mla::ptx
