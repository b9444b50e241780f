// SPDX-License-Identifier: Apache-2.0
//
// State of a running launch: barriers, warps, CTAs, clusters.
#pragma once

#include <deque>
#include <map>
#include <unordered_map>

#include "tests/emulator/engine/clocks.h"
#include "tests/emulator/engine/program.h"

namespace mla::emu {

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
  // Groups before those that a wait_group.read has retired: their writes are not known to be complete.
  std::deque<std::vector<std::pair<uint16_t, uint32_t>>> unwritten;
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

}  // namespace mla::emu
