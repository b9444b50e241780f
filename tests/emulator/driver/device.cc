// SPDX-License-Identifier: Apache-2.0
//
// Initialisation, devices and contexts.
#include <algorithm>
#include <cstring>

#include "tests/emulator/driver/state.h"

using namespace mla::emu::driver;

namespace {

// Value of a device attribute; false for attributes without a meaning here (they read as 0).
bool attribute_value(const Device& device, CUdevice_attribute attribute, int* value) {
  const DeviceConfig& config = device.config;
  const auto give = [&](uint64_t number) {
    *value = int(number);
    return true;
  };
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return give(1024);
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
      return give(1024);
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return give(1024);
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return give(64);
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return give(0x7fffffff);
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
      return give(65535);
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return give(65535);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return give(kSmemPerBlock);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return give(config.smem_per_block_optin);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return give(config.smem_per_sm);
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
      return give(kReservedSmem);
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
      return give(65536);
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return give(32);
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
      return give(0x7fffffff);
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
      return give(kRegistersPerSm);
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return give(kRegistersPerSm);
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return give(config.threads_per_sm);
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return give(config.blocks_per_sm);
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return give(1000000);  // kHz
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return give(1000000);
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return give(512);
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
      return give(512);
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return give(uint64_t(config.sms));
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
      return give(CU_COMPUTEMODE_DEFAULT);
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
      return give(1);
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
      return give(1);
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      return give(1);
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return give(1);
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return give(uint64_t(device.ordinal) + 1);
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return give(config.l2_bytes);
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return give(uint64_t(config.cc_major));
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return give(uint64_t(config.cc_minor));
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
      return give(1);
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
      return give(1);
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
      return give(1);
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
      return give(1);
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      return give(1);
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
      return give(config.cc_major >= 9);
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED:
      return give(config.cc_major >= 9);
    default:
      *value = 0;
      return attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX;
  }
}

CUresult create_context(CUcontext* context, unsigned flags, CUdevice ordinal) {
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult error = get_device(ordinal, &device)) return error;
  if (!context || (flags & ~unsigned(CU_CTX_FLAGS_MASK))) return CUDA_ERROR_INVALID_VALUE;
  if (device->fault) return device->fault;
  const std::shared_ptr<Context> made = make_context(device, flags, false);
  context_stack().push_back(made);
  *context = to_handle<CUcontext>(made);
  return CUDA_SUCCESS;
}

CUresult context_of(CUcontext handle, std::shared_ptr<Context>* context) {
  if (const CUresult error = check_initialized()) return error;
  if (!handle) return current_context(context);
  *context = find<Context>(handle);
  return *context ? (*context)->device->fault : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

extern "C" {

MLA_EMU_EXPORT CUresult CUDAAPI cuInit(unsigned int flags) {
  const Lock lock(state().mutex);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  return initialize();
}

MLA_EMU_EXPORT CUresult CUDAAPI cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuDeviceGetCount(int* count) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = int(state().devices.size());
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  const Lock lock(state().mutex);
  Device* found = nullptr;
  if (const CUresult error = get_device(ordinal, &found)) return error;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuDeviceGetName(char* name, int len, CUdevice dev) {
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult error = get_device(dev, &device)) return error;
  if (!name || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t copied = std::min(size_t(len) - 1, device->name.size());
  std::memcpy(name, device->name.data(), copied);
  name[copied] = '\0';
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult error = get_device(dev, &device)) return error;
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(uuid->bytes, "mla-emulated\0\0\0", 16);
  uuid->bytes[14] = char(device->config.sm());
  uuid->bytes[15] = char(device->ordinal);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) {
  return cuDeviceGetUuid_v2(uuid, dev);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult error = get_device(dev, &device)) return error;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  *bytes = device->config.memory_bytes;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult error = get_device(dev, &device)) return error;
  if (!pi) return CUDA_ERROR_INVALID_VALUE;
  return attribute_value(*device, attrib, pi) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) {
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult error = get_device(dev, &device)) return error;
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  *major = device->config.cc_major;
  *minor = device->config.cc_minor;
  return CUDA_SUCCESS;
}

// ---- primary contexts --------------------------------------------------------------------------

MLA_EMU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult error = get_device(dev, &device)) return error;
  if (!pctx) return CUDA_ERROR_INVALID_VALUE;
  if (!device->primary && device->fault) return device->fault;
  if (!device->primary) device->primary = make_context(device, device->primary_flags, true);
  ++device->primary_references;
  *pctx = to_handle<CUcontext>(device->primary);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult error = get_device(dev, &device)) return error;
  if (!device->primary_references) return CUDA_ERROR_INVALID_CONTEXT;
  if (--device->primary_references == 0) {
    destroy_context(*device->primary);
    device->primary = nullptr;
  }
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult error = get_device(dev, &device)) return error;
  if (device->primary) destroy_context(*device->primary);
  device->primary = nullptr;
  device->primary_references = 0;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult error = get_device(dev, &device)) return error;
  if (flags & ~unsigned(CU_CTX_FLAGS_MASK)) return CUDA_ERROR_INVALID_VALUE;
  device->primary_flags = flags;
  if (device->primary) device->primary->flags = flags;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult error = get_device(dev, &device)) return error;
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  *flags = device->primary_flags;
  *active = device->primary != nullptr;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev) {
  return cuDevicePrimaryCtxRelease_v2(dev);
}
MLA_EMU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev) {
  return cuDevicePrimaryCtxReset_v2(dev);
}
MLA_EMU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
  return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

// ---- contexts ----------------------------------------------------------------------------------

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return create_context(pctx, flags, dev);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam*, int affinities,
                                               unsigned int flags, CUdevice dev) {
  if (affinities) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return create_context(pctx, flags, dev);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* params, unsigned int flags,
                                               CUdevice dev) {
  if (params && (params->numExecAffinityParams || params->cigParams)) return CUDA_ERROR_NOT_SUPPORTED;
  return create_context(pctx, flags, dev);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Context> context = find<Context>(ctx);
  if (!context || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  destroy_context(*context);
  auto& stack = context_stack();
  if (!stack.empty() && stack.back() == context) stack.pop_back();
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  auto& stack = context_stack();
  if (!ctx) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  const std::shared_ptr<Context> context = find<Context>(ctx);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.empty()) {
    stack.push_back(context);
  } else {
    stack.back() = context;
  }
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxGetCurrent(CUcontext* pctx) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  if (!pctx) return CUDA_ERROR_INVALID_VALUE;
  const auto& stack = context_stack();
  *pctx = stack.empty() ? nullptr : to_handle<CUcontext>(stack.back());
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext ctx) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Context> context = find<Context>(ctx);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  context_stack().push_back(context);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext* pctx) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  auto& stack = context_stack();
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (pctx) *pctx = to_handle<CUcontext>(stack.back());
  stack.pop_back();
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  const CUresult error = current_context(&context);
  if (!context) return error;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = context->device->ordinal;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice* device, CUcontext ctx) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  const CUresult error = context_of(ctx, &context);
  if (!context) return error;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = context->device->ordinal;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxGetFlags(unsigned int* flags) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxGetId(CUcontext ctx, unsigned long long* id) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = context_of(ctx, &context)) return error;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = context->id;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = context_of(ctx, &context)) return error;
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = 3020;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = context_of(ctx, &context)) return error;
  return check_unsafe_call();
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxSynchronize(void) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  return check_unsafe_call();
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  context->limits[limit] = value;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxGetLimit(size_t* value, CUlimit limit) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (!value || limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  const auto found = context->limits.find(limit);
  *value = found != context->limits.end()       ? found->second
           : limit == CU_LIMIT_STACK_SIZE       ? 1024
           : limit == CU_LIMIT_PRINTF_FIFO_SIZE ? 1 << 20
           : limit == CU_LIMIT_MALLOC_HEAP_SIZE ? 8 << 20
                                                : 0;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}

}  // extern "C"
