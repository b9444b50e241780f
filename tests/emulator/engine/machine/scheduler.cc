// SPDX-License-Identifier: Apache-2.0
//
// Who runs next: warps, copies, clusters that start and end.
#include <algorithm>
#include <chrono>

#include "tests/emulator/engine/decoder.h"
#include "tests/emulator/engine/text.h"

namespace mla::emu {

void Machine::make_runnable(Warp* w) {
  if (w->runnable_at >= 0) return;
  w->runnable_at = static_cast<int32_t>(runnable.size());
  runnable.push_back(w);
}

void Machine::remove_runnable(Warp* w) {
  if (w->runnable_at < 0) return;
  size_t at = static_cast<size_t>(w->runnable_at);
  runnable[at] = runnable.back();
  runnable[at]->runnable_at = static_cast<int32_t>(at);
  runnable.pop_back();
  w->runnable_at = -1;
}

void Machine::warp_ended(Warp* w) {
  Cta* c = w->cta;
  Cluster* k = c->cluster;
  remove_runnable(w);
  --c->live_warps;
  --k->live_warps;
  c->free_registers += w->register_count;
  w->register_count = 0;
  wake(c->register_waiters);
  w->registers.clear();
  w->registers.shrink_to_fit();
  for (uint32_t i = 0; i < 16; ++i) check_named(c, i);
  cluster_exit(*k, w);
  if (c->live_warps == 0) {
    if (c->in_flight) {
      for (const auto& op : ops) {
        if (std::find(op->touched.begin(), op->touched.end(), c) == op->touched.end()) continue;
        std::string who =
            op->issuer == c ? "" : text_of(" (issued by the CTA with cluster rank %u)", op->issuer->rank);
        if (!finding_at(
                Check::kExitDuringCopy, FaultKind::kClusterExit, w, instr, -1,
                text_of(
                    "the CTA exits while the asynchronous copy of PTX line %u%s still uses its shared memory",
                    op->line, who.c_str())))
          return;
        break;
      }
    }
    c->exited = true;
    --k->live_ctas;
    if (c->in_flight == 0) {  // otherwise exit_during_copy is no fault, and the copy goes on
      c->shared.clear();
      c->shared.shrink_to_fit();
      c->cells.clear();
      c->cells.shrink_to_fit();
    }
  }
}

bool Machine::run_warp(Warp* w, uint32_t quantum) {
  warp = w;
  cta = w->cta;
  bases[0] = w->registers.data();
  // A ready group; another one each time.
  size_t ready[40], n = 0;
  for (size_t i = 0; i < w->groups.size(); ++i) {
    if (!w->groups[i].blocked) ready[n++] = i;
  }
  if (n == 0) {
    remove_runnable(w);
    return true;
  }
  group = &w->groups[n == 1 ? ready[0] : ready[rng.below(static_cast<uint32_t>(n))]];
  const Instr* code = program->code.data();
  while (quantum--) {
    Group& g = *group;
    if (g.pc == g.stop) {
      arrive_at_record(w, static_cast<size_t>(group - w->groups.data()));
      group = nullptr;
      break;
    }
    const Instr& in = code[g.pc];
    instr = &in;
    uint32_t mask = g.mask;
    if (in.guard.present) {
      mask &= predicate(*this, in.guard);
      if (!mask) {
        ++g.pc;
        ++report->warp_instructions;
        continue;
      }
    }
    ++report->warp_instructions;
    report->lane_instructions += static_cast<uint64_t>(__builtin_popcount(mask));
    Next next;
    if (profile) {
      auto start = std::chrono::steady_clock::now();
      next = in.fn(*this, in, mask);
      OpcodeCount& count = counts[in.opcode];
      ++count.warp_instructions;
      count.lane_instructions += static_cast<uint64_t>(__builtin_popcount(mask));
      count.nanoseconds += static_cast<uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start)
              .count());
    } else {
      next = in.fn(*this, in, mask);
    }
    switch (next) {
      case Next::kNext:
        ++group->pc;
        break;
      case Next::kJump:
        break;
      case Next::kYield:
        ++group->pc;
        quantum = 0;
        break;
      case Next::kBlocked:
        quantum = 0;
        break;
      case Next::kEnd:
        quantum = 0;
        break;
      case Next::kFault:
        return false;
    }
  }
  if (w->live == 0) {
    warp_ended(w);
    return !failed;
  }
  bool any = false;
  for (const Group& g : w->groups) any |= !g.blocked;
  if (!any) remove_runnable(w);
  return true;
}

void Machine::run() {
  uint64_t last_progress = 0, progress_at = 0;
  while (clusters_done < clusters_total) {
    while (clusters.size() < resident && clusters_started < clusters_total) start_cluster();
    ++turns;
    if (config->max_warp_instructions && report->warp_instructions > config->max_warp_instructions) {
      fault_at(FaultKind::kBudget, nullptr, nullptr, -1,
               text_of("more than %llu warp instructions were executed",
                       static_cast<ull>(config->max_warp_instructions)));
      return;
    }
    if (progress != last_progress) {
      last_progress = progress;
      progress_at = report->warp_instructions;
    } else if (report->warp_instructions - progress_at > config->max_idle_instructions && ops.empty()) {
      report_stuck(true);
      return;
    }
    // Copies in flight.
    if (!ops.empty() && (runnable.empty() || rng.below(4) == 0)) {
      size_t index = rng.below(static_cast<uint32_t>(ops.size()));
      if (runnable.empty()) {
        // Nothing else to do: the one that is due first.
        for (size_t i = 0; i < ops.size(); ++i) {
          if (ops[i]->not_before < ops[index]->not_before) index = i;
        }
        turns = std::max(turns, ops[index]->not_before);
      }
      if (ops[index]->not_before <= turns) {
        warp = nullptr;
        cta = nullptr;
        Cluster* k = ops[index]->issuer->cluster;
        if (!advance_op(index)) return;
        retire(k);
      }
      continue;
    }
    if (runnable.empty()) {
      report_stuck(false);
      return;
    }
    Warp* w = runnable[rng.below(static_cast<uint32_t>(runnable.size()))];
    uint32_t quantum = 1 + rng.below(1u << (1 + rng.below(9)));
    Cluster* k = w->cta->cluster;
    if (!run_warp(w, quantum)) return;
    retire(k);
  }
}

// Ends a cluster whose CTAs have ended and whose last copies to global memory are done.
void Machine::retire(Cluster* k) {
  if (k->live_ctas != 0 || k->async_operations != 0) return;
  for (size_t i = 0; i < clusters.size(); ++i) {
    if (clusters[i].get() == k) {
      clusters[i] = std::move(clusters.back());
      clusters.pop_back();
      break;
    }
  }
  ++clusters_done;
}

}  // namespace mla::emu
