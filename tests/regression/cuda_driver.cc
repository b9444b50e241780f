// SPDX-License-Identifier: Apache-2.0
#include "tests/regression/cuda_driver.h"

#include <dlfcn.h>

#include <cstdlib>

namespace mla::test {

std::string Driver::open(const std::string& wanted) {
  const char* from_environment = std::getenv("MLA_CUDA_DRIVER_PATH");
  path = !wanted.empty() ? wanted : from_environment && *from_environment ? from_environment : "libcuda.so.1";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return std::string("no CUDA driver: ") + dlerror();
#define MLA_TEST_BIND(name, symbol, params)                            \
  name = reinterpret_cast<CUresult(*) params>(dlsym(library, symbol)); \
  if (!name) return "the CUDA driver " + path + " has no symbol " + symbol;
  MLA_TEST_DRIVER_CALLS(MLA_TEST_BIND)
#undef MLA_TEST_BIND
  mlaEmuLastReport = reinterpret_cast<size_t (*)(char*, size_t)>(dlsym(library, "mlaEmuLastReport"));
  try {
    check(cuInit(0), "cuInit");
    check(cuDriverGetVersion(&version), "cuDriverGetVersion");
    check(cuDeviceGetCount(&devices), "cuDeviceGetCount");
  } catch (const DriverError& error) {
    return error.what();
  }
  if (devices == 0) return "the CUDA driver " + path + " has no device";
  return "";
}

void Driver::check(CUresult result, const char* call) const {
  if (result == 0) return;
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName) cuGetErrorName(result, &name);
  if (cuGetErrorString) cuGetErrorString(result, &text);
  std::string message = std::string(call) + " failed with error " + std::to_string(result) + " (" +
                        (name ? name : "unknown") + ": " + (text ? text : "no description") + ")";
  if (mlaEmuLastReport) {
    std::string report(mlaEmuLastReport(nullptr, 0), '\0');
    mlaEmuLastReport(report.data(), report.size());
    message += std::string("\n") + report.c_str();
  }
  throw DriverError(message);
}

DeviceInfo device_info(const Driver& driver, int ordinal) {
  DeviceInfo info;
  char name[256] = {};
  MLA_CU(driver, cuDeviceGet, &info.device, ordinal);
  MLA_CU(driver, cuDeviceGetName, name, static_cast<int>(sizeof(name) - 1), info.device);
  info.name = name;
  MLA_CU(driver, cuDeviceGetAttribute, &info.cc_major, kAttributeCcMajor, info.device);
  MLA_CU(driver, cuDeviceGetAttribute, &info.cc_minor, kAttributeCcMinor, info.device);
  MLA_CU(driver, cuDeviceGetAttribute, &info.sm_count, kAttributeSmCount, info.device);
  return info;
}

}  // namespace mla::test
