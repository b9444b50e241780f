// SPDX-License-Identifier: Apache-2.0
//
// PTX wrappers: mbarriers, named barriers, arrivals at device scope. Thin; nothing in ptx/ decides anything.
#pragma once

#include <cstdint>

namespace mla::ptx {

// Shared memory is named by 32-bit addresses throughout: cuda::ptx takes generic pointers, two
// registers each, which the math warps do not have.
__device__ __forceinline__ uint32_t smem_addr(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void mbarrier_init(uint32_t bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// Arrives at a barrier anywhere in the cluster; `bar` comes from mapa. For giving memory back after
// reading it, not for publishing data: nothing written before is released to the other CTA. (A
// release at cluster scope would wait for all stores to global memory, too: 9 % of the time with
// short sequences on an H200.) That the reads are over is the business of after().
__device__ __forceinline__ void mbarrier_arrive_remote(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

// `address`, but not before `loaded` is in its register; `zero` is a 0 that the compiler does not
// know. An arrive that gives a stage back must not overtake the loads that read the stage: ptxas
// issues it while they are still in flight, and with a busy load queue the copy engine then
// overwrites what they have yet to read (seen on an H200: wrong scores, now and then, in the warps
// that share a scheduler with the polling loader warp).
__device__ __forceinline__ uint32_t after(uint32_t address, uint32_t loaded, uint32_t zero) {
  return address + (loaded & zero);
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ bool mbarrier_try_wait(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ bool mbarrier_try_wait_cluster(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}

// Waits until the phase of the given parity has completed: arrivals and copies of this CTA.
__device__ __forceinline__ void mbarrier_wait(uint32_t bar, uint32_t parity) {
  while (!mbarrier_try_wait(bar, parity)) {
  }
}

// The same where other CTAs of the cluster arrive or write.
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t bar, uint32_t parity) {
  while (!mbarrier_try_wait_cluster(bar, parity)) {
  }
}

// Orders accesses of the generic proxy, and those acquired from other threads, with accesses of the
// async proxy that follow.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ uint32_t ld_shared(uint32_t address) {
  uint32_t r;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(address) : "memory");
  return r;
}

__device__ __forceinline__ void ld_shared(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void st_shared(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// Adds 1 at device scope. Releases what this CTA wrote before a barrier that precedes it, acquires
// what the other arrivers released.
__device__ __forceinline__ uint32_t arrive_gpu(uint32_t* counter) {
  uint32_t old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(old) : "l"(counter) : "memory");
  return old;
}

// Reads what others add at device scope; acquires what they released.
__device__ __forceinline__ uint32_t load_gpu(const uint32_t* counter) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(counter) : "memory");
  return v;
}

__device__ __forceinline__ void store_gpu(uint32_t* counter, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(counter), "r"(v) : "memory");
}

// Adds at device scope without ordering anything else.
__device__ __forceinline__ uint32_t add_gpu(uint32_t* counter, uint32_t n) {
  uint32_t old;
  asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(counter), "r"(n) : "memory");
  return old;
}

__device__ __forceinline__ void named_barrier(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// A barrier of `threads` threads that says whether any of them had `flag`.
__device__ __forceinline__ bool named_barrier_or(uint32_t id, uint32_t threads, bool flag) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "bar.red.or.pred q, %2, %3, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}\n"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(flag)), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

}  // namespace mla::ptx
