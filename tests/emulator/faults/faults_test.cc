// SPDX-License-Identifier: Apache-2.0
//
// Planted faults: every .ptx file of this folder has a kernel `faulty` with one fault and its twin
// `correct` without it. On the emulated driver the one must be caught, with the message and the error
// code a user needs, under every order of scheduling tried; the other must run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/emulator/conformance/driver.h"
#include "tests/emulator/driver/mla_emu.h"

namespace mla::conformance {
namespace {

constexpr uint64_t kDataBytes = 16384;
constexpr uint64_t kSeeds = 5;

struct Planted {
  const char* name;
  CUresult error;
  std::vector<const char*> message;  // texts that the report must have
  unsigned grid = 1;
  unsigned block = 128;
  unsigned dynamic_smem = 0;
};

void PrintTo(const Planted& planted, std::ostream* stream) { *stream << planted.name; }

const Planted kPlanted[] = {
#include "tests/emulator/faults/planted.inc"
};

std::string read(const std::string& path) {
  std::ifstream stream(path);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

class Faults : public testing::TestWithParam<Planted> {
 protected:
  static void SetUpTestSuite() {
    setenv("MLA_EMU_DEVICES", "sm_90:8", 1);
    setenv("MLA_EMU_MAX_IDLE", "100000", 1);
    driver_ = new Driver;
    ASSERT_EQ(driver_->load(MLA_EMU_LIBRARY), "");
    ASSERT_EQ(driver_->cuInit(0), CUDA_SUCCESS);
  }

  void TearDown() override {
    if (context_) driver_->cuCtxDestroy(context_);
    driver_->clear_fault();
  }

  // Launches one of the two kernels in a context of its own; returns what synchronising gives.
  CUresult run(const char* entry, uint64_t seed) {
    const Planted& planted = GetParam();
    if (context_) driver_->cuCtxDestroy(context_);
    driver_->clear_fault();
    CUctxCreateParams context_params = {};
    EXPECT_EQ(driver_->cuCtxCreate(&context_, &context_params, 0, 0), CUDA_SUCCESS);
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    const std::string ptx = read(std::string(MLA_FAULTS_DIR) + "/" + planted.name + ".ptx");
    const CUresult loaded = driver_->cuModuleLoadData(&module, ptx.c_str());
    if (loaded) return loaded;
    EXPECT_EQ(driver_->cuModuleGetFunction(&function, module, entry), CUDA_SUCCESS);
    CUdeviceptr data = 0, fresh = 0;
    EXPECT_EQ(driver_->cuMemAlloc(&data, kDataBytes), CUDA_SUCCESS);
    EXPECT_EQ(driver_->cuMemAlloc(&fresh, 4096), CUDA_SUCCESS);
    EXPECT_EQ(driver_->cuMemsetD8(data, 0, kDataBytes), CUDA_SUCCESS);
    CUtensorMap map = {};
    const cuuint64_t dims[] = {64, 256}, strides[] = {64};
    const cuuint32_t box[] = {64, 33}, steps[] = {1, 1};
    EXPECT_EQ(driver_->cuTensorMapEncodeTiled(
                  &map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, reinterpret_cast<void*>(data), dims, strides, box,
                  steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
              CUDA_SUCCESS);
    driver_->set_seed(seed);
    void* params[] = {&data, &fresh, &map};
    EXPECT_EQ(driver_->cuLaunchKernel(function, planted.grid, 1, 1, planted.block, 1, 1, planted.dynamic_smem,
                                      nullptr, params, nullptr),
              CUDA_SUCCESS);
    return driver_->cuCtxSynchronize();
  }

  static Driver* driver_;
  CUcontext context_ = nullptr;
};

Driver* Faults::driver_ = nullptr;

TEST_P(Faults, Caught) {
  const Planted& planted = GetParam();
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const CUresult result = run("faulty", seed);
    const std::string report = driver_->emulator_report();
    EXPECT_EQ(result, planted.error) << "seed " << seed << ": " << report;
    for (const char* text : planted.message) {
      EXPECT_NE(report.find(text), std::string::npos)
          << "seed " << seed << ": the report lacks \"" << text << "\":\n"
          << report;
    }
    EXPECT_NE(report.find("kernel faulty"), std::string::npos) << report;
  }
}

TEST_P(Faults, TwinRuns) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    EXPECT_EQ(run("correct", seed), CUDA_SUCCESS) << "seed " << seed << ": " << driver_->emulator_report();
  }
}

INSTANTIATE_TEST_SUITE_P(Planted, Faults, testing::ValuesIn(kPlanted),
                         [](const testing::TestParamInfo<Planted>& info) {
                           return std::string(info.param.name);
                         });

TEST(FaultFiles, EveryFileIsInTheTable) {
  std::set<std::string> listed, found;
  for (const Planted& planted : kPlanted) listed.insert(planted.name);
  for (const auto& entry : std::filesystem::directory_iterator(MLA_FAULTS_DIR)) {
    if (entry.path().extension() == ".ptx") found.insert(entry.path().stem());
  }
  EXPECT_EQ(found, listed);
}

}  // namespace
}  // namespace mla::conformance
