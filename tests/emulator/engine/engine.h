// SPDX-License-Identifier: Apache-2.0
//
// The emulator's engine: reads PTX, executes a launch of it on the CPU, and checks what hardware
// hides. One launch runs at a time per Memory; nothing here is thread-safe unless it says so.
//
//   Memory memory;
//   uint64_t d = *memory.allocate(1024);
//   Module module;
//   Status status = parse_ptx(text, "kernel.ptx", &module);
//   LaunchConfig config;  config.grid = {4, 1, 1};  config.block = {128, 1, 1};
//   Report report = launch(module, "kernel", config, params, memory);
//   if (!report.ok()) std::puts(report.fault.text().c_str());
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "manifest/status.h"
#include "tests/emulator/engine/checks.h"
#include "tests/emulator/engine/tensor_map.h"

namespace mla::emu {

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

// ---------------------------------------------------------------- device memory

struct Allocation {
  uint64_t address = 0;  // device address of the first byte
  uint64_t bytes = 0;
  bool host = false;  // page-locked host memory, mapped at its own address
};

// The global address space of one device. Device addresses are not host pointers: a host program
// that dereferences one crashes, as it would with a GPU. The same sequence of calls gives the same
// addresses. Every byte has a shadow bit "written": fresh allocations are unwritten, host copies and
// memsets write. Storage is mapped lazily, so an allocation far beyond the machine's memory is fine
// as long as little of it is touched. Allocations never touch each other (guard gap), and freed
// addresses are not used again. `first_address` tells the memories of several devices apart: keep
// them 2^41 apart, at or above the default.
class Memory {
 public:
  explicit Memory(uint64_t capacity_bytes = uint64_t{1} << 40,
                  uint64_t first_address = uint64_t{0x2000} << 32);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Returns the device address, aligned to 256 bytes (and to `alignment`, a power of two); nothing
  // when bytes is 0 or the capacity would be exceeded.
  std::optional<uint64_t> allocate(uint64_t bytes, uint64_t alignment = 256);
  // False when `address` is not the start of a live allocation.
  bool free(uint64_t address);
  // Makes [pointer, pointer + bytes) accessible to kernels at its host address (cuMemHostAlloc,
  // cuMemHostRegister). Counts as written. unmap_host forgets it; the caller owns the storage.
  bool map_host(void* pointer, uint64_t bytes);
  bool unmap_host(void* pointer);

  // The live allocation that holds `address`, if any.
  std::optional<Allocation> find(uint64_t address) const;
  uint64_t allocated_bytes() const;
  uint64_t capacity_bytes() const;

  // Host access. False, with nothing done, when the range does not lie in one live allocation.
  // write and fill mark bytes as written; copy carries the marks over.
  bool write(uint64_t address, const void* source, uint64_t bytes);
  bool read(uint64_t address, void* target, uint64_t bytes) const;
  bool copy(uint64_t target, uint64_t source, uint64_t bytes);
  // Repeats the `unit` (1, 2 or 4) low bytes of value `count` times.
  bool fill(uint64_t address, uint32_t value, uint32_t unit, uint64_t count);
  // Marks bytes as written or unwritten without changing them (tests).
  bool mark(uint64_t address, uint64_t bytes, bool written);
  // Bytes of the range that nothing has written.
  uint64_t unwritten_bytes(uint64_t address, uint64_t bytes) const;
  // Host storage behind a device address (the range must lie in one allocation), or nullptr. Writes
  // through it are not marked as written.
  void* host_pointer(uint64_t address, uint64_t bytes) const;

  struct Impl;
  Impl& impl() { return *impl_; }
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// ---------------------------------------------------------------- modules

struct ParamInfo {
  std::string name;
  uint32_t offset = 0;  // in the parameter buffer
  uint32_t bytes = 0;
  uint32_t alignment = 1;
};

struct KernelInfo {
  std::string name;
  std::vector<ParamInfo> params;
  uint32_t param_bytes = 0;  // size of the parameter buffer
  uint32_t static_shared_bytes = 0;
  uint32_t local_bytes = 0;       // per thread
  Dim3 reqntid{0, 0, 0};          // .reqntid; 0: absent
  Dim3 maxntid{0, 0, 0};          // .maxntid; 0: absent
  Dim3 cluster{0, 0, 0};          // .reqnctapercluster; 0: absent
  bool explicit_cluster = false;  // .explicitcluster
  uint32_t max_cluster_rank = 0;  // .maxclusterrank; 0: absent
  uint32_t max_registers = 0;     // .maxnreg; 0: absent
  uint32_t min_ctas_per_sm = 0;   // .minnctapersm; 0: absent
  // Instructions that the engine cannot execute, one sentence each ("file:line: ..."). A launch of
  // a kernel whose list is not empty fails with FaultKind::kUnsupported and the first of them.
  std::vector<std::string> unsupported;
};

struct GlobalInfo {
  std::string name;
  uint32_t bytes = 0;
  uint32_t alignment = 1;
  bool constant = false;         // .const rather than .global
  std::vector<uint8_t> initial;  // `bytes` long
};

struct ModuleImpl;

// One parsed PTX text. Cheap to copy (shared, immutable after parsing but for the addresses of its
// global variables, which are set by the first launch or by load_globals).
class Module {
 public:
  const std::string& name() const;
  const std::string& target() const;  // as written, for instance "sm_90a"
  uint32_t sm() const;                // 90, 120, 121 ...
  char target_suffix() const;         // 'a', 'f' or 0
  uint32_t ptx_version() const;       // 10 * major + minor
  std::vector<KernelInfo> kernels() const;
  const KernelInfo* find_kernel(std::string_view name) const;
  std::vector<GlobalInfo> globals() const;
  const GlobalInfo* find_global(std::string_view name) const;
  explicit operator bool() const { return impl_ != nullptr; }

  std::shared_ptr<ModuleImpl> impl_;
};

// Reads a PTX text. `name` stands in messages. Fails (StatusKind::kInvalid, "name:line: ...") on
// what is not PTX, a .version above 9.x and a .target other than sm_80 or later, with the f suffix
// from sm_100 on. Instructions that the engine does not know do not fail the parse: see
// KernelInfo::unsupported.
Status parse_ptx(std::string_view text, std::string_view name, Module* module);

// Allocates and fills the .global variables of the module in `memory`, once per Memory (a launch
// does it when it was not done). The address of one: global_address (nothing for .const ones).
Status load_globals(const Module& module, Memory& memory);
std::optional<uint64_t> global_address(const Module& module, const Memory& memory, std::string_view name);
// Forgets and frees the module's variables in `memory`.
void unload_globals(const Module& module, Memory& memory);

// ---------------------------------------------------------------- launches

// What mma.sync keeps of a sum of e4m3 and e5m2 products in float32. wgmma always has the narrow one.
enum class MmaAccumulator {
  kExact,   // float32, one product after the other
  kNarrow,  // of Hopper's wgmma: 13 bits behind the first of the largest addend, the rest is cut off
};

struct LaunchConfig {
  Dim3 grid;              // CTAs
  Dim3 block;             // threads
  Dim3 cluster{0, 0, 0};  // CTAs; 0: as the kernel says, else 1 x 1 x 1
  uint32_t dynamic_shared_bytes = 0;
  uint32_t max_shared_bytes = 227 * 1024;  // limit of static + dynamic
  // Clusters that are on the device at once; further ones start as those end. 0: all.
  uint32_t resident_clusters = 0;
  // Registers of a thread at launch (setmaxnreg needs it): registers of the kernel as compiled. The
  // pool of a CTA is this times its warps, rounded up to 8. 0: .maxnreg, or else 65536 / block
  // rounded down to a multiple of 8, at most 255.
  uint32_t registers_per_thread = 0;
  uint64_t seed = 1;  // of the scheduler
  // A launch that executes this many warp instructions fails with kBudget; 0: no limit.
  uint64_t max_warp_instructions = 0;
  // Warp instructions without any progress (a store, a barrier, a copy) after which polling warps
  // are reported as a deadlock.
  uint64_t max_idle_instructions = 2'000'000;
  Checks checks;
  MmaAccumulator mma_accumulator = MmaAccumulator::kExact;
  bool profile = false;   // fill Report::opcodes
  uint32_t sm_count = 0;  // for %nsmid and %smid; 0: as many as resident clusters need
};

enum class FaultKind {
  kNone,
  kLaunch,       // the launch itself is wrong (kernel name, sizes, cluster shape, parameters)
  kUnsupported,  // an instruction or operand form that the engine does not know
  kOutOfBounds,  // access outside an allocation, the CTA's shared memory, or the parameters
  kMisaligned,
  kUnwritten,    // read of bytes that nothing wrote
  kRace,         // shared or global memory race
  kProxy,        // generic write used by the async proxy without a proxy fence
  kBarrier,      // mbarrier or named barrier used wrongly
  kClusterExit,  // access to the shared memory of a CTA that has ended
  kRegisters,    // setmaxnreg beyond the pool of the CTA
  kDivergence,   // .aligned instruction, or collective, executed by part of a warp
  kDeadlock,
  kBudget,
  kTrap,         // trap, __assertfail
  kTensorMap,    // tensor map, box or descriptor that the instruction cannot use
  kInstruction,  // any other misuse of an instruction
};

const char* fault_name(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kNone;
  std::string kernel;
  Dim3 cta{0, 0, 0};      // blockIdx
  int32_t cta_rank = -1;  // in its cluster; -1: no one CTA
  int32_t warp = -1;      // in its CTA
  int32_t lane = -1;      // -1: the whole warp
  uint32_t ptx_line = 0;  // 1-based; 0: no one instruction
  std::string ptx_text;   // that line
  std::string source;     // "file:line" of the CUDA source when the PTX has .loc
  std::string message;    // the sentence
  // Everything above in one text, deadlock lists over several lines.
  std::string text() const;
};

struct OpcodeCount {
  std::string opcode;  // with its modifiers, as written
  uint64_t warp_instructions = 0;
  uint64_t lane_instructions = 0;  // lanes that executed it
  uint64_t nanoseconds = 0;        // host time spent in it (sampled)
};

// What a check found that is set to warn, at one PTX line.
struct Warning {
  Check check = Check::kUnwritten;
  uint32_t ptx_line = 0;
  uint64_t count = 0;
  std::string text;  // of the first time
};

struct Report {
  Fault fault;
  std::vector<Warning> warnings;
  uint64_t seed = 0;
  uint64_t warp_instructions = 0;
  uint64_t lane_instructions = 0;
  uint64_t macs = 0;                 // multiply-adds of mma and wgmma
  uint64_t async_operations = 0;     // bulk copies, st.async, red.async
  double seconds = 0;                // host time
  std::vector<OpcodeCount> opcodes;  // with LaunchConfig::profile, most time first
  std::string output;                // what the kernel printed with printf
  bool ok() const { return fault.kind == FaultKind::kNone; }
};

// Executes one launch to its end. `params` is the parameter buffer (KernelInfo::param_bytes long;
// see KernelInfo::params for the offsets). Same module, config, params and memory content: the same
// result and the same fault. After a fault, device memory holds what was written until then.
Report launch(const Module& module, std::string_view kernel, const LaunchConfig& config,
              const std::vector<uint8_t>& params, Memory& memory);

}  // namespace mla::emu
