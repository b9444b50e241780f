// SPDX-License-Identifier: Apache-2.0
//
// Memory: allocation, copies, fills, pointer attributes.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/emulator/driver/state.h"

using namespace mla::emu::driver;

namespace {

// The device whose memory holds an address.
Device* device_of(CUdeviceptr address) {
  for (const auto& device : state().devices) {
    if (device->memory->find(address)) return device.get();
  }
  return nullptr;
}

// A copy between any two places. `to_host` and `from_host` are set where the call says that the
// address is the host's own; unified copies find out.
struct Copy : Operation {
  uint64_t target = 0, source = 0;
  uint64_t bytes = 0;
  bool to_host = false, from_host = false;
  Copy() { type = CU_GRAPH_NODE_TYPE_MEMCPY; }

  bool valid() const {
    for (const auto& [address, host] : {std::pair{target, to_host}, std::pair{source, from_host}}) {
      if (host || !bytes) continue;
      const Device* device = device_of(address);
      if (!device || !device->memory->host_pointer(address, bytes)) return false;
    }
    return true;
  }
  CUresult run(Context&) override {
    if (!valid()) return CUDA_ERROR_INVALID_VALUE;
    if (!bytes) return CUDA_SUCCESS;
    Device* to = to_host ? nullptr : device_of(target);
    Device* from = from_host ? nullptr : device_of(source);
    if (to && from && to == from)
      return to->memory->copy(target, source, bytes) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
    const void* data =
        from ? from->memory->host_pointer(source, bytes) : reinterpret_cast<const void*>(source);
    if (to) return to->memory->write(target, data, bytes) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
    std::memmove(reinterpret_cast<void*>(target), data, bytes);
    return CUDA_SUCCESS;
  }
};

struct Fill : Operation {
  CUdeviceptr target = 0;
  uint32_t value = 0, unit = 1;
  uint64_t count = 0;
  Fill() { type = CU_GRAPH_NODE_TYPE_MEMSET; }

  bool valid() const {
    if (target % unit) return false;
    const Device* device = device_of(target);
    return device && count <= device->config.memory_bytes &&
           device->memory->host_pointer(target, count * unit);
  }
  CUresult run(Context&) override {
    if (!count) return CUDA_SUCCESS;
    if (!valid()) return CUDA_ERROR_INVALID_VALUE;
    return device_of(target)->memory->fill(target, value, unit, count) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
  }
};

uint64_t host(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

CUresult copy(uint64_t target, bool to_host, uint64_t source, bool from_host, uint64_t bytes) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  Copy operation;
  operation.target = target;
  operation.source = source;
  operation.bytes = bytes;
  operation.to_host = to_host;
  operation.from_host = from_host;
  return submit_now(*context, operation);
}

CUresult copy_async(uint64_t target, bool to_host, uint64_t source, bool from_host, uint64_t bytes,
                    CUstream handle) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(handle, &stream)) return error;
  auto operation = std::make_shared<Copy>();
  operation->target = target;
  operation->source = source;
  operation->bytes = bytes;
  operation->to_host = to_host;
  operation->from_host = from_host;
  if (!operation->valid()) return CUDA_ERROR_INVALID_VALUE;
  return submit(stream, operation);
}

CUresult fill(CUdeviceptr target, uint32_t value, uint32_t unit, uint64_t count) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  Fill operation;
  operation.target = target;
  operation.value = value;
  operation.unit = unit;
  operation.count = count;
  return submit_now(*context, operation);
}

CUresult fill_async(CUdeviceptr target, uint32_t value, uint32_t unit, uint64_t count, CUstream handle) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(handle, &stream)) return error;
  auto operation = std::make_shared<Fill>();
  operation->target = target;
  operation->value = value;
  operation->unit = unit;
  operation->count = count;
  if (count && !operation->valid()) return CUDA_ERROR_INVALID_VALUE;
  return submit(stream, operation);
}

CUresult allocate(Context& context, CUdeviceptr* pointer, size_t bytes) {
  if (!pointer || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::optional<uint64_t> address = context.device->memory->allocate(bytes);
  if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
  context.allocations.insert(*address);
  *pointer = *address;
  return CUDA_SUCCESS;
}

// The context that owns an allocation, which need not be the current one.
std::shared_ptr<Context> owner_of(CUdeviceptr base) {
  for (const auto& [handle, object] : state().objects) {
    const auto context = std::dynamic_pointer_cast<Context>(object);
    if (context && context->allocations.count(base)) return context;
  }
  return nullptr;
}

CUresult release(CUdeviceptr pointer) {
  const std::shared_ptr<Context> owner = owner_of(pointer);
  if (!owner || !owner->device->memory->free(pointer)) return CUDA_ERROR_INVALID_VALUE;
  owner->allocations.erase(pointer);
  return CUDA_SUCCESS;
}

CUresult map_host(const std::shared_ptr<Context>& context, void* pointer, uint64_t bytes, bool owned,
                  unsigned flags) {
  State& s = state();
  for (size_t i = 0; i < s.devices.size(); ++i) {
    if (s.devices[i]->memory->map_host(pointer, bytes)) continue;
    for (size_t k = 0; k < i; ++k) s.devices[k]->memory->unmap_host(pointer);
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  s.host_allocations[host(pointer)] = {bytes, context, owned, flags};
  return CUDA_SUCCESS;
}

CUresult allocate_host(void** pointer, size_t bytes, unsigned flags) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (const CUresult error = check_unsafe_call()) return error;
  const unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (!pointer || (flags & ~known)) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) {
    *pointer = nullptr;
    return CUDA_SUCCESS;
  }
  void* storage = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!storage) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = map_host(context, storage, bytes, true, flags);
  if (result) {
    std::free(storage);
  } else {
    *pointer = storage;
  }
  return result;
}

CUresult release_host(void* pointer, bool owned, CUresult unknown) {
  State& s = state();
  const auto found = s.host_allocations.find(host(pointer));
  if (found == s.host_allocations.end() || found->second.owned != owned) return unknown;
  for (const auto& device : s.devices) device->memory->unmap_host(pointer);
  if (owned) std::free(pointer);
  s.host_allocations.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

MLA_EMU_EXPORT CUresult CUDAAPI cuMemGetInfo_v2(size_t* free, size_t* total) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  const mla::emu::Memory& memory = *context->device->memory;
  if (free) *free = memory.capacity_bytes() - memory.allocated_bytes();
  if (total) *total = memory.capacity_bytes();
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (const CUresult error = check_unsafe_call()) return error;
  return allocate(*context, dptr, bytesize);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemFree_v2(CUdeviceptr dptr) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  if (!dptr) return CUDA_SUCCESS;
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (const CUresult error = check_unsafe_call()) return error;
  return release(dptr);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(hStream, &stream)) return error;
  if (stream->capture) {
    invalidate(*stream->capture);
    report("cuMemAllocAsync: memory nodes in graphs are beyond the emulated driver");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return allocate(*stream->context, dptr, bytesize);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(hStream, &stream)) return error;
  if (stream->capture) {
    invalidate(*stream->capture);
    report("cuMemFreeAsync: memory nodes in graphs are beyond the emulated driver");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return release(dptr);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr dptr) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  const Device* device = device_of(dptr);
  if (!device) return CUDA_ERROR_NOT_FOUND;
  const mla::emu::Allocation allocation = *device->memory->find(dptr);
  if (base) *base = allocation.address;
  if (size) *size = allocation.bytes;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemAllocHost_v2(void** pp, size_t bytesize) {
  return allocate_host(pp, bytesize, 0);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemHostAlloc(void** pp, size_t bytesize, unsigned int flags) {
  return allocate_host(pp, bytesize, flags);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemFreeHost(void* p) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (const CUresult error = check_unsafe_call()) return error;
  return release_host(p, true, CUDA_ERROR_INVALID_VALUE);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemHostRegister_v2(void* p, size_t bytesize, unsigned int flags) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (const CUresult error = check_unsafe_call()) return error;
  if (!p || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  return map_host(context, p, bytesize, false, flags);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemHostUnregister(void* p) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (const CUresult error = check_unsafe_call()) return error;
  return release_host(p, false, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr* dptr, void* p, unsigned int flags) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (!dptr || flags || !context->device->memory->find(host(p))) return CUDA_ERROR_INVALID_VALUE;
  *dptr = host(p);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemHostGetFlags(unsigned int* flags, void* p) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  const auto found = state().host_allocations.find(host(p));
  if (!flags || found == state().host_allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  *flags = found->second.flags;
  return CUDA_SUCCESS;
}

// ---- copies ------------------------------------------------------------------------------------

MLA_EMU_EXPORT CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t count) {
  const Lock lock(state().mutex);
  return copy(dst, !device_of(dst), src, !device_of(src), count);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t count) {
  return copy(dst, false, host(src), true, count);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t count) {
  return copy(host(dst), true, src, false, count);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t count) {
  return copy(dst, false, src, false, count);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t count,
                                              CUstream stream) {
  const Lock lock(state().mutex);
  return copy_async(dst, !device_of(dst), src, !device_of(src), count, stream);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t count,
                                                     CUstream stream) {
  return copy_async(dst, false, host(src), true, count, stream);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t count,
                                                     CUstream stream) {
  return copy_async(host(dst), true, src, false, count, stream);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t count,
                                                     CUstream stream) {
  return copy_async(dst, false, src, false, count, stream);
}

// ---- fills -------------------------------------------------------------------------------------

MLA_EMU_EXPORT CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count) {
  return fill(dst, value, 1, count);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr dst, unsigned short value, size_t count) {
  return fill(dst, value, 2, count);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr dst, unsigned int value, size_t count) {
  return fill(dst, value, 4, count);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count,
                                                CUstream stream) {
  return fill_async(dst, value, 1, count, stream);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count,
                                                 CUstream stream) {
  return fill_async(dst, value, 2, count, stream);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count,
                                                 CUstream stream) {
  return fill_async(dst, value, 4, count, stream);
}

// ---- pointers ----------------------------------------------------------------------------------

MLA_EMU_EXPORT CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                                      CUdeviceptr ptr) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const Device* device = device_of(ptr);
  if (!data || !device) return CUDA_ERROR_INVALID_VALUE;
  const mla::emu::Allocation allocation = *device->memory->find(ptr);
  std::shared_ptr<Context> owner;
  if (allocation.host) {
    owner = state().host_allocations.at(allocation.address).context;
  } else {
    owner = owner_of(allocation.address);
  }
  const auto give = [&](auto value) {
    std::memcpy(data, &value, sizeof(value));
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return give(owner ? owner->handle : uint64_t(0));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give(uint32_t(allocation.host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return give(uint64_t(ptr));
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return allocation.host ? give(uint64_t(ptr)) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give(int(owner ? owner->device->ordinal : device->ordinal));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return give(allocation.address);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give(allocation.bytes);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return give(allocation.address);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return give(uint32_t(0));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return give(uint32_t(1));
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

MLA_EMU_EXPORT CUresult CUDAAPI cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes,
                                                       void** data, CUdeviceptr ptr) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  if (!attributes || !data) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    // Attributes that do not apply read as zero, as documented.
    if (cuPointerGetAttribute(data[i], attributes[i], ptr) != CUDA_SUCCESS && data[i]) {
      const bool wide = attributes[i] == CU_POINTER_ATTRIBUTE_CONTEXT ||
                        attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
                        attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER ||
                        attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
                        attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE ||
                        attributes[i] == CU_POINTER_ATTRIBUTE_BUFFER_ID;
      std::memset(data[i], 0, wide ? 8 : 4);
    }
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
