// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver, bound at run time: whichever libcuda.so.1 the caller names.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>

#define MLA_CONFORMANCE_FUNCTIONS(X)                                                                         \
  X(cuInit)                                                                                                  \
  X(cuDriverGetVersion)                                                                                      \
  X(cuDeviceGetCount)                                                                                        \
  X(cuDeviceGet)                                                                                             \
  X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(     \
      cuCtxCreate) X(cuCtxDestroy) X(cuCtxSetCurrent) X(cuCtxGetCurrent) X(cuCtxPopCurrent)                  \
      X(cuCtxGetDevice) X(cuCtxSynchronize) X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost) X( \
          cuMemcpyHtoD) X(cuMemcpyDtoH) X(cuMemcpyDtoD) X(cuMemcpyHtoDAsync) X(cuMemsetD8) X(cuMemsetD16)    \
          X(cuMemsetD32) X(cuMemsetD32Async) X(cuPointerGetAttribute) X(cuModuleLoadData) X(cuModuleUnload)  \
              X(cuModuleGetFunction) X(cuModuleGetGlobal) X(cuLibraryLoadData) X(cuLibraryUnload)            \
                  X(cuLibraryGetKernel) X(cuLibraryGetKernelCount) X(cuLibraryGetGlobal)                     \
                      X(cuKernelGetFunction) X(cuKernelGetAttribute) X(cuKernelSetAttribute)                 \
                          X(cuKernelGetParamInfo) X(cuFuncGetAttribute) X(cuFuncSetAttribute) X(cuFuncLoad)  \
                              X(cuLaunchKernel) X(cuLaunchKernelEx) X(cuOccupancyMaxActiveClusters)          \
                                  X(cuOccupancyMaxActiveBlocksPerMultiprocessor) X(cuTensorMapEncodeTiled)   \
                                      X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize)            \
                                          X(cuStreamQuery) X(cuStreamWaitEvent) X(cuStreamBeginCapture)      \
                                              X(cuStreamEndCapture) X(cuStreamIsCapturing) X(cuStreamGetCtx) \
                                                  X(cuThreadExchangeStreamCaptureMode) X(cuEventCreate)      \
                                                      X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery)     \
                                                          X(cuEventSynchronize) X(cuEventElapsedTime)        \
                                                              X(cuGraphInstantiate) X(cuGraphLaunch)         \
                                                                  X(cuGraphExecDestroy) X(cuGraphDestroy)    \
                                                                      X(cuGraphGetNodes)                     \
                                                                          X(cuGraphNodeGetType)              \
                                                                              X(cuGetErrorName)              \
                                                                                  X(cuGetErrorString)        \
                                                                                      X(cuGetProcAddress)

namespace mla::conformance {

struct Driver {
#define MLA_CONFORMANCE_MEMBER(name) decltype(&::name) name = nullptr;
  MLA_CONFORMANCE_FUNCTIONS(MLA_CONFORMANCE_MEMBER)
#undef MLA_CONFORMANCE_MEMBER

  // Binds every function of the library at `path`. Returns what is wrong, or an empty string.
  std::string load(const std::string& path);
  // "719 CUDA_ERROR_LAUNCH_FAILED".
  std::string describe(CUresult result) const;
  // The emulator's report, if this is the emulated driver.
  std::string emulator_report() const;
  // Makes the devices of the emulated driver usable after a fault; on a real one, nothing does.
  void clear_fault() const;
  // Seed of the emulated driver's next launch.
  void set_seed(uint64_t seed) const;

 private:
  void* library_ = nullptr;
};

}  // namespace mla::conformance
