// SPDX-License-Identifier: Apache-2.0
//
// Accesses to shared memory: addresses, bounds, written bytes, races.
#include <algorithm>

#include "tests/emulator/engine/machine.h"
#include "tests/emulator/engine/text.h"

namespace mla::emu {

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
  const bool races = config->checks.on(Check::kSharedRaces);
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
        if (!finding(Check::kSharedRaces, FaultKind::kRace, lane,
                     "%s of %s races with the write by %s: no barrier orders them",
                     access & kWrite ? "write" : "read", shared_name(owner, std::max(at, offset)).c_str(),
                     agent_name(*owner->cluster, c->w_agent).c_str()))
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
              if (!finding(Check::kSharedRaces, FaultKind::kRace, lane,
                           "write of %s races with the read by %s: no barrier orders them",
                           shared_name(owner, std::max(at, offset)).c_str(),
                           agent_name(*owner->cluster, owner->first_agent + i).c_str()))
                return false;
            }
          }
        }
        if ((c->ar_mask & mask) && c->ar_clock > clock[c->ar_agent]) {
          if (!finding(Check::kSharedRaces, FaultKind::kRace, lane,
                       "write of %s races with the read by %s, which is not known to be complete",
                       shared_name(owner, std::max(at, offset)).c_str(),
                       agent_name(*owner->cluster, c->ar_agent).c_str()))
            return false;
        }
        if ((c->rr_mask & mask) && c->rr_agent != agent && c->rr_clock > clock[c->rr_agent]) {
          if (!finding(Check::kSharedRaces, FaultKind::kRace, lane,
                       "write of %s races with the read by %s: no barrier orders them",
                       shared_name(owner, std::max(at, offset)).c_str(),
                       agent_name(*owner->cluster, c->rr_agent).c_str()))
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
    if ((access & kRead) && (mask & ~c->written) && config->checks.on(Check::kUnwritten)) {
      uint32_t bad = at + static_cast<uint32_t>(__builtin_ctz(mask & ~c->written));
      if (!finding(Check::kUnwritten, FaultKind::kUnwritten, lane,
                   "read of %u bytes at %s, but nothing has written the byte at 0x%x", bytes,
                   shared_name(owner, offset).c_str(), bad))
        return false;
    }
    if (access & kWrite) c->written |= mask;
  }
  return true;
}

// Checks an access of the async agent to shared memory and records it.
bool Machine::check_async_shared(AsyncOp* op, Cta* owner, uint32_t offset, uint32_t bytes, bool write,
                                 bool proxy, bool strong) {
  if (!shared_shadow) return true;
  const uint32_t* clock = warp->clocks.v.data();
  const uint32_t* local = clock + owner->first_agent;
  const uint32_t agent = op->issuer->first_agent + warps_per_cta + op->slot;
  const bool races = config->checks.on(Check::kSharedRaces);
  const bool proxies = proxy && config->checks.on(Check::kProxyFences);
  const int lane = static_cast<int>(op->lane);
  uint32_t end = offset + bytes;
  for (uint32_t at = offset & ~15u; at < end; at += 16) {
    uint32_t low = at < offset ? offset - at : 0, high = end - at < 16 ? end - at : 16;
    uint16_t mask = static_cast<uint16_t>(((1u << (high - low)) - 1) << low);
    Cell* c = cell(owner, at);
    uint32_t shown = std::max(at, offset);
    if (c->barrier & mask) {
      fault(FaultKind::kBarrier, lane, "asynchronous %s of the mbarrier at %s, which is in use",
            write ? "write" : "read", shared_name(owner, shown).c_str());
      return false;
    }
    if (!races) continue;
    if ((c->w_mask & mask) && c->w_agent != agent) {
      if (c->w_clock > clock[c->w_agent] && !(strong && (c->w_kind & kStrong))) {
        if (!finding(Check::kSharedRaces, FaultKind::kRace, lane,
                     "asynchronous %s of %s races with the write by %s: no barrier orders them",
                     write ? "write" : "read", shared_name(owner, shown).c_str(),
                     agent_name(*owner->cluster, c->w_agent).c_str()))
          return false;
      }
      if (proxies && !(c->w_kind & kAsync) && c->w_clock > clock[agents + c->w_agent]) {
        if (!finding(Check::kProxyFences, FaultKind::kProxy, lane,
                     "asynchronous copy %s %s, which %s wrote with an ordinary store; there is no "
                     "fence.proxy.async "
                     "between them",
                     write ? "overwrites" : "reads", shared_name(owner, shown).c_str(),
                     agent_name(*owner->cluster, c->w_agent).c_str()))
          return false;
      }
    }
    if (write) {
      uint32_t* reads = c->clocks();
      uint16_t* masks = read_masks(c);
      for (uint32_t i = 0; i < warps_per_cta; ++i) {
        if (reads[i] > local[i] && (masks[i] & mask) && owner->first_agent + i != warp->agent) {
          if (!finding(Check::kSharedRaces, FaultKind::kRace, lane,
                       "asynchronous write of %s races with the read by %s: no barrier orders them",
                       shared_name(owner, shown).c_str(),
                       agent_name(*owner->cluster, owner->first_agent + i).c_str()))
            return false;
        }
      }
      if ((c->ar_mask & mask) && c->ar_agent != agent && c->ar_clock > clock[c->ar_agent]) {
        if (!finding(Check::kSharedRaces, FaultKind::kRace, lane,
                     "asynchronous write of %s races with the read by %s, which is not known to be complete",
                     shared_name(owner, shown).c_str(), agent_name(*owner->cluster, c->ar_agent).c_str()))
          return false;
      }
      if ((c->rr_mask & mask) && c->rr_agent != warp->agent && c->rr_clock > clock[c->rr_agent]) {
        if (!finding(Check::kSharedRaces, FaultKind::kRace, lane,
                     "asynchronous write of %s races with the read by %s: no barrier orders them",
                     shared_name(owner, shown).c_str(), agent_name(*owner->cluster, c->rr_agent).c_str()))
          return false;
      }
      c->w_mask = c->w_agent == agent && c->w_clock == op->clock ? c->w_mask | mask : mask;
      c->w_agent = static_cast<uint16_t>(agent);
      c->w_clock = op->clock;
      c->w_kind = static_cast<uint8_t>(kAsync | (strong ? kStrong : 0u));
    } else {
      c->ar_mask = c->ar_agent == agent && c->ar_clock == op->clock ? c->ar_mask | mask : mask;
      c->ar_agent = static_cast<uint16_t>(agent);
      c->ar_clock = op->clock;
    }
  }
  return true;
}

}  // namespace mla::emu
