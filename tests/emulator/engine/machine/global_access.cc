// SPDX-License-Identifier: Apache-2.0
//
// Accesses to global memory: bounds, written bytes, races.
#include <algorithm>

#include "tests/emulator/engine/machine.h"
#include "tests/emulator/engine/text.h"

namespace mla::emu {

Region* Machine::region_of(uint64_t address, uint64_t bytes) {
  Region* region = warp ? warp->last_region : nullptr;
  if (region && warp->region_generation == memory->generation && address - region->address < region->bytes &&
      bytes <= region->bytes - (address - region->address)) {
    return region;
  }
  region = memory->find_range(address, bytes);
  if (region && warp) {
    warp->last_region = region;
    warp->region_generation = memory->generation;
  }
  return region;
}

namespace {

// What the running warp knows of an agent of the launch: a warp, or a copy (see foreign_of).
struct Known {
  const Machine& m;
  const Clocks& clocks;
  uint64_t first_warp, first_copy;  // of the own cluster

  explicit Known(const Machine& machine)
      : m(machine),
        clocks(machine.warp->clocks),
        first_warp(machine.cta->cluster->index * machine.cluster_size * machine.warps_per_cta),
        first_copy(machine.total_warps + machine.cta->cluster->index * machine.cluster_size * machine.slots) {
  }

  // With `proxy`: what the async proxy may rely on in global memory.
  uint32_t operator()(uint32_t agent, bool proxy = false) const {
    const uint32_t* v = clocks.v.data() + (proxy ? 2 * m.agents : 0);
    if (agent < m.total_warps) {
      const uint64_t i = agent - first_warp;
      if (i < uint64_t{m.cluster_size} * m.warps_per_cta)
        return v[i / m.warps_per_cta * m.agents_per_cta + i % m.warps_per_cta];
    } else {
      const uint64_t i = agent - first_copy;
      if (i < uint64_t{m.cluster_size} * m.slots)
        return v[i / m.slots * m.agents_per_cta + m.warps_per_cta + i % m.slots];
    }
    const Foreign& foreign = proxy ? clocks.proxy_foreign : clocks.foreign;
    return foreign ? (*foreign)[agent] : 0;
  }
};

}  // namespace

bool Machine::check_global(int lane, Region* region, uint64_t offset, uint32_t bytes, uint32_t access,
                           const AsyncOp* op) {
  if ((access & kRead) && !(access & kAsync) && !region->is_written(offset, bytes) &&
      !finding(
          Check::kUnwritten, FaultKind::kUnwritten, lane,
          "read of %u bytes at global address 0x%llx (byte %llu of the allocation 0x%llx of %llu bytes) that "
          "nothing has written",
          bytes, static_cast<ull>(region->address + offset), static_cast<ull>(offset),
          static_cast<ull>(region->address), static_cast<ull>(region->bytes))) {
    return false;
  }
  if (global_race && !region->always_written) {
    if (!region->cells) {
      region->cells_bytes = (region->bytes / 16 + 1) * sizeof(GlobalCell);
      region->cells = static_cast<GlobalCell*>(map_lazy(region->cells_bytes));
      if (!region->cells) region->cells_bytes = 0;
    }
    if (region->cells && !check_global_races(lane, region, offset, bytes, access, op)) return false;
  }
  if ((access & kWrite) && !(access & kAsync)) region->mark(offset, bytes, true);
  return true;
}

bool Machine::check_global_races(int lane, Region* region, uint64_t offset, uint32_t bytes, uint32_t access,
                                 const AsyncOp* op) {
  const Known known(*this);
  const bool strong = access & kStrong, proxy = (access & kAsync) && config->checks.on(Check::kProxyFences);
  const uint32_t kind = access & (kStrong | kAsync);
  // A copy is an agent of its own: its reads are done at its first time, its writes at the second.
  const uint32_t me =
      op ? static_cast<uint32_t>(total_warps + (cta->cluster->index * cluster_size + cta->rank) * slots +
                                 op->slot)
         : warp->global_agent;
  const uint32_t mine = op ? op->clock + (access & kWrite ? 1 : 0) : warp->clocks.v[warp->agent];
  auto who = [&](uint32_t agent) {
    if (agent < total_warps) {
      return text_of("warp %u of CTA number %llu of the grid", agent % warps_per_cta,
                     static_cast<ull>(agent / warps_per_cta));
    }
    return text_of("an asynchronous copy of CTA number %llu of the grid, which is not known to be complete",
                   static_cast<ull>((agent - total_warps) / slots));
  };
  auto race = [&](uint64_t at, const char* with, uint32_t agent) {
    const bool copy = op || agent >= total_warps;
    const char* const how = access & kWrite ? "write" : "read";
    return finding(
        copy ? Check::kCopyRaces : Check::kGlobalRaces, FaultKind::kRace, lane,
        "%s%s of global address 0x%llx races with the %s by %s: no barrier or release/acquire orders them",
        op ? "asynchronous " : "", how, static_cast<ull>(region->address + std::max(at, offset)), with,
        who(agent).c_str());
  };
  const uint64_t end = offset + bytes;
  for (uint64_t at = offset & ~uint64_t{15}; at < end; at += 16) {
    const uint32_t low = at < offset ? static_cast<uint32_t>(offset - at) : 0;
    const uint32_t high = end - at < 16 ? static_cast<uint32_t>(end - at) : 16;
    const uint16_t mask = static_cast<uint16_t>(((1u << (high - low)) - 1) << low);
    GlobalCell& c = region->cells[at >> 4];
    if (c.launch != launch_serial) {
      c = GlobalCell{};
      c.launch = launch_serial;
    }
    if (c.w_mask & mask) {
      if (c.w_agent != me && !(strong && (c.w_kind & kStrong)) && c.w_clock > known(c.w_agent) &&
          !race(at, "write", c.w_agent)) {
        return false;
      }
      if (proxy && !(c.w_kind & kAsync) && c.w_clock > known(c.w_agent, true) &&
          !finding(Check::kProxyFences, FaultKind::kProxy, lane,
                   "asynchronous copy %s global address 0x%llx, which %s wrote with an ordinary store; there "
                   "is no "
                   "fence.proxy.async between them",
                   access & kWrite ? "overwrites" : "reads",
                   static_cast<ull>(region->address + std::max(at, offset)), who(c.w_agent).c_str())) {
        return false;
      }
    }
    if (access & kWrite) {
      if ((c.r_mask & mask) && c.r_agent != me && !(strong && (c.r_kind & kStrong)) &&
          c.r_clock > known(c.r_agent) && !race(at, "read", c.r_agent)) {
        return false;
      }
      if ((c.ar_mask & mask) && c.ar_agent != me && c.ar_clock > known(c.ar_agent) &&
          !race(at, "read", c.ar_agent)) {
        return false;
      }
      c.w_mask = c.w_agent == me && c.w_clock == mine && c.w_kind == kind ? c.w_mask | mask : mask;
      c.w_agent = me;
      c.w_clock = mine;
      c.w_kind = static_cast<uint8_t>(kind);
    } else if (op) {
      c.ar_mask = c.ar_agent == me && c.ar_clock == mine ? c.ar_mask | mask : mask;
      c.ar_agent = me;
      c.ar_clock = mine;
    } else {
      // One reader is remembered. A strong read, which races with ordinary writes alone, does not push out
      // an ordinary one that may still race with more.
      if (strong && c.r_mask && !(c.r_kind & kStrong) && c.r_agent != me && c.r_clock > known(c.r_agent))
        continue;
      c.r_mask = c.r_agent == me && c.r_clock == mine && c.r_kind == kind ? c.r_mask | mask : mask;
      c.r_agent = me;
      c.r_clock = mine;
      c.r_kind = static_cast<uint8_t>(kind);
    }
  }
  return true;
}

uint8_t* Machine::global_pointer(int lane, uint64_t address, uint32_t bytes, uint32_t access,
                                 uint32_t align) {
  if (align > 1 && address % align) {
    fault(FaultKind::kMisaligned, lane, "global address 0x%llx is not a multiple of %u",
          static_cast<ull>(address), align);
    return nullptr;
  }
  Region* region = region_of(address, bytes);
  if (!region) {
    fault(FaultKind::kOutOfBounds, lane, "%s of %u bytes at 0x%llx is in no allocation: %s",
          access & kWrite ? "write" : "read", bytes, static_cast<ull>(address),
          memory->describe(address).c_str());
    return nullptr;
  }
  uint64_t offset = address - region->address;
  if (!check_global(lane, region, offset, bytes, access)) return nullptr;
  return region->host + offset;
}

}  // namespace mla::emu
