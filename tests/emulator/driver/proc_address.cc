// SPDX-License-Identifier: Apache-2.0
//
// cuGetProcAddress: every function of this driver under its base name, with the CUDA version that
// its signature came with. Each row is checked against the toolkit's typedef of that version.
#include <cudaTypedefs.h>

#include <cstring>
#include <type_traits>

#include "tests/emulator/driver/state.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

struct Entry {
  const char* name;
  int version;
  void* function;
};

#define MLA_EMU_CHECK(name, version, symbol)                                \
  static_assert(std::is_same_v<decltype(&symbol), PFN_##name##_v##version>, \
                #symbol " does not have the signature of " #name " of CUDA " #version);
#define MLA_EMU_ROW(name, version, symbol) {#name, version, reinterpret_cast<void*>(&symbol)},

// X(base name, CUDA version * 1000 of the signature, symbol)
#define MLA_EMU_ENTRIES(X)                                                                          \
  X(cuCtxCreate, 3020, cuCtxCreate_v2)                                                              \
  X(cuCtxCreate, 11040, cuCtxCreate_v3)                                                             \
  X(cuCtxCreate, 12050, cuCtxCreate_v4)                                                             \
  X(cuCtxDestroy, 4000, cuCtxDestroy_v2)                                                            \
  X(cuCtxGetApiVersion, 3020, cuCtxGetApiVersion)                                                   \
  X(cuCtxGetCurrent, 4000, cuCtxGetCurrent)                                                         \
  X(cuCtxGetDevice, 2000, cuCtxGetDevice)                                                           \
  X(cuCtxGetDevice, 13000, cuCtxGetDevice_v2)                                                       \
  X(cuCtxGetFlags, 7000, cuCtxGetFlags)                                                             \
  X(cuCtxGetId, 12000, cuCtxGetId)                                                                  \
  X(cuCtxGetLimit, 3010, cuCtxGetLimit)                                                             \
  X(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange)                                 \
  X(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2)                                                      \
  X(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2)                                                    \
  X(cuCtxSetCurrent, 4000, cuCtxSetCurrent)                                                         \
  X(cuCtxSetLimit, 3010, cuCtxSetLimit)                                                             \
  X(cuCtxSynchronize, 2000, cuCtxSynchronize)                                                       \
  X(cuCtxSynchronize, 13000, cuCtxSynchronize_v2)                                                   \
  X(cuDeviceComputeCapability, 2000, cuDeviceComputeCapability)                                     \
  X(cuDeviceGet, 2000, cuDeviceGet)                                                                 \
  X(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute)                                               \
  X(cuDeviceGetCount, 2000, cuDeviceGetCount)                                                       \
  X(cuDeviceGetName, 2000, cuDeviceGetName)                                                         \
  X(cuDeviceGetUuid, 9020, cuDeviceGetUuid)                                                         \
  X(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2)                                                     \
  X(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState)                                   \
  X(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease)                                     \
  X(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2)                                 \
  X(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset)                                         \
  X(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2)                                     \
  X(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)                                       \
  X(cuDevicePrimaryCtxSetFlags, 7000, cuDevicePrimaryCtxSetFlags)                                   \
  X(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2)                               \
  X(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2)                                                    \
  X(cuDriverGetVersion, 2020, cuDriverGetVersion)                                                   \
  X(cuEventCreate, 2000, cuEventCreate)                                                             \
  X(cuEventDestroy, 4000, cuEventDestroy_v2)                                                        \
  X(cuEventElapsedTime, 2000, cuEventElapsedTime)                                                   \
  X(cuEventElapsedTime, 12080, cuEventElapsedTime_v2)                                               \
  X(cuEventQuery, 2000, cuEventQuery)                                                               \
  X(cuEventRecord, 2000, cuEventRecord)                                                             \
  X(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags)                                          \
  X(cuEventSynchronize, 2000, cuEventSynchronize)                                                   \
  X(cuFuncGetAttribute, 2020, cuFuncGetAttribute)                                                   \
  X(cuFuncGetModule, 11000, cuFuncGetModule)                                                        \
  X(cuFuncGetName, 12030, cuFuncGetName)                                                            \
  X(cuFuncGetParamInfo, 12040, cuFuncGetParamInfo)                                                  \
  X(cuFuncIsLoaded, 12040, cuFuncIsLoaded)                                                          \
  X(cuFuncLoad, 12040, cuFuncLoad)                                                                  \
  X(cuFuncSetAttribute, 9000, cuFuncSetAttribute)                                                   \
  X(cuFuncSetCacheConfig, 3000, cuFuncSetCacheConfig)                                               \
  X(cuGetErrorName, 6000, cuGetErrorName)                                                           \
  X(cuGetErrorString, 6000, cuGetErrorString)                                                       \
  X(cuGraphAddEmptyNode, 10000, cuGraphAddEmptyNode)                                                \
  X(cuGraphCreate, 10000, cuGraphCreate)                                                            \
  X(cuGraphDestroy, 10000, cuGraphDestroy)                                                          \
  X(cuGraphExecDestroy, 10000, cuGraphExecDestroy)                                                  \
  X(cuGraphExecGetFlags, 12000, cuGraphExecGetFlags)                                                \
  X(cuGraphGetNodes, 10000, cuGraphGetNodes)                                                        \
  X(cuGraphGetRootNodes, 10000, cuGraphGetRootNodes)                                                \
  X(cuGraphInstantiate, 11000, cuGraphInstantiate_v2)                                               \
  X(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags)                                \
  X(cuGraphInstantiateWithParams, 12000, cuGraphInstantiateWithParams)                              \
  X(cuGraphLaunch, 10000, cuGraphLaunch)                                                            \
  X(cuGraphNodeGetDependencies, 10000, cuGraphNodeGetDependencies)                                  \
  X(cuGraphNodeGetType, 10000, cuGraphNodeGetType)                                                  \
  X(cuGraphUpload, 11010, cuGraphUpload)                                                            \
  X(cuInit, 2000, cuInit)                                                                           \
  X(cuKernelGetAttribute, 12000, cuKernelGetAttribute)                                              \
  X(cuKernelGetFunction, 12000, cuKernelGetFunction)                                                \
  X(cuKernelGetLibrary, 12050, cuKernelGetLibrary)                                                  \
  X(cuKernelGetName, 12030, cuKernelGetName)                                                        \
  X(cuKernelGetParamInfo, 12040, cuKernelGetParamInfo)                                              \
  X(cuKernelSetAttribute, 12000, cuKernelSetAttribute)                                              \
  X(cuKernelSetCacheConfig, 12000, cuKernelSetCacheConfig)                                          \
  X(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel)                                     \
  X(cuLaunchHostFunc, 10000, cuLaunchHostFunc)                                                      \
  X(cuLaunchKernel, 4000, cuLaunchKernel)                                                           \
  X(cuLaunchKernelEx, 11060, cuLaunchKernelEx)                                                      \
  X(cuLibraryEnumerateKernels, 12040, cuLibraryEnumerateKernels)                                    \
  X(cuLibraryGetGlobal, 12000, cuLibraryGetGlobal)                                                  \
  X(cuLibraryGetKernel, 12000, cuLibraryGetKernel)                                                  \
  X(cuLibraryGetKernelCount, 12040, cuLibraryGetKernelCount)                                        \
  X(cuLibraryGetModule, 12000, cuLibraryGetModule)                                                  \
  X(cuLibraryLoadData, 12000, cuLibraryLoadData)                                                    \
  X(cuLibraryLoadFromFile, 12000, cuLibraryLoadFromFile)                                            \
  X(cuLibraryUnload, 12000, cuLibraryUnload)                                                        \
  X(cuMemAlloc, 3020, cuMemAlloc_v2)                                                                \
  X(cuMemAllocAsync, 11020, cuMemAllocAsync)                                                        \
  X(cuMemAllocHost, 3020, cuMemAllocHost_v2)                                                        \
  X(cuMemFree, 3020, cuMemFree_v2)                                                                  \
  X(cuMemFreeAsync, 11020, cuMemFreeAsync)                                                          \
  X(cuMemFreeHost, 2000, cuMemFreeHost)                                                             \
  X(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2)                                            \
  X(cuMemGetInfo, 3020, cuMemGetInfo_v2)                                                            \
  X(cuMemHostAlloc, 2020, cuMemHostAlloc)                                                           \
  X(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2)                                  \
  X(cuMemHostGetFlags, 2030, cuMemHostGetFlags)                                                     \
  X(cuMemHostRegister, 6050, cuMemHostRegister_v2)                                                  \
  X(cuMemHostUnregister, 4000, cuMemHostUnregister)                                                 \
  X(cuMemcpy, 4000, cuMemcpy)                                                                       \
  X(cuMemcpyAsync, 4000, cuMemcpyAsync)                                                             \
  X(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2)                                                            \
  X(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2)                                                  \
  X(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2)                                                            \
  X(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2)                                                  \
  X(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2)                                                            \
  X(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2)                                                  \
  X(cuMemsetD16, 3020, cuMemsetD16_v2)                                                              \
  X(cuMemsetD16Async, 3020, cuMemsetD16Async)                                                       \
  X(cuMemsetD32, 3020, cuMemsetD32_v2)                                                              \
  X(cuMemsetD32Async, 3020, cuMemsetD32Async)                                                       \
  X(cuMemsetD8, 3020, cuMemsetD8_v2)                                                                \
  X(cuMemsetD8Async, 3020, cuMemsetD8Async)                                                         \
  X(cuModuleGetFunction, 2000, cuModuleGetFunction)                                                 \
  X(cuModuleGetFunctionCount, 12040, cuModuleGetFunctionCount)                                      \
  X(cuModuleGetGlobal, 3020, cuModuleGetGlobal_v2)                                                  \
  X(cuModuleGetLoadingMode, 11070, cuModuleGetLoadingMode)                                          \
  X(cuModuleLoad, 2000, cuModuleLoad)                                                               \
  X(cuModuleLoadData, 2000, cuModuleLoadData)                                                       \
  X(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx)                                                   \
  X(cuModuleLoadFatBinary, 2000, cuModuleLoadFatBinary)                                             \
  X(cuModuleUnload, 2000, cuModuleUnload)                                                           \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000,                                     \
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)                                           \
  X(cuOccupancyMaxActiveClusters, 11070, cuOccupancyMaxActiveClusters)                              \
  X(cuOccupancyMaxPotentialClusterSize, 11070, cuOccupancyMaxPotentialClusterSize)                  \
  X(cuPointerGetAttribute, 4000, cuPointerGetAttribute)                                             \
  X(cuPointerGetAttributes, 7000, cuPointerGetAttributes)                                           \
  X(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2)                                           \
  X(cuStreamCreate, 2000, cuStreamCreate)                                                           \
  X(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority)                                   \
  X(cuStreamDestroy, 4000, cuStreamDestroy_v2)                                                      \
  X(cuStreamEndCapture, 10000, cuStreamEndCapture)                                                  \
  X(cuStreamGetCaptureInfo, 10010, cuStreamGetCaptureInfo)                                          \
  X(cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2)                                       \
  X(cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3)                                       \
  X(cuStreamGetCtx, 9020, cuStreamGetCtx)                                                           \
  X(cuStreamGetCtx, 12050, cuStreamGetCtx_v2)                                                       \
  X(cuStreamGetDevice, 12080, cuStreamGetDevice)                                                    \
  X(cuStreamGetFlags, 5050, cuStreamGetFlags)                                                       \
  X(cuStreamGetId, 12000, cuStreamGetId)                                                            \
  X(cuStreamGetPriority, 5050, cuStreamGetPriority)                                                 \
  X(cuStreamIsCapturing, 10000, cuStreamIsCapturing)                                                \
  X(cuStreamQuery, 2000, cuStreamQuery)                                                             \
  X(cuStreamSynchronize, 2000, cuStreamSynchronize)                                                 \
  X(cuStreamWaitEvent, 3020, cuStreamWaitEvent)                                                     \
  X(cuTensorMapEncodeTiled, 12000, cuTensorMapEncodeTiled)                                          \
  X(cuTensorMapReplaceAddress, 12000, cuTensorMapReplaceAddress)                                    \
  X(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode)

// clang-format off
MLA_EMU_ENTRIES(MLA_EMU_CHECK)
// clang-format on

// Typedefs exist under the longer name alone.
static_assert(std::is_same_v<decltype(&cuGraphInstantiateWithFlags), PFN_cuGraphInstantiateWithFlags_v11040>);

// clang-format off
const Entry kEntries[] = {
    MLA_EMU_ENTRIES(MLA_EMU_ROW)
    // Since CUDA 12.0 the short name means this function.
    MLA_EMU_ROW(cuGraphInstantiate, 12000, cuGraphInstantiateWithFlags)
    MLA_EMU_ROW(cuGetProcAddress, 11030, cuGetProcAddress)
    MLA_EMU_ROW(cuGetProcAddress, 12000, cuGetProcAddress_v2)
};
// clang-format on

}  // namespace

using namespace mla::emu::driver;

extern "C" {

MLA_EMU_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion,
                                                    cuuint64_t flags,
                                                    CUdriverProcAddressQueryResult* symbolStatus) {
  if (symbolStatus) *symbolStatus = CU_GET_PROC_ADDRESS_SUCCESS;
  if (!symbol || !pfn || cudaVersion < 0 || cudaVersion > kDriverVersion) return CUDA_ERROR_INVALID_VALUE;
  // Every stream is idle between calls, so the per-thread default stream needs no functions of its own.
  const cuuint64_t known = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (flags & ~known) return CUDA_ERROR_INVALID_VALUE;
  *pfn = nullptr;
  const Entry* best = nullptr;
  bool any = false;
  for (const Entry& entry : kEntries) {
    if (std::strcmp(entry.name, symbol) != 0) continue;
    any = true;
    if (entry.version <= cudaVersion && (!best || entry.version > best->version)) best = &entry;
  }
  if (best) {
    *pfn = best->function;
  } else if (symbolStatus) {
    *symbolStatus = any ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion,
                                                 cuuint64_t flags) {
  CUdriverProcAddressQueryResult status;
  const CUresult result = cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, &status);
  return result == CUDA_SUCCESS && !*pfn ? CUDA_ERROR_NOT_FOUND : result;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGetExportTable(const void** ppExportTable, const CUuuid*) {
  if (ppExportTable) *ppExportTable = nullptr;
  const Lock lock(state().mutex);
  report("cuGetExportTable: the CUDA runtime (libcudart) needs the real driver; use the driver API");
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // extern "C"
