// SPDX-License-Identifier: Apache-2.0
//
// Vector clocks: what a warp knows of the others, by barriers, fences, release and acquire.
#include <algorithm>

#include "tests/emulator/engine/instructions/memory_ops.h"

namespace mla::emu {

namespace {

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

void Machine::proxy_fence(Warp* w, bool shared, bool global) {
  uint32_t* v = w->clocks.v.data();
  for (uint32_t i = 0; shared && i < agents; ++i) v[agents + i] = std::max(v[agents + i], v[i]);
  for (uint32_t i = 0; global && i < agents; ++i) v[2 * agents + i] = std::max(v[2 * agents + i], v[i]);
  if (global) w->clocks.proxy_foreign = w->clocks.foreign;
  ++v[w->agent];
}

void Machine::fence(Warp* w) {
  if (!w->fence_acquire.empty()) {
    join(w->clocks, w->fence_acquire);
  }
  w->fence_release = w->clocks;
  ++w->clocks.v[w->agent];
}

// What a warp of another cluster may take from these clocks: those of all warps of the launch, then of the
// copies of all its CTAs.
Foreign Machine::foreign_of(const Clocks& clocks, const Cluster& cluster, bool proxy) const {
  auto result = std::make_shared<std::vector<uint32_t>>(foreign_agents);
  const Foreign& old = proxy ? clocks.proxy_foreign : clocks.foreign;
  if (old) *result = *old;
  const uint32_t* v = clocks.v.data() + (proxy ? 2 * agents : 0);
  for (uint32_t rank = 0; rank < cluster_size; ++rank, v += agents_per_cta) {
    const uint64_t cta_number = cluster.index * cluster_size + rank;
    auto take = [&](uint64_t first, const uint32_t* from, uint32_t count) {
      for (uint32_t i = 0; i < count; ++i) (*result)[first + i] = std::max((*result)[first + i], from[i]);
    };
    take(cta_number * warps_per_cta, v, warps_per_cta);
    take(total_warps + cta_number * slots, v + warps_per_cta, slots);
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
    into.v.assign(3 * agents, 0);
  }
  join_foreign(into.foreign, var.flat);
  join_foreign(into.proxy_foreign, var.flat_proxy);
  // What the other cluster knew of this one.
  uint32_t* v = into.v.data();
  for (uint32_t rank = 0; rank < cluster_size; ++rank, v += agents_per_cta) {
    const uint64_t cta_number = cta->cluster->index * cluster_size + rank;
    auto take = [&](uint32_t* to, uint64_t first, uint32_t count) {
      for (uint32_t i = 0; i < count; ++i) {
        to[i] = std::max(to[i], (*var.flat)[first + i]);
        to[2 * agents + i] = std::max(to[2 * agents + i], (*var.flat_proxy)[first + i]);
      }
    };
    take(v, cta_number * warps_per_cta, warps_per_cta);
    take(v + warps_per_cta, total_warps + cta_number * slots, slots);
  }
}

uint64_t sync_key(const Machine& m, Space space, uint64_t address) {
  if (space == Space::kGeneric) {
    if (address >> 36 << 36 != kSharedWindow) return address;
    address -= kSharedWindow;
  } else if (space != Space::kShared) {
    return address;
  }
  uint64_t rank = address >> kRankShift ? (address >> kRankShift) - 1 : m.cta->rank;
  return uint64_t{1} << 63 | (m.cta->cluster->index * m.cluster_size + rank) << kRankShift |
         (address & kOffsetMask);
}

}  // namespace mla::emu
