// SPDX-License-Identifier: Apache-2.0
//
// Launches, function attributes and occupancy.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/emulator/driver/state.h"

namespace mla::emu::driver {
namespace {

constexpr uint32_t kRegisterUnit = 256;  // registers are given to a warp in units of this
constexpr uint32_t kPartitions = 4;      // of an SM; each holds a quarter of the registers
constexpr uint32_t kSmemUnit = 128;
constexpr uint32_t kPortableCluster = 8;

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// What a fault looks like to the client: the code that hardware gives where it notices the fault,
// CUDA_ERROR_LAUNCH_FAILED for what only the emulator notices.
CUresult error_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kNone:
      return CUDA_SUCCESS;
    case FaultKind::kLaunch:
      return CUDA_ERROR_INVALID_VALUE;
    case FaultKind::kUnsupported:
      return CUDA_ERROR_NOT_SUPPORTED;
    case FaultKind::kOutOfBounds:
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    case FaultKind::kMisaligned:
      return CUDA_ERROR_MISALIGNED_ADDRESS;
    case FaultKind::kDeadlock:
      return CUDA_ERROR_LAUNCH_TIMEOUT;
    case FaultKind::kInstruction:
      return CUDA_ERROR_ILLEGAL_INSTRUCTION;
    default:
      return CUDA_ERROR_LAUNCH_FAILED;
  }
}

void print_profile(const Report& report) {
  std::fprintf(stderr, "mla-emu: profile: %llu warp instructions in %.3f s\n",
               static_cast<unsigned long long>(report.warp_instructions), report.seconds);
  for (const OpcodeCount& opcode : report.opcodes) {
    std::fprintf(stderr, "mla-emu: %12llu %14llu lanes %10.3f ms  %s\n",
                 static_cast<unsigned long long>(opcode.warp_instructions),
                 static_cast<unsigned long long>(opcode.lane_instructions), double(opcode.nanoseconds) * 1e-6,
                 opcode.opcode.c_str());
  }
}

}  // namespace

// ---- what a kernel needs -----------------------------------------------------------------------

KernelNeeds needs_of(const Image& image, const std::string& kernel) {
  KernelNeeds needs;
  if (const KernelInfo* info = image.module.find_kernel(kernel)) {
    needs.registers = info->max_registers;
    needs.static_smem = info->static_shared_bytes;
    needs.local_bytes = info->local_bytes;
    if (info->maxntid.x) needs.max_threads = uint32_t(info->maxntid.count());
    if (info->cluster.x) needs.cluster = {info->cluster.x, info->cluster.y, info->cluster.z};
  }
  if (const cubin::Kernel* machine = image.cubin_kernel(kernel)) {
    needs.registers = machine->registers;
    needs.local_bytes = machine->stack_bytes;
    needs.static_smem = std::max(needs.static_smem, machine->static_smem);
  }
  return needs;
}

uint32_t blocks_per_sm(const DeviceConfig& device, const KernelNeeds& needs, uint32_t threads,
                       uint64_t dynamic_smem) {
  const uint32_t warps = (threads + 31) / 32;
  uint64_t blocks = std::min<uint64_t>(device.blocks_per_sm, device.threads_per_sm / (warps * 32));
  const uint64_t smem = round_up(needs.static_smem + dynamic_smem + kReservedSmem, kSmemUnit);
  blocks = std::min<uint64_t>(blocks, device.smem_per_sm / smem);
  if (needs.registers) {
    const uint64_t of_warp = round_up(uint64_t(needs.registers) * 32, kRegisterUnit);
    const uint64_t resident_warps = kRegistersPerSm / kPartitions / of_warp * kPartitions;
    blocks = std::min<uint64_t>(blocks, resident_warps / warps);
  }
  return uint32_t(blocks);
}

uint32_t active_clusters(const DeviceConfig& device, uint32_t blocks_per_sm, uint32_t cluster) {
  uint32_t clusters = 0;
  for (int left = device.sms; left > 0; left -= device.sms_per_gpc) {
    clusters += uint32_t(std::min(left, device.sms_per_gpc)) * blocks_per_sm / cluster;
  }
  return clusters;
}

// ---- attributes --------------------------------------------------------------------------------

namespace {

const FunctionAttributes* kernel_attributes(const Function& function) {
  if (!function.kernel) return nullptr;
  const auto& all = function.kernel->attributes;
  const auto found = all.find(function.module->context->device->ordinal);
  return found == all.end() ? nullptr : &found->second;
}

int default_dynamic_smem(const Image& image, const std::string& kernel) {
  const uint32_t fixed = needs_of(image, kernel).static_smem;
  return fixed < kSmemPerBlock ? int(kSmemPerBlock - fixed) : 0;
}

}  // namespace

int max_dynamic_smem(const Function& function) {
  const FunctionAttributes* of_kernel = kernel_attributes(function);
  if (function.attributes.max_dynamic_smem) return *function.attributes.max_dynamic_smem;
  if (of_kernel && of_kernel->max_dynamic_smem) return *of_kernel->max_dynamic_smem;
  return default_dynamic_smem(*function.module->image, function.name);
}

int get_attribute(CUfunction_attribute attribute, const Image& image, const std::string& kernel,
                  const FunctionAttributes& function, const FunctionAttributes* of_kernel, CUresult* result) {
  const KernelNeeds needs = needs_of(image, kernel);
  const auto set = [&](std::optional<int> FunctionAttributes::*field, int otherwise) {
    if (function.*field) return *(function.*field);
    if (of_kernel && of_kernel->*field) return *(of_kernel->*field);
    return otherwise;
  };
  const auto cluster = [&](size_t i) {
    if (needs.cluster[0]) return int(needs.cluster[i]);
    if (function.cluster[i]) return *function.cluster[i];
    if (of_kernel && of_kernel->cluster[i]) return *of_kernel->cluster[i];
    return 0;
  };
  *result = CUDA_SUCCESS;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return int(needs.max_threads);
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      return int(needs.static_smem);
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: {
      int bytes = 0;
      for (const GlobalInfo& global : image.module.globals())
        bytes += global.constant ? int(global.bytes) : 0;
      return bytes;
    }
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      return int(needs.local_bytes);
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      return needs.registers ? int(needs.registers) : 32;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      return int(image.module.sm());
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return int(image.sm);
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
      return 0;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return set(&FunctionAttributes::max_dynamic_smem, default_dynamic_smem(image, kernel));
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return set(&FunctionAttributes::carveout, -1);
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
      return needs.cluster[0] != 0;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
      return cluster(0);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
      return cluster(1);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      return cluster(2);
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      return set(&FunctionAttributes::non_portable_cluster, 0);
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return set(&FunctionAttributes::cluster_policy, 0);
    default:
      *result = CUDA_ERROR_INVALID_VALUE;
      return 0;
  }
}

CUresult set_attribute(CUfunction_attribute attribute, int value, const Image& image,
                       const std::string& kernel, const Device& device, FunctionAttributes* attributes) {
  const KernelNeeds needs = needs_of(image, kernel);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || uint64_t(value) + needs.static_smem > device.config.smem_per_block_optin) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      attributes->max_dynamic_smem = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      attributes->carveout = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      if (needs.cluster[0] || value < 0) return CUDA_ERROR_INVALID_VALUE;
      attributes->cluster[size_t(attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH)] = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      attributes->non_portable_cluster = value != 0;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      if (value < 0 || value > CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING) return CUDA_ERROR_INVALID_VALUE;
      attributes->cluster_policy = value;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// ---- launches ----------------------------------------------------------------------------------

CUresult KernelLaunch::run(Context& context) {
  State& s = state();
  const ModuleObject& module = *function->module;
  if (module.unloaded) {
    report("launch of " + function->name + ": its library has been unloaded");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const DeviceConfig& device = context.device->config;
  const KernelNeeds needs = needs_of(*module.image, function->name);
  LaunchConfig config;
  config.grid = grid;
  config.block = block;
  config.cluster = cluster;
  config.dynamic_shared_bytes = dynamic_smem;
  config.max_shared_bytes = device.smem_per_block_optin;
  config.registers_per_thread = needs.registers;
  config.resident_clusters = active_clusters(
      device, blocks_per_sm(device, needs, uint32_t(block.count()), dynamic_smem), uint32_t(cluster.count()));
  config.sm_count = uint32_t(device.sms);
  config.seed = s.next_seed++;
  config.max_warp_instructions = s.max_warp_instructions;
  if (s.max_idle_instructions) config.max_idle_instructions = *s.max_idle_instructions;
  config.checks = s.checks;
  config.mma_accumulator = s.mma_accumulator;
  config.profile = s.profile;

  const Report result = launch(module.module, function->name, config, params, *context.device->memory);
  s.warp_instructions += result.warp_instructions;
  s.lane_instructions += result.lane_instructions;
  s.seconds += result.seconds;
  if (!result.output.empty()) {
    std::fputs(result.output.c_str(), stdout);
    std::fflush(stdout);
  }
  if (s.verbose) {
    std::fprintf(
        stderr,
        "mla-emu: %s grid %ux%ux%u block %ux%ux%u cluster %u seed %llu: %llu warp instructions, %.3f s%s\n",
        function->name.c_str(), grid.x, grid.y, grid.z, block.x, block.y, block.z, unsigned(cluster.count()),
        static_cast<unsigned long long>(config.seed),
        static_cast<unsigned long long>(result.warp_instructions), result.seconds,
        result.ok() ? "" : ", FAULT");
  }
  if (s.profile) print_profile(result);
  for (const Warning& warning : result.warnings) {
    s.warnings += warning.count;
    std::fprintf(stderr, "mla-emu: warning (%s, %llu times): %s\n  seed %llu (MLA_EMU_SEED)\n",
                 kChecks[static_cast<size_t>(warning.check)].name,
                 static_cast<unsigned long long>(warning.count), warning.text.c_str(),
                 static_cast<unsigned long long>(config.seed));
  }
  if (result.ok()) {
    ++s.launches;
    ++s.launches_of[function->name];
    return CUDA_SUCCESS;
  }
  report(result.fault.text() + "\n  seed " + std::to_string(config.seed) + " (MLA_EMU_SEED)");
  const CUresult error = error_of(result.fault.kind);
  if (result.fault.kind == FaultKind::kLaunch || result.fault.kind == FaultKind::kUnsupported) return error;
  context.device->fault = error;  // seen by the next call, as with a launch that runs asynchronously
  return CUDA_SUCCESS;
}

namespace {

struct LaunchRequest {
  CUlaunchConfig config = {};
  CUfunction function = nullptr;
  void** params = nullptr;
  void** extra = nullptr;
  bool cooperative = false;
};

CUresult refuse(CUresult error, const std::string& kernel, const std::string& reason) {
  report("launch of " + kernel + ": " + reason);
  return error;
}

std::string shape(const Dim3& d) {
  return std::to_string(d.x) + "x" + std::to_string(d.y) + "x" + std::to_string(d.z);
}

// The parameter buffer, from the one or the other way of giving it.
CUresult gather_params(const LaunchRequest& request, const KernelInfo& info, std::vector<uint8_t>* out) {
  out->assign(info.param_bytes, 0);
  if (request.params && request.extra)
    return refuse(CUDA_ERROR_INVALID_VALUE, info.name, "both kernelParams and extra are given");
  if (request.params) {
    for (size_t i = 0; i < info.params.size(); ++i) {
      if (!request.params[i]) {
        return refuse(CUDA_ERROR_INVALID_VALUE, info.name, "kernelParams[" + std::to_string(i) + "] is null");
      }
      std::memcpy(out->data() + info.params[i].offset, request.params[i], info.params[i].bytes);
    }
    return CUDA_SUCCESS;
  }
  const void* buffer = nullptr;
  size_t bytes = 0;
  for (size_t i = 0; request.extra && request.extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (request.extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = request.extra[i + 1];
    } else if (request.extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      bytes = *static_cast<const size_t*>(request.extra[i + 1]);
    } else {
      return refuse(CUDA_ERROR_INVALID_VALUE, info.name, "extra has an unknown entry");
    }
  }
  if (info.params.empty()) return CUDA_SUCCESS;
  const size_t needed = info.params.back().offset + info.params.back().bytes;
  if (!buffer || bytes < needed) {
    return refuse(CUDA_ERROR_INVALID_VALUE, info.name,
                  "needs " + std::to_string(needed) + " bytes of parameters, " +
                      std::to_string(buffer ? bytes : 0) + " given");
  }
  std::memcpy(out->data(), buffer, std::min<size_t>(bytes, out->size()));
  return CUDA_SUCCESS;
}

// Cluster shape of a launch: that of the code, else of the launch attribute, else of the function.
CUresult find_cluster(const CUlaunchConfig& config, const Function& function, const KernelNeeds& needs,
                      Dim3* cluster, bool* given = nullptr) {
  Dim3 asked{0, 0, 0};
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config.attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      asked = {attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z};
      if (!asked.count()) {
        return refuse(CUDA_ERROR_INVALID_VALUE, function.name, "cluster dimension " + shape(asked));
      }
    }
  }
  Dim3 fixed{needs.cluster[0], needs.cluster[1], needs.cluster[2]};
  if (!fixed.x) {
    CUresult result = CUDA_SUCCESS;
    const FunctionAttributes* of_kernel = kernel_attributes(function);
    uint32_t* const fields[] = {&fixed.x, &fixed.y, &fixed.z};
    for (int i = 0; i < 3; ++i) {
      *fields[i] = uint32_t(get_attribute(CUfunction_attribute(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + i),
                                          *function.module->image, function.name, function.attributes,
                                          of_kernel, &result));
    }
    if (fixed.x || fixed.y || fixed.z)
      fixed = {std::max(1u, fixed.x), std::max(1u, fixed.y), std::max(1u, fixed.z)};
  }
  if (fixed.x && asked.x && (fixed.x != asked.x || fixed.y != asked.y || fixed.z != asked.z)) {
    return refuse(
        CUDA_ERROR_INVALID_CLUSTER_SIZE, function.name,
        "the kernel requires clusters of " + shape(fixed) + ", the launch asks for " + shape(asked));
  }
  *cluster = fixed.x ? fixed : asked.x ? asked : Dim3{1, 1, 1};
  if (given) *given = fixed.x || asked.x;
  return CUDA_SUCCESS;
}

bool allows_large_clusters(const Function& function) {
  CUresult result = CUDA_SUCCESS;
  return get_attribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, *function.module->image,
                       function.name, function.attributes, kernel_attributes(function), &result) != 0;
}

CUresult check_cluster(const Function& function, const DeviceConfig& device, const Dim3& grid,
                       const Dim3& cluster) {
  const uint64_t size = cluster.count();
  if (size == 1) return CUDA_SUCCESS;
  if (device.cc_major < 9)
    return refuse(CUDA_ERROR_NOT_SUPPORTED, function.name, "clusters need compute capability 9.0");
  const uint64_t most = allows_large_clusters(function) ? (device.cc_major < 12 ? 16 : 8) : kPortableCluster;
  if (size > most) {
    return refuse(CUDA_ERROR_INVALID_CLUSTER_SIZE, function.name,
                  "clusters of " + std::to_string(size) + " CTAs, at most " + std::to_string(most));
  }
  if (grid.x % cluster.x || grid.y % cluster.y || grid.z % cluster.z) {
    return refuse(CUDA_ERROR_INVALID_CLUSTER_SIZE, function.name,
                  "the grid " + shape(grid) + " is not a multiple of the cluster " + shape(cluster));
  }
  return CUDA_SUCCESS;
}

CUresult launch_on(const std::shared_ptr<Stream>& stream, const LaunchRequest& request) {
  std::shared_ptr<Function> function;
  if (const CUresult error = get_function(request.function, stream->context, &function)) return error;
  if (function->module->context != stream->context) {
    return refuse(CUDA_ERROR_INVALID_HANDLE, function->name,
                  "the function belongs to another context than the stream");
  }
  const CUlaunchConfig& config = request.config;
  const DeviceConfig& device = stream->context->device->config;
  const KernelInfo& info = *function->module->module.find_kernel(function->name);
  const KernelNeeds needs = needs_of(*function->module->image, function->name);

  auto operation = std::make_shared<KernelLaunch>();
  operation->function = function;
  operation->grid = {config.gridDimX, config.gridDimY, config.gridDimZ};
  operation->block = {config.blockDimX, config.blockDimY, config.blockDimZ};
  operation->dynamic_smem = config.sharedMemBytes;
  const Dim3 &grid = operation->grid, &block = operation->block;
  if (!grid.count() || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) {
    return refuse(CUDA_ERROR_INVALID_VALUE, function->name, "grid " + shape(grid));
  }
  if (!block.count() || block.x > 1024 || block.y > 1024 || block.z > 64 || block.count() > 1024) {
    return refuse(CUDA_ERROR_INVALID_VALUE, function->name, "block " + shape(block));
  }
  if (block.count() > needs.max_threads) {
    return refuse(CUDA_ERROR_INVALID_VALUE, function->name,
                  "block of " + std::to_string(block.count()) + " threads, compiled for at most " +
                      std::to_string(needs.max_threads));
  }
  if (info.reqntid.x &&
      (info.reqntid.x != block.x || info.reqntid.y != block.y || info.reqntid.z != block.z)) {
    return refuse(CUDA_ERROR_INVALID_VALUE, function->name,
                  "block " + shape(block) + ", compiled for exactly " + shape(info.reqntid));
  }
  if (int64_t(config.sharedMemBytes) > max_dynamic_smem(*function)) {
    return refuse(CUDA_ERROR_INVALID_VALUE, function->name,
                  std::to_string(config.sharedMemBytes) + " bytes of dynamic shared memory, allowed are " +
                      std::to_string(max_dynamic_smem(*function)) +
                      " (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)");
  }
  if (const CUresult error = find_cluster(config, *function, needs, &operation->cluster)) return error;
  if (const CUresult error = check_cluster(*function, device, grid, operation->cluster)) return error;
  const uint32_t per_sm = blocks_per_sm(device, needs, uint32_t(block.count()), config.sharedMemBytes);
  const uint32_t clusters = active_clusters(device, per_sm, uint32_t(operation->cluster.count()));
  if (!clusters) {
    return refuse(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, function->name,
                  "registers or shared memory of one block or cluster exceed the device's");
  }
  if (request.cooperative && grid.count() > uint64_t(clusters) * operation->cluster.count()) {
    return refuse(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, function->name, "grid " + shape(grid));
  }
  if (const CUresult error = gather_params(request, info, &operation->params)) return error;
  return submit(stream, operation);
}

CUresult launch_kernel(const LaunchRequest& request) {
  const Lock lock(state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult error = get_stream(request.config.hStream, &stream)) return error;
  const CUresult result = launch_on(stream, request);
  if (result && stream->capture) invalidate(*stream->capture);
  return result;
}

CUresult occupancy_config(CUfunction handle, const CUlaunchConfig* config,
                          std::shared_ptr<Function>* function, uint32_t* blocks, Dim3* cluster, bool* given) {
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = get_function(handle, context, function)) return error;
  const DeviceConfig& device = (*function)->module->context->device->config;
  const KernelNeeds needs = needs_of(*(*function)->module->image, (*function)->name);
  const Dim3 block{config->blockDimX, config->blockDimY, config->blockDimZ};
  if (!config->gridDimX || !config->gridDimY || !config->gridDimZ) return CUDA_ERROR_INVALID_VALUE;
  if (!block.count() || block.count() > 1024) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = find_cluster(*config, **function, needs, cluster, given)) return error;
  *blocks = blocks_per_sm(device, needs, uint32_t(block.count()), config->sharedMemBytes);
  if (block.count() > needs.max_threads || int64_t(config->sharedMemBytes) > max_dynamic_smem(**function))
    *blocks = 0;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace mla::emu::driver

using namespace mla::emu::driver;
using mla::emu::Dim3;

extern "C" {

MLA_EMU_EXPORT CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                               unsigned int gridDimZ, unsigned int blockDimX,
                                               unsigned int blockDimY, unsigned int blockDimZ,
                                               unsigned int sharedMemBytes, CUstream hStream,
                                               void** kernelParams, void** extra) {
  LaunchRequest request;
  request.config = {gridDimX,  gridDimY,       gridDimZ, blockDimX, blockDimY,
                    blockDimZ, sharedMemBytes, hStream,  nullptr,   0};
  request.function = f;
  request.params = kernelParams;
  request.extra = extra;
  return launch_kernel(request);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f,
                                                 void** kernelParams, void** extra) {
  if (!config || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  LaunchRequest request;
  request.config = *config;
  request.function = f;
  request.params = kernelParams;
  request.extra = extra;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
      request.cooperative = config->attrs[i].value.cooperative != 0;
  }
  return launch_kernel(request);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX,
                                                          unsigned int gridDimY, unsigned int gridDimZ,
                                                          unsigned int blockDimX, unsigned int blockDimY,
                                                          unsigned int blockDimZ, unsigned int sharedMemBytes,
                                                          CUstream hStream, void** kernelParams) {
  LaunchRequest request;
  request.config = {gridDimX,  gridDimY,       gridDimZ, blockDimX, blockDimY,
                    blockDimZ, sharedMemBytes, hStream,  nullptr,   0};
  request.function = f;
  request.params = kernelParams;
  request.cooperative = true;
  return launch_kernel(request);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize, unsigned int) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  std::shared_ptr<Function> function;
  if (const CUresult error = get_function(func, context, &function)) return error;
  if (!numBlocks || blockSize <= 0) return CUDA_ERROR_INVALID_VALUE;
  const KernelNeeds needs = needs_of(*function->module->image, function->name);
  *numBlocks = uint32_t(blockSize) > needs.max_threads
                   ? 0
                   : int(blocks_per_sm(function->module->context->device->config, needs, uint32_t(blockSize),
                                       dynamicSMemSize));
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func,
                                                                            int blockSize,
                                                                            size_t dynamicSMemSize) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize, dynamicSMemSize, 0);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func,
                                                             const CUlaunchConfig* config) {
  const Lock lock(state().mutex);
  if (!numClusters) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  uint32_t blocks = 0;
  Dim3 cluster;
  bool given = false;
  if (const CUresult error = occupancy_config(func, config, &function, &blocks, &cluster, &given))
    return error;
  const DeviceConfig& device = function->module->context->device->config;
  const Dim3 grid{config->gridDimX, config->gridDimY, config->gridDimZ};
  if (const CUresult error = check_cluster(*function, device, grid, cluster)) return error;
  *numClusters = given ? int(active_clusters(device, blocks, uint32_t(cluster.count()))) : 0;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func,
                                                                   const CUlaunchConfig* config) {
  const Lock lock(state().mutex);
  if (!clusterSize) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  uint32_t blocks = 0;
  Dim3 cluster;
  bool given = false;
  if (const CUresult error = occupancy_config(func, config, &function, &blocks, &cluster, &given))
    return error;
  const DeviceConfig& device = function->module->context->device->config;
  uint32_t size = allows_large_clusters(*function) && device.cc_major < 12 ? 16 : kPortableCluster;
  while (size > 1 && !active_clusters(device, blocks, size)) size /= 2;
  *clusterSize = int(size);
  return CUDA_SUCCESS;
}

}  // extern "C"
