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

bool Machine::check_global(int lane, Region* region, uint64_t offset, uint32_t bytes, uint32_t access) {
  if ((access & kRead) && !(access & kAsync) && config->checks.unwritten &&
      !region->is_written(offset, bytes)) {
    fault(FaultKind::kUnwritten, lane,
          "read of %u bytes at global address 0x%llx (byte %llu of the allocation 0x%llx of %llu bytes) that "
          "nothing has "
          "written",
          bytes, static_cast<ull>(region->address + offset), static_cast<ull>(offset),
          static_cast<ull>(region->address), static_cast<ull>(region->bytes));
    return false;
  }
  if (global_race && !region->always_written) {
    if (!region->cells) {
      region->cells_bytes = (region->bytes / 16 + 1) * sizeof(GlobalCell);
      region->cells = static_cast<GlobalCell*>(map_lazy(region->cells_bytes));
      if (!region->cells) region->cells_bytes = 0;
    }
    if (region->cells) {
      const Clocks& clocks = warp->clocks;
      const uint32_t per_cluster = cluster_size * warps_per_cta;
      const uint64_t own_first = cta->cluster->index * per_cluster;
      bool proxy = (access & kAsync) && config->checks.proxy_fences;
      // What this warp knows of a warp of the launch.
      auto known = [&](uint32_t agent, bool proxy_half) -> uint32_t {
        if (agent - own_first < per_cluster) {
          uint32_t in_cluster = static_cast<uint32_t>(agent - own_first);
          return clocks.v[(proxy_half ? agents : 0) + in_cluster / warps_per_cta * agents_per_cta +
                          in_cluster % warps_per_cta];
        }
        const Foreign& foreign = proxy_half ? clocks.proxy_foreign : clocks.foreign;
        return foreign ? (*foreign)[agent] : 0;
      };
      auto who = [&](uint32_t agent) {
        uint64_t block = agent / warps_per_cta;
        return text_of("warp %u of CTA number %llu of the grid", agent % warps_per_cta,
                       static_cast<ull>(block));
      };
      uint64_t end = offset + bytes;
      const uint32_t me = warp->global_agent;
      const uint32_t mine = clocks.v[warp->agent];
      for (uint64_t at = offset & ~uint64_t{15}; at < end; at += 16) {
        uint32_t low = at < offset ? static_cast<uint32_t>(offset - at) : 0;
        uint32_t high = end - at < 16 ? static_cast<uint32_t>(end - at) : 16;
        uint16_t mask = static_cast<uint16_t>(((1u << (high - low)) - 1) << low);
        GlobalCell& c = region->cells[at >> 4];
        if (c.launch != launch_serial) {
          if (!(access & kWrite) && (access & (kStrong | kAsync))) continue;
          c = GlobalCell{};
          c.launch = launch_serial;
        }
        if ((c.w_mask & mask) && c.w_agent != me && !((access & kStrong) && (c.w_kind & kStrong)) &&
            c.w_clock > known(c.w_agent, false)) {
          fault(FaultKind::kRace, lane,
                "%s of global address 0x%llx races with the write by %s: no barrier or release/acquire "
                "orders them",
                access & kWrite ? "write" : "read", static_cast<ull>(region->address + std::max(at, offset)),
                who(c.w_agent).c_str());
          return false;
        }
        if (proxy && (access & kRead) && (c.w_mask & mask) && !(c.w_kind & kAsync) &&
            c.w_clock > known(c.w_agent, true)) {
          fault(FaultKind::kProxy, lane,
                "asynchronous copy reads global address 0x%llx, which %s wrote with an ordinary store; there "
                "is no "
                "fence.proxy.async between them",
                static_cast<ull>(region->address + std::max(at, offset)), who(c.w_agent).c_str());
          return false;
        }
        if (access & kWrite) {
          if ((c.r_mask & mask) && c.r_agent != me && c.r_clock > known(c.r_agent, false)) {
            fault(FaultKind::kRace, lane,
                  "write of global address 0x%llx races with the read by %s: no barrier or release/acquire "
                  "orders them",
                  static_cast<ull>(region->address + std::max(at, offset)), who(c.r_agent).c_str());
            return false;
          }
          c.w_mask = c.w_agent == me && c.w_clock == mine && c.w_kind == (access & (kStrong | kAsync))
                         ? c.w_mask | mask
                         : mask;
          c.w_agent = me;
          c.w_clock = mine;
          c.w_kind = static_cast<uint8_t>(access & (kStrong | kAsync));
        } else if (!(access & (kStrong | kAsync))) {
          c.r_mask = c.r_agent == me && c.r_clock == mine ? c.r_mask | mask : mask;
          c.r_agent = me;
          c.r_clock = mine;
        }
      }
    }
  }
  if ((access & kWrite) && !(access & kAsync)) region->mark(offset, bytes, true);
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
