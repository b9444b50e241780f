// SPDX-License-Identifier: Apache-2.0
//
// The part of the CUDA driver's binary interface that the loader uses, so that it builds without a
// CUDA toolkit. tests/loader/cuda_abi_test.cc compares every type and number with <cuda.h> where a
// toolkit is found. Names are the driver's, without their CU prefix.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mla::cuda {

using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorInvalidValue = 1;
inline constexpr Result kErrorDeinitialized = 4;
inline constexpr Result kErrorNoDevice = 100;
inline constexpr Result kErrorInvalidImage = 200;
inline constexpr Result kErrorInvalidContext = 201;
inline constexpr Result kErrorNoBinaryForGpu = 209;
inline constexpr Result kErrorInvalidPtx = 218;
inline constexpr Result kErrorUnsupportedPtxVersion = 222;
inline constexpr Result kErrorStreamCaptureUnsupported = 900;
inline constexpr Result kErrorStreamCaptureImplicit = 906;
inline constexpr Result kErrorStreamCaptureWrongThread = 908;

using Device = int;
using DevicePtr = unsigned long long;
using Context = struct ContextOpaque*;
using Stream = struct StreamOpaque*;
using Library = struct LibraryOpaque*;
using Kernel = struct KernelOpaque*;
using Function = struct FunctionOpaque*;

inline const Stream kStreamPerThread = reinterpret_cast<Stream>(2);

// CUdevice_attribute
inline constexpr int kDeviceMaxThreadsPerBlock = 1;
inline constexpr int kDeviceMultiprocessorCount = 16;
inline constexpr int kDeviceMaxThreadsPerMultiprocessor = 39;
inline constexpr int kDeviceComputeCapabilityMajor = 75;
inline constexpr int kDeviceComputeCapabilityMinor = 76;
inline constexpr int kDeviceMaxSharedMemoryPerMultiprocessor = 81;
inline constexpr int kDeviceMaxRegistersPerMultiprocessor = 82;
inline constexpr int kDeviceMaxSharedMemoryPerBlockOptin = 97;
inline constexpr int kDeviceMaxBlocksPerMultiprocessor = 106;
inline constexpr int kDeviceClusterLaunch = 120;
inline constexpr int kDeviceTensorMapAccessSupported = 127;

// CUfunction_attribute
inline constexpr int kFunctionMaxThreadsPerBlock = 0;
inline constexpr int kFunctionSharedSizeBytes = 1;
inline constexpr int kFunctionNumRegs = 4;
inline constexpr int kFunctionMaxDynamicSharedSizeBytes = 8;
inline constexpr int kFunctionPreferredSharedMemoryCarveout = 9;
inline constexpr int kFunctionRequiredClusterWidth = 11;
inline constexpr int kFunctionRequiredClusterHeight = 12;
inline constexpr int kFunctionRequiredClusterDepth = 13;

// CUstreamCaptureStatus, CUstreamCaptureMode
inline constexpr int kCaptureNone = 0;
inline constexpr int kCaptureModeRelaxed = 2;

// CUdriverProcAddress_flags
inline constexpr uint64_t kProcAddressLegacyStream = 1;

// CUtensorMap*
inline constexpr int kTensorMapUint8 = 0;
inline constexpr int kTensorMapFloat32 = 7;
inline constexpr int kTensorMapBfloat16 = 9;
inline constexpr int kTensorMapInterleaveNone = 0;
inline constexpr int kTensorMapSwizzleNone = 0;
inline constexpr int kTensorMapSwizzle32B = 1;
inline constexpr int kTensorMapSwizzle64B = 2;
inline constexpr int kTensorMapSwizzle128B = 3;
inline constexpr int kTensorMapL2Promotion256B = 3;
inline constexpr int kTensorMapOobFillZero = 0;

// CUlaunchAttributeID
inline constexpr int kLaunchClusterDimension = 4;
inline constexpr int kLaunchProgrammaticStreamSerialization = 6;

union LaunchAttributeValue {
  char pad[64];
  struct {
    unsigned x, y, z;
  } cluster_dim;
  int programmatic_stream_serialization_allowed;
};

struct LaunchAttribute {
  int id;
  char pad[4];
  alignas(8) LaunchAttributeValue value;
};

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

// Every driver function the loader calls, as X(name, version, argument types): the name and the
// version that cuGetProcAddress is asked for, which belong to exactly this signature.
// clang-format off
#define MLA_CUDA_REQUIRED(X)                                                                          \
  X(cuInit, 2000, unsigned)                                                                           \
  X(cuDriverGetVersion, 2020, int*)                                                                   \
  X(cuDeviceGetAttribute, 2000, int*, int, Device)                                                    \
  X(cuCtxGetCurrent, 4000, Context*)                                                                  \
  X(cuCtxPushCurrent, 4000, Context)                                                                  \
  X(cuCtxPopCurrent, 4000, Context*)                                                                  \
  X(cuCtxGetDevice, 2000, Device*)                                                                    \
  X(cuLibraryLoadData, 12000, Library*, const void*, int*, void**, unsigned, int*, void**, unsigned)  \
  X(cuLibraryUnload, 12000, Library)                                                                  \
  X(cuLibraryGetKernel, 12000, Kernel*, Library, const char*)                                         \
  X(cuKernelGetFunction, 12000, Function*, Kernel)                                                    \
  X(cuKernelGetAttribute, 12000, int*, int, Kernel, Device)                                           \
  X(cuKernelSetAttribute, 12000, int, int, Kernel, Device)                                            \
  X(cuOccupancyMaxActiveClusters, 11070, int*, Function, const LaunchConfig*)                         \
  X(cuTensorMapEncodeTiled, 12000, void*, int, uint32_t, void*, const uint64_t*, const uint64_t*,     \
    const uint32_t*, const uint32_t*, int, int, int, int)                                             \
  X(cuLaunchKernelEx, 11060, const LaunchConfig*, Function, void**, void**)                           \
  X(cuMemsetD8Async, 3020, DevicePtr, unsigned char, size_t, Stream)                                  \
  X(cuMemsetD32Async, 3020, DevicePtr, unsigned, size_t, Stream)                                      \
  X(cuStreamGetCtx, 9020, Stream, Context*)                                                           \
  X(cuStreamIsCapturing, 10000, Stream, int*)                                                         \
  X(cuThreadExchangeStreamCaptureMode, 10010, int*)

// Looked up when first needed; the loader does without them on a driver that lacks them.
#define MLA_CUDA_OPTIONAL(X)                                 \
  X(cuGetErrorName, 6000, Result, const char**)              \
  X(cuGetErrorString, 6000, Result, const char**)            \
  X(cuCtxGetId, 12000, Context, unsigned long long*)         \
  X(cuKernelGetParamInfo, 12040, Kernel, size_t, size_t*, size_t*) \
  X(cuFuncLoad, 12040, Function)
// clang-format on

// The type of each: cuInitFunction and so on.
#define MLA_FUNCTION(name, version, ...) using name##Function = Result (*)(__VA_ARGS__);
MLA_CUDA_REQUIRED(MLA_FUNCTION)
MLA_CUDA_OPTIONAL(MLA_FUNCTION)
#undef MLA_FUNCTION

}  // namespace mla::cuda
