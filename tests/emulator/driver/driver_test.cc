// SPDX-License-Identifier: Apache-2.0
//
// The emulated driver: what its environment says, machine code with its PTX, several devices and
// threads, faults, counters. Which error a wrong call gives is tested against a real driver's answers
// by mla-conformance.
#include "tests/emulator/conformance/driver.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "manifest/sha256.h"
#include "tests/emulator/driver/config.h"
#include "tests/emulator/driver/image.h"
#include "tests/emulator/driver/mla_emu.h"

namespace mla::emu::driver {
namespace {

using conformance::Driver;

std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// ---- what needs no driver ------------------------------------------------------------------------

TEST(Config, Devices) {
  std::vector<DeviceConfig> devices;
  std::string error;
  ASSERT_TRUE(parse_devices("sm_120:188,sm_90:132:memory=2G:smem=100K:gpc=18,sm_121", &devices, &error))
      << error;
  ASSERT_EQ(devices.size(), 3u);
  EXPECT_EQ(devices[0].sm(), 120);
  EXPECT_EQ(devices[0].sms, 188);
  EXPECT_EQ(devices[0].smem_per_block_optin, 101376u);
  EXPECT_EQ(devices[0].smem_per_sm, 102400u);
  EXPECT_EQ(devices[1].memory_bytes, uint64_t{2} << 30);
  EXPECT_EQ(devices[1].smem_per_block_optin, 102400u);
  EXPECT_EQ(devices[1].sms_per_gpc, 18);
  EXPECT_EQ(devices[2].cc_minor, 1);
  EXPECT_EQ(devices[2].sms, 12);
  ASSERT_TRUE(parse_devices("none", &devices, &error));
  EXPECT_TRUE(devices.empty());
}

TEST(Config, Refusals) {
  const std::pair<const char*, const char*> cases[] = {
      {"h100", "MLA_EMU_DEVICES: device \"h100\": \"h100\" is not a compute capability such as sm_120"},
      {"sm_77",
       "MLA_EMU_DEVICES: device \"sm_77\": \"sm_77\" is not known; known are sm_80 sm_86 sm_87 sm_89 sm_90 "
       "sm_100 sm_103 "
       "sm_110 sm_120 sm_121"},
      {"sm_90,", "MLA_EMU_DEVICES: device \"\": \"\" is not a compute capability such as sm_120"},
      {"sm_90:0", "MLA_EMU_DEVICES: device \"sm_90:0\": \"0\" needs a number of at least 1"},
      {"sm_90:many", "MLA_EMU_DEVICES: device \"sm_90:many\": \"many\" needs a number of at least 1"},
      {"sm_90:5000", "MLA_EMU_DEVICES: device \"sm_90:5000\": \"5000\" is above the most allowed, 1024"},
      {"sm_90:smem=1M",
       "MLA_EMU_DEVICES: device \"sm_90:smem=1M\": \"smem=1M\" is above the most allowed, 233472"},
      {"sm_90:colour=3",
       "MLA_EMU_DEVICES: device \"sm_90:colour=3\": \"colour=3\" has an unknown key; known are sms, gpc, "
       "memory, smem, "
       "smem_sm"},
  };
  for (const auto& [text, sentence] : cases) {
    std::vector<DeviceConfig> devices;
    std::string error;
    EXPECT_FALSE(parse_devices(text, &devices, &error)) << text;
    EXPECT_EQ(error, sentence);
  }
}

TEST(Image, WhichCodeRunsWhere) {
  const uint32_t devices[] = {90, 100, 103, 110, 120, 121};
  const struct {
    uint32_t sm;
    char suffix;
    const char* runs;  // a digit per device
  } cubins[] = {{90, 'a', "100000"},  {90, 0, "100000"},    {100, 'a', "010000"}, {100, 'f', "011000"},
                {103, 'a', "001000"}, {110, 'f', "000100"}, {120, 0, "000011"},   {120, 'a', "000010"},
                {120, 'f', "000011"}, {121, 'a', "000001"}, {121, 'f', "000001"}, {121, 0, "000001"},
                {80, 0, "000000"}};
  for (const auto& c : cubins) {
    for (size_t i = 0; i < std::size(devices); ++i) {
      EXPECT_EQ(cubin_runs_on(c.sm, c.suffix, devices[i]), c.runs[i] == '1')
          << c.sm << c.suffix << " on " << devices[i];
    }
  }
  EXPECT_TRUE(ptx_runs_on(80, 0, 120));
  EXPECT_TRUE(ptx_runs_on(120, 'f', 121));
  EXPECT_FALSE(ptx_runs_on(90, 'a', 120));
  EXPECT_FALSE(ptx_runs_on(120, 0, 90));
}

// ---- the library ---------------------------------------------------------------------------------

template <class F>
F symbol(const char* name) {
  void* library = dlopen(MLA_EMU_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<F>(dlsym(library, name));
}

class EmulatedDriver : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::filesystem::temp_directory_path() / ("mla_emu_test_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    setenv("MLA_EMU_DEVICES", "sm_120:12,sm_90:8:memory=1G", 1);
    setenv("MLA_EMU_PTX_PATH", folder_.c_str(), 1);
    ASSERT_EQ(d.load(MLA_EMU_LIBRARY), "");
    ASSERT_EQ(d.cuInit(0), CUDA_SUCCESS);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder_); }

  void SetUp() override {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) std::filesystem::remove(entry);
  }
  void TearDown() override {
    for (const CUcontext context : contexts_) d.cuCtxDestroy(context);
    d.clear_fault();
    d.cuCtxSetCurrent(nullptr);
  }

  // Makes a context on a device current.
  CUcontext context(int device) {
    CUctxCreateParams params = {};
    CUcontext made = nullptr;
    EXPECT_EQ(d.cuCtxCreate(&made, &params, 0, device), CUDA_SUCCESS);
    contexts_.push_back(made);
    return made;
  }

  static std::string cubin(const char* target) {
    return read_file(std::string(MLA_EMU_TEST_CODE) + "_" + target + ".cubin");
  }
  static void install_ptx(const char* target, const std::string& machine_code) {
    std::filesystem::copy_file(std::string(MLA_EMU_TEST_CODE) + "_" + target + ".ptx",
                               folder_ / (sha256_hex(machine_code) + ".ptx"));
  }
  CUresult load(CUlibrary* library, const std::string& image) {
    return d.cuLibraryLoadData(library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  }

  static Driver d;
  static std::filesystem::path folder_;
  std::vector<CUcontext> contexts_;
};

Driver EmulatedDriver::d;
std::filesystem::path EmulatedDriver::folder_;

TEST_F(EmulatedDriver, DevicesSayTheyAreEmulated) {
  int count = 0;
  ASSERT_EQ(d.cuDeviceGetCount(&count), CUDA_SUCCESS);
  ASSERT_EQ(count, 2);
  char name[64];
  ASSERT_EQ(d.cuDeviceGetName(name, sizeof(name), 0), CUDA_SUCCESS);
  EXPECT_STREQ(name, "MLA emulated sm_120 (12 SMs)");
  int smem = 0;
  ASSERT_EQ(d.cuDeviceGetAttribute(&smem, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 1),
            CUDA_SUCCESS);
  EXPECT_EQ(smem, 232448);
}

TEST_F(EmulatedDriver, ProcAddressGivesTheExportedFunctions) {
  const struct {
    const char* name;
    int version;
    const char* symbol;
  } cases[] = {{"cuMemAlloc", 12000, "cuMemAlloc_v2"},
               {"cuCtxCreate", 12000, "cuCtxCreate_v3"},
               {"cuCtxCreate", 12050, "cuCtxCreate_v4"},
               {"cuCtxGetDevice", 12000, "cuCtxGetDevice"},
               {"cuCtxGetDevice", 13000, "cuCtxGetDevice_v2"},
               {"cuStreamGetCaptureInfo", 12000, "cuStreamGetCaptureInfo_v2"},
               {"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
               {"cuLibraryLoadData", 12000, "cuLibraryLoadData"},
               {"cuLaunchKernelEx", 12000, "cuLaunchKernelEx"},
               {"cuTensorMapEncodeTiled", 13000, "cuTensorMapEncodeTiled"},
               {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"}};
  for (const auto& c : cases) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult status;
    ASSERT_EQ(d.cuGetProcAddress(c.name, &function, c.version, 0, &status), CUDA_SUCCESS) << c.name;
    EXPECT_NE(function, nullptr) << c.name;
    EXPECT_EQ(function, symbol<void*>(c.symbol)) << c.name;
  }
}

TEST_F(EmulatedDriver, OnlyTheDriverApiIsExported) {
  EXPECT_EQ(symbol<void*>("_ZN3mla3emu6driver5stateEv"), nullptr);
  EXPECT_NE(symbol<void*>("mlaEmuLastReport"), nullptr);
}

TEST_F(EmulatedDriver, MachineCodeRunsByItsPtx) {
  context(0);
  const std::string code = cubin("sm_120f");
  install_ptx("sm_120f", code);
  CUlibrary library = nullptr;
  ASSERT_EQ(load(&library, code), CUDA_SUCCESS) << d.emulator_report();
  CUkernel kernel = nullptr;
  ASSERT_EQ(d.cuLibraryGetKernel(&kernel, library, "increment"), CUDA_SUCCESS);
  CUdeviceptr out = 0;
  ASSERT_EQ(d.cuMemAlloc(&out, 96 * 4), CUDA_SUCCESS);
  uint32_t by = 7;
  void* params[] = {&out, &by};
  const auto executions = symbol<uint64_t (*)(const char*)>("mlaEmuKernelExecutions");
  const uint64_t before = executions("increment");
  for (uint32_t counter = 5; counter < 8; ++counter) {
    ASSERT_EQ(d.cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 96, 1, 1, 0, nullptr, params,
                               nullptr),
              CUDA_SUCCESS);
    ASSERT_EQ(d.cuCtxSynchronize(), CUDA_SUCCESS) << d.emulator_report();
    uint32_t values[96];
    ASSERT_EQ(d.cuMemcpyDtoH(values, out, sizeof(values)), CUDA_SUCCESS);
    for (const uint32_t value : values) ASSERT_EQ(value, 7 + 42 + counter);
  }
  EXPECT_EQ(executions("increment"), before + 3);

  // Facts of the machine code, not of the PTX.
  int registers = 0, threads = 0, smem = 0;
  EXPECT_EQ(d.cuKernelGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, 0), CUDA_SUCCESS);
  EXPECT_GE(registers, 8);
  EXPECT_LT(registers, 32);
  EXPECT_EQ(d.cuKernelGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(threads, 96);
  EXPECT_EQ(d.cuKernelGetAttribute(&smem, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, 0), CUDA_SUCCESS);
  EXPECT_EQ(smem, 384);

  CUdeviceptr global = 0;
  size_t bytes = 0;
  uint32_t value = 0;
  ASSERT_EQ(d.cuLibraryGetGlobal(&global, &bytes, library, "counter"), CUDA_SUCCESS);
  ASSERT_EQ(d.cuMemcpyDtoH(&value, global, 4), CUDA_SUCCESS);
  EXPECT_EQ(value, 8u);
  ASSERT_EQ(d.cuLibraryGetGlobal(&global, &bytes, library, "answer"), CUDA_SUCCESS);
  ASSERT_EQ(d.cuMemcpyDtoH(&value, global, 4), CUDA_SUCCESS);
  EXPECT_EQ(value, 42u);

  // A context of its own has variables of its own.
  context(0);
  ASSERT_EQ(d.cuLibraryGetGlobal(&global, &bytes, library, "counter"), CUDA_SUCCESS);
  ASSERT_EQ(d.cuMemcpyDtoH(&value, global, 4), CUDA_SUCCESS);
  EXPECT_EQ(value, 5u);
  EXPECT_EQ(d.cuLibraryUnload(library), CUDA_SUCCESS);
  EXPECT_EQ(
      d.cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 96, 1, 1, 0, nullptr, params, nullptr),
      CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(EmulatedDriver, MissingPtxNamesTheFile) {
  const std::string code = cubin("sm_120f");
  CUlibrary library = nullptr;
  EXPECT_EQ(load(&library, code), CUDA_ERROR_NO_BINARY_FOR_GPU);
  const std::string hash = sha256_hex(code);
  EXPECT_EQ(d.emulator_report(), "no PTX for the cubin with sha256 " + hash + ": looked for " +
                                     folder_.string() + "/" + hash + ".ptx");
}

TEST_F(EmulatedDriver, PtxOfAnotherCubinIsRefused) {
  const std::string code = cubin("sm_120f");
  CUlibrary library = nullptr;
  const std::string file = folder_.string() + "/" + sha256_hex(code) + ".ptx";
  install_ptx("sm_90a", code);
  ASSERT_EQ(load(&library, code),
            CUDA_SUCCESS);  // the real driver, too, looks closer only when asked for a kernel
  CUkernel kernel = nullptr;
  EXPECT_EQ(d.cuLibraryGetKernel(&kernel, library, "increment"), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(d.emulator_report(), file + ": .target sm_90a, but the cubin is for sm_120f");
  std::ofstream(file)
      << ".version 9.0\n.target sm_120f\n.address_size 64\n.visible .entry other() { ret; }\n";
  ASSERT_EQ(load(&library, code), CUDA_SUCCESS);
  EXPECT_EQ(d.cuLibraryGetKernel(&kernel, library, "increment"), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_NE(d.emulator_report().find(", which the cubin has"), std::string::npos) << d.emulator_report();
}

TEST_F(EmulatedDriver, MachineCodeForAnotherChipIsRefused) {
  const std::string code = cubin("sm_90a");
  install_ptx("sm_90a", code);
  CUlibrary library = nullptr;
  ASSERT_EQ(load(&library, code), CUDA_SUCCESS) << d.emulator_report();  // device 1 runs it
  CUkernel kernel = nullptr;
  ASSERT_EQ(d.cuLibraryGetKernel(&kernel, library, "increment"), CUDA_SUCCESS);
  CUfunction function = nullptr;
  context(0);
  EXPECT_EQ(d.cuKernelGetFunction(&function, kernel), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_NE(d.emulator_report().find("code for sm_90a does not run on MLA emulated sm_120"),
            std::string::npos)
      << d.emulator_report();
  context(1);
  EXPECT_EQ(d.cuKernelGetFunction(&function, kernel), CUDA_SUCCESS) << d.emulator_report();
  // Code that no device runs.
  const std::string other = cubin("sm_100a");
  ASSERT_EQ(load(&library, other), CUDA_SUCCESS);
  EXPECT_EQ(d.cuLibraryGetKernel(&kernel, library, "increment"), CUDA_ERROR_NO_BINARY_FOR_GPU);
}

TEST_F(EmulatedDriver, DamagedMachineCodeIsRefused) {
  std::string code = cubin("sm_120f");
  code[0x12] = 62;  // e_machine: x86-64
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  ASSERT_EQ(load(&library, code), CUDA_SUCCESS);  // as on hardware: it looks closer when asked for a kernel
  EXPECT_EQ(d.cuLibraryGetKernel(&kernel, library, "increment"), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_NE(d.emulator_report().find("cubin image"), std::string::npos) << d.emulator_report();
}

TEST_F(EmulatedDriver, ClustersThatFit) {
  context(0);
  const std::string code = cubin("sm_120f");
  install_ptx("sm_120f", code);
  CUlibrary library = nullptr;
  ASSERT_EQ(load(&library, code), CUDA_SUCCESS);
  CUkernel kernel = nullptr;
  ASSERT_EQ(d.cuLibraryGetKernel(&kernel, library, "clustered"), CUDA_SUCCESS);
  const auto function = reinterpret_cast<CUfunction>(kernel);
  ASSERT_EQ(d.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 101376, kernel, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(d.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 101377, kernel, 0),
            CUDA_ERROR_INVALID_VALUE);
  CUlaunchConfig config = {};
  config.gridDimX = 8;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 384;
  config.sharedMemBytes = 100000;
  int clusters = 0;
  ASSERT_EQ(d.cuOccupancyMaxActiveClusters(&clusters, function, &config), CUDA_SUCCESS);
  EXPECT_EQ(clusters, 3);  // 12 SMs, one CTA each
  config.sharedMemBytes = 0;
  ASSERT_EQ(d.cuOccupancyMaxActiveClusters(&clusters, function, &config), CUDA_SUCCESS);
  EXPECT_EQ(clusters, 12);  // 1536 threads an SM: four CTAs
  CUdeviceptr out = 0;
  ASSERT_EQ(d.cuMemAlloc(&out, 32), CUDA_SUCCESS);
  void* params[] = {&out};
  ASSERT_EQ(d.cuLaunchKernelEx(&config, function, params, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(d.cuCtxSynchronize(), CUDA_SUCCESS) << d.emulator_report();
  uint32_t ranks[8];
  ASSERT_EQ(d.cuMemcpyDtoH(ranks, out, sizeof(ranks)), CUDA_SUCCESS);
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(ranks[i], i % 4);
}

const char kStore[] = R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry store(.param .u64 p, .param .u32 n)
{
  .reg .b64 d; .reg .b32 r;
  ld.param.u64 d, [p]; ld.param.u32 r, [n]; cvta.to.global.u64 d, d; st.global.u32 [d], r; ret;
})";

TEST_F(EmulatedDriver, DevicesHaveMemoryOfTheirOwn) {
  CUdeviceptr first = 0, second = 0;
  context(0);
  ASSERT_EQ(d.cuMemAlloc(&first, 64), CUDA_SUCCESS);
  context(1);
  ASSERT_EQ(d.cuMemAlloc(&second, 64), CUDA_SUCCESS);
  EXPECT_NE(first, second);
  int ordinal = -1;
  ASSERT_EQ(d.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, first), CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 0);
  ASSERT_EQ(d.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, second), CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 1);
  const uint32_t value = 0xabcd;
  uint32_t got = 0;
  ASSERT_EQ(d.cuMemcpyHtoD(first, &value, 4), CUDA_SUCCESS);
  ASSERT_EQ(d.cuMemcpyDtoD(second, first, 4), CUDA_SUCCESS);
  ASSERT_EQ(d.cuMemcpyDtoH(&got, second, 4), CUDA_SUCCESS);
  EXPECT_EQ(got, value);
  CUdeviceptr large = 0;
  EXPECT_EQ(d.cuMemAlloc(&large, uint64_t{2} << 30), CUDA_ERROR_OUT_OF_MEMORY);  // the device has 1 GiB
  // Memory of the other device is not the kernel's.
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(d.cuModuleLoadData(&module, kStore), CUDA_SUCCESS);
  ASSERT_EQ(d.cuModuleGetFunction(&function, module, "store"), CUDA_SUCCESS);
  uint32_t number = 1;
  void* params[] = {&first, &number};
  ASSERT_EQ(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(d.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(EmulatedDriver, AFaultLastsAndIsReported) {
  context(1);
  const CUcontext healthy = context(0);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(d.cuModuleLoadData(&module, kStore), CUDA_SUCCESS);
  ASSERT_EQ(d.cuModuleGetFunction(&function, module, "store"), CUDA_SUCCESS);
  CUdeviceptr stray = 64;
  uint32_t number = 1;
  void* params[] = {&stray, &number};
  symbol<void (*)()>("mlaEmuClearReport")();
  const uint64_t executed = symbol<uint64_t (*)()>("mlaEmuKernelsExecuted")();
  symbol<void (*)(uint64_t)>("mlaEmuSetSeed")(77);
  ASSERT_EQ(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(d.cuMemAlloc(&pointer, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(d.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(symbol<uint64_t (*)()>("mlaEmuKernelsExecuted")(), executed);
  const std::string report = d.emulator_report();
  for (const char* text :
       {"out of bounds in kernel store", "PTX line 7", "write of 4 bytes at 0x40", "seed 77"}) {
    EXPECT_NE(report.find(text), std::string::npos) << report;
  }
  char cut[8];
  EXPECT_EQ(symbol<size_t (*)(char*, size_t)>("mlaEmuLastReport")(cut, sizeof(cut)), report.size() + 1);
  EXPECT_EQ(std::string(cut), report.substr(0, 7));
  // The other device goes on; this one only once the fault is cleared.
  d.cuCtxSetCurrent(contexts_[0]);
  EXPECT_EQ(d.cuMemAlloc(&pointer, 16), CUDA_SUCCESS);
  d.cuCtxSetCurrent(healthy);
  d.clear_fault();
  EXPECT_EQ(d.cuMemAlloc(&pointer, 16), CUDA_SUCCESS);
}

TEST_F(EmulatedDriver, AnUnknownInstructionIsNamed) {
  context(0);
  CUmodule module = nullptr;
  const char text[] =
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n  .reg .b32 r<2>;\n  "
      "frobnicate.b32 r0, r1;\n  ret;\n}\n";
  EXPECT_EQ(d.cuModuleLoadData(&module, text), CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(d.emulator_report(),
            "kernel k: PTX image:7: unknown instruction frobnicate.b32: 'frobnicate.b32 r0, r1;'");
}

TEST_F(EmulatedDriver, ManyThreads) {
  const CUcontext shared = context(0);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(d.cuModuleLoadData(&module, kStore), CUDA_SUCCESS);
  ASSERT_EQ(d.cuModuleGetFunction(&function, module, "store"), CUDA_SUCCESS);
  std::vector<std::thread> threads;
  std::vector<int> failures(16, 0);
  for (uint32_t t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      d.cuCtxSetCurrent(shared);
      CUstream stream = nullptr;
      CUdeviceptr pointer = 0;
      failures[t] += d.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS;
      failures[t] += d.cuMemAlloc(&pointer, 4) != CUDA_SUCCESS;
      for (uint32_t i = 0; i < 50; ++i) {
        uint32_t number = t * 100 + i, got = 0;
        void* params[] = {&pointer, &number};
        failures[t] +=
            d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr) != CUDA_SUCCESS;
        failures[t] += d.cuStreamSynchronize(stream) != CUDA_SUCCESS;
        failures[t] += d.cuMemcpyDtoH(&got, pointer, 4) != CUDA_SUCCESS;
        failures[t] += got != number;
      }
      failures[t] += d.cuStreamDestroy(stream) != CUDA_SUCCESS;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : failures) EXPECT_EQ(count, 0);
}

TEST_F(EmulatedDriver, PinnedMemoryIsTheKernels) {
  context(0);
  uint32_t* host = nullptr;
  ASSERT_EQ(d.cuMemHostAlloc(reinterpret_cast<void**>(&host), 64, CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(d.cuModuleLoadData(&module, kStore), CUDA_SUCCESS);
  ASSERT_EQ(d.cuModuleGetFunction(&function, module, "store"), CUDA_SUCCESS);
  uint32_t number = 123;
  void* params[] = {&host, &number};
  ASSERT_EQ(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(d.cuCtxSynchronize(), CUDA_SUCCESS) << d.emulator_report();
  EXPECT_EQ(*host, 123u);
  EXPECT_EQ(d.cuMemFreeHost(host), CUDA_SUCCESS);
}

TEST_F(EmulatedDriver, StaleHandlesAreRecognised) {
  context(0);
  CUstream stream = nullptr;
  CUevent event = nullptr;
  ASSERT_EQ(d.cuStreamCreate(&stream, 0), CUDA_SUCCESS);
  ASSERT_EQ(d.cuEventCreate(&event, 0), CUDA_SUCCESS);
  EXPECT_EQ(d.cuEventRecord(reinterpret_cast<CUevent>(stream), stream), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(d.cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(d.cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(d.cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(d.cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
}

// ---- a process of its own for each environment -----------------------------------------------------

[[noreturn]] void initialise_with(const char* name, const char* value) {
  setenv(name, value, 1);
  Driver fresh;
  const std::string error = fresh.load(MLA_EMU_LIBRARY);
  std::_Exit(error.empty() ? int(fresh.cuInit(0)) : 255);
}

TEST(EnvironmentDeathTest, WrongValues) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  using testing::ExitedWithCode;
  EXPECT_EXIT(initialise_with("MLA_EMU_DEVICES", "none"), ExitedWithCode(CUDA_ERROR_NO_DEVICE), "");
  EXPECT_EXIT(initialise_with("MLA_EMU_DEVICES", "sm_1"), ExitedWithCode(CUDA_ERROR_INVALID_VALUE),
              "mla-emu: MLA_EMU_DEVICES: device \"sm_1\"");
  EXPECT_EXIT(initialise_with("MLA_EMU_SEED", "x"), ExitedWithCode(CUDA_ERROR_INVALID_VALUE),
              "mla-emu: MLA_EMU_SEED: \"x\" is not a number");
  EXPECT_EXIT(initialise_with("MLA_EMU_CHECKS", "-races"), ExitedWithCode(CUDA_ERROR_INVALID_VALUE),
              "MLA_EMU_CHECKS: \"-races\" is not known");
  EXPECT_EXIT(initialise_with("MLA_EMU_MMA_ACCUMULATOR", "wide"), ExitedWithCode(CUDA_ERROR_INVALID_VALUE),
              "MLA_EMU_MMA_ACCUMULATOR: \"wide\" is neither exact nor narrow");
  EXPECT_EXIT(initialise_with("MLA_EMU_MMA_ACCUMULATOR", "narrow"), ExitedWithCode(CUDA_SUCCESS), "");
  EXPECT_EXIT(initialise_with("MLA_EMU_CHECKS", "none,+unwritten"), ExitedWithCode(CUDA_SUCCESS), "");
}

}  // namespace
}  // namespace mla::emu::driver
