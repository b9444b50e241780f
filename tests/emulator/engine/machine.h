// SPDX-License-Identifier: Apache-2.0
//
// State of a running launch: clusters, CTAs, warps, barriers, copies in flight, and the clocks that
// tell ordered accesses from races.
//
// Agents. A warp is one agent; every asynchronous copy in flight is another one (a "slot" of the CTA
// that issued it). Each warp keeps a vector clock over the agents of its cluster, and a second one
// (`proxy` half) that advances with fence.proxy.async: what of the first the async proxy may rely on.
// Clocks of warps in other clusters stand in an immutable vector that is replaced when a warp
// acquires something another cluster released.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/emulator/engine/memory_impl.h"
#include "tests/emulator/engine/ptx.h"

namespace mla::emu {

struct Machine;
struct Instr;
struct Warp;
struct Cta;
struct Cluster;

enum class Next : uint8_t {
  kNext,     // pc + 1
  kJump,     // the handler set the pc
  kBlocked,  // execute the same instruction again once woken
  kYield,    // pc + 1, and let others run
  kEnd,      // the group has no lanes left, or waits at its reconvergence point
  kFault,
};

using Handler = Next (*)(Machine&, const Instr&, uint32_t mask);

// Where an operand stands: `offset` bytes into the warp's registers (constant == 0) or into the
// program's constants. 32 lanes of 4 or 8 bytes; a predicate is one 32-bit mask.
struct Opd {
  uint32_t offset = 0;
  uint8_t constant = 0;
  uint8_t negated = 0;  // predicates
  uint8_t present = 0;
};

inline constexpr uint32_t kNowhere = ~uint32_t{0};

struct Instr {
  Handler fn = nullptr;
  Opd o[5];
  const Opd* x = nullptr;  // vector operands
  Opd guard;               // present: executed by lanes whose predicate holds
  uint32_t target = 0;     // bra, call
  uint32_t reconverge = kNowhere;
  int64_t imm = 0;     // address offset
  uint32_t a[4] = {};  // what the handler wants
  const void* p = nullptr;
  uint32_t line = 0;
  uint32_t function = 0;
  uint32_t loc = 0;
  uint32_t opcode = 0;  // index into Program::opcodes
  uint32_t nx = 0;
};

struct Program {
  const ModuleImpl* module = nullptr;
  const Function* kernel = nullptr;
  std::vector<Instr> code;
  std::vector<std::unique_ptr<std::vector<Opd>>> pools;
  std::vector<std::unique_ptr<std::vector<uint32_t>>> tables;
  std::vector<std::shared_ptr<void>> call_tables;
  std::vector<const Function*> functions;
  std::vector<std::string> opcodes;
  std::vector<uint8_t> constants;
  struct GlobalPatch {
    uint32_t offset;  // of the 32 lanes in constants
    uint32_t global;
    int64_t addend;
    bool wide;
  };
  std::vector<GlobalPatch> patches;
  // Special registers with a place in the register file.
  std::map<std::string, uint32_t> specials;
  uint32_t register_bytes = 0;
  uint32_t local_bytes = 0;
  uint32_t frame_bytes = 0;  // .param space of calls, per lane
  uint32_t static_shared = 0;
  uint32_t dynamic_base = 0;  // address of the dynamic array
  std::vector<std::string> unsupported;
};

// Decodes a kernel and the functions that it calls. Problems go to Program::unsupported.
std::shared_ptr<Program> decode(const ModuleImpl& module, const Function& kernel);

// ---------------------------------------------------------------- address windows

// Generic addresses: 32 bits inside each window.
inline constexpr uint64_t kSharedWindow = uint64_t{0x1000} << 32;
inline constexpr uint64_t kLocalWindow = uint64_t{0x1100} << 32;
inline constexpr uint64_t kParamWindow = uint64_t{0x1200} << 32;
inline constexpr uint64_t kConstWindow = uint64_t{0x1300} << 32;
// shared::cluster addresses: (rank + 1) << 24 | offset; rank 0 bits: the own CTA.
inline constexpr uint32_t kRankShift = 24;
inline constexpr uint32_t kOffsetMask = (1u << kRankShift) - 1;
inline constexpr uint32_t kSharedBegin = 1024;  // hardware keeps the first KiB

// ---------------------------------------------------------------- clocks

using Foreign = std::shared_ptr<const std::vector<uint32_t>>;

// Two vector clocks over the agents of a cluster, one behind the other, and the foreign ones.
struct Clocks {
  std::vector<uint32_t> v;  // [2 * agents]
  Foreign foreign, proxy_foreign;
  bool empty() const { return v.empty(); }
};

// Last accesses of a granule of 16 bytes of shared memory; `warps` read clocks and masks follow.
struct Cell {
  uint32_t w_clock;
  uint16_t w_agent;
  uint16_t w_mask;
  uint32_t ar_clock;  // the last read by an asynchronous copy
  uint16_t ar_agent;
  uint16_t ar_mask;
  uint32_t rr_clock;  // the last read by a warp of another CTA
  uint16_t rr_agent;
  uint16_t rr_mask;
  uint16_t written;  // bytes with a value
  uint16_t barrier;  // bytes that hold a live mbarrier
  uint8_t w_kind;    // AccessKind bits of the last write
  uint8_t unused[3];
  uint32_t* clocks() { return reinterpret_cast<uint32_t*>(this + 1); }
};
static_assert(sizeof(Cell) == 32);

struct GlobalCell {
  uint32_t launch;
  uint32_t w_clock, w_agent;
  uint32_t r_clock, r_agent;
  uint16_t w_mask, r_mask;
  uint8_t w_kind;
  uint8_t unused[3];
};

enum Access : uint32_t {
  kRead = 1,
  kWrite = 2,
  kStrong = 4,  // atomic, volatile, relaxed and stronger: two such never race
  kAsync = 8,   // by the async proxy (bulk and tensor copies)
};

// ---------------------------------------------------------------- barriers

struct WaiterRef {
  Warp* warp;
  uint32_t group;  // its id
};

struct Mbarrier {
  uint32_t count = 0;    // arrivals of a phase
  uint32_t pending = 0;  // still to come
  uint64_t phase = 0;    // phases completed
  int64_t tx = 0;
  Clocks arriving, completed;
  std::vector<WaiterRef> waiters;
  // Who initialised it, and whether that was fenced for the cluster since.
  uint16_t init_agent = 0;
  uint32_t init_clock = 0;
  uint32_t init_cluster_arrivals = 0;
  bool init_fenced = false;
  uint32_t init_line = 0;
};

struct NamedBarrier {
  uint32_t expected = 0;  // threads; 0: no one arrived yet
  bool whole = false;     // expected = the CTA's threads that have not exited
  uint32_t arrived = 0;
  uint32_t line = 0;  // of the first arrival
  uint32_t red_and = ~0u, red_or = 0, red_count = 0;
  uint32_t done_and = 0, done_or = 0, done_count = 0;  // of the phase that completed last
  Clocks arriving;
  std::vector<WaiterRef> waiters;
};

// ---------------------------------------------------------------- warps

enum class WaitKind : uint8_t {
  kNone,
  kNamedBarrier,
  kMbarrier,
  kCluster,
  kBulkGroup,
  kRegisters,
  kConverge,
  kAsyncGroup,
  kWarpgroup,
  kSleep
};

struct Wait {
  WaitKind kind = WaitKind::kNone;
  Cta* cta = nullptr;   // of the mbarrier
  uint32_t offset = 0;  // mbarrier address, named barrier id, registers wanted, groups allowed
  uint32_t parity = 0;
  uint64_t phase = 0;
  uint32_t lane = 0;
  bool read_only = false;
};

struct Group {
  uint32_t id = 0;
  uint32_t pc = 0;
  uint32_t mask = 0;
  int32_t rec = -1;          // reconvergence record
  uint32_t stop = kNowhere;  // its pc
  bool blocked = false;
  uint8_t step = 0;  // progress inside a blocking instruction
  Wait wait;
  std::vector<uint32_t> calls;
};

struct Reconvergence {
  bool used = false;
  uint32_t pc = 0;
  uint32_t expected = 0, arrived = 0;
  int32_t parent = -1;
  uint32_t parent_stop = kNowhere;
  std::vector<uint32_t> calls;
};

struct BulkGroup {
  uint32_t reading = 0, running = 0;  // operations not yet done
  std::vector<std::pair<uint16_t, uint32_t>> epochs;
};

// Per thread: bulk async-groups or cp.async groups.
struct ThreadGroups {
  BulkGroup open;
  std::deque<std::shared_ptr<BulkGroup>> committed;
  std::shared_ptr<BulkGroup> current;
};

struct Warp {
  Cta* cta = nullptr;
  uint32_t index = 0;         // in the CTA
  uint32_t agent = 0;         // in the cluster
  uint32_t global_agent = 0;  // in the launch
  uint32_t live = 0;          // lanes not exited
  uint32_t initial = 0;       // lanes that exist
  std::vector<uint8_t> registers;
  std::vector<uint8_t> local;  // [lane][local_bytes]
  std::vector<uint8_t> frame;  // [lane][frame_bytes]
  std::vector<Group> groups;
  uint32_t next_group = 0;
  std::vector<Reconvergence> records;
  Clocks clocks;
  Clocks fence_release;                             // what the last fence released
  Clocks fence_acquire;                             // what relaxed reads saw
  std::map<uint32_t, ThreadGroups> bulk, cp_async;  // by lane
  // wgmma: a slot (agent) and its clock for every group that is not yet known to be complete; the open
  // group comes last.
  struct WgmmaGroup {
    uint32_t slot = ~0u;  // ~0: none was free
    uint32_t clock = 0;
  };
  std::deque<WgmmaGroup> wgmma_groups;  // not retired by this warp
  std::deque<WgmmaGroup> wgmma_log;     // the last committed ones; the latest has number wgmma_committed - 1
  uint64_t wgmma_committed = 0;
  bool wgmma_open = false;
  bool wgmma_fenced = false;
  uint32_t register_count = 0;
  uint32_t cluster_arrivals = 0;  // barrier.cluster.arrive executed
  uint32_t cluster_waits = 0;
  int32_t runnable_at = -1;  // place in the scheduler's list
  Region* last_region = nullptr;
  uint64_t region_generation = ~uint64_t{0};
  uint64_t spins = 0;
};

struct Cta {
  Cluster* cluster = nullptr;
  uint32_t rank = 0;
  Dim3 id{0, 0, 0};
  uint32_t linear = 0;  // in the grid
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<uint8_t> shared;  // from address 0
  uint32_t shared_end = 0;
  std::vector<uint8_t> cells;
  NamedBarrier named[16];
  std::unordered_map<uint32_t, std::unique_ptr<Mbarrier>> mbarriers;
  uint32_t live_warps = 0;
  uint32_t live_threads = 0;
  int64_t free_registers = 0;  // of the pool, in registers per thread times warps
  std::vector<WaiterRef> register_waiters, warpgroup_waiters;
  uint32_t first_agent = 0;
  std::vector<uint32_t> slot_clock;
  std::vector<uint8_t> slot_busy;
  std::vector<uint32_t> slot_line;
  uint32_t in_flight = 0;  // operations that still touch its shared memory
  bool exited = false;
};

struct Cluster {
  uint64_t index = 0;
  Dim3 id{0, 0, 0};
  std::vector<std::unique_ptr<Cta>> ctas;
  uint32_t live_ctas = 0;
  uint32_t live_warps = 0;
  // barrier.cluster
  uint32_t arrived = 0;
  uint64_t phase = 0;
  Clocks arriving, completed;
  std::vector<WaiterRef> waiters;
  uint32_t async_operations = 0;
};

// ---------------------------------------------------------------- copies in flight

inline constexpr uint32_t kMaxPieceBytes = 2048;

struct Piece {
  // Destination: shared memory of a CTA, or global memory.
  Cta* to_cta = nullptr;
  uint64_t to = 0;
  // Source: shared memory, global memory, `data`, or a fill pattern.
  enum Source : uint8_t { kGlobalSource, kSharedSource, kData, kFill } source = kData;
  enum Reduce : uint8_t { kCopy, kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor } reduce = kCopy;
  uint8_t reduce_type = 0;  // T
  uint8_t fill_unit = 1;
  uint8_t swizzle = 0;  // of the shared side, as in CUtensorMapSwizzle
  uint8_t arrive = 0;   // arrivals on the barrier besides the bytes
  Cta* from_cta = nullptr;
  uint64_t from = 0;
  uint32_t bytes = 0;  // at most kMaxPieceBytes, the filled ones included
  uint32_t fill = 0;
  uint32_t fill_before = 0, fill_after = 0;  // bytes outside the tensor; not written by a store
  Cta* barrier_cta = nullptr;                // gets complete_tx of `tx` bytes
  uint32_t barrier_offset = 0;
  uint32_t tx = 0;
  uint8_t data[16] = {};
};

struct AsyncOp {
  Cta* issuer = nullptr;
  Warp* warp = nullptr;
  uint32_t lane = 0;
  uint32_t slot = 0;
  uint32_t clock = 0;
  uint32_t line = 0;
  const Instr* instr = nullptr;
  uint64_t not_before = 0;
  bool proxy = false;      // of the async proxy: bulk and tensor copies
  bool two_steps = false;  // reads everything first (bulk copies out of shared memory)
  bool read_done = false;
  std::vector<Piece> pieces;  // taken from the back
  Clocks clocks;  // of the issuing warp: ordered before the operation, and so before its completion
  std::vector<uint8_t> staging, staging_written;
  std::shared_ptr<BulkGroup> group;
  std::vector<Cta*> touched;  // CTAs whose shared memory it uses
};

// ---------------------------------------------------------------- the machine

struct Rng {
  uint64_t s;
  explicit Rng(uint64_t seed) : s(seed * 0x9e3779b97f4a7c15u + 0x1234567) {
    for (int i = 0; i < 4; ++i) next();
  }
  uint32_t next() {
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return static_cast<uint32_t>((s * 0x2545f4914f6cdd1du) >> 32);
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>((uint64_t{next()} * n) >> 32); }
};

// What a released location carries to who acquires it.
struct SyncVar {
  uint64_t cluster_index = 0;
  Clocks clocks;
  Foreign flat, flat_proxy;  // the same for warps of other clusters
};

struct Machine {
  const Program* program = nullptr;
  const LaunchConfig* config = nullptr;
  Memory::Impl* memory = nullptr;
  const std::vector<uint8_t>* params = nullptr;
  Report* report = nullptr;
  std::vector<uint8_t> constants;  // patched copy of the program's
  std::vector<uint8_t> const_space;
  Rng rng{1};

  // The group that runs.
  Warp* warp = nullptr;
  Cta* cta = nullptr;
  Group* group = nullptr;
  const Instr* instr = nullptr;
  uint8_t* bases[2] = {};

  Dim3 grid, block, cluster_shape;
  uint32_t cluster_size = 1;
  uint32_t warps_per_cta = 1;
  uint32_t slots = 0;
  uint32_t agents_per_cta = 0;
  uint32_t agents = 0;  // per cluster, padded
  uint32_t cell_bytes = 0;
  uint32_t launch_serial = 0;
  uint32_t total_warps = 0;
  uint64_t turns = 0;
  uint64_t progress = 0;  // counts stores, barrier and copy events
  bool shared_shadow = true;
  bool global_race = false;
  uint64_t clusters_total = 0, clusters_started = 0, clusters_done = 0;
  std::vector<std::unique_ptr<Cluster>> clusters;  // resident
  std::vector<Warp*> runnable;
  std::vector<std::unique_ptr<AsyncOp>> ops, draft_ops;
  std::unordered_map<uint64_t, SyncVar> sync_vars;
  uint64_t clock_value = 0;
  uint32_t smem_total = 0;
  uint64_t resident = 0;
  uint32_t sm_count = 0;
  uint32_t register_count = 0;
  bool explicit_cluster = false;
  bool profile = false;
  std::vector<OpcodeCount> counts;

  // ---- faults
  bool failed = false;
  Next fault(FaultKind kind, int lane, const char* format, ...) __attribute__((format(printf, 4, 5)));
  void fault_at(FaultKind kind, const Warp* warp, const Instr* instr, int lane, const std::string& text);

  // ---- memory (memory_access.cc). All return nullptr after a fault.
  uint8_t* resolve(int lane, Space space, bool cluster_space, uint64_t address, uint32_t bytes,
                   uint32_t access, uint32_t align = 0);
  uint8_t* global_pointer(int lane, uint64_t address, uint32_t bytes, uint32_t access, uint32_t align);
  // Decodes a shared address; nullptr after a fault.
  Cta* shared_target(int lane, bool cluster_space, uint64_t address, uint32_t bytes, uint32_t align,
                     uint32_t* offset);
  bool check_shared(int lane, Cta* cta, uint32_t offset, uint32_t bytes, uint32_t access);
  bool check_global(int lane, Region* region, uint64_t offset, uint32_t bytes, uint32_t access);
  Region* region_of(uint64_t address, uint64_t bytes);
  Cell* cell(Cta* cta, uint32_t offset) {
    return reinterpret_cast<Cell*>(cta->cells.data() + size_t{offset >> 4} * cell_bytes);
  }
  uint16_t* read_masks(Cell* cell) { return reinterpret_cast<uint16_t*>(cell->clocks() + warps_per_cta); }
  std::string agent_name(const Cluster& cluster, uint32_t agent) const;
  std::string shared_name(const Cta* cta, uint32_t offset) const;

  // ---- clocks (memory_access.cc)
  void join(Clocks& into, const Clocks& from);
  void release_to(Clocks& target, Warp* w);  // publishes w's clocks, starts a new epoch
  void acquire_from(Warp* w, const Clocks& from) { join(w->clocks, from); }
  void proxy_fence(Warp* w);
  void fence(Warp* w);
  void sync_release(uint64_t key, bool release, bool rmw);
  void sync_acquire(uint64_t key, bool acquire);
  Foreign foreign_of(const Clocks& clocks, const Cluster& cluster, bool proxy) const;

  // ---- barriers (barriers.cc)
  Mbarrier* find_barrier(int lane, Cta* cta, uint32_t offset);
  bool barrier_ready(int lane, Cta* cta, uint32_t offset, const Mbarrier& barrier);
  bool arrive(int lane, Cta* cta, uint32_t offset, Mbarrier* barrier, uint32_t count, int64_t expect_tx);
  bool complete_tx(Cta* cta, uint32_t offset, Mbarrier* barrier, uint32_t bytes, const AsyncOp* op);
  void try_complete(Mbarrier* barrier);
  void wake(std::vector<WaiterRef>& waiters);
  void wake_one(Warp* warp, uint32_t group);
  void check_named(Cta* cta, uint32_t id);
  void complete_named(Cta* cta, NamedBarrier& barrier);
  void cluster_exit(Cluster& cluster, Warp* warp);
  void wait_on(WaitKind kind, std::vector<WaiterRef>* list);

  // ---- copies (async.cc)
  AsyncOp* new_op(int lane);
  // Checks and marks the pieces (they are in the operation), shuffles and queues it.
  bool issue(AsyncOp* op);
  bool advance_op(size_t index);
  bool run_pieces(AsyncOp* op, uint32_t count);
  bool flush_slot(Cta* cta);
  void finish_op(size_t index);
  bool check_async_shared(AsyncOp* op, Cta* owner, uint32_t offset, uint32_t bytes, bool write, bool proxy,
                          bool strong);
  void wake_group_waiters(Warp* w);
  // The source or the destination of a piece: calls f(shared offset, offset in the piece, bytes) for the
  // parts of a piece that are contiguous in shared memory; stops when f gives false.
  template <class F>
  static bool for_chunks(const Piece& piece, bool source, F f) {
    uint32_t start = static_cast<uint32_t>(source ? piece.from : piece.to);
    if (piece.swizzle == 0) return f(start, 0u, piece.bytes);
    uint32_t keep = piece.swizzle == 1 ? 0x10 : piece.swizzle == 2 ? 0x30 : 0x70;
    for (uint32_t at = 0; at < piece.bytes; at += 16) {
      uint32_t address = start + at;
      if (!f(address ^ ((address >> 3) & keep), at, 16u)) return false;
    }
    return true;
  }

  // ---- scheduling (launch.cc)
  void make_runnable(Warp* warp);
  void remove_runnable(Warp* warp);
  void run();
  void retire(Cluster* k);
  void start_cluster();
  bool run_warp(Warp* warp, uint32_t quantum);
  void diverge(uint32_t taken, uint32_t target, uint32_t next, uint32_t reconverge);
  Next exit_lanes(uint32_t mask);
  void arrive_at_record(Warp* w, size_t group_index);
  void settle_records(Warp* w);
  void warp_ended(Warp* w);
  std::string describe_wait(const Warp* w, const Group& g) const;
  void report_stuck(bool spinning);
  bool merge_waiting_groups();
  void remove_group(Warp* w, size_t index);
  bool all_live(int lane_or_minus, uint32_t mask, const char* what);
};

inline bool Machine::all_live(int lane, uint32_t mask, const char* what) {
  if (mask == warp->live) return true;
  fault(FaultKind::kDivergence, lane,
        "%s must be executed by all threads of the warp together, but of the live lanes 0x%08x only "
        "0x%08x execute it",
        what, warp->live, mask);
  return false;
}

}  // namespace mla::emu
