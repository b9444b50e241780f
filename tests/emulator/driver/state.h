// SPDX-License-Identifier: Apache-2.0
//
// The object model of the emulated driver. One lock guards all of it, launches included: calls of
// several threads are executed one after the other. Work is done inside the call that submits it, so
// every stream is idle between calls; what a launch finds wrong is reported by the next call, as
// an asynchronous error would be.
#pragma once

// __CUDA_API_VERSION_INTERNAL (set by CMakeLists.txt) makes cuda.h declare every version of a function
// under its own name, so that the compiler checks the signatures defined here.
#include <cuda.h>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "manifest/cubin.h"
#include "tests/emulator/driver/config.h"
#include "tests/emulator/engine/engine.h"

#define MLA_EMU_EXPORT __attribute__((visibility("default")))

namespace mla::emu::driver {

inline constexpr int kDriverVersion = 13000;
inline constexpr uint32_t kPtxVersion = 90;  // newest that a driver of that version reads

struct Context;
struct Library;
struct ModuleObject;
struct Graph;

// Anything that a client holds an opaque handle of. Handles are numbers, not pointers, and are
// never used twice: a stale or foreign handle is always recognised.
struct Object {
  uint64_t handle = 0;
  virtual ~Object() = default;
};

struct Device {
  int ordinal = 0;
  DeviceConfig config;
  std::string name;
  std::unique_ptr<Memory> memory;
  std::shared_ptr<Context> primary;
  int primary_references = 0;
  unsigned primary_flags = 0;
  CUresult fault = CUDA_SUCCESS;  // of a faulty launch: what every later call on the device returns
};

struct Stream;

struct Context : Object {
  Device* device = nullptr;
  bool alive = true;
  bool primary = false;
  unsigned flags = 0;
  uint64_t id = 0;
  std::shared_ptr<Stream> legacy, per_thread;
  std::set<uint64_t> allocations;
  std::set<uint64_t> objects;  // handles that end with the context
  std::map<Library*, std::shared_ptr<ModuleObject>> library_modules;
  std::map<CUlimit, size_t> limits;
};

// An image as given to the driver: PTX, or a cubin with the PTX found for it.
struct Image {
  std::string name;  // for messages: the PTX file, or "PTX image"
  std::string ptx;
  Module module;  // parsed; every context but the first parses its own
  bool module_taken = false;
  std::optional<cubin::Info> cubin;
  uint32_t sm = 0;
  char suffix = 0;

  const cubin::Kernel* cubin_kernel(const std::string& name) const;
  bool runs_on(const Device& device) const;
};

struct FunctionAttributes {
  std::optional<int> max_dynamic_smem, carveout, non_portable_cluster, cluster_policy;
  std::array<std::optional<int>, 3> cluster = {};
};

struct Kernel : Object {  // CUkernel
  Library* library = nullptr;
  std::string name;
  std::map<int, FunctionAttributes> attributes;  // by device
};

struct Library : Object {  // CUlibrary
  std::shared_ptr<Image> image;
  CUresult refused = CUDA_SUCCESS;  // why no kernel of it can be had, though loading it succeeded
  std::vector<std::shared_ptr<Kernel>> kernels;
};

struct Function : Object {  // CUfunction
  std::shared_ptr<ModuleObject> module;
  std::shared_ptr<Kernel> kernel;  // null for functions of plain modules
  std::string name;
  FunctionAttributes attributes;
};

struct ModuleObject : Object {  // CUmodule
  std::shared_ptr<Context> context;
  std::shared_ptr<Image> image;
  Module module;
  Library* library = nullptr;  // null for plain modules
  bool unloaded = false;
  std::map<std::string, std::shared_ptr<Function>> functions;  // they own the module: cleared at unload
  std::map<std::string, uint64_t> constants;                   // addresses given out for .const variables
};

struct Node : Object {  // CUgraphNode
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::vector<std::shared_ptr<Node>> dependencies;
  std::shared_ptr<struct Operation> operation;  // null for empty nodes
};

struct Graph : Object {
  std::vector<std::shared_ptr<Node>> nodes;  // dependencies come before what depends on them
};

struct GraphExec : Object {
  std::vector<std::shared_ptr<struct Operation>> operations;
  std::shared_ptr<Context> context;
  unsigned long long flags = 0;
};

struct Capture {
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  Stream* origin = nullptr;
  bool invalidated = false;
  std::shared_ptr<Graph> graph;
  std::set<Stream*> streams;
};

struct Stream : Object {
  std::shared_ptr<Context> context;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  bool legacy = false;
  std::shared_ptr<Capture> capture;
  std::vector<std::shared_ptr<Node>> capture_tail;  // what the next captured operation depends on
  std::vector<CUgraphNode> capture_tail_handles;    // handed out by cuStreamGetCaptureInfo

  bool blocking() const { return !legacy && !(flags & CU_STREAM_NON_BLOCKING); }
};

struct Event : Object {
  std::shared_ptr<Context> context;
  unsigned flags = 0;
  bool recorded = false;
  std::chrono::steady_clock::time_point time;
  std::weak_ptr<Capture> capture;  // set by a record in a capturing stream
  std::vector<std::shared_ptr<Node>> capture_tail;
};

// A piece of stream work, executed at once or kept in a graph.
struct Operation {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  virtual ~Operation() = default;
  virtual CUresult run(Context& context) = 0;
};

struct KernelLaunch : Operation {
  std::shared_ptr<Function> function;
  Dim3 grid, block, cluster;
  unsigned dynamic_smem = 0;
  std::vector<uint8_t> params;
  KernelLaunch() { type = CU_GRAPH_NODE_TYPE_KERNEL; }
  CUresult run(Context& context) override;
};

struct HostAllocation {
  uint64_t bytes = 0;
  std::shared_ptr<Context> context;
  bool owned = false;  // by cuMemHostAlloc rather than cuMemHostRegister
  unsigned flags = 0;
};

struct State {
  std::recursive_mutex mutex;
  bool initialized = false;
  bool init_failed = false;
  CUresult init_result = CUDA_SUCCESS;
  std::vector<std::unique_ptr<Device>> devices;
  std::unordered_map<uint64_t, std::shared_ptr<Object>> objects;
  uint64_t next_handle = 1;
  uint64_t next_id = 1;
  std::map<uint64_t, HostAllocation> host_allocations;
  std::vector<std::shared_ptr<Capture>> captures;

  // Options of the environment, read at cuInit.
  std::vector<std::string> ptx_path;
  Checks checks;
  MmaAccumulator mma_accumulator = MmaAccumulator::kExact;
  uint64_t next_seed = 1;
  uint64_t max_warp_instructions = 0;
  std::optional<uint64_t> max_idle_instructions;
  bool verbose = false;
  bool profile = false;

  // What has been executed.
  std::string report;
  uint64_t launches = 0;
  uint64_t warnings = 0;  // findings of checks that are set to warn
  std::map<std::string, uint64_t> launches_of;
  uint64_t warp_instructions = 0, lane_instructions = 0;
  double seconds = 0;

  uint64_t add(const std::shared_ptr<Object>& object);
};

// Lives until the process ends: clients call the driver from static destructors.
State& state();

using Lock = std::lock_guard<std::recursive_mutex>;

template <class T, class Handle>
std::shared_ptr<T> find(Handle handle) {
  const auto found = state().objects.find((uint64_t)handle);  // a number or a pointer
  return found == state().objects.end() ? nullptr : std::dynamic_pointer_cast<T>(found->second);
}

template <class Handle>
Handle to_handle(const std::shared_ptr<Object>& object) {
  return reinterpret_cast<Handle>(object->handle);
}

// Prints one line "mla-emu: ..." to stderr and keeps it for mlaEmuLastReport.
void report(const std::string& text);

// cuInit itself.
CUresult initialize();
// CUDA_ERROR_NOT_INITIALIZED before cuInit.
CUresult check_initialized();
// The device, or CUDA_ERROR_INVALID_DEVICE.
CUresult get_device(CUdevice ordinal, Device** device);
// The calling thread's context: 201 without one, 709 if it is destroyed, its device's fault if any.
CUresult current_context(std::shared_ptr<Context>* context);
std::vector<std::shared_ptr<Context>>& context_stack();
std::shared_ptr<Context> make_context(Device* device, unsigned flags, bool primary);
void destroy_context(Context& context);

// The stream behind a handle: null and CU_STREAM_LEGACY, CU_STREAM_PER_THREAD need a current
// context. Also checks the stream's device for a fault.
CUresult get_stream(CUstream handle, std::shared_ptr<Stream>* stream);

// Error 900, with the captures in question invalidated, if the calling thread may not make a
// potentially unsafe call now.
CUresult check_unsafe_call();
// Error 906 if work on the legacy stream would depend on a capturing stream; a question about the
// stream leaves the capture alone.
CUresult check_legacy(const Stream& stream, bool ends_capture = true);
CUstreamCaptureMode& thread_capture_mode();
void invalidate(Capture& capture);

// Executes or captures an operation.
CUresult submit(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Operation>& operation);
// The same for calls without a stream: legacy stream semantics, never captured.
CUresult submit_now(Context& context, Operation& operation);

// Reads an image handed to cuLibraryLoadData or cuModuleLoadData.
CUresult load_image(const void* code, std::shared_ptr<Image>* image);
CUresult check_runs_on_some_device(const Image& image);
// The module of an image in a context.
CUresult instantiate(const std::shared_ptr<Image>& image, const std::shared_ptr<Context>& context,
                     std::shared_ptr<ModuleObject>* module);
// Ends a module: frees its variables and forgets its functions.
void unload_module(ModuleObject& module);
CUresult library_module(Library& library, const std::shared_ptr<Context>& context,
                        std::shared_ptr<ModuleObject>* module);
CUresult module_function(const std::shared_ptr<ModuleObject>& module, const std::string& name,
                         std::shared_ptr<Function>* function);
// A CUfunction, or a CUkernel cast to one, in a context. 400 if it is neither.
CUresult get_function(CUfunction handle, const std::shared_ptr<Context>& context,
                      std::shared_ptr<Function>* function);

// What a kernel needs of a device.
struct KernelNeeds {
  uint32_t registers = 0;  // of a thread; 0: not known (PTX without .maxnreg)
  uint32_t static_smem = 0;
  uint32_t max_threads = 1024;
  uint32_t local_bytes = 0;
  std::array<uint32_t, 3> cluster = {};  // compile time; zeros: none
};
KernelNeeds needs_of(const Image& image, const std::string& kernel);

// Blocks of a kernel that fit an SM at once.
uint32_t blocks_per_sm(const DeviceConfig& device, const KernelNeeds& needs, uint32_t threads,
                       uint64_t dynamic_smem);
// Clusters that fit the device at once.
uint32_t active_clusters(const DeviceConfig& device, uint32_t blocks_per_sm, uint32_t cluster);

// Value set by cuFuncSetAttribute, else by cuKernelSetAttribute, else the default.
int max_dynamic_smem(const Function& function);
int get_attribute(CUfunction_attribute attribute, const Image& image, const std::string& kernel,
                  const FunctionAttributes& function, const FunctionAttributes* of_kernel, CUresult* result);
CUresult set_attribute(CUfunction_attribute attribute, int value, const Image& image,
                       const std::string& kernel, const Device& device, FunctionAttributes* attributes);

}  // namespace mla::emu::driver
