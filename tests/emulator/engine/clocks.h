// SPDX-License-Identifier: Apache-2.0
//
// Vector clocks, and what memory remembers of its last accesses.
//
// Agents. A warp is one agent; every asynchronous copy in flight is another one (a "slot" of the CTA
// that issued it). Each warp keeps a vector clock over the agents of its cluster, and two more that advance
// with fence.proxy.async: what of the first the async proxy may rely on in shared and in global memory. A
// copy has two times on its slot: `clock`, when it has read its source (and written shared memory), and the
// one after it, when it has written global memory. Clocks of warps in other clusters stand in an immutable
// vector that is replaced when a warp acquires something another cluster released.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/emulator/engine/memory_impl.h"

namespace mla::emu {

using Foreign = std::shared_ptr<const std::vector<uint32_t>>;

// Vector clocks over the agents of a cluster, one behind the other, and the foreign ones.
struct Clocks {
  std::vector<uint32_t> v;  // [3 * agents]: all, then what the proxy knows of shared and of global memory
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
  uint32_t ar_clock, ar_agent;  // the last read by a copy
  uint16_t w_mask, r_mask, ar_mask;
  uint8_t w_kind, r_kind;
};

enum Access : uint32_t {
  kRead = 1,
  kWrite = 2,
  kStrong = 4,  // atomic, volatile, relaxed and stronger: two such never race
  kAsync = 8,   // by the async proxy (bulk and tensor copies)
};

}  // namespace mla::emu
