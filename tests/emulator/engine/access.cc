// SPDX-License-Identifier: Apache-2.0
//
// Every access to memory by a kernel comes through here: address windows, bounds, alignment, written
// bytes, races; and the clocks behind the races.
#include <algorithm>
#include <cstdio>

#include "tests/emulator/engine/decoder.h"

namespace mla::emu {

namespace {

std::string text_of(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string text_of(const char* format, ...) {
  char buffer[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

using ull = unsigned long long;

void join_foreign(Foreign& into, const Foreign& from) {
  if (!from || into == from) return;
  if (!into) {
    into = from;
    return;
  }
  bool into_wins = true, from_wins = true;
  for (size_t i = 0; i < into->size(); ++i) {
    into_wins &= (*into)[i] >= (*from)[i];
    from_wins &= (*from)[i] >= (*into)[i];
  }
  if (into_wins) return;
  if (from_wins) {
    into = from;
    return;
  }
  auto joined = std::make_shared<std::vector<uint32_t>>(*into);
  for (size_t i = 0; i < joined->size(); ++i) (*joined)[i] = std::max((*joined)[i], (*from)[i]);
  into = std::move(joined);
}

}  // namespace

// ---------------------------------------------------------------- clocks

void Machine::join(Clocks& into, const Clocks& from) {
  if (from.empty()) return;
  if (into.empty()) {
    into = from;
    return;
  }
  uint32_t* a = into.v.data();
  const uint32_t* b = from.v.data();
  for (size_t i = 0, n = into.v.size(); i < n; ++i) a[i] = a[i] > b[i] ? a[i] : b[i];
  join_foreign(into.foreign, from.foreign);
  join_foreign(into.proxy_foreign, from.proxy_foreign);
}

void Machine::release_to(Clocks& target, Warp* w) {
  join(target, w->clocks);
  ++w->clocks.v[w->agent];
}

void Machine::proxy_fence(Warp* w) {
  uint32_t* v = w->clocks.v.data();
  for (uint32_t i = 0; i < agents; ++i) v[agents + i] = std::max(v[agents + i], v[i]);
  w->clocks.proxy_foreign = w->clocks.foreign;
  ++v[w->agent];
}

void Machine::fence(Warp* w) {
  if (!w->fence_acquire.empty()) {
    join(w->clocks, w->fence_acquire);
  }
  w->fence_release = w->clocks;
  ++w->clocks.v[w->agent];
}

// What a warp of another cluster may take from these clocks.
Foreign Machine::foreign_of(const Clocks& clocks, const Cluster& cluster, bool proxy) const {
  auto result = std::make_shared<std::vector<uint32_t>>(total_warps);
  const Foreign& old = proxy ? clocks.proxy_foreign : clocks.foreign;
  if (old) *result = *old;
  uint32_t base = proxy ? agents : 0;
  for (uint32_t rank = 0; rank < cluster_size; ++rank) {
    uint64_t first = (cluster.index * cluster_size + rank) * warps_per_cta;
    for (uint32_t w = 0; w < warps_per_cta; ++w) {
      (*result)[first + w] = std::max((*result)[first + w], clocks.v[base + rank * agents_per_cta + w]);
    }
  }
  return result;
}

void Machine::sync_release(uint64_t key, bool release, bool rmw) {
  Warp* w = warp;
  SyncVar* var = nullptr;
  if (release) {
    var = &sync_vars[key];
  } else if (!w->fence_release.empty()) {
    var = &sync_vars[key];
  } else {
    if (!rmw) {
      auto found = sync_vars.find(key);
      if (found != sync_vars.end()) sync_vars.erase(found);
    }
    return;
  }
  const Clocks& mine = release ? w->clocks : w->fence_release;
  bool same_cluster = var->clocks.empty() || var->cluster_index == cta->cluster->index;
  if (!rmw || var->clocks.empty()) {
    var->clocks = mine;
    var->cluster_index = cta->cluster->index;
  } else if (same_cluster) {
    join(var->clocks, mine);
  } else {
    // A read-modify-write of another cluster: what was there goes into the foreign part.
    Clocks joined = mine;
    join_foreign(joined.foreign, var->flat);
    join_foreign(joined.proxy_foreign, var->flat_proxy);
    var->clocks = std::move(joined);
    var->cluster_index = cta->cluster->index;
  }
  if (global_race) {
    var->flat = foreign_of(var->clocks, *cta->cluster, false);
    var->flat_proxy = foreign_of(var->clocks, *cta->cluster, true);
  }
  if (release) ++w->clocks.v[w->agent];
}

void Machine::sync_acquire(uint64_t key, bool acquire) {
  auto found = sync_vars.find(key);
  if (found == sync_vars.end()) return;
  SyncVar& var = found->second;
  Clocks& into = acquire ? warp->clocks : warp->fence_acquire;
  if (var.cluster_index == cta->cluster->index) {
    join(into, var.clocks);
    return;
  }
  if (!global_race) return;
  if (into.empty()) {
    into.v.assign(2 * agents, 0);
  }
  join_foreign(into.foreign, var.flat);
  join_foreign(into.proxy_foreign, var.flat_proxy);
  // What the other cluster knew of this one.
  for (uint32_t rank = 0; rank < cluster_size; ++rank) {
    uint64_t first = (cta->cluster->index * cluster_size + rank) * warps_per_cta;
    for (uint32_t w = 0; w < warps_per_cta; ++w) {
      uint32_t agent = rank * agents_per_cta + w;
      into.v[agent] = std::max(into.v[agent], (*var.flat)[first + w]);
      into.v[agents + agent] = std::max(into.v[agents + agent], (*var.flat_proxy)[first + w]);
    }
  }
}

// ---------------------------------------------------------------- names for messages

std::string Machine::agent_name(const Cluster& cluster, uint32_t agent) const {
  uint32_t rank = agent / agents_per_cta, index = agent % agents_per_cta;
  if (rank >= cluster.ctas.size()) return "an unknown agent";
  const Cta& owner = *cluster.ctas[rank];
  std::string where =
      rank == (cta ? cta->rank : ~0u) ? "" : text_of(" of the CTA with cluster rank %u", rank);
  if (index < warps_per_cta) return text_of("warp %u", index) + where;
  uint32_t line = owner.slot_line[index - warps_per_cta];
  return text_of("the asynchronous copy of PTX line %u", line) + where;
}

std::string Machine::shared_name(const Cta* owner, uint32_t offset) const {
  std::string text = text_of("shared address 0x%x", offset);
  const Symbol* best = nullptr;
  auto look = [&](const std::unique_ptr<Symbol>& symbol) {
    if (symbol->space != Space::kShared) return;
    uint64_t begin = symbol->dynamic ? program->dynamic_base : symbol->offset;
    uint64_t end = symbol->dynamic ? smem_total : begin + symbol->bytes;
    if (offset >= begin && offset < end) best = symbol.get();
  };
  for (const auto& symbol : program->module->symbols) look(symbol);
  for (const Function* function : program->functions) {
    for (const auto& symbol : function->symbols) look(symbol);
  }
  if (best) {
    uint64_t begin = best->dynamic ? program->dynamic_base : best->offset;
    text += text_of(" (%s + %llu)", best->name.c_str(), static_cast<ull>(offset - begin));
  }
  if (owner && owner != cta) text += text_of(" of the CTA with cluster rank %u", owner->rank);
  return text;
}

// ---------------------------------------------------------------- shared memory

Cta* Machine::shared_target(int lane, bool cluster_space, uint64_t address, uint32_t bytes, uint32_t align,
                            uint32_t* offset) {
  uint32_t rank = cta->rank;
  if (address >> kRankShift) {
    uint64_t coded = (address >> kRankShift) - 1;
    if (address >> 32 || coded >= cluster_size) {
      fault(FaultKind::kOutOfBounds, lane, "0x%llx is no shared-memory address of a cluster of %u CTAs",
            static_cast<ull>(address), cluster_size);
      return nullptr;
    }
    rank = static_cast<uint32_t>(coded);
    if (rank != cta->rank && !cluster_space) {
      fault(FaultKind::kOutOfBounds, lane,
            "address 0x%llx lies in the shared memory of the CTA with cluster rank %u, but the instruction "
            "accesses "
            "shared::cta",
            static_cast<ull>(address), rank);
      return nullptr;
    }
  }
  Cta* owner = cta->cluster->ctas[rank].get();
  uint32_t at = static_cast<uint32_t>(address & kOffsetMask);
  *offset = at;
  if (at < kSharedBegin || at + bytes > owner->shared_end) {
    fault(FaultKind::kOutOfBounds, lane,
          "access of %u bytes at shared address 0x%x is outside the shared memory of the CTA, 0x%x to 0x%x "
          "(%u bytes "
          "static, %u dynamic)",
          bytes, at, kSharedBegin, owner->shared_end, program->static_shared, config->dynamic_shared_bytes);
    return nullptr;
  }
  if (align > 1 && at % align) {
    fault(FaultKind::kMisaligned, lane, "shared address 0x%x is not a multiple of %u", at, align);
    return nullptr;
  }
  if (owner->exited) {
    fault(FaultKind::kClusterExit, lane,
          "access to shared memory of the CTA with cluster rank %u, which has exited: keep it alive with a "
          "cluster "
          "barrier",
          rank);
    return nullptr;
  }
  return owner;
}

bool Machine::check_shared(int lane, Cta* owner, uint32_t offset, uint32_t bytes, uint32_t access) {
  if (!shared_shadow) return true;
  const Warp* w = warp;
  const uint32_t* clock = w->clocks.v.data();
  const uint32_t agent = w->agent;
  const uint32_t mine = clock[agent];
  const bool races = config->checks.shared_races;
  const uint32_t* local = clock + owner->first_agent;
  uint32_t end = offset + bytes;
  for (uint32_t at = offset & ~15u; at < end; at += 16) {
    uint32_t low = at < offset ? offset - at : 0, high = end - at < 16 ? end - at : 16;
    uint16_t mask = static_cast<uint16_t>(((1u << (high - low)) - 1) << low);
    Cell* c = cell(owner, at);
    if (c->barrier & mask) {
      fault(FaultKind::kBarrier, lane, "ordinary %s of the mbarrier at %s, which is in use",
            access & kWrite ? "write" : "read",
            shared_name(owner, at + (c->barrier & mask & 255 ? 0u : 8u)).c_str());
      return false;
    }
    if (races) {
      // Against the last write.
      if ((c->w_mask & mask) && c->w_agent != agent && c->w_clock > clock[c->w_agent] &&
          !((access & kStrong) && (c->w_kind & kStrong))) {
        fault(FaultKind::kRace, lane, "%s of %s races with the write by %s: no barrier orders them",
              access & kWrite ? "write" : "read", shared_name(owner, std::max(at, offset)).c_str(),
              agent_name(*owner->cluster, c->w_agent).c_str());
        return false;
      }
      uint32_t* reads = c->clocks();
      uint16_t* masks = read_masks(c);
      if (access & kWrite) {
        uint32_t late = 0;
        for (uint32_t i = 0; i < warps_per_cta; ++i)
          late |= reads[i] > local[i] && (masks[i] & mask) ? 1u : 0u;
        if (late) {
          for (uint32_t i = 0; i < warps_per_cta; ++i) {
            if (reads[i] > local[i] && (masks[i] & mask) && owner->first_agent + i != agent) {
              fault(FaultKind::kRace, lane, "write of %s races with the read by %s: no barrier orders them",
                    shared_name(owner, std::max(at, offset)).c_str(),
                    agent_name(*owner->cluster, owner->first_agent + i).c_str());
              return false;
            }
          }
        }
        if ((c->ar_mask & mask) && c->ar_clock > clock[c->ar_agent]) {
          fault(FaultKind::kRace, lane,
                "write of %s races with the read by %s, which is not known to be complete",
                shared_name(owner, std::max(at, offset)).c_str(),
                agent_name(*owner->cluster, c->ar_agent).c_str());
          return false;
        }
        if ((c->rr_mask & mask) && c->rr_agent != agent && c->rr_clock > clock[c->rr_agent]) {
          fault(FaultKind::kRace, lane, "write of %s races with the read by %s: no barrier orders them",
                shared_name(owner, std::max(at, offset)).c_str(),
                agent_name(*owner->cluster, c->rr_agent).c_str());
          return false;
        }
        if (c->w_agent == agent && c->w_clock == mine && c->w_kind == (access & (kStrong | kAsync))) {
          c->w_mask |= mask;
        } else {
          c->w_agent = static_cast<uint16_t>(agent);
          c->w_clock = mine;
          c->w_mask = mask;
        }
        c->w_kind = static_cast<uint8_t>(access & (kStrong | kAsync));
      } else if (!(access & kStrong)) {
        if (owner == cta) {
          uint32_t i = w->index;
          if (reads[i] == mine) {
            masks[i] |= mask;
          } else {
            reads[i] = mine;
            masks[i] = mask;
          }
        } else {
          c->rr_mask = c->rr_agent == agent && c->rr_clock == mine ? c->rr_mask | mask : mask;
          c->rr_agent = static_cast<uint16_t>(agent);
          c->rr_clock = mine;
        }
      }
    }
    if ((access & kRead) && (mask & ~c->written) && config->checks.unwritten) {
      uint32_t bad = at + static_cast<uint32_t>(__builtin_ctz(mask & ~c->written));
      fault(FaultKind::kUnwritten, lane, "read of %u bytes at %s, but nothing has written the byte at 0x%x",
            bytes, shared_name(owner, offset).c_str(), bad);
      return false;
    }
    if (access & kWrite) c->written |= mask;
  }
  return true;
}

// ---------------------------------------------------------------- global memory

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

// ---------------------------------------------------------------- any space

uint8_t* Machine::resolve(int lane, Space space, bool cluster_space, uint64_t address, uint32_t bytes,
                          uint32_t access, uint32_t align) {
  if (align == 0) align = bytes;
  if (access & kWrite) ++progress;
  if (space == Space::kGeneric) {
    uint64_t window = address >> 36 << 36;
    if (window == kSharedWindow) {
      space = Space::kShared;
      address -= kSharedWindow;
      cluster_space = true;
    } else if (window == kLocalWindow) {
      space = Space::kLocal;
      address -= kLocalWindow;
    } else if (window == kParamWindow) {
      space = Space::kParam;
      address -= kParamWindow;
    } else if (window == kConstWindow) {
      space = Space::kConst;
      address -= kConstWindow;
    } else {
      space = Space::kGlobal;
    }
  }
  switch (space) {
    case Space::kGlobal:
      return global_pointer(lane, address, bytes, access, align);
    case Space::kShared: {
      uint32_t offset = 0;
      Cta* owner = shared_target(lane, cluster_space, address, bytes, align, &offset);
      if (!owner || !check_shared(lane, owner, offset, bytes, access)) return nullptr;
      return owner->shared.data() + offset;
    }
    case Space::kLocal:
      if (align > 1 && address % align) {
        fault(FaultKind::kMisaligned, lane, "local address 0x%llx is not a multiple of %u",
              static_cast<ull>(address), align);
        return nullptr;
      }
      if (address + bytes > program->local_bytes || address + bytes < address) {
        fault(FaultKind::kOutOfBounds, lane,
              "access of %u bytes at local address 0x%llx; the thread has %u bytes", bytes,
              static_cast<ull>(address), program->local_bytes);
        return nullptr;
      }
      return warp->local.data() + size_t{static_cast<uint32_t>(lane < 0 ? 0 : lane)} * program->local_bytes +
             address;
    case Space::kParam:
      if (access & kWrite) {
        fault(FaultKind::kInstruction, lane, "write to the kernel parameters");
        return nullptr;
      }
      if (align > 1 && address % align) {
        fault(FaultKind::kMisaligned, lane, "parameter address 0x%llx is not a multiple of %u",
              static_cast<ull>(address), align);
        return nullptr;
      }
      if (address + bytes > params->size() || address + bytes < address) {
        fault(FaultKind::kOutOfBounds, lane,
              "read of %u bytes at parameter offset %llu; the parameters have %zu bytes", bytes,
              static_cast<ull>(address), params->size());
        return nullptr;
      }
      return const_cast<uint8_t*>(params->data()) + address;
    case Space::kConst:
      if (access & kWrite) {
        fault(FaultKind::kInstruction, lane, "write to constant memory");
        return nullptr;
      }
      if (align > 1 && address % align) {
        fault(FaultKind::kMisaligned, lane, "constant address 0x%llx is not a multiple of %u",
              static_cast<ull>(address), align);
        return nullptr;
      }
      if (address + bytes > const_space.size() || address + bytes < address) {
        fault(FaultKind::kOutOfBounds, lane,
              "read of %u bytes at constant offset %llu; the module has %zu bytes", bytes,
              static_cast<ull>(address), const_space.size());
        return nullptr;
      }
      return const_space.data() + address;
    default:
      fault(FaultKind::kInstruction, lane, "access to an unknown state space");
      return nullptr;
  }
}

}  // namespace mla::emu
