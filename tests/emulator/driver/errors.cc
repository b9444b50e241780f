// SPDX-License-Identifier: Apache-2.0
//
// Names and descriptions of CUresult values.
#include "tests/emulator/driver/state.h"

namespace {

struct ErrorText {
  CUresult value;
  const char* name;
  const char* text;
};

#define MLA_EMU_ERROR(value, text) \
  { value, #value, text }

constexpr ErrorText kErrors[] = {
    MLA_EMU_ERROR(CUDA_SUCCESS, "no error"),
    MLA_EMU_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    MLA_EMU_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    MLA_EMU_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    MLA_EMU_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    MLA_EMU_ERROR(CUDA_ERROR_PROFILER_DISABLED, "profiler disabled while using external profiling tool"),
    MLA_EMU_ERROR(CUDA_ERROR_PROFILER_NOT_INITIALIZED,
                  "profiler not initialized: call cudaProfilerInitialize()"),
    MLA_EMU_ERROR(CUDA_ERROR_PROFILER_ALREADY_STARTED, "profiler already started"),
    MLA_EMU_ERROR(CUDA_ERROR_PROFILER_ALREADY_STOPPED, "profiler already stopped"),
    MLA_EMU_ERROR(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    MLA_EMU_ERROR(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER,
                  "API call is not supported in the installed CUDA driver"),
    MLA_EMU_ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
    MLA_EMU_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    MLA_EMU_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    MLA_EMU_ERROR(CUDA_ERROR_DEVICE_NOT_LICENSED, "device doesn't have valid Grid license"),
    MLA_EMU_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    MLA_EMU_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    MLA_EMU_ERROR(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "context already current"),
    MLA_EMU_ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    MLA_EMU_ERROR(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    MLA_EMU_ERROR(CUDA_ERROR_ARRAY_IS_MAPPED, "array is mapped"),
    MLA_EMU_ERROR(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    MLA_EMU_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    MLA_EMU_ERROR(CUDA_ERROR_ALREADY_ACQUIRED, "resource already acquired"),
    MLA_EMU_ERROR(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    MLA_EMU_ERROR(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "resource not mapped as array"),
    MLA_EMU_ERROR(CUDA_ERROR_NOT_MAPPED_AS_POINTER, "resource not mapped as pointer"),
    MLA_EMU_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    MLA_EMU_ERROR(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    MLA_EMU_ERROR(CUDA_ERROR_CONTEXT_ALREADY_IN_USE,
                  "exclusive-thread device already in use by a different thread"),
    MLA_EMU_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
                  "peer access is not supported between these two devices"),
    MLA_EMU_ERROR(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    MLA_EMU_ERROR(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "invalid OpenGL or DirectX context"),
    MLA_EMU_ERROR(CUDA_ERROR_NVLINK_UNCORRECTABLE,
                  "uncorrectable NVLink error detected during the execution"),
    MLA_EMU_ERROR(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found"),
    MLA_EMU_ERROR(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                  "the provided PTX was compiled with an unsupported toolchain."),
    MLA_EMU_ERROR(CUDA_ERROR_JIT_COMPILATION_DISABLED, "PTX JIT compilation was disabled"),
    MLA_EMU_ERROR(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "the provided execution affinity is not supported"),
    MLA_EMU_ERROR(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC,
                  "the provided PTX contains unsupported call to cudaDeviceSynchronize"),
    MLA_EMU_ERROR(CUDA_ERROR_CONTAINED, "Invalid access of peer GPU memory over nvlink or a hardware error"),
    MLA_EMU_ERROR(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
    MLA_EMU_ERROR(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    MLA_EMU_ERROR(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"),
    MLA_EMU_ERROR(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object initialization failed"),
    MLA_EMU_ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    MLA_EMU_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    MLA_EMU_ERROR(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    MLA_EMU_ERROR(CUDA_ERROR_LOSSY_QUERY, "attempted introspection would be semantically lossy"),
    MLA_EMU_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    MLA_EMU_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    MLA_EMU_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    MLA_EMU_ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    MLA_EMU_ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    MLA_EMU_ERROR(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, "launch uses incompatible texturing mode"),
    MLA_EMU_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    MLA_EMU_ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    MLA_EMU_ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    MLA_EMU_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    MLA_EMU_ERROR(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    MLA_EMU_ERROR(CUDA_ERROR_TOO_MANY_PEERS, "peer mapping resources exhausted"),
    MLA_EMU_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                  "part or all of the requested memory range is already mapped"),
    MLA_EMU_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                  "pointer does not correspond to a registered memory region"),
    MLA_EMU_ERROR(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    MLA_EMU_ERROR(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    MLA_EMU_ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    MLA_EMU_ERROR(CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space"),
    MLA_EMU_ERROR(CUDA_ERROR_INVALID_PC, "invalid program counter"),
    MLA_EMU_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    MLA_EMU_ERROR(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    MLA_EMU_ERROR(CUDA_ERROR_TENSOR_MEMORY_LEAK, "tensor memory not completely freed"),
    MLA_EMU_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    MLA_EMU_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    MLA_EMU_ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    MLA_EMU_ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                  "system has unsupported display driver / cuda driver combination"),
    MLA_EMU_ERROR(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
                  "forward compatibility was attempted on non supported HW"),
    MLA_EMU_ERROR(CUDA_ERROR_MPS_CONNECTION_FAILED,
                  "MPS client failed to connect to the MPS control daemon or the MPS server"),
    MLA_EMU_ERROR(CUDA_ERROR_MPS_RPC_FAILURE,
                  "the remote procedural call between the MPS server and the MPS client failed"),
    MLA_EMU_ERROR(CUDA_ERROR_MPS_SERVER_NOT_READY,
                  "MPS server is not ready to accept new MPS client requests"),
    MLA_EMU_ERROR(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED,
                  "the hardware resources required to create MPS client have been exhausted"),
    MLA_EMU_ERROR(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED,
                  "the hardware resources required to support device connections have been exhausted"),
    MLA_EMU_ERROR(CUDA_ERROR_MPS_CLIENT_TERMINATED, "the MPS client has been terminated by the server"),
    MLA_EMU_ERROR(
        CUDA_ERROR_CDP_NOT_SUPPORTED,
        "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it"),
    MLA_EMU_ERROR(CUDA_ERROR_CDP_VERSION_MISMATCH,
                  "unsupported interaction between different versions of CUDA Dynamic Parallelism"),
    MLA_EMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    MLA_EMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                  "operation failed due to a previous error during capture"),
    MLA_EMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE,
                  "operation would result in a merge of separate capture sequences"),
    MLA_EMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
                  "capture was not ended in the same stream as it began"),
    MLA_EMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    MLA_EMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                  "dependency created on uncaptured work in another stream"),
    MLA_EMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                  "operation would make the legacy stream depend on a capturing blocking stream"),
    MLA_EMU_ERROR(CUDA_ERROR_CAPTURED_EVENT,
                  "operation not permitted on an event last recorded in a capturing stream"),
    MLA_EMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                  "attempt to terminate a thread-local capture sequence from another thread"),
    MLA_EMU_ERROR(CUDA_ERROR_TIMEOUT, "wait operation timed out"),
    MLA_EMU_ERROR(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                  "the graph update was not performed because it included changes which violated constraints "
                  "specific to instantiated graph update"),
    MLA_EMU_ERROR(CUDA_ERROR_EXTERNAL_DEVICE,
                  "an async error has occured in external entity outside of CUDA"),
    MLA_EMU_ERROR(CUDA_ERROR_INVALID_CLUSTER_SIZE,
                  "a kernel launch error has occurred due to cluster misconfiguration"),
    MLA_EMU_ERROR(CUDA_ERROR_FUNCTION_NOT_LOADED,
                  "the function handle is not loaded when calling an API that requires a loaded function"),
    MLA_EMU_ERROR(CUDA_ERROR_INVALID_RESOURCE_TYPE,
                  "one or more resources passed in are not valid resource types for the operation"),
    MLA_EMU_ERROR(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
                  "one or more resources are insufficient or non-applicable for the operation"),
    MLA_EMU_ERROR(CUDA_ERROR_KEY_ROTATION, "an error happened during the key rotation sequence"),
    MLA_EMU_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

const ErrorText* find(CUresult error) {
  for (const ErrorText& entry : kErrors) {
    if (entry.value == error) return &entry;
  }
  return nullptr;
}

}  // namespace

extern "C" {

MLA_EMU_EXPORT CUresult CUDAAPI cuGetErrorName(CUresult error, const char** pStr) {
  if (!pStr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* entry = find(error);
  *pStr = entry ? entry->name : nullptr;
  return entry ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuGetErrorString(CUresult error, const char** pStr) {
  if (!pStr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* entry = find(error);
  *pStr = entry ? entry->text : nullptr;
  return entry ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
