// SPDX-License-Identifier: Apache-2.0
//
// A libcuda.so.1 for tests: it executes nothing, records every call, and fails when told to. These
// functions control it; the driver's own functions are those of loader/src/cuda_abi.h plus a few
// that tests use as an application would (cuCtxSetCurrent).
//
// From the environment, for programs that cannot call these functions before the driver is bound:
//   FAKE_CUDA_VERSION   what cuDriverGetVersion gives (default 13000)
//   FAKE_CUDA_MISSING   functions that cuGetProcAddress does not find, separated by commas
//   FAKE_CUDA_INIT      what cuInit gives
//   FAKE_CUDA_LOG       a file to which the name of every call is appended
//   FAKE_CUDA_DEVICE    compute capability of device 0, for instance 9.0; one context on it is
//                       current on every thread that has none
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Forgets devices, contexts, libraries, failures and records, then has one device (12.0, 188 SMs).
void fake_reset();

// ---- devices, contexts, streams ----------------------------------------------------------------

void fake_set_device_count(int count);
void fake_set_compute_capability(int device, int major, int minor);
void fake_set_device_attribute(int device, int attribute, int value);
// Answer of cuOccupancyMaxActiveClusters.
void fake_set_max_clusters(int device, int clusters);
void* fake_new_context(int device);
// A later context at the address of an earlier one: gives it a new id.
void fake_renew_context(void* context);
void fake_set_current(void* context);
void* fake_current();
void* fake_new_stream(void* context);

// Makes as if a stream were being captured.
enum FakeCapture {
  kFakeCaptureNone = 0,
  kFakeCaptureBlocking = 1,   // a blocking stream of the context: the legacy stream tells
  kFakeCapturePerThread = 2,  // the per-thread default stream of this thread
  kFakeCaptureHidden = 3,     // a non-blocking stream: loading fails unless the mode is relaxed
  kFakeCaptureStrict = 4,     // a driver that never loads during a capture
};
void fake_set_capture(int capture);

// ---- functions ---------------------------------------------------------------------------------

// Answer of cuKernelGetAttribute for every kernel (defaults: those of the test bundles).
void fake_set_function_attribute(int attribute, int value);
// Parameters of every kernel: `count` of them, the first of `bytes`.
void fake_set_params(int count, size_t bytes);
// Images that contain `text` are refused by `function` ("cuLibraryLoadData", "cuFuncLoad", ...) with
// `result`.
void fake_refuse(const char* function, const char* text, int result);

// The `nth` call (1: the next) of `function` from now on fails with `result`, once.
void fake_fail(const char* function, int nth, int result);

// ---- records -----------------------------------------------------------------------------------

// Calls since fake_reset: of one function, of all.
int fake_calls(const char* function);
int fake_all_calls();
// Version of `function` that was asked for last; 0: never.
int fake_asked_version(const char* function);
int fake_live_libraries();
// Depth of the calling thread's context stack beyond what it set itself.
int fake_pushed();
// The capture mode of the calling thread.
int fake_capture_mode();
// Value set by cuKernelSetAttribute for a device; -1: not set.
int fake_kernel_attribute(int device, int attribute);

struct FakeTensorMap {
  int type;
  uint32_t rank;
  uint64_t address;
  uint64_t dims[5];
  uint64_t strides[4];
  uint32_t box[5];
  uint32_t element_strides[5];
  int interleave, swizzle, l2_promotion, oob_fill;
};

struct FakeLaunch {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  void* current;       // context that was current
  const char* symbol;  // of the kernel
  unsigned attribute_count;
  int attribute_ids[4];
  unsigned cluster[3];         // of the attribute; 0: none
  int pdl;                     // of the attribute; -1: none
  unsigned char params[1024];  // as many as fake_set_params says, zeros after
};

struct FakeMemset {
  uint64_t address;
  uint64_t value;
  int element;  // bytes
  uint64_t bytes;
  void* stream;
  void* current;
};

// The last ones. The maps are those whose encodings stand in the parameters of the last launch.
const FakeLaunch* fake_last_launch();
// `before`: how many memory sets ago, up to 3.
const FakeMemset* fake_last_memset(unsigned before = 0);
bool fake_decode_map(const void* encoded, FakeTensorMap* out);

// Appends a line to FAKE_CUDA_LOG.
void fake_mark(const char* line);

}  // extern "C"
