// SPDX-License-Identifier: Apache-2.0
//
// The machine that executes a launch. Its state is in state.h and copies.h, its code in machine/ and, for
// what single instructions do, in instructions/.
#pragma once

#include <cstdarg>
#include <cstring>
#include <string>

#include "tests/emulator/engine/copies.h"

namespace mla::emu {

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
  uint64_t foreign_agents = 0;  // warps of the launch, then `slots` copies for each of its CTAs
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
  // The same for a check that the launch may have turned off, or into a warning. True when execution goes on.
  bool finding(Check check, FaultKind kind, int lane, const char* format, ...)
      __attribute__((format(printf, 5, 6)));
  bool finding_at(Check check, FaultKind kind, const Warp* warp, const Instr* instr, int lane,
                  const std::string& text);
  void fault_at(FaultKind kind, const Warp* warp, const Instr* instr, int lane, const std::string& text);

  // ---- memory (machine/*_access.cc, resolve.cc). All return nullptr after a fault.
  uint8_t* resolve(int lane, Space space, bool cluster_space, uint64_t address, uint32_t bytes,
                   uint32_t access, uint32_t align = 0);
  uint8_t* global_pointer(int lane, uint64_t address, uint32_t bytes, uint32_t access, uint32_t align);
  // Decodes a shared address; nullptr after a fault.
  Cta* shared_target(int lane, bool cluster_space, uint64_t address, uint32_t bytes, uint32_t align,
                     uint32_t* offset);
  bool check_shared(int lane, Cta* cta, uint32_t offset, uint32_t bytes, uint32_t access);
  // `op`: the copy that accesses, on behalf of the running warp.
  bool check_global(int lane, Region* region, uint64_t offset, uint32_t bytes, uint32_t access,
                    const AsyncOp* op = nullptr);
  bool check_global_races(int lane, Region* region, uint64_t offset, uint32_t bytes, uint32_t access,
                          const AsyncOp* op);
  Region* region_of(uint64_t address, uint64_t bytes);
  Cell* cell(Cta* cta, uint32_t offset) {
    return reinterpret_cast<Cell*>(cta->cells.data() + size_t{offset >> 4} * cell_bytes);
  }
  uint16_t* read_masks(Cell* cell) { return reinterpret_cast<uint16_t*>(cell->clocks() + warps_per_cta); }
  std::string agent_name(const Cluster& cluster, uint32_t agent) const;
  std::string shared_name(const Cta* cta, uint32_t offset) const;

  // ---- clocks (machine/clocks.cc)
  void join(Clocks& into, const Clocks& from);
  void release_to(Clocks& target, Warp* w);  // publishes w's clocks, starts a new epoch
  void acquire_from(Warp* w, const Clocks& from) { join(w->clocks, from); }
  void proxy_fence(Warp* w, bool shared, bool global);
  void fence(Warp* w);
  void sync_release(uint64_t key, bool release, bool rmw);
  void sync_acquire(uint64_t key, bool acquire);
  Foreign foreign_of(const Clocks& clocks, const Cluster& cluster, bool proxy) const;

  // ---- barriers (machine/mbarriers.cc, instructions/barrier.cc)
  Mbarrier* find_barrier(int lane, Cta* cta, uint32_t offset);
  bool arrive(int lane, Cta* cta, uint32_t offset, Mbarrier* barrier, uint32_t count, int64_t expect_tx);
  void try_complete(Mbarrier* barrier);
  void wake(std::vector<WaiterRef>& waiters);
  void wake_one(Warp* warp, uint32_t group);
  void check_named(Cta* cta, uint32_t id);
  void complete_named(Cta* cta, NamedBarrier& barrier);
  void cluster_exit(Cluster& cluster, Warp* warp);
  void wait_on(WaitKind kind, std::vector<WaiterRef>* list);

  // ---- copies (machine/copies.cc, copy_pieces.cc)
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

  // ---- scheduling (machine/scheduler.cc, cluster.cc, divergence.cc)
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
  return finding(Check::kConvergence, FaultKind::kDivergence, lane,
                 "%s must be executed by all threads of the warp together, but of the live lanes 0x%08x only "
                 "0x%08x execute it",
                 what, warp->live, mask);
}

}  // namespace mla::emu
