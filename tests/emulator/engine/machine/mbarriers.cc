// SPDX-License-Identifier: Apache-2.0
//
// Phases of mbarriers; waiting and waking.
#include <algorithm>

#include "tests/emulator/engine/decoder.h"

namespace mla::emu {

namespace {

constexpr int64_t kMaxTx = (1 << 20) - 1;

}  // namespace

void Machine::wait_on(WaitKind kind, std::vector<WaiterRef>* list) {
  group->blocked = true;
  group->wait.kind = kind;
  if (list) list->push_back({warp, group->id});
}

void Machine::wake_one(Warp* w, uint32_t id) {
  for (Group& g : w->groups) {
    if (g.id == id) {
      g.blocked = false;
      g.wait.kind = WaitKind::kNone;
      make_runnable(w);
      return;
    }
  }
}

void Machine::wake(std::vector<WaiterRef>& waiters) {
  std::vector<WaiterRef> list;
  list.swap(waiters);
  for (const WaiterRef& w : list) wake_one(w.warp, w.group);
}

Mbarrier* Machine::find_barrier(int lane, Cta* owner, uint32_t offset) {
  auto found = owner->mbarriers.find(offset);
  if (found == owner->mbarriers.end()) {
    fault(FaultKind::kBarrier, lane, "there is no mbarrier at %s: it was not initialised",
          shared_name(owner, offset).c_str());
    return nullptr;
  }
  Mbarrier* b = found->second.get();
  if (config->checks.on(Check::kMbarrierInit) && b->init_agent != warp->agent &&
      b->init_clock > warp->clocks.v[b->init_agent] &&
      !(b->init_fenced && warp->cluster_waits > b->init_cluster_arrivals)) {
    if (!finding(Check::kMbarrierInit, FaultKind::kBarrier, lane,
                 "use of the mbarrier at %s is not ordered after its initialisation by %s (PTX line %u): a "
                 "barrier "
                 "between them "
                 "is missing%s",
                 shared_name(owner, offset).c_str(), agent_name(*owner->cluster, b->init_agent).c_str(),
                 b->init_line, owner == cta ? "" : ", or fence.mbarrier_init before it"))
      return nullptr;
  }
  return b;
}

void Machine::try_complete(Mbarrier* b) {
  if (b->pending != 0 || b->tx != 0) return;
  ++b->phase;
  b->pending = b->count;
  join(b->completed, b->arriving);
  b->arriving.v.assign(3 * agents, 0);
  b->arriving.foreign.reset();
  b->arriving.proxy_foreign.reset();
  ++progress;
  wake(b->waiters);
}

bool Machine::arrive(int lane, Cta* owner, uint32_t offset, Mbarrier* b, uint32_t count, int64_t expect_tx) {
  if (count == 0 || count > b->pending) {
    if (!finding(
            Check::kMbarrierCounts, FaultKind::kBarrier, lane,
            "arrival of %u at the mbarrier at %s, but its phase %llu (of %u arrivals) waits for %u more and "
            "%lld bytes",
            count, shared_name(owner, offset).c_str(), static_cast<unsigned long long>(b->phase), b->count,
            b->pending, static_cast<long long>(b->tx)))
      return false;
    count = std::min(count, b->pending);
  }
  b->tx += expect_tx;
  if (b->tx > kMaxTx || b->tx < -kMaxTx) {
    if (!finding(Check::kMbarrierCounts, FaultKind::kBarrier, lane,
                 "transaction count of the mbarrier at %s leaves its range: %lld bytes",
                 shared_name(owner, offset).c_str(), static_cast<long long>(b->tx)))
      return false;
  }
  b->pending -= count;
  ++progress;
  try_complete(b);
  return true;
}

}  // namespace mla::emu
