// SPDX-License-Identifier: Apache-2.0
//
// Single driver calls, mostly wrong ones, and what the driver answers. Only calls whose outcome the
// API defines: nothing here hands the driver a dangling handle.
#include <cstdio>
#include <cstring>

#include "tests/emulator/conformance/runner.h"

namespace mla::conformance {
namespace {

#include "probe_code.inc"

using Results = std::vector<std::pair<std::string, std::string>>;

const char kPtx[] = R"(.version 8.0
.target sm_90
.address_size 64
.global .align 4 .u32 variable = 7;
.const .align 4 .u32 constant = 9;
.visible .entry plain(.param .u64 p, .param .u32 n, .param .align 16 .b8 s[32])
{
  .reg .b64 d;
  .reg .b32 r;
  ld.param.u64 d, [p]; ld.param.u32 r, [n]; cvta.to.global.u64 d, d; st.global.u32 [d], r; ret;
}
.visible .entry nothing() { ret; }
.visible .entry bounded() .maxntid 64, 1, 1 { ret; }
.visible .entry exact() .reqntid 64, 1, 1 { ret; }
.visible .entry clustered() .explicitcluster .reqnctapercluster 2, 1, 1 { ret; }
.visible .entry static_smem(.param .u64 p)
{
  .shared .align 4 .b32 s[256];
  .reg .b64 d;
  .reg .b32 r;
  mov.u32 r, s; ld.param.u64 d, [p]; cvta.to.global.u64 d, d; st.shared.u32 [s], r; ld.shared.u32 r, [s]; st.global.u32 [d], r; ret;
}
.visible .entry stray() { .reg .b64 d; mov.u64 d, 64; st.global.u32 [d], 1; ret; }
.visible .entry misaligned(.param .u64 p) { .reg .b64 d; ld.param.u64 d, [p]; cvta.to.global.u64 d, d; add.u64 d, d, 2; st.global.u32 [d], 1; ret; }
.visible .entry trapping() { trap; }
)";

std::string ptx(const char* version, const char* target, const char* body = "ret;") {
  return std::string(".version ") + version + "\n.target " + target +
         "\n.address_size 64\n.visible .entry k() { " + body + " }\n";
}

class Probe {
 public:
  Probe(const Driver& driver, CUdevice device, bool verbose)
      : d(driver), device_(device), verbose_(verbose) {}

  Results run() {
    devices();
    without_context();
    CUctxCreateParams params = {};
    d.cuCtxCreate(&context_, &params, 0, device_);
    memory();
    images();
    machine_code();
    attributes();
    launches();
    tensor_maps();
    streams_and_events();
    capture();
    proc_address();
    d.cuCtxDestroy(context_);
    faults();
    return results_;
  }

 private:
  void keep(const std::string& label, const std::string& result) {
    if (verbose_) std::printf("%s: %s\n", label.c_str(), result.c_str());
    if (verbose_) std::fflush(stdout);
    results_.emplace_back(label, result);
  }
  void note(const std::string& label, CUresult result) { keep(label, d.describe(result)); }
  void note(const std::string& label, CUresult result, int64_t value) {
    keep(label, d.describe(result) + (result ? "" : ", " + std::to_string(value)));
  }

  void devices() {
    CUdevice device = 0;
    note("cuDeviceGet(-1)", d.cuDeviceGet(&device, -1));
    note("cuDeviceGet(1000)", d.cuDeviceGet(&device, 1000));
    int value = 0;
    note("cuDeviceGetAttribute(unknown attribute)",
         d.cuDeviceGetAttribute(&value, CUdevice_attribute(9999), device_));
    note("cuDeviceGetAttribute(attribute 0)", d.cuDeviceGetAttribute(&value, CUdevice_attribute(0), device_));
    note("cuDeviceGetAttribute(device -1)",
         d.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, -1));
    const std::pair<const char*, CUdevice_attribute> kAttributes[] = {
        {"MAX_THREADS_PER_BLOCK", CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
        {"MAX_SHARED_MEMORY_PER_BLOCK", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK},
        {"MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
        {"MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR},
        {"RESERVED_SHARED_MEMORY_PER_BLOCK", CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK},
        {"MAX_REGISTERS_PER_BLOCK", CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK},
        {"MAX_THREADS_PER_MULTIPROCESSOR", CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
        {"MAX_BLOCKS_PER_MULTIPROCESSOR", CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR},
        {"MAX_GRID_DIM_Y", CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y},
        {"MAX_BLOCK_DIM_Z", CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z},
        {"CLUSTER_LAUNCH", CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH},
        {"TENSOR_MAP_ACCESS_SUPPORTED", CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED},
        {"UNIFIED_ADDRESSING", CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING},
    };
    for (const auto& [name, attribute] : kAttributes) {
      const CUresult result = d.cuDeviceGetAttribute(&value, attribute, device_);
      note(std::string("device attribute ") + name, result, value);
    }
  }

  void without_context() {
    CUdeviceptr pointer = 0;
    CUstream stream = nullptr;
    CUmodule module = nullptr;
    CUcontext context = nullptr;
    CUdevice device = 0;
    d.cuCtxSetCurrent(nullptr);
    CUresult result = d.cuCtxGetCurrent(&context);
    note("no context: cuCtxGetCurrent", result, context != nullptr);
    note("no context: cuMemAlloc", d.cuMemAlloc(&pointer, 256));
    note("no context: cuMemFree(0)", d.cuMemFree(0));
    note("no context: cuCtxSynchronize", d.cuCtxSynchronize());
    note("no context: cuCtxGetDevice", d.cuCtxGetDevice(&device));
    note("no context: cuCtxPopCurrent", d.cuCtxPopCurrent(&context));
    note("no context: cuStreamCreate", d.cuStreamCreate(&stream, 0));
    note("no context: cuStreamSynchronize(0)", d.cuStreamSynchronize(nullptr));
    note("no context: cuModuleLoadData", d.cuModuleLoadData(&module, kPtx));
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    note("no context: cuLibraryLoadData",
         d.cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
    if (!library) return;
    note("no context: cuLibraryGetKernel", d.cuLibraryGetKernel(&kernel, library, "plain"));
    note("no context: cuLibraryGetKernel(missing)", d.cuLibraryGetKernel(&kernel, library, "missing"));
    note("no context: cuKernelGetFunction", d.cuKernelGetFunction(&function, kernel));
    size_t bytes = 0;
    note("no context: cuLibraryGetGlobal", d.cuLibraryGetGlobal(&pointer, &bytes, library, "variable"));
    int value = 0;
    result = d.cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, device_);
    note("no context: cuKernelGetAttribute(MAX_THREADS_PER_BLOCK)", result, value);
    note("no context: cuKernelSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000)",
         d.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000, kernel, device_));
    unsigned count = 0;
    result = d.cuLibraryGetKernelCount(&count, library);
    note("cuLibraryGetKernelCount", result, count);
    for (size_t i = 0; i < 4; ++i) {
      size_t offset = 0, size = 0;
      result = d.cuKernelGetParamInfo(kernel, i, &offset, &size);
      note("cuKernelGetParamInfo(" + std::to_string(i) + ")", result, int64_t(offset * 1000 + size));
    }
    note("no context: cuLibraryUnload", d.cuLibraryUnload(library));
    note("cuDevicePrimaryCtxRelease, not retained", d.cuDevicePrimaryCtxRelease(device_));
  }

  void memory() {
    CUdeviceptr pointer = 0;
    note("cuMemAlloc(0 bytes)", d.cuMemAlloc(&pointer, 0));
    note("cuMemAlloc(2^50 bytes)", d.cuMemAlloc(&pointer, size_t(1) << 50));
    note("cuMemAlloc(null)", d.cuMemAlloc(nullptr, 256));
    note("cuMemFree(0)", d.cuMemFree(0));
    note("cuMemFree(no allocation)", d.cuMemFree(0x1234));
    note("cuMemAlloc", d.cuMemAlloc(&pointer, 1 << 21));
    note("cuMemFree(inside an allocation)", d.cuMemFree(pointer + 256));
    char host[64] = {};
    note("cuMemcpyHtoD(0 bytes)", d.cuMemcpyHtoD(pointer, host, 0));
    note("cuMemcpyHtoD(no allocation)", d.cuMemcpyHtoD(0x1234, host, 16));
    note("cuMemcpyDtoH(no allocation)", d.cuMemcpyDtoH(host, 0x1234, 16));
    note("cuMemsetD32(misaligned)", d.cuMemsetD32(pointer + 2, 1, 4));
    note("cuMemsetD16(misaligned)", d.cuMemsetD16(pointer + 1, 1, 4));
    note("cuMemsetD8(0 bytes)", d.cuMemsetD8(pointer, 1, 0));
    note("cuMemsetD8(no allocation)", d.cuMemsetD8(0x1234, 1, 4));
    unsigned type = 0;
    CUresult result = d.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer + 5);
    note("cuPointerGetAttribute(MEMORY_TYPE, device memory)", result, type);
    note("cuPointerGetAttribute(MEMORY_TYPE, host stack)",
         d.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CUdeviceptr(reinterpret_cast<uint64_t>(host))));
    uint64_t start = 0;
    result = d.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, pointer + 5);
    note("cuPointerGetAttribute(RANGE_START_ADDR)", result, start == pointer);
    result = d.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer + 5);
    note("cuPointerGetAttribute(RANGE_SIZE)", result, int64_t(start));
    void* pinned = nullptr;
    note("cuMemHostAlloc(0 bytes)", d.cuMemHostAlloc(&pinned, 0, 0));
    note("cuMemHostAlloc(unknown flags)", d.cuMemHostAlloc(&pinned, 64, 0x1000));
    note("cuMemHostAlloc", d.cuMemHostAlloc(&pinned, 4096, 0));
    result = d.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                     CUdeviceptr(reinterpret_cast<uint64_t>(pinned)));
    note("cuPointerGetAttribute(MEMORY_TYPE, pinned)", result, type);
    note("cuMemFreeHost(not pinned)", d.cuMemFreeHost(host));
    note("cuMemFreeHost", d.cuMemFreeHost(pinned));
    note("cuMemFree", d.cuMemFree(pointer));
    note("cuMemFree twice", d.cuMemFree(pointer));
  }

  void image(const std::string& label, const std::string& text) {
    CUmodule module = nullptr;
    note("cuModuleLoadData(" + label + ")", d.cuModuleLoadData(&module, text.c_str()));
    if (module) d.cuModuleUnload(module);
    CUlibrary library = nullptr;
    CUresult result = d.cuLibraryLoadData(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    note("cuLibraryLoadData(" + label + ")", result);
    if (!library) return;
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    result = d.cuLibraryGetKernel(&kernel, library, "k");
    note("cuLibraryGetKernel(" + label + ")", result);
    if (kernel) note("cuKernelGetFunction(" + label + ")", d.cuKernelGetFunction(&function, kernel));
    d.cuLibraryUnload(library);
  }

  void images() {
    CUmodule module = nullptr;
    note("cuModuleLoadData(null)", d.cuModuleLoadData(&module, nullptr));
    image("text that is no PTX", "this is not a kernel");
    image("empty text", "");
    image("PTX with a syntax error", ptx("8.0", "sm_90", "ret ret;"));
    image("PTX with an unknown instruction", ptx("8.0", "sm_90", "frobnicate.b32;"));
    image("PTX version 99.9", ptx("99.9", "sm_90"));
    image("PTX for sm_80", ptx("8.0", "sm_80"));
    image("PTX for sm_90a", ptx("8.0", "sm_90a"));
    image("PTX for sm_100", ptx("8.6", "sm_100"));
    image("PTX for sm_120", ptx("8.7", "sm_120"));
    image("PTX for sm_120a", ptx("8.7", "sm_120a"));
    image("PTX for sm_999", ptx("8.0", "sm_999"));
    d.cuModuleLoadData(&module_, kPtx);
    CUfunction function = nullptr;
    note("cuModuleGetFunction(missing)", d.cuModuleGetFunction(&function, module_, "missing"));
    note("cuModuleGetFunction", d.cuModuleGetFunction(&function, module_, "plain"));
    CUdeviceptr pointer = 0;
    size_t bytes = 0;
    CUresult result = d.cuModuleGetGlobal(&pointer, &bytes, module_, "variable");
    note("cuModuleGetGlobal(variable)", result, int64_t(bytes));
    uint32_t value = 0;
    result = d.cuMemcpyDtoH(&value, pointer, 4);
    note("value of the variable", result, value);
    result = d.cuModuleGetGlobal(&pointer, &bytes, module_, "constant");
    note("cuModuleGetGlobal(constant)", result, int64_t(bytes));
    result = d.cuMemcpyDtoH(&value, pointer, 4);
    note("value of the constant", result, value);
    note("cuModuleGetGlobal(missing)", d.cuModuleGetGlobal(&pointer, &bytes, module_, "missing"));
  }

  void code(const std::string& label, const void* image) {
    CUmodule module = nullptr;
    note("cuModuleLoadData(" + label + ")", d.cuModuleLoadData(&module, image));
    if (module) d.cuModuleUnload(module);
    CUlibrary library = nullptr;
    note("cuLibraryLoadData(" + label + ")",
         d.cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0));
    if (!library) return;
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    unsigned count = 0;
    const CUresult result = d.cuLibraryGetKernelCount(&count, library);
    note("cuLibraryGetKernelCount(" + label + ")", result, count);
    note("cuLibraryGetKernel(" + label + ")", d.cuLibraryGetKernel(&kernel, library, "k"));
    if (kernel) note("cuKernelGetFunction(" + label + ")", d.cuKernelGetFunction(&function, kernel));
    if (function) {
      note("cuLaunchKernel(" + label + ")",
           d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    }
    note("cuCtxSynchronize(" + label + ")", d.cuCtxSynchronize());
    d.cuLibraryUnload(library);
  }

  void machine_code() {
    code("cubin for sm_80", k_sm_80);
    code("cubin for sm_90", k_sm_90);
    code("cubin for sm_90a", k_sm_90a);
    code("cubin for sm_120f", k_sm_120f);
    const auto damaged = [&](const std::string& label, size_t offset, unsigned char value) {
      std::vector<unsigned char> image(std::begin(k_sm_90a), std::end(k_sm_90a));
      image[offset] = value;
      code("cubin for sm_90a, " + label, image.data());
    };
    damaged("e_machine of x86-64", 0x12, 62);
  }

  CUfunction function(const char* name) {
    CUfunction found = nullptr;
    d.cuModuleGetFunction(&found, module_, name);
    return found;
  }

  void attributes() {
    const std::pair<const char*, CUfunction_attribute> kAttributes[] = {
        {"MAX_THREADS_PER_BLOCK", CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
        {"SHARED_SIZE_BYTES", CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES},
        {"LOCAL_SIZE_BYTES", CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES},
        {"PTX_VERSION", CU_FUNC_ATTRIBUTE_PTX_VERSION},
        {"BINARY_VERSION", CU_FUNC_ATTRIBUTE_BINARY_VERSION},
        {"MAX_DYNAMIC_SHARED_SIZE_BYTES", CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES},
        {"PREFERRED_SHARED_MEMORY_CARVEOUT", CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT},
        {"CLUSTER_SIZE_MUST_BE_SET", CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET},
        {"REQUIRED_CLUSTER_WIDTH", CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH},
        {"REQUIRED_CLUSTER_DEPTH", CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH},
        {"NON_PORTABLE_CLUSTER_SIZE_ALLOWED", CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED},
    };
    for (const char* name : {"plain", "bounded", "exact", "clustered", "static_smem"}) {
      for (const auto& [text, attribute] : kAttributes) {
        int value = 0;
        const CUresult result = d.cuFuncGetAttribute(&value, attribute, function(name));
        note(std::string(name) + ": cuFuncGetAttribute(" + text + ")", result, value);
      }
    }
    int value = 0;
    note("cuFuncGetAttribute(unknown attribute)",
         d.cuFuncGetAttribute(&value, CUfunction_attribute(1000), function("plain")));
    const auto set = [&](const char* name, const char* text, CUfunction_attribute attribute, int to) {
      note(std::string(name) + ": cuFuncSetAttribute(" + text + ", " + std::to_string(to) + ")",
           d.cuFuncSetAttribute(function(name), attribute, to));
    };
    const auto smem = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    for (const int bytes : {0, 49152, 49153, 232448, 232449, -1})
      set("nothing", "MAX_DYNAMIC_SHARED_SIZE_BYTES", smem, bytes);
    for (const int bytes : {231424, 231425, 232448})
      set("static_smem", "MAX_DYNAMIC_SHARED_SIZE_BYTES", smem, bytes);
    for (const int percent : {-2, -1, 0, 100, 101})
      set("nothing", "PREFERRED_SHARED_MEMORY_CARVEOUT", CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
          percent);
    set("nothing", "NUM_REGS", CU_FUNC_ATTRIBUTE_NUM_REGS, 8);
    set("nothing", "unknown", CUfunction_attribute(1000), 8);
    set("clustered", "REQUIRED_CLUSTER_WIDTH", CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 4);
    set("clustered", "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
        2);
    set("nothing", "MAX_DYNAMIC_SHARED_SIZE_BYTES", smem, 0);
    set("nothing", "PREFERRED_SHARED_MEMORY_CARVEOUT", CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
        -1);
  }

  CUresult launch(const char* name, unsigned grid, unsigned block, unsigned smem = 0, unsigned cluster = 0,
                  void** params = nullptr) {
    CUlaunchAttribute attribute = {};
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim.x = cluster;
    attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
    CUlaunchConfig config = {};
    config.gridDimX = grid;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = block;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = smem;
    config.attrs = &attribute;
    config.numAttrs = cluster ? 1 : 0;
    return d.cuLaunchKernelEx(&config, function(name), params, nullptr);
  }

  void launches() {
    note("launch", launch("nothing", 1, 32));
    note("launch: grid 0", launch("nothing", 0, 32));
    note("launch: block 0", launch("nothing", 1, 0));
    note("launch: block 1025", launch("nothing", 1, 1025));
    note("launch: block above .maxntid", launch("bounded", 1, 96));
    note("launch: block below .maxntid", launch("bounded", 1, 32));
    note("launch: block other than .reqntid", launch("exact", 1, 32));
    note("launch: grid.y 65536",
         d.cuLaunchKernel(function("nothing"), 1, 65536, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr));
    note("launch: block.z 65",
         d.cuLaunchKernel(function("nothing"), 1, 1, 1, 1, 1, 65, 0, nullptr, nullptr, nullptr));
    note("launch: shared memory not opted in to", launch("static_smem", 1, 32, 48 * 1024 - 1023));
    note("launch: more shared memory than the attribute allows", launch("nothing", 1, 32, 16));
    note("launch: cluster 2", launch("nothing", 4, 32, 0, 2));
    note("launch: cluster 3 of grid 3", launch("nothing", 3, 32, 0, 3));
    note("launch: cluster 2 of grid 3", launch("nothing", 3, 32, 0, 2));
    note("launch: cluster 8", launch("nothing", 8, 32, 0, 8));
    note("launch: cluster 16, portable only", launch("nothing", 16, 32, 0, 16));
    note("launch: compiled cluster 2, attribute 2", launch("clustered", 4, 32, 0, 2));
    note("launch: compiled cluster 2, attribute 4", launch("clustered", 4, 32, 0, 4));
    note("launch: compiled cluster 2, no attribute", launch("clustered", 4, 32));
    note("launch: compiled cluster 2, grid 3", launch("clustered", 3, 32));
    CUdeviceptr pointer = 0;
    d.cuMemAlloc(&pointer, 256);
    d.cuMemsetD32(pointer, 0, 64);
    uint32_t number = 77, got = 0;
    char block[32] = {};
    void* params[] = {&pointer, &number, block};
    note("launch: kernelParams", launch("plain", 1, 1, 0, 0, params));
    CUresult result = d.cuMemcpyDtoH(&got, pointer, 4);
    note("launch: kernelParams, result", result, got);
    struct {
      CUdeviceptr pointer;
      uint32_t number;
      alignas(16) char block[32];
    } buffer = {pointer, 88, {}};
    size_t size = sizeof(buffer);
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    note("launch: extra", d.cuLaunchKernel(function("plain"), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
    result = d.cuMemcpyDtoH(&got, pointer, 4);
    note("launch: extra, result", result, got);
    note("launch: kernelParams and extra",
         d.cuLaunchKernel(function("plain"), 1, 1, 1, 1, 1, 1, 0, nullptr, params, extra));
    note("launch: cuCtxSynchronize after all of these", d.cuCtxSynchronize());
    d.cuMemFree(pointer);

    int number_of_blocks = 0;
    result = d.cuOccupancyMaxActiveBlocksPerMultiprocessor(&number_of_blocks, function("nothing"), 1024, 0);
    note("cuOccupancyMaxActiveBlocksPerMultiprocessor(1024 threads)", result, number_of_blocks);
    result = d.cuOccupancyMaxActiveBlocksPerMultiprocessor(&number_of_blocks, function("nothing"), 32, 0);
    note("cuOccupancyMaxActiveBlocksPerMultiprocessor(32 threads)", result, number_of_blocks);
    result =
        d.cuOccupancyMaxActiveBlocksPerMultiprocessor(&number_of_blocks, function("nothing"), 128, 40000);
    note("cuOccupancyMaxActiveBlocksPerMultiprocessor(128 threads, 40000 bytes)", result, number_of_blocks);
    result = d.cuOccupancyMaxActiveBlocksPerMultiprocessor(&number_of_blocks, function("nothing"), 2048, 0);
    note("cuOccupancyMaxActiveBlocksPerMultiprocessor(2048 threads)", result, number_of_blocks);
    result = d.cuOccupancyMaxActiveBlocksPerMultiprocessor(&number_of_blocks, function("nothing"), 0, 0);
    note("cuOccupancyMaxActiveBlocksPerMultiprocessor(0 threads)", result, number_of_blocks);
    const auto clusters = [&](const char* name, unsigned grid, unsigned block_size, unsigned cluster,
                              unsigned smem) {
      CUlaunchAttribute attribute = {};
      attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      attribute.value.clusterDim.x = cluster;
      attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
      CUlaunchConfig config = {};
      config.gridDimX = grid;
      config.gridDimY = config.gridDimZ = 1;
      config.blockDimX = block_size;
      config.blockDimY = config.blockDimZ = 1;
      config.sharedMemBytes = smem;
      config.attrs = &attribute;
      config.numAttrs = cluster ? 1 : 0;
      int count = 0;
      const CUresult e = d.cuOccupancyMaxActiveClusters(&count, function(name), &config);
      return e ? d.describe(e) : std::string("0 CUDA_SUCCESS, ") + (count > 0 ? "some" : "none");
    };
    keep("cuOccupancyMaxActiveClusters(cluster 4)", clusters("nothing", 4, 128, 4, 0));
    keep("cuOccupancyMaxActiveClusters(cluster 4 of grid 6)", clusters("nothing", 6, 128, 4, 0));
    keep("cuOccupancyMaxActiveClusters(cluster 16)", clusters("nothing", 16, 128, 16, 0));
    keep("cuOccupancyMaxActiveClusters(compiled 2, attribute 4)", clusters("clustered", 4, 128, 4, 0));
    keep("cuOccupancyMaxActiveClusters(compiled 2)", clusters("clustered", 4, 128, 0, 0));
    keep("cuOccupancyMaxActiveClusters(no cluster)", clusters("nothing", 4, 128, 0, 0));
    keep("cuOccupancyMaxActiveClusters(too much shared memory)", clusters("nothing", 4, 128, 4, 300000));
    keep("cuOccupancyMaxActiveClusters(grid 0)", clusters("nothing", 0, 128, 4, 0));
  }

  void tensor_maps() {
    CUdeviceptr pointer = 0;
    d.cuMemAlloc(&pointer, 1 << 20);
    struct Arguments {
      int type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
      unsigned rank = 3;
      uint64_t offset = 0;
      cuuint64_t dims[5] = {576, 64, 8, 1, 1};
      cuuint64_t strides[5] = {576, 36864, 294912, 294912, 0};
      cuuint32_t box[5] = {64, 64, 1, 1, 1};
      cuuint32_t steps[5] = {1, 1, 1, 1, 1};
      int interleave = 0, swizzle = 0, promotion = 0, fill = 0;
      bool misaligned_map = false, null_address = false, null_strides = false;
    };
    const auto encode = [&](const std::string& label, const Arguments& a) {
      alignas(64) char storage[192] = {};
      note("cuTensorMapEncodeTiled: " + label,
           d.cuTensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(storage + (a.misaligned_map ? 32 : 0)),
                                    CUtensorMapDataType(a.type), a.rank,
                                    a.null_address ? nullptr : reinterpret_cast<void*>(pointer + a.offset),
                                    a.dims, a.null_strides ? nullptr : a.strides, a.box, a.steps,
                                    CUtensorMapInterleave(a.interleave), CUtensorMapSwizzle(a.swizzle),
                                    CUtensorMapL2promotion(a.promotion), CUtensorMapFloatOOBfill(a.fill)));
    };
    Arguments base;
    encode("good", base);
    const auto vary = [&](const std::string& label, auto change) {
      Arguments a = base;
      change(a);
      encode(label, a);
    };
    vary("rank 0", [](Arguments& a) { a.rank = 0; });
    vary("rank 1", [](Arguments& a) { a.rank = 1; });
    vary("rank 1, null strides", [](Arguments& a) {
      a.rank = 1;
      a.null_strides = true;
    });
    vary("rank 5", [](Arguments& a) { a.rank = 5; });
    vary("rank 6", [](Arguments& a) { a.rank = 6; });
    vary("tensorMap not 64-byte aligned", [](Arguments& a) { a.misaligned_map = true; });
    vary("address null", [](Arguments& a) { a.null_address = true; });
    vary("address + 8", [](Arguments& a) { a.offset = 8; });
    vary("address + 16", [](Arguments& a) { a.offset = 16; });
    vary("type unknown", [](Arguments& a) { a.type = 99; });
    vary("globalDim[0] 0", [](Arguments& a) { a.dims[0] = 0; });
    vary("globalDim[2] 2^32", [](Arguments& a) { a.dims[2] = uint64_t(1) << 32; });
    vary("globalDim[2] 2^32 + 1", [](Arguments& a) { a.dims[2] = (uint64_t(1) << 32) + 1; });
    vary("globalDim[2] 2^31", [](Arguments& a) { a.dims[2] = uint64_t(1) << 31; });
    vary("globalStrides[0] 584", [](Arguments& a) { a.strides[0] = 584; });
    vary("globalStrides[0] 592", [](Arguments& a) { a.strides[0] = 592; });
    vary("globalStrides[0] 0", [](Arguments& a) { a.strides[0] = 0; });
    vary("globalStrides[0] below the row", [](Arguments& a) { a.strides[0] = 16; });
    vary("globalStrides[1] below globalStrides[0]", [](Arguments& a) { a.strides[1] = 32; });
    vary("globalStrides[1] 2^40", [](Arguments& a) { a.strides[1] = uint64_t(1) << 40; });
    vary("globalStrides[1] 2^40 - 16", [](Arguments& a) { a.strides[1] = (uint64_t(1) << 40) - 16; });
    vary("boxDim[0] 0", [](Arguments& a) { a.box[0] = 0; });
    vary("boxDim[0] 8", [](Arguments& a) { a.box[0] = 8; });
    vary("boxDim[0] 16", [](Arguments& a) { a.box[0] = 16; });
    vary("boxDim[0] 256", [](Arguments& a) { a.box[0] = 256; });
    vary("boxDim[0] 272", [](Arguments& a) { a.box[0] = 272; });
    vary("boxDim[1] 0", [](Arguments& a) { a.box[1] = 0; });
    vary("boxDim[1] 256", [](Arguments& a) { a.box[1] = 256; });
    vary("boxDim[1] 257", [](Arguments& a) { a.box[1] = 257; });
    vary("box beyond the tensor", [](Arguments& a) { a.box[2] = 16; });
    const struct {
      unsigned kib, rows, layers;  // of 256 bytes
    } boxes[] = {{64, 256, 1},  {128, 256, 2}, {192, 256, 3}, {224, 224, 4}, {227, 227, 4}, {228, 228, 4},
                 {240, 240, 4}, {252, 252, 4}, {256, 256, 4}, {320, 256, 5}, {512, 256, 8}, {1024, 256, 16}};
    for (const auto& size : boxes) {
      vary("box of " + std::to_string(size.kib) + " KiB", [&](Arguments& a) {
        a.box[0] = 256;
        a.box[1] = size.rows;
        a.box[2] = size.layers;
      });
    }
    vary("box of 4 MiB", [](Arguments& a) {
      a.box[0] = a.box[1] = 256;
      a.box[2] = 64;
    });
    vary("elementStrides[0] 0", [](Arguments& a) { a.steps[0] = 0; });
    vary("elementStrides[0] 9", [](Arguments& a) { a.steps[0] = 9; });
    vary("elementStrides[1] 0", [](Arguments& a) { a.steps[1] = 0; });
    vary("elementStrides[1] 8", [](Arguments& a) { a.steps[1] = 8; });
    vary("elementStrides[1] 9", [](Arguments& a) { a.steps[1] = 9; });
    vary("swizzle 32B, inner 32", [](Arguments& a) {
      a.swizzle = 1;
      a.box[0] = 32;
    });
    vary("swizzle 32B, inner 64", [](Arguments& a) { a.swizzle = 1; });
    vary("swizzle 64B, inner 64", [](Arguments& a) { a.swizzle = 2; });
    vary("swizzle 64B, inner 128", [](Arguments& a) {
      a.swizzle = 2;
      a.box[0] = 128;
    });
    vary("swizzle 128B, inner 128", [](Arguments& a) {
      a.swizzle = 3;
      a.box[0] = 128;
    });
    vary("swizzle 128B, inner 144", [](Arguments& a) {
      a.swizzle = 3;
      a.box[0] = 144;
    });
    vary("swizzle 128B, bf16, inner 128 bytes", [](Arguments& a) {
      a.swizzle = 3;
      a.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    });
    vary("swizzle 128B, bf16, inner 256 bytes", [](Arguments& a) {
      a.swizzle = 3;
      a.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
      a.box[0] = 128;
    });
    vary("swizzle unknown", [](Arguments& a) { a.swizzle = 99; });
    vary("interleave 16B", [](Arguments& a) { a.interleave = 1; });
    vary("interleave 16B, rank 2", [](Arguments& a) {
      a.interleave = 1;
      a.rank = 2;
    });
    vary("interleave 32B, no swizzle", [](Arguments& a) { a.interleave = 2; });
    vary("interleave 32B, swizzle 32B", [](Arguments& a) {
      a.interleave = 2;
      a.swizzle = 1;
    });
    vary("interleave unknown", [](Arguments& a) { a.interleave = 99; });
    vary("promotion 256B", [](Arguments& a) { a.promotion = 3; });
    vary("promotion unknown", [](Arguments& a) { a.promotion = 99; });
    vary("NaN fill of bytes", [](Arguments& a) { a.fill = 1; });
    vary("NaN fill of bf16", [](Arguments& a) {
      a.fill = 1;
      a.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    });
    vary("fill unknown", [](Arguments& a) { a.fill = 99; });
    d.cuMemFree(pointer);
  }

  void streams_and_events() {
    CUstream stream = nullptr;
    CUevent event = nullptr, untimed = nullptr, never = nullptr;
    note("cuStreamCreate(unknown flags)", d.cuStreamCreate(&stream, 0x100));
    note("cuStreamCreate", d.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    note("cuStreamQuery", d.cuStreamQuery(stream));
    note("cuEventCreate(unknown flags)", d.cuEventCreate(&event, 0x100));
    d.cuEventCreate(&event, 0);
    d.cuEventCreate(&never, 0);
    d.cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING);
    float ms = 0;
    note("cuEventQuery(never recorded)", d.cuEventQuery(never));
    note("cuEventElapsedTime(never recorded)", d.cuEventElapsedTime(&ms, event, never));
    d.cuEventRecord(event, stream);
    d.cuEventRecord(untimed, stream);
    d.cuStreamSynchronize(stream);
    note("cuEventElapsedTime(untimed)", d.cuEventElapsedTime(&ms, event, untimed));
    note("cuEventElapsedTime", d.cuEventElapsedTime(&ms, event, event));
    note("cuStreamWaitEvent(never recorded)", d.cuStreamWaitEvent(stream, never, 0));
    CUcontext context = nullptr;
    CUresult result = d.cuStreamGetCtx(stream, &context);
    note("cuStreamGetCtx", result, context == context_);
    d.cuEventDestroy(event);
    d.cuEventDestroy(never);
    d.cuEventDestroy(untimed);
    note("cuStreamDestroy", d.cuStreamDestroy(stream));
  }

  // Begins a capture on a fresh stream, makes one call, ends the capture; notes both results.
  template <class Call>
  void captured(const std::string& label, Call call, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL,
                unsigned flags = CU_STREAM_DEFAULT) {
    CUstream stream = nullptr;
    d.cuStreamCreate(&stream, flags);
    d.cuStreamBeginCapture(stream, mode);
    note("capturing: " + label, call(stream));
    CUgraph graph = nullptr;
    const CUresult result = d.cuStreamEndCapture(stream, &graph);
    note("capturing: " + label + ", then cuStreamEndCapture", result);
    if (graph) d.cuGraphDestroy(graph);
    d.cuStreamDestroy(stream);
  }

  void capture() {
    CUgraph graph = nullptr;
    CUstream stream = nullptr, other = nullptr;
    CUdeviceptr pointer = 0, made = 0;
    CUevent event = nullptr, earlier = nullptr;
    d.cuMemAlloc(&pointer, 4096);
    d.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    d.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING);
    d.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    d.cuEventCreate(&earlier, CU_EVENT_DISABLE_TIMING);
    d.cuEventRecord(earlier, other);
    note("cuStreamBeginCapture(legacy stream)",
         d.cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
    note("cuStreamEndCapture, not capturing", d.cuStreamEndCapture(stream, &graph));
    note("cuStreamBeginCapture(unknown mode)", d.cuStreamBeginCapture(stream, CUstreamCaptureMode(9)));
    captured("nothing", [&](CUstream) { return CUDA_SUCCESS; });
    captured("cuStreamBeginCapture again",
             [&](CUstream s) { return d.cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL); });
    captured("cuStreamSynchronize", [&](CUstream s) { return d.cuStreamSynchronize(s); });
    captured("cuStreamQuery", [&](CUstream s) { return d.cuStreamQuery(s); });
    captured("cuStreamSynchronize of another stream", [&](CUstream) { return d.cuStreamSynchronize(other); });
    captured("cuStreamQuery of another stream", [&](CUstream) { return d.cuStreamQuery(other); });
    captured("cuEventQuery of an event outside", [&](CUstream) { return d.cuEventQuery(earlier); });
    captured("cuEventSynchronize of an event outside",
             [&](CUstream) { return d.cuEventSynchronize(earlier); });
    captured("cuCtxSynchronize", [&](CUstream) { return d.cuCtxSynchronize(); });
    captured("cuMemAlloc", [&](CUstream) { return d.cuMemAlloc(&made, 256); });
    captured(
        "cuMemAlloc, thread-local mode", [&](CUstream) { return d.cuMemAlloc(&made, 256); },
        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    captured(
        "cuMemAlloc, relaxed mode", [&](CUstream) { return d.cuMemAlloc(&made, 256); },
        CU_STREAM_CAPTURE_MODE_RELAXED);
    captured("cuMemAlloc, thread set to relaxed", [&](CUstream) {
      CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
      d.cuThreadExchangeStreamCaptureMode(&mode);
      const CUresult result = d.cuMemAlloc(&made, 256);
      d.cuThreadExchangeStreamCaptureMode(&mode);
      return result;
    });
    d.cuMemAlloc(&made, 256);
    captured("cuMemFree", [&](CUstream) { return d.cuMemFree(made); });
    captured("cuMemcpyHtoD", [&](CUstream) { return d.cuMemcpyHtoD(pointer, "four", 4); });
    captured(
        "cuMemcpyHtoD, non-blocking stream", [&](CUstream) { return d.cuMemcpyHtoD(pointer, "four", 4); },
        CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_NON_BLOCKING);
    captured("cuMemsetD32", [&](CUstream) { return d.cuMemsetD32(pointer, 1, 4); });
    captured("cuMemsetD32Async on the legacy stream",
             [&](CUstream) { return d.cuMemsetD32Async(pointer, 1, 4, nullptr); });
    captured(
        "cuMemsetD32Async on the legacy stream, non-blocking stream",
        [&](CUstream) { return d.cuMemsetD32Async(pointer, 1, 4, nullptr); }, CU_STREAM_CAPTURE_MODE_GLOBAL,
        CU_STREAM_NON_BLOCKING);
    captured("cuMemsetD32Async", [&](CUstream s) { return d.cuMemsetD32Async(pointer, 1, 4, s); });
    captured("cuMemcpyHtoDAsync of pageable memory",
             [&](CUstream s) { return d.cuMemcpyHtoDAsync(pointer, kPtx, 16, s); });
    captured("launch", [&](CUstream s) {
      return d.cuLaunchKernel(function("nothing"), 1, 1, 1, 32, 1, 1, 0, s, nullptr, nullptr);
    });
    captured("launch of grid 0", [&](CUstream s) {
      return d.cuLaunchKernel(function("nothing"), 0, 1, 1, 32, 1, 1, 0, s, nullptr, nullptr);
    });
    captured("launch on the legacy stream", [&](CUstream) {
      return d.cuLaunchKernel(function("nothing"), 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr);
    });
    captured("cuModuleLoadData", [&](CUstream) {
      CUmodule module = nullptr;
      return d.cuModuleLoadData(&module, kPtx);
    });
    captured("cuLibraryLoadData", [&](CUstream) {
      CUlibrary library = nullptr;
      return d.cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0);
    });
    captured("cuFuncSetAttribute", [&](CUstream) {
      return d.cuFuncSetAttribute(function("nothing"), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024);
    });
    captured("cuStreamCreate", [&](CUstream) {
      CUstream another = nullptr;
      return d.cuStreamCreate(&another, CU_STREAM_NON_BLOCKING);
    });
    captured("cuEventCreate", [&](CUstream) {
      CUevent another = nullptr;
      return d.cuEventCreate(&another, 0);
    });
    captured("cuEventQuery of the captured event", [&](CUstream s) {
      d.cuEventRecord(event, s);
      return d.cuEventQuery(event);
    });
    captured("cuStreamWaitEvent on an event outside",
             [&](CUstream s) { return d.cuStreamWaitEvent(s, earlier, 0); });
    captured("cuStreamWaitEvent of the legacy stream", [&](CUstream s) {
      d.cuEventRecord(event, s);
      return d.cuStreamWaitEvent(nullptr, event, 0);
    });
    captured("cuStreamIsCapturing of the legacy stream", [&](CUstream) {
      CUstreamCaptureStatus status;
      return d.cuStreamIsCapturing(nullptr, &status);
    });
    captured(
        "cuStreamIsCapturing of the legacy stream, non-blocking stream",
        [&](CUstream) {
          CUstreamCaptureStatus status;
          return d.cuStreamIsCapturing(nullptr, &status);
        },
        CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_NON_BLOCKING);
    captured("fork without join", [&](CUstream s) {
      d.cuEventRecord(event, s);
      d.cuStreamWaitEvent(other, event, 0);
      return d.cuMemsetD32Async(pointer, 1, 4, other);
    });
    captured("fork and join", [&](CUstream s) {
      d.cuEventRecord(event, s);
      d.cuStreamWaitEvent(other, event, 0);
      d.cuMemsetD32Async(pointer, 1, 4, other);
      d.cuEventRecord(event, other);
      return d.cuStreamWaitEvent(s, event, 0);
    });
    captured("cuStreamEndCapture of a forked stream", [&](CUstream s) {
      d.cuEventRecord(event, s);
      d.cuStreamWaitEvent(other, event, 0);
      CUgraph none = nullptr;
      return d.cuStreamEndCapture(other, &none);
    });

    // A graph of a fill and a launch, replayed.
    d.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    d.cuMemsetD32Async(pointer, 5, 64, stream);
    uint32_t number = 99, got = 0;
    char block[32] = {};
    void* params[] = {&pointer, &number, block};
    d.cuLaunchKernel(function("plain"), 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
    number = 1;  // kernel parameters are copied at capture
    note("graph: cuStreamEndCapture", d.cuStreamEndCapture(stream, &graph));
    size_t count = 0;
    CUresult result = d.cuGraphGetNodes(graph, nullptr, &count);
    note("graph: nodes", result, int64_t(count));
    CUgraphExec exec = nullptr;
    note("graph: cuGraphInstantiate(unknown flags)", d.cuGraphInstantiate(&exec, graph, 0x1000));
    note("graph: cuGraphInstantiate", d.cuGraphInstantiate(&exec, graph, 0));
    d.cuGraphDestroy(graph);
    d.cuMemsetD32(pointer, 0, 64);
    note("graph: cuGraphLaunch", d.cuGraphLaunch(exec, stream));
    d.cuStreamSynchronize(stream);
    result = d.cuMemcpyDtoH(&got, pointer, 4);
    note("graph: written by the launch", result, got);
    result = d.cuMemcpyDtoH(&got, pointer + 4, 4);
    note("graph: written by the fill", result, got);
    note("graph: cuGraphExecDestroy", d.cuGraphExecDestroy(exec));
    d.cuStreamDestroy(stream);
    d.cuStreamDestroy(other);
    d.cuEventDestroy(event);
    d.cuEventDestroy(earlier);
    d.cuMemFree(pointer);
  }

  void proc_address() {
    const struct {
      const char* name;
      int version;
      cuuint64_t flags;
    } queries[] = {{"cuMemAlloc", 12000, 0},         {"cuMemAlloc", 3020, 0},
                   {"cuMemAlloc_v2", 12000, 0},      {"cuLibraryLoadData", 12000, 0},
                   {"cuLibraryLoadData", 11000, 0},  {"cuNoSuchThing", 12000, 0},
                   {"cuMemAlloc", 99000, 0},         {"cuMemAlloc", 12000, 2},
                   {"cuCtxGetDevice", 12000, 0},     {"", 12000, 0},
                   {"cuGraphInstantiate", 12000, 0}, {"cuInit", 12000, 0x100}};
    for (const auto& q : queries) {
      void* function = nullptr;
      CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
      const CUresult result = d.cuGetProcAddress(q.name, &function, q.version, q.flags, &status);
      keep(std::string("cuGetProcAddress(\"") + q.name + "\", " + std::to_string(q.version) + ", flags " +
               std::to_string(q.flags) + ")",
           d.describe(result) + ", status " + std::to_string(int(status)) + ", " +
               (function ? "found" : "null"));
    }
  }

  // Each fault in a context of its own, in one process: what the launch and the next calls give, and
  // that the process can make no further context.
  void faults() {
    for (const char* name : {"stray", "misaligned", "trapping"})
      fault(std::string("fault ") + name + ": ", name);
  }

 public:
  void fault(const std::string& label, const char* name) {
    CUctxCreateParams params = {};
    CUcontext context = nullptr;
    note(label + "cuCtxCreate", d.cuCtxCreate(&context, &params, 0, device_));
    if (!context) return;
    CUdeviceptr pointer = 0, more = 0;
    CUdevice device = 0;
    CUstream stream = nullptr;
    d.cuMemAlloc(&pointer, 256);
    d.cuStreamCreate(&stream, 0);
    d.cuModuleLoadData(&module_, kPtx);
    void* kernel_params[] = {&pointer};
    const bool takes_pointer = std::string(name) == "misaligned";
    note(label + "cuLaunchKernel", d.cuLaunchKernel(function(name), 1, 1, 1, 1, 1, 1, 0, stream,
                                                    takes_pointer ? kernel_params : nullptr, nullptr));
    note(label + "cuStreamSynchronize", d.cuStreamSynchronize(stream));
    note(label + "cuStreamSynchronize again", d.cuStreamSynchronize(stream));
    note(label + "cuCtxSynchronize", d.cuCtxSynchronize());
    note(label + "cuMemAlloc", d.cuMemAlloc(&more, 256));
    note(label + "cuMemFree", d.cuMemFree(pointer));
    note(label + "cuCtxGetDevice", d.cuCtxGetDevice(&device));
    note(label + "cuStreamQuery", d.cuStreamQuery(stream));
    note(label + "cuStreamDestroy", d.cuStreamDestroy(stream));
    note(label + "cuCtxDestroy", d.cuCtxDestroy(context));
  }
  Results take() { return std::move(results_); }

 private:
  const Driver& d;
  CUdevice device_;
  bool verbose_;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  Results results_;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> probe_api(const Driver& driver, CUdevice device,
                                                           bool verbose) {
  return Probe(driver, device, verbose).run();
}

std::vector<std::pair<std::string, std::string>> probe_fault(const Driver& driver, CUdevice device,
                                                             const std::string& name) {
  Probe probe(driver, device, false);
  probe.fault("in a process of its own, fault " + name + ": ", name.c_str());
  return probe.take();
}

std::vector<std::pair<std::string, std::string>> probe_before_init(const Driver& driver) {
  Results results;
  int count = 0;
  CUcontext context = nullptr;
  CUdeviceptr pointer = 0;
  CUlibrary library = nullptr;
  const auto note = [&](const std::string& label, CUresult result) {
    results.emplace_back("before cuInit: " + label, driver.describe(result));
  };
  note("cuDeviceGetCount", driver.cuDeviceGetCount(&count));
  note("cuCtxGetCurrent", driver.cuCtxGetCurrent(&context));
  note("cuMemAlloc", driver.cuMemAlloc(&pointer, 256));
  note("cuLibraryLoadData",
       driver.cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  note("cuDriverGetVersion", driver.cuDriverGetVersion(&count));
  note("cuInit(1)", driver.cuInit(1));
  const char* text = nullptr;
  note("cuGetErrorName(12345)", driver.cuGetErrorName(CUresult(12345), &text));
  for (int code = 0; code < 1000; ++code) {
    const char* name = nullptr;
    if (driver.cuGetErrorName(CUresult(code), &name) || !name) continue;
    driver.cuGetErrorString(CUresult(code), &text);
    results.emplace_back("cuGetErrorString(" + std::to_string(code) + ")",
                         std::string(name) + ": " + (text ? text : "null"));
  }
  return results;
}

}  // namespace mla::conformance
