// SPDX-License-Identifier: Apache-2.0
//
// The few CUDA driver calls that tests and benchmarks need, bound at run time: memory, streams,
// events, graphs. Works with the real driver and with the emulated one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace mla::test {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUcontextOpaque*;
using CUstream = struct CUstreamOpaque*;
using CUevent = struct CUeventOpaque*;
using CUgraph = struct CUgraphOpaque*;
using CUgraphExec = struct CUgraphExecOpaque*;

inline constexpr int kStreamNonBlocking = 1;
inline constexpr int kCaptureModeGlobal = 0;
inline constexpr int kAttributeSmCount = 16;
inline constexpr int kAttributeCcMajor = 75;
inline constexpr int kAttributeCcMinor = 76;

// X(result name, exported symbol, parameter types)
#define MLA_TEST_DRIVER_CALLS(X)                                                                    \
  X(cuInit, "cuInit", (unsigned))                                                                   \
  X(cuDriverGetVersion, "cuDriverGetVersion", (int*))                                               \
  X(cuDeviceGetCount, "cuDeviceGetCount", (int*))                                                   \
  X(cuDeviceGet, "cuDeviceGet", (CUdevice*, int))                                                   \
  X(cuDeviceGetName, "cuDeviceGetName", (char*, int, CUdevice))                                     \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, CUdevice))                            \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext*, CUdevice))                   \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice))                          \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext))                                                \
  X(cuCtxSynchronize, "cuCtxSynchronize", ())                                                       \
  X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t*, size_t*))                                            \
  X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr*, size_t))                                            \
  X(cuMemFree, "cuMemFree_v2", (CUdeviceptr))                                                       \
  X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr, const void*, size_t))                            \
  X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void*, CUdeviceptr, size_t))                                  \
  X(cuMemsetD8, "cuMemsetD8_v2", (CUdeviceptr, unsigned char, size_t))                              \
  X(cuStreamCreate, "cuStreamCreate", (CUstream*, unsigned))                                        \
  X(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream))                                              \
  X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream))                                         \
  X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream, int))                               \
  X(cuStreamEndCapture, "cuStreamEndCapture", (CUstream, CUgraph*))                                 \
  X(cuGraphInstantiate, "cuGraphInstantiateWithFlags", (CUgraphExec*, CUgraph, unsigned long long)) \
  X(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec, CUstream))                                        \
  X(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec))                                        \
  X(cuGraphDestroy, "cuGraphDestroy", (CUgraph))                                                    \
  X(cuEventCreate, "cuEventCreate", (CUevent*, unsigned))                                           \
  X(cuEventRecord, "cuEventRecord", (CUevent, CUstream))                                            \
  X(cuEventSynchronize, "cuEventSynchronize", (CUevent))                                            \
  X(cuEventElapsedTime, "cuEventElapsedTime", (float*, CUevent, CUevent))                           \
  X(cuEventDestroy, "cuEventDestroy_v2", (CUevent))                                                 \
  X(cuGetErrorName, "cuGetErrorName", (CUresult, const char**))                                     \
  X(cuGetErrorString, "cuGetErrorString", (CUresult, const char**))

// A driver call failed; the message names the call and the driver's error.
class DriverError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Driver {
#define MLA_TEST_DECLARE(name, symbol, params) CUresult(*name) params = nullptr;
  MLA_TEST_DRIVER_CALLS(MLA_TEST_DECLARE)
#undef MLA_TEST_DECLARE

  // Of the emulated driver (tests/emulator/driver/mla_emu.h); null with a real one.
  size_t (*mlaEmuLastReport)(char*, size_t) = nullptr;
  bool emulated() const { return mlaEmuLastReport != nullptr; }

  std::string path;  // as it was opened
  int version = 0;   // 13000
  int devices = 0;

  // Opens `path` (empty: the environment's MLA_CUDA_DRIVER_PATH, else "libcuda.so.1") and
  // initialises it. Empty string on success, else the reason why there is no driver. The library
  // stays open until the process ends.
  std::string open(const std::string& path);

  // Throws DriverError unless `result` is success; `call` names what failed. The message ends with
  // the emulated driver's report, if there is one.
  void check(CUresult result, const char* call) const;
};

struct DeviceInfo {
  CUdevice device = 0;
  std::string name;
  int cc_major = 0;
  int cc_minor = 0;
  int sm_count = 0;
};

DeviceInfo device_info(const Driver& driver, int ordinal);

#define MLA_CU(driver, call, ...) (driver).check((driver).call(__VA_ARGS__), #call)

}  // namespace mla::test
