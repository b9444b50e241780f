// SPDX-License-Identifier: Apache-2.0
//
// Kernels that driver_test loads as machine code.
#include <cstdint>

extern "C" {

__constant__ extern const uint32_t answer;
__constant__ const uint32_t answer = 42;
__device__ uint32_t counter = 5;

__global__ void __launch_bounds__(96) increment(uint32_t* out, uint32_t by) {
  __shared__ uint32_t cells[96];
  cells[threadIdx.x] = by + answer;
  __syncthreads();
  out[threadIdx.x] = cells[95 - threadIdx.x] + counter;
  __syncthreads();
  if (threadIdx.x == 0) counter += 1;
}

__global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(384) clustered(uint32_t* out) {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) out[blockIdx.x] = rank;
}

}  // extern "C"
