// SPDX-License-Identifier: Apache-2.0
//
// Host launch of the kernel in this translation unit, for a debugger or profiler. The product goes
// through the loader instead.
#pragma once

#include <cuda_runtime.h>

namespace mla::cluster {

// Clusters that the current device holds at once, 0 with *error set on failure.
inline int max_clusters(cudaError_t* error) {
  *error = cudaFuncSetAttribute(MLA_KERNEL_SYMBOL, cudaFuncAttributeMaxDynamicSharedMemorySize, kDynamicSmem);
  if (*error != cudaSuccess) return 0;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kClusterSize);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kDynamicSmem;
  int clusters = 0;
  *error = cudaOccupancyMaxActiveClusters(&clusters, MLA_KERNEL_SYMBOL, &config);
  return clusters < kMaxWorkers ? clusters : kMaxWorkers;
}

// Launches `workers` clusters; the workspace has Partials::kZeroedBytes, and the partial
// results Partials::kBytesPerWorker for each of them.
inline cudaError_t launch(const DecodeParams& params, int workers, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(workers * kClusterSize);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kDynamicSmem;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, MLA_KERNEL_SYMBOL, params);
}

}  // namespace mla::cluster
