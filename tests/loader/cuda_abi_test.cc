// SPDX-License-Identifier: Apache-2.0
//
// The loader's own declarations of the driver's interface against <cuda.h>.
#include "loader/src/cuda_abi.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "kernels/common/mla_params.h"

namespace mla::cuda {
namespace {

// Opaque handles, pointers to structs and enums pass alike when their sizes and kinds agree.
template <typename Ours, typename Theirs>
constexpr bool same_argument() {
  if constexpr (std::is_enum_v<Theirs>) {
    return std::is_same_v<Ours, int> && sizeof(Theirs) == sizeof(int);
  } else if constexpr (std::is_pointer_v<Theirs>) {
    return std::is_pointer_v<Ours>;
  } else {
    return sizeof(Ours) == sizeof(Theirs) && std::is_integral_v<Ours> && std::is_integral_v<Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct SameFunction;
template <typename... Ours, typename... Theirs>
struct SameFunction<Result (*)(Ours...), CUresult (*)(Theirs...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
      return false;
    } else {
      return (same_argument<Ours, Theirs>() && ...);
    }
  }();
};

// The version in the name of NVIDIA's typedef is the one the loader asks for: X(name, version, ...)
// names PFN_<name>_v<version>.
#define MLA_SAME(name, version, ...)                                                  \
  static_assert(SameFunction<name##Function, PFN_##name##_v##version>::value, #name); \
  static_assert(version <= CUDA_VERSION, #name);
MLA_CUDA_REQUIRED(MLA_SAME)
MLA_CUDA_OPTIONAL(MLA_SAME)
#undef MLA_SAME

static_assert(kSuccess == CUDA_SUCCESS);
static_assert(kErrorInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(kErrorDeinitialized == CUDA_ERROR_DEINITIALIZED);
static_assert(kErrorNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kErrorInvalidImage == CUDA_ERROR_INVALID_IMAGE);
static_assert(kErrorInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(kErrorNoBinaryForGpu == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(kErrorInvalidPtx == CUDA_ERROR_INVALID_PTX);
static_assert(kErrorUnsupportedPtxVersion == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
static_assert(kErrorStreamCaptureUnsupported == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(kErrorStreamCaptureImplicit == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
static_assert(kErrorStreamCaptureWrongThread == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);

static_assert(kDeviceMaxThreadsPerBlock == CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
static_assert(kDeviceMultiprocessorCount == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kDeviceComputeCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kDeviceComputeCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kDeviceMaxSharedMemoryPerBlockOptin == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
static_assert(kDeviceClusterLaunch == CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
static_assert(kDeviceTensorMapAccessSupported == CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED);

static_assert(kFunctionMaxThreadsPerBlock == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
static_assert(kFunctionSharedSizeBytes == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
static_assert(kFunctionNumRegs == CU_FUNC_ATTRIBUTE_NUM_REGS);
static_assert(kFunctionMaxDynamicSharedSizeBytes == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(kFunctionPreferredSharedMemoryCarveout == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
static_assert(kFunctionRequiredClusterWidth == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
static_assert(kFunctionRequiredClusterHeight == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT);
static_assert(kFunctionRequiredClusterDepth == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);

static_assert(kCaptureNone == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(kProcAddressLegacyStream == CU_GET_PROC_ADDRESS_LEGACY_STREAM);

static_assert(kTensorMapUint8 == CU_TENSOR_MAP_DATA_TYPE_UINT8);
static_assert(kTensorMapBfloat16 == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
static_assert(kTensorMapInterleaveNone == CU_TENSOR_MAP_INTERLEAVE_NONE);
static_assert(kTensorMapSwizzleNone == CU_TENSOR_MAP_SWIZZLE_NONE);
static_assert(kTensorMapSwizzle32B == CU_TENSOR_MAP_SWIZZLE_32B);
static_assert(kTensorMapSwizzle64B == CU_TENSOR_MAP_SWIZZLE_64B);
static_assert(kTensorMapSwizzle128B == CU_TENSOR_MAP_SWIZZLE_128B);
static_assert(kTensorMapL2Promotion256B == CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
static_assert(kTensorMapOobFillZero == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
// NVIDIA's type is aligned to 128 bytes since CUDA 13.0, its documentation asks for 64.
static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= 64);

static_assert(kLaunchClusterDimension == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
static_assert(kLaunchProgrammaticStreamSerialization ==
              CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
static_assert(sizeof(LaunchAttribute) == sizeof(CUlaunchAttribute) &&
              alignof(LaunchAttribute) == alignof(CUlaunchAttribute));
static_assert(offsetof(LaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(offsetof(LaunchAttributeValue, cluster_dim) == offsetof(CUlaunchAttributeValue, clusterDim));
static_assert(sizeof(LaunchConfig) == sizeof(CUlaunchConfig));
static_assert(offsetof(LaunchConfig, grid_x) == offsetof(CUlaunchConfig, gridDimX));
static_assert(offsetof(LaunchConfig, block_x) == offsetof(CUlaunchConfig, blockDimX));
static_assert(offsetof(LaunchConfig, shared_bytes) == offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(LaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs));
static_assert(offsetof(LaunchConfig, attribute_count) == offsetof(CUlaunchConfig, numAttrs));

TEST(CudaAbi, PerThreadStream) {
  EXPECT_EQ(reinterpret_cast<uintptr_t>(kStreamPerThread), reinterpret_cast<uintptr_t>(CU_STREAM_PER_THREAD));
}

}  // namespace
}  // namespace mla::cuda
