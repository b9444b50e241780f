// SPDX-License-Identifier: Apache-2.0
#include "tests/loader/fake_cuda/fake_cuda.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "loader/src/cuda_abi.h"

namespace {

namespace cuda = mla::cuda;
using cuda::Result;

constexpr int kDriverVersion = 13000;
constexpr Result kErrorNotInitialized = 3;
constexpr Result kErrorInvalidDevice = 101;
constexpr Result kErrorInvalidHandle = 400;
constexpr Result kErrorNotFound = 500;

struct Device {
  std::map<int, int> attributes;
  int max_clusters = 47;
};

struct FakeContext {
  int device;
  unsigned long long id;
};

struct FakeStream {
  FakeContext* context;
};

struct FakeLibrary;
struct FakeKernel {
  FakeLibrary* library;
  std::string symbol;
};

struct FakeLibrary {
  std::string image;
  std::vector<std::unique_ptr<FakeKernel>> kernels;
};

struct Refusal {
  std::string function;
  std::string text;
  Result result;
};

// The tensor map that fake_decode_map reads back.
struct Encoded {
  uint64_t magic;
  uint32_t index;
};
constexpr uint64_t kMapMagic = 0x70616d5f656b6166;
// Records live in fixed arrays, so that recording a launch allocates nothing.
constexpr uint32_t kKeptMaps = 64;

// Everything but what belongs to a thread. Never destroyed: calls made while the process exits must
// be recorded too.
struct State {
  std::mutex mutex;
  bool initialised = false;
  std::vector<Device> devices;
  std::vector<std::unique_ptr<FakeContext>> contexts;
  std::vector<std::unique_ptr<FakeStream>> streams;
  std::map<FakeLibrary*, std::unique_ptr<FakeLibrary>> libraries;
  std::map<int, int> function_attributes;
  std::map<std::pair<int, int>, int> set_attributes;
  int param_count = 1;
  size_t param_bytes = 640;
  std::vector<Refusal> refusals;
  int capture = kFakeCaptureNone;
  unsigned long long next_id = 1;
  FakeContext* default_context = nullptr;
  FakeTensorMap maps[kKeptMaps];
  uint32_t map_count = 0;
  FakeLaunch launch;
  char launch_symbol[300];
  FakeMemset memsets[4];
  unsigned memset_count = 0;
};

State& state() {
  static State* const state = new State;
  return *state;
}

// One a function: filled by MLA_ENTRY before main, so a call only counts.
struct Record {
  const char* name;
  int version;
  void* function;
  std::atomic<int> calls{0};
  std::atomic<int> fail_at{0};  // value of `calls` that fails; 0: none
  std::atomic<int> fail_result{0};
  std::atomic<int> asked_version{0};
};

std::vector<Record*>& records() {
  static auto* const records = new std::vector<Record*>;
  return *records;
}

Record* find_record(std::string_view name) {
  for (Record* record : records()) {
    if (name == record->name) return record;
  }
  return nullptr;
}

struct Thread {
  FakeContext* current = nullptr;
  std::vector<FakeContext*> stack;
  int capture_mode = 0;  // global
};
Thread& this_thread() {
  thread_local Thread thread;
  return thread;
}

FakeContext* current() {
  FakeContext* context = this_thread().current;
  return context != nullptr ? context : state().default_context;
}

void log_line(const char* line) {
  static const int fd = [] {
    const char* path = std::getenv("FAKE_CUDA_LOG");
    return path == nullptr ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  }();
  if (fd < 0) return;
  char text[128];
  const int bytes = std::snprintf(text, sizeof text, "%s\n", line);
  if (write(fd, text, static_cast<size_t>(bytes)) < 0) std::abort();
}

// Counts a call; nonzero if it is to fail.
Result enter(Record* record) {
  log_line(record->name);
  const int call = ++record->calls;
  if (record->fail_at != 0 && call == record->fail_at) {
    record->fail_at = 0;
    return record->fail_result;
  }
  return cuda::kSuccess;
}

Result refusal(std::string_view function, const FakeLibrary& library) {
  for (const Refusal& refusal : state().refusals) {
    if (refusal.function == function && library.image.find(refusal.text) != std::string::npos) {
      return refusal.result;
    }
  }
  return cuda::kSuccess;
}

bool is_special(cuda::Stream stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

bool missing(std::string_view name) {
  const char* list = std::getenv("FAKE_CUDA_MISSING");
  if (list == nullptr) return false;
  return ("," + std::string(list) + ",").find("," + std::string(name) + ",") != std::string::npos;
}

int driver_version() {
  const char* version = std::getenv("FAKE_CUDA_VERSION");
  return version != nullptr ? std::atoi(version) : kDriverVersion;
}

void reset_locked(State& s) {
  s.devices.clear();
  s.contexts.clear();
  s.streams.clear();
  s.libraries.clear();
  s.set_attributes.clear();
  s.refusals.clear();
  s.capture = kFakeCaptureNone;
  s.default_context = nullptr;
  s.param_count = 1;
  s.param_bytes = 640;
  s.function_attributes = {{cuda::kFunctionMaxThreadsPerBlock, 384},
                           {cuda::kFunctionSharedSizeBytes, 0},
                           {cuda::kFunctionNumRegs, 168},
                           {cuda::kFunctionRequiredClusterWidth, 4},
                           {cuda::kFunctionRequiredClusterHeight, 1},
                           {cuda::kFunctionRequiredClusterDepth, 1}};
  for (Record* record : records()) {
    record->calls = 0;
    record->fail_at = 0;
  }
}

void set_device_count_locked(State& s, int count) {
  const size_t before = s.devices.size();
  s.devices.resize(static_cast<size_t>(count));
  for (size_t i = before; i < s.devices.size(); ++i) {
    s.devices[i].attributes = {{cuda::kDeviceComputeCapabilityMajor, 12},
                               {cuda::kDeviceComputeCapabilityMinor, 0},
                               {cuda::kDeviceMultiprocessorCount, 188},
                               {cuda::kDeviceMaxSharedMemoryPerBlockOptin, 101376},
                               {cuda::kDeviceMaxThreadsPerBlock, 1024},
                               {cuda::kDeviceClusterLaunch, 1},
                               {cuda::kDeviceMaxSharedMemoryPerMultiprocessor, 102400},
                               {cuda::kDeviceMaxThreadsPerMultiprocessor, 1536},
                               {cuda::kDeviceMaxRegistersPerMultiprocessor, 65536},
                               {cuda::kDeviceMaxBlocksPerMultiprocessor, 24},
                               {cuda::kDeviceTensorMapAccessSupported, 1}};
  }
}

// What the environment asks for, before the first call.
void start() {
  static const bool started = [] {
    State& s = state();
    reset_locked(s);
    set_device_count_locked(s, 1);
    if (const char* device = std::getenv("FAKE_CUDA_DEVICE")) {
      int major = 0, minor = 0;
      if (std::sscanf(device, "%d.%d", &major, &minor) != 2) std::abort();
      s.devices[0].attributes[cuda::kDeviceComputeCapabilityMajor] = major;
      s.devices[0].attributes[cuda::kDeviceComputeCapabilityMinor] = minor;
      s.contexts.push_back(std::make_unique<FakeContext>(FakeContext{0, s.next_id++}));
      s.default_context = s.contexts.back().get();
    }
    return true;
  }();
  static_cast<void>(started);
}

}  // namespace

// Defines a driver function: an exported symbol that counts the call, fails when told to, and else
// runs the body.
#define MLA_ENTRY(name, version, parameters, arguments)                                        \
  static Result name##_body parameters;                                                        \
  extern "C" __attribute__((visibility("default"))) Result name parameters;                    \
  static Record name##_record{#name, version, reinterpret_cast<void*>(&name), {}, {}, {}, {}}; \
  static const bool name##_added = (records().push_back(&name##_record), true);                \
  extern "C" Result name parameters {                                                          \
    start();                                                                                   \
    if (const Result result = enter(&name##_record); result != cuda::kSuccess) return result;  \
    return name##_body arguments;                                                              \
  }                                                                                            \
  static Result name##_body parameters

// ---- the driver --------------------------------------------------------------------------------

MLA_ENTRY(cuInit, 2000, (unsigned flags), (flags)) {
  if (flags != 0) return cuda::kErrorInvalidValue;
  if (const char* result = std::getenv("FAKE_CUDA_INIT")) return std::atoi(result);
  state().initialised = true;
  return cuda::kSuccess;
}

MLA_ENTRY(cuDriverGetVersion, 2020, (int* version), (version)) {
  *version = driver_version();
  return cuda::kSuccess;
}

MLA_ENTRY(cuDeviceGetAttribute, 2000, (int* value, int attribute, cuda::Device device),
          (value, attribute, device)) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.initialised) return kErrorNotInitialized;
  if (device < 0 || static_cast<size_t>(device) >= s.devices.size()) return kErrorInvalidDevice;
  const auto& attributes = s.devices[static_cast<size_t>(device)].attributes;
  const auto found = attributes.find(attribute);
  if (found == attributes.end()) return cuda::kErrorInvalidValue;
  *value = found->second;
  return cuda::kSuccess;
}

MLA_ENTRY(cuCtxGetCurrent, 4000, (cuda::Context * context), (context)) {
  if (!state().initialised) return kErrorNotInitialized;
  *context = reinterpret_cast<cuda::Context>(current());
  return cuda::kSuccess;
}

MLA_ENTRY(cuCtxSetCurrent, 4000, (cuda::Context context), (context)) {
  this_thread().current = reinterpret_cast<FakeContext*>(context);
  return cuda::kSuccess;
}

MLA_ENTRY(cuCtxPushCurrent, 4000, (cuda::Context context), (context)) {
  Thread& thread = this_thread();
  if (context == nullptr) return cuda::kErrorInvalidContext;
  thread.stack.push_back(thread.current);
  thread.current = reinterpret_cast<FakeContext*>(context);
  return cuda::kSuccess;
}

MLA_ENTRY(cuCtxPopCurrent, 4000, (cuda::Context * context), (context)) {
  Thread& thread = this_thread();
  if (thread.stack.empty()) return cuda::kErrorInvalidContext;
  *context = reinterpret_cast<cuda::Context>(thread.current);
  thread.current = thread.stack.back();
  thread.stack.pop_back();
  return cuda::kSuccess;
}

MLA_ENTRY(cuCtxGetDevice, 2000, (cuda::Device * device), (device)) {
  const FakeContext* context = current();
  if (context == nullptr) return cuda::kErrorInvalidContext;
  *device = context->device;
  return cuda::kSuccess;
}

MLA_ENTRY(cuCtxGetId, 12000, (cuda::Context context, unsigned long long* id), (context, id)) {
  if (context == nullptr) return cuda::kErrorInvalidContext;
  *id = reinterpret_cast<FakeContext*>(context)->id;
  return cuda::kSuccess;
}

MLA_ENTRY(cuLibraryLoadData, 12000,
          (cuda::Library * library, const void* code, int* jit_options, void** jit_values, unsigned jit_count,
           int* options, void** values, unsigned count),
          (library, code, jit_options, jit_values, jit_count, options, values, count)) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.initialised) return kErrorNotInitialized;
  if (s.capture == kFakeCaptureStrict ||
      (s.capture != kFakeCaptureNone && this_thread().capture_mode != cuda::kCaptureModeRelaxed)) {
    return cuda::kErrorStreamCaptureUnsupported;
  }
  if (jit_options != nullptr || jit_values != nullptr || jit_count != 0 || options != nullptr ||
      values != nullptr || count != 0) {
    return cuda::kErrorInvalidValue;
  }
  if (std::memcmp(code, "\177ELF", 4) != 0) return cuda::kErrorInvalidImage;
  // The section headers come last in the test's cubins, so they tell the size.
  const char* bytes = static_cast<const char*>(code);
  uint64_t offset = 0;
  uint16_t sections = 0;
  std::memcpy(&offset, bytes + 40, sizeof offset);
  std::memcpy(&sections, bytes + 60, sizeof sections);
  auto loaded = std::make_unique<FakeLibrary>();
  loaded->image.assign(bytes, offset + uint64_t{sections} * 64);
  if (const Result result = refusal("cuLibraryLoadData", *loaded); result != cuda::kSuccess) return result;
  *library = reinterpret_cast<cuda::Library>(loaded.get());
  s.libraries[loaded.get()] = std::move(loaded);
  return cuda::kSuccess;
}

MLA_ENTRY(cuLibraryUnload, 12000, (cuda::Library library), (library)) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.libraries.erase(reinterpret_cast<FakeLibrary*>(library)) == 1 ? cuda::kSuccess
                                                                         : kErrorInvalidHandle;
}

MLA_ENTRY(cuLibraryGetKernel, 12000, (cuda::Kernel * kernel, cuda::Library handle, const char* name),
          (kernel, handle, name)) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  auto* library = reinterpret_cast<FakeLibrary*>(handle);
  if (s.libraries.count(library) == 0) return kErrorInvalidHandle;
  if (library->image.find(std::string(1, '\0') + name + '\0') == std::string::npos) return kErrorNotFound;
  if (const Result result = refusal("cuLibraryGetKernel", *library); result != cuda::kSuccess) return result;
  library->kernels.push_back(std::make_unique<FakeKernel>(FakeKernel{library, name}));
  *kernel = reinterpret_cast<cuda::Kernel>(library->kernels.back().get());
  return cuda::kSuccess;
}

MLA_ENTRY(cuKernelGetFunction, 12000, (cuda::Function * function, cuda::Kernel kernel), (function, kernel)) {
  if (current() == nullptr) return cuda::kErrorInvalidContext;
  const std::lock_guard lock(state().mutex);
  const Result result = refusal("cuKernelGetFunction", *reinterpret_cast<FakeKernel*>(kernel)->library);
  if (result == cuda::kSuccess) *function = reinterpret_cast<cuda::Function>(kernel);
  return result;
}

MLA_ENTRY(cuFuncLoad, 12040, (cuda::Function function), (function)) {
  if (current() == nullptr) return cuda::kErrorInvalidContext;
  const std::lock_guard lock(state().mutex);
  return refusal("cuFuncLoad", *reinterpret_cast<FakeKernel*>(function)->library);
}

MLA_ENTRY(cuKernelGetAttribute, 12000, (int* value, int attribute, cuda::Kernel kernel, cuda::Device device),
          (value, attribute, kernel, device)) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.function_attributes.find(attribute);
  if (device < 0 || static_cast<size_t>(device) >= s.devices.size()) return kErrorInvalidDevice;
  if (kernel == nullptr || found == s.function_attributes.end()) return cuda::kErrorInvalidValue;
  *value = found->second;
  return cuda::kSuccess;
}

MLA_ENTRY(cuKernelSetAttribute, 12000, (int attribute, int value, cuda::Kernel kernel, cuda::Device device),
          (attribute, value, kernel, device)) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (kernel == nullptr) return kErrorInvalidHandle;
  s.set_attributes[{device, attribute}] = value;
  return cuda::kSuccess;
}

MLA_ENTRY(cuKernelGetParamInfo, 12040, (cuda::Kernel kernel, size_t index, size_t* offset, size_t* bytes),
          (kernel, index, offset, bytes)) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (kernel == nullptr || index >= static_cast<size_t>(s.param_count)) return cuda::kErrorInvalidValue;
  // As on compute capability 9.0: counted from the parameter bank, which begins at 0x210, with the
  // struct aligned to 64 bytes.
  *offset = 48 + index * s.param_bytes;
  *bytes = s.param_bytes;
  return cuda::kSuccess;
}

MLA_ENTRY(cuOccupancyMaxActiveClusters, 11070,
          (int* clusters, cuda::Function function, const cuda::LaunchConfig* config),
          (clusters, function, config)) {
  const FakeContext* context = current();
  if (context == nullptr) return cuda::kErrorInvalidContext;
  if (function == nullptr || config->grid_x == 0 || config->block_x == 0) return cuda::kErrorInvalidValue;
  const std::lock_guard lock(state().mutex);
  *clusters = state().devices[static_cast<size_t>(context->device)].max_clusters;
  return cuda::kSuccess;
}

MLA_ENTRY(cuTensorMapEncodeTiled, 12000,
          (void* map, int type, uint32_t rank, void* address, const uint64_t* dims, const uint64_t* strides,
           const uint32_t* box, const uint32_t* element_strides, int interleave, int swizzle,
           int l2_promotion, int oob_fill),
          (map, type, rank, address, dims, strides, box, element_strides, interleave, swizzle, l2_promotion,
           oob_fill)) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0 || rank == 0 || rank > 5) return cuda::kErrorInvalidValue;
  const uint32_t index = s.map_count++ % kKeptMaps;
  FakeTensorMap& kept = s.maps[index];
  kept = {};
  kept.type = type;
  kept.rank = rank;
  kept.address = reinterpret_cast<uintptr_t>(address);
  std::copy_n(dims, rank, kept.dims);
  std::copy_n(strides, rank - 1, kept.strides);
  std::copy_n(box, rank, kept.box);
  std::copy_n(element_strides, rank, kept.element_strides);
  kept.interleave = interleave;
  kept.swizzle = swizzle;
  kept.l2_promotion = l2_promotion;
  kept.oob_fill = oob_fill;
  std::memset(map, 0, 128);
  const Encoded encoded{kMapMagic, index};
  std::memcpy(map, &encoded, sizeof encoded);
  return cuda::kSuccess;
}

MLA_ENTRY(cuLaunchKernelEx, 11060,
          (const cuda::LaunchConfig* config, cuda::Function function, void** params, void** extra),
          (config, function, params, extra)) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (function == nullptr || extra != nullptr || params == nullptr) return cuda::kErrorInvalidValue;
  const auto* kernel = reinterpret_cast<const FakeKernel*>(function);
  std::snprintf(s.launch_symbol, sizeof s.launch_symbol, "%s", kernel->symbol.c_str());
  FakeLaunch& launch = s.launch;
  launch = {};
  launch.grid[0] = config->grid_x;
  launch.grid[1] = config->grid_y;
  launch.grid[2] = config->grid_z;
  launch.block[0] = config->block_x;
  launch.block[1] = config->block_y;
  launch.block[2] = config->block_z;
  launch.shared_bytes = config->shared_bytes;
  launch.stream = config->stream;
  launch.current = current();
  launch.symbol = s.launch_symbol;
  launch.attribute_count = config->attribute_count;
  launch.pdl = -1;
  for (unsigned i = 0; i < config->attribute_count && i < 4; ++i) {
    const cuda::LaunchAttribute& attribute = config->attributes[i];
    launch.attribute_ids[i] = attribute.id;
    if (attribute.id == cuda::kLaunchClusterDimension) {
      launch.cluster[0] = attribute.value.cluster_dim.x;
      launch.cluster[1] = attribute.value.cluster_dim.y;
      launch.cluster[2] = attribute.value.cluster_dim.z;
    }
    if (attribute.id == cuda::kLaunchProgrammaticStreamSerialization) {
      launch.pdl = attribute.value.programmatic_stream_serialization_allowed;
    }
  }
  std::memcpy(launch.params, params[0], std::min(s.param_bytes, sizeof launch.params));
  return cuda::kSuccess;
}

MLA_ENTRY(cuMemsetD8Async, 3020,
          (cuda::DevicePtr address, unsigned char value, size_t bytes, cuda::Stream stream),
          (address, value, bytes, stream)) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (current() == nullptr) return cuda::kErrorInvalidContext;
  s.memsets[s.memset_count++ % 4] = {address, value, 1, bytes, stream, current()};
  return cuda::kSuccess;
}

MLA_ENTRY(cuMemsetD32Async, 3020,
          (cuda::DevicePtr address, unsigned value, size_t count, cuda::Stream stream),
          (address, value, count, stream)) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (current() == nullptr) return cuda::kErrorInvalidContext;
  s.memsets[s.memset_count++ % 4] = {address, value, 4, count * 4, stream, current()};
  return cuda::kSuccess;
}

MLA_ENTRY(cuStreamGetCtx, 9020, (cuda::Stream stream, cuda::Context* context), (stream, context)) {
  FakeContext* found = is_special(stream) ? current() : reinterpret_cast<FakeStream*>(stream)->context;
  if (found == nullptr) return cuda::kErrorInvalidContext;
  *context = reinterpret_cast<cuda::Context>(found);
  return cuda::kSuccess;
}

MLA_ENTRY(cuStreamIsCapturing, 10000, (cuda::Stream stream, int* status), (stream, status)) {
  const int capture = state().capture;
  if (stream == nullptr && capture == kFakeCaptureBlocking) return cuda::kErrorStreamCaptureImplicit;
  *status = stream == cuda::kStreamPerThread && capture == kFakeCapturePerThread ? 1 : 0;
  return cuda::kSuccess;
}

MLA_ENTRY(cuThreadExchangeStreamCaptureMode, 10010, (int* mode), (mode)) {
  std::swap(*mode, this_thread().capture_mode);
  return cuda::kSuccess;
}

// ---- what only applications call ---------------------------------------------------------------

MLA_ENTRY(cuDeviceGet, 2000, (cuda::Device * device, int ordinal), (device, ordinal)) {
  const std::lock_guard lock(state().mutex);
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= state().devices.size()) return kErrorInvalidDevice;
  *device = ordinal;
  return cuda::kSuccess;
}

MLA_ENTRY(cuDevicePrimaryCtxRetain, 7000, (cuda::Context * context, cuda::Device device), (context, device)) {
  *context = static_cast<cuda::Context>(fake_new_context(device));
  return cuda::kSuccess;
}

MLA_ENTRY(cuStreamCreate, 2000, (cuda::Stream * stream, unsigned flags), (stream, flags)) {
  if (current() == nullptr || flags > 1) return cuda::kErrorInvalidValue;
  *stream = static_cast<cuda::Stream>(fake_new_stream(current()));
  return cuda::kSuccess;
}

MLA_ENTRY(cuStreamSynchronize, 2000, (cuda::Stream stream), (stream)) {
  return is_special(stream) || reinterpret_cast<FakeStream*>(stream)->context != nullptr
             ? cuda::kSuccess
             : kErrorInvalidHandle;
}

// Addresses that nothing lies behind.
MLA_ENTRY(cuMemAlloc, 3020, (cuda::DevicePtr * address, size_t bytes), (address, bytes)) {
  static std::atomic<cuda::DevicePtr> next{0x7f0000000000};
  if (bytes == 0) return cuda::kErrorInvalidValue;
  *address = next.fetch_add((bytes + 0xfff) & ~size_t{0xfff});
  return cuda::kSuccess;
}

MLA_ENTRY(cuGetErrorName, 6000, (Result error, const char** name), (error, name)) {
  static const std::map<Result, const char*> names = {{1, "CUDA_ERROR_INVALID_VALUE"},
                                                      {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                      {100, "CUDA_ERROR_NO_DEVICE"},
                                                      {200, "CUDA_ERROR_INVALID_IMAGE"},
                                                      {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
                                                      {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
                                                      {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
                                                      {999, "CUDA_ERROR_UNKNOWN"}};
  const auto found = names.find(error);
  *name = found == names.end() ? nullptr : found->second;
  return found == names.end() ? cuda::kErrorInvalidValue : cuda::kSuccess;
}

MLA_ENTRY(cuGetErrorString, 6000, (Result error, const char** text), (error, text)) {
  *text = error == 209 ? "no kernel image is available for execution on the device" : nullptr;
  return *text == nullptr ? cuda::kErrorInvalidValue : cuda::kSuccess;
}

namespace {

// CUdriverProcAddressQueryResult
constexpr int kFound = 0;
constexpr int kNotFound = 1;
constexpr int kVersionNotSufficient = 2;

[[maybe_unused]] Result proc_address(const char* name, void** function, int version, uint64_t flags,
                                     int* query) {
  start();
  *function = nullptr;
  Record* record = find_record(name);
  if (flags != cuda::kProcAddressLegacyStream || version > driver_version()) return cuda::kErrorInvalidValue;
  if (record == nullptr || missing(name) || record->version > driver_version()) {
    *query = kNotFound;
    return cuda::kSuccess;
  }
  record->asked_version = version;
  if (version < record->version) {
    *query = kVersionNotSufficient;
    return cuda::kSuccess;
  }
  *query = kFound;
  *function = record->function;
  return cuda::kSuccess;
}

}  // namespace

extern "C" {

// Drivers before CUDA 12.0 have only the first form, before 11.3 neither.
#if !defined(FAKE_CUDA_NO_PROC_ADDRESS)
__attribute__((visibility("default"))) Result cuGetProcAddress(const char* name, void** function, int version,
                                                               uint64_t flags) {
  int query = kFound;
  const Result result = proc_address(name, function, version, flags, &query);
  return result == cuda::kSuccess && query != kFound ? kErrorNotFound : result;
}
#if !defined(FAKE_CUDA_NO_PROC_ADDRESS_V2)
__attribute__((visibility("default"))) Result cuGetProcAddress_v2(const char* name, void** function,
                                                                  int version, uint64_t flags, int* query) {
  return proc_address(name, function, version, flags, query);
}
#endif
#endif

// ---- control -----------------------------------------------------------------------------------

void fake_reset() {
  start();
  State& s = state();
  const std::lock_guard lock(s.mutex);
  reset_locked(s);
  set_device_count_locked(s, 1);
  this_thread() = {};
}

void fake_set_device_count(int count) {
  start();
  const std::lock_guard lock(state().mutex);
  set_device_count_locked(state(), count);
}

void fake_set_compute_capability(int device, int major, int minor) {
  fake_set_device_attribute(device, cuda::kDeviceComputeCapabilityMajor, major);
  fake_set_device_attribute(device, cuda::kDeviceComputeCapabilityMinor, minor);
}

void fake_set_device_attribute(int device, int attribute, int value) {
  start();
  const std::lock_guard lock(state().mutex);
  state().devices.at(static_cast<size_t>(device)).attributes[attribute] = value;
}

void fake_set_max_clusters(int device, int clusters) {
  const std::lock_guard lock(state().mutex);
  state().devices.at(static_cast<size_t>(device)).max_clusters = clusters;
}

void* fake_new_context(int device) {
  start();
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.contexts.push_back(std::make_unique<FakeContext>(FakeContext{device, s.next_id++}));
  return s.contexts.back().get();
}

void fake_renew_context(void* context) {
  const std::lock_guard lock(state().mutex);
  static_cast<FakeContext*>(context)->id = state().next_id++;
}

void fake_set_current(void* context) { this_thread().current = static_cast<FakeContext*>(context); }
void* fake_current() { return this_thread().current; }

void* fake_new_stream(void* context) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.streams.push_back(std::make_unique<FakeStream>(FakeStream{static_cast<FakeContext*>(context)}));
  return s.streams.back().get();
}

void fake_set_capture(int capture) {
  const std::lock_guard lock(state().mutex);
  state().capture = capture;
}

void fake_set_function_attribute(int attribute, int value) {
  const std::lock_guard lock(state().mutex);
  state().function_attributes[attribute] = value;
}

void fake_set_params(int count, size_t bytes) {
  const std::lock_guard lock(state().mutex);
  state().param_count = count;
  state().param_bytes = bytes;
}

void fake_refuse(const char* function, const char* text, int result) {
  const std::lock_guard lock(state().mutex);
  state().refusals.push_back({function, text, result});
}

void fake_fail(const char* function, int nth, int result) {
  Record* record = find_record(function);
  if (record == nullptr) std::abort();
  record->fail_result = result;
  record->fail_at = record->calls + nth;
}

int fake_calls(const char* function) {
  const Record* record = find_record(function);
  if (record == nullptr) std::abort();
  return record->calls;
}

int fake_all_calls() {
  int calls = 0;
  for (const Record* record : records()) calls += record->calls;
  return calls;
}

int fake_asked_version(const char* function) {
  const Record* record = find_record(function);
  if (record == nullptr) std::abort();
  return record->asked_version;
}

int fake_live_libraries() {
  const std::lock_guard lock(state().mutex);
  return static_cast<int>(state().libraries.size());
}

int fake_pushed() { return static_cast<int>(this_thread().stack.size()); }
int fake_capture_mode() { return this_thread().capture_mode; }

int fake_kernel_attribute(int device, int attribute) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().set_attributes.find({device, attribute});
  return found == state().set_attributes.end() ? -1 : found->second;
}

const FakeLaunch* fake_last_launch() { return &state().launch; }
const FakeMemset* fake_last_memset(unsigned before) {
  return &state().memsets[(state().memset_count - 1 - before) % 4];
}

bool fake_decode_map(const void* encoded, FakeTensorMap* out) {
  Encoded read;
  std::memcpy(&read, encoded, sizeof read);
  if (read.magic != kMapMagic || read.index >= kKeptMaps) return false;
  *out = state().maps[read.index];
  return true;
}

void fake_mark(const char* line) { log_line(line); }

}  // extern "C"
