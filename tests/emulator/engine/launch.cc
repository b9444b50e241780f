// SPDX-License-Identifier: Apache-2.0
//
// Runs a launch: clusters, the random scheduler, divergence, the end of warps, deadlocks.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/emulator/engine/decoder.h"
#include "tests/emulator/engine/machine.h"

namespace mla::emu {

namespace {

std::string text_of(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string text_of(const char* format, ...) {
  char buffer[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

using ull = unsigned long long;

std::string trim(const std::string& text) {
  size_t a = text.find_first_not_of(" \t"), b = text.find_last_not_of(" \t\r");
  return a == std::string::npos ? "" : text.substr(a, b - a + 1);
}

std::string source_of(const Program& program, const Instr& in) {
  const Function& f = *program.functions[in.function];
  const Loc& loc = f.locs[in.loc];
  auto file = program.module->files.find(loc.file);
  if (loc.line == 0 || file == program.module->files.end()) return "";
  return file->second + ":" + std::to_string(loc.line);
}

}  // namespace

const char* fault_name(FaultKind kind) {
  switch (kind) {
    case FaultKind::kNone:
      return "no fault";
    case FaultKind::kLaunch:
      return "invalid launch";
    case FaultKind::kUnsupported:
      return "unsupported instruction";
    case FaultKind::kOutOfBounds:
      return "out of bounds";
    case FaultKind::kMisaligned:
      return "misaligned address";
    case FaultKind::kUnwritten:
      return "read of unwritten memory";
    case FaultKind::kRace:
      return "race";
    case FaultKind::kProxy:
      return "missing proxy fence";
    case FaultKind::kBarrier:
      return "barrier misuse";
    case FaultKind::kClusterExit:
      return "shared memory of an exited CTA";
    case FaultKind::kRegisters:
      return "register pool";
    case FaultKind::kDivergence:
      return "divergence";
    case FaultKind::kDeadlock:
      return "deadlock";
    case FaultKind::kBudget:
      return "instruction budget";
    case FaultKind::kTrap:
      return "trap";
    case FaultKind::kTensorMap:
      return "tensor map";
    case FaultKind::kInstruction:
      return "instruction misuse";
  }
  return "?";
}

std::string Fault::text() const {
  if (kind == FaultKind::kNone) return "no fault";
  std::string result = text_of("%s in kernel %s", fault_name(kind), kernel.c_str());
  if (cta_rank >= 0) {
    result += text_of(", CTA (%u, %u, %u), cluster rank %d", cta.x, cta.y, cta.z, cta_rank);
  }
  if (warp >= 0) result += text_of(", warp %d", warp);
  if (lane >= 0) result += text_of(", lane %d", lane);
  if (ptx_line) result += text_of(", PTX line %u '%s'", ptx_line, ptx_text.c_str());
  if (!source.empty()) result += ", " + source;
  return result + ": " + message;
}

// ---------------------------------------------------------------- faults

void Machine::fault_at(FaultKind kind, const Warp* w, const Instr* in, int lane, const std::string& text) {
  if (failed) return;
  failed = true;
  Fault& f = report->fault;
  f.kind = kind;
  f.kernel = program->kernel->name;
  f.message = text;
  f.lane = lane;
  if (w) {
    f.cta = w->cta->id;
    f.cta_rank = static_cast<int32_t>(w->cta->rank);
    f.warp = static_cast<int32_t>(w->index);
  }
  if (in) {
    f.ptx_line = in->line;
    if (in->line && in->line <= program->module->lines.size())
      f.ptx_text = trim(program->module->lines[in->line - 1]);
    f.source = source_of(*program, *in);
  }
}

Next Machine::fault(FaultKind kind, int lane, const char* format, ...) {
  char buffer[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  fault_at(kind, warp, instr, lane, buffer);
  return Next::kFault;
}

// ---------------------------------------------------------------- the list of runnable warps

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

// ---------------------------------------------------------------- divergence

void Machine::remove_group(Warp* w, size_t index) {
  Group* last = &w->groups.back();
  if (&w->groups[index] != last) {
    w->groups[index] = std::move(*last);
    if (group == last) group = &w->groups[index];
  }
  w->groups.pop_back();
}

void Machine::diverge(uint32_t taken, uint32_t target, uint32_t next, uint32_t reconverge) {
  Warp* w = warp;
  Group& g = *group;
  std::vector<uint32_t> calls = g.calls;
  if (reconverge == kNowhere && !calls.empty()) {
    // The paths meet where the function returns.
    reconverge = calls.back();
    calls.pop_back();
  }
  if (reconverge != kNowhere && reconverge != g.stop) {
    size_t index = 0;
    while (index < w->records.size() && w->records[index].used) ++index;
    if (index == w->records.size()) w->records.emplace_back();
    Reconvergence& r = w->records[index];
    r.used = true;
    r.pc = reconverge;
    r.expected = g.mask;
    r.arrived = 0;
    r.parent = g.rec;
    r.parent_stop = g.stop;
    r.calls = calls;
    g.rec = static_cast<int32_t>(index);
    g.stop = reconverge;
  }
  Group other = g;
  other.id = w->next_group++;
  other.mask = g.mask & ~taken;
  other.pc = next;
  g.mask = taken;
  g.pc = target;
  w->groups.push_back(std::move(other));  // capacity is reserved: `g` stays where it is
}

// The group has reached its reconvergence point: it waits there, and goes on as one group when all
// lanes have come.
void Machine::arrive_at_record(Warp* w, size_t index) {
  Group& g = w->groups[index];
  Reconvergence& r = w->records[static_cast<size_t>(g.rec)];
  r.arrived |= g.mask;
  remove_group(w, index);
  settle_records(w);
}

void Machine::settle_records(Warp* w) {
  bool again = true;
  while (again) {
    again = false;
    for (Reconvergence& r : w->records) {
      if (!r.used || (r.arrived & w->live) != (r.expected & w->live)) continue;
      r.used = false;
      uint32_t mask = r.arrived & w->live;
      if (!mask) continue;
      Group g;
      g.id = w->next_group++;
      g.pc = r.pc;
      g.mask = mask;
      g.rec = r.parent;
      g.stop = r.parent_stop;
      g.calls = r.calls;
      if (g.rec >= 0 && g.pc == g.stop) {
        w->records[static_cast<size_t>(g.rec)].arrived |= mask;
        again = true;
        continue;
      }
      w->groups.push_back(std::move(g));
    }
  }
}

Next Machine::exit_lanes(uint32_t mask) {
  Warp* w = warp;
  w->live &= ~mask;
  cta->live_threads -= static_cast<uint32_t>(__builtin_popcount(mask));
  ++progress;
  Group& g = *group;
  g.mask &= ~mask;
  if (g.mask) {
    ++g.pc;
    return Next::kJump;
  }
  remove_group(w, static_cast<size_t>(group - w->groups.data()));
  group = nullptr;
  settle_records(w);
  return Next::kEnd;
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
        fault_at(
            FaultKind::kClusterExit, w, instr, -1,
            text_of("the CTA exits while the asynchronous copy of PTX line %u%s still uses its shared memory",
                    op->line, who.c_str()));
        return;
      }
    }
    c->exited = true;
    --k->live_ctas;
    c->shared.clear();
    c->shared.shrink_to_fit();
    c->cells.clear();
    c->cells.shrink_to_fit();
  }
}

// ---------------------------------------------------------------- clusters

void Machine::start_cluster() {
  uint64_t index = clusters_started++;
  auto owned = std::make_unique<Cluster>();
  Cluster* k = owned.get();
  k->index = index;
  const Dim3& shape = cluster_shape;
  Dim3 count{grid.x / shape.x, grid.y / shape.y, grid.z / shape.z};
  k->id = {static_cast<uint32_t>(index % count.x), static_cast<uint32_t>(index / count.x % count.y),
           static_cast<uint32_t>(index / count.x / count.y)};
  k->live_ctas = cluster_size;
  k->live_warps = cluster_size * warps_per_cta;
  k->arriving.v.assign(2 * agents, 0);
  const uint32_t threads = static_cast<uint32_t>(block.count());
  for (uint32_t rank = 0; rank < cluster_size; ++rank) {
    auto c = std::make_unique<Cta>();
    c->cluster = k;
    c->rank = rank;
    Dim3 in_cluster{rank % shape.x, rank / shape.x % shape.y, rank / shape.x / shape.y};
    c->id = {k->id.x * shape.x + in_cluster.x, k->id.y * shape.y + in_cluster.y,
             k->id.z * shape.z + in_cluster.z};
    c->linear = c->id.x + grid.x * (c->id.y + grid.y * c->id.z);
    c->shared_end = smem_total;
    c->shared.resize((size_t{smem_total} + 15) / 16 * 16);
    if (shared_shadow) c->cells.resize(c->shared.size() / 16 * cell_bytes);
    for (NamedBarrier& b : c->named) b.arriving.v.assign(2 * agents, 0);
    c->live_warps = warps_per_cta;
    c->live_threads = threads;
    c->first_agent = rank * agents_per_cta;
    c->slot_clock.assign(slots, 0);
    c->slot_busy.assign(slots, 0);
    c->slot_line.assign(slots, 0);
    for (uint32_t i = 0; i < warps_per_cta; ++i) {
      auto w = std::make_unique<Warp>();
      w->cta = c.get();
      w->index = i;
      w->agent = c->first_agent + i;
      w->global_agent = static_cast<uint32_t>((index * cluster_size + rank) * warps_per_cta + i);
      uint32_t lanes_here = std::min(32u, threads - 32 * i);
      w->live = w->initial = lanes_here == 32 ? ~0u : (1u << lanes_here) - 1;
      w->registers.resize(program->register_bytes);
      w->local.resize(size_t{32} * program->local_bytes);
      w->frame.resize(size_t{32} * program->frame_bytes);
      w->clocks.v.assign(2 * agents, 0);
      w->clocks.v[w->agent] = 1;
      w->register_count = register_count;
      w->groups.reserve(40);
      Group g;
      g.id = w->next_group++;
      g.mask = w->live;
      w->groups.push_back(g);
      // Special registers.
      for (const auto& special : program->specials) {
        const std::string& name = special.first;
        const uint32_t place = special.second;
        uint32_t v[32];
        uint64_t wide[32] = {};
        bool is_wide = false;
        for (uint32_t lane = 0; lane < 32; ++lane) {
          uint32_t linear = 32 * i + lane;
          Dim3 tid{linear % block.x, linear / block.x % block.y, linear / block.x / block.y};
          auto part = [&](const Dim3& d) {
            return name.back() == 'x' ? d.x : name.back() == 'y' ? d.y : name.back() == 'z' ? d.z : 0;
          };
          uint32_t value = 0;
          std::string base = name.substr(0, name.find('.'));
          if (base == "%tid")
            value = part(tid);
          else if (base == "%ntid")
            value = part(block);
          else if (base == "%ctaid")
            value = part(c->id);
          else if (base == "%nctaid")
            value = part(grid);
          else if (base == "%laneid")
            value = lane;
          else if (base == "%warpid")
            value = i;
          else if (base == "%nwarpid")
            value = warps_per_cta;
          else if (base == "%clusterid")
            value = part(k->id);
          else if (base == "%nclusterid")
            value = part(count);
          else if (base == "%cluster_ctaid")
            value = part(in_cluster);
          else if (base == "%cluster_nctaid")
            value = part(shape);
          else if (base == "%cluster_ctarank")
            value = rank;
          else if (base == "%cluster_nctarank")
            value = cluster_size;
          else if (base == "%smid")
            value = static_cast<uint32_t>((index % resident * cluster_size + rank) % sm_count);
          else if (base == "%nsmid")
            value = sm_count;
          else if (base == "%lanemask_eq")
            value = 1u << lane;
          else if (base == "%lanemask_lt")
            value = (1u << lane) - 1;
          else if (base == "%lanemask_le")
            value = (1u << lane) | ((1u << lane) - 1);
          else if (base == "%lanemask_gt")
            value = ~((1u << lane) | ((1u << lane) - 1));
          else if (base == "%lanemask_ge")
            value = ~((1u << lane) - 1);
          else if (base == "%dynamic_smem_size")
            value = config->dynamic_shared_bytes;
          else if (base == "%total_smem_size" || base == "%aggr_smem_size")
            value = smem_total;
          else if (base == "%reserved_smem_offset_end" || base == "%reserved_smem_offset_cap")
            value = kSharedBegin;
          else if (base == "%is_explicit_cluster")
            value = explicit_cluster ? ~0u : 0u;
          else if (base == "%gridid" || base == "%current_graph_exec") {
            is_wide = true;
            wide[lane] = base == "%gridid" ? launch_serial : 0;
          }
          v[lane] = value;
        }
        if (is_wide) {
          std::memcpy(w->registers.data() + place, wide, sizeof wide);
        } else {
          std::memcpy(w->registers.data() + place, v, sizeof v);
        }
      }
      make_runnable(w.get());
      c->warps.push_back(std::move(w));
    }
    k->ctas.push_back(std::move(c));
  }
  clusters.push_back(std::move(owned));
}

// ---------------------------------------------------------------- running

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

// ---------------------------------------------------------------- deadlock

std::string Machine::describe_wait(const Warp* w, const Group& g) const {
  const Instr& in = program->code[g.pc];
  std::string where = text_of("CTA (%u, %u, %u) rank %u warp %u", w->cta->id.x, w->cta->id.y, w->cta->id.z,
                              w->cta->rank, w->index);
  if (g.mask != w->initial) where += text_of(" lanes 0x%08x", g.mask);
  where += text_of(", PTX line %u", in.line);
  std::string source = source_of(*program, in);
  if (!source.empty()) where += " (" + source + ")";
  where += ": ";
  const Wait& wait = g.wait;
  switch (wait.kind) {
    case WaitKind::kNone:
      return where + "is polling: '" +
             (in.line && in.line <= program->module->lines.size() ? trim(program->module->lines[in.line - 1])
                                                                  : "") +
             "'";
    case WaitKind::kNamedBarrier: {
      const NamedBarrier& b = w->cta->named[wait.offset];
      return where + text_of("waits at barrier %u, %u of %u threads arrived", wait.offset, b.arrived,
                             b.whole ? w->cta->live_warps * 32 : b.expected);
    }
    case WaitKind::kMbarrier: {
      std::string name = shared_name(wait.cta, wait.offset);
      auto found = wait.cta->mbarriers.find(wait.offset);
      if (found == wait.cta->mbarriers.end())
        return where + "waits for the mbarrier at " + name + ", which is gone";
      const Mbarrier& b = *found->second;
      return where + text_of(
                         "waits for parity %u of the mbarrier at %s (initialised by PTX line %u): in phase "
                         "%llu, %u of %u arrivals and %lld bytes are missing",
                         wait.parity, name.c_str(), b.init_line, static_cast<ull>(b.phase), b.pending,
                         b.count, static_cast<long long>(b.tx));
    }
    case WaitKind::kCluster:
      return where + text_of("waits at the cluster barrier, %u of %u warps arrived", w->cta->cluster->arrived,
                             w->cta->cluster->live_warps);
    case WaitKind::kBulkGroup:
    case WaitKind::kAsyncGroup:
      return where + "waits for asynchronous copies";
    case WaitKind::kWarpgroup:
      return where + "wgmma.wait_group waits for the other warps of the warpgroup to issue their part";
    case WaitKind::kRegisters:
      return where + text_of(
                         "setmaxnreg.inc waits for %u registers a thread, it has %u and the pool of the CTA "
                         "has %lld a warp left",
                         wait.offset, w->register_count, static_cast<long long>(w->cta->free_registers));
    case WaitKind::kConverge:
      return where + text_of("waits for the lanes 0x%08x of its member mask", wait.offset);
    case WaitKind::kSleep:
      return where + "sleeps";
  }
  return where;
}

void Machine::report_stuck(bool spinning) {
  std::string text =
      spinning ? text_of("no progress in %llu warp instructions: every warp that can run only polls",
                         static_cast<ull>(config->max_idle_instructions))
               : "no warp can run and no asynchronous copy is in flight";
  FaultKind kind = FaultKind::kDeadlock;
  uint32_t shown = 0, waiting = 0;
  const Warp* first = nullptr;
  const Instr* first_instr = nullptr;
  std::string list;
  for (const auto& k : clusters) {
    for (const auto& c : k->ctas) {
      for (const auto& w : c->warps) {
        for (const Group& g : w->groups) {
          ++waiting;
          if (g.wait.kind == WaitKind::kRegisters) kind = FaultKind::kRegisters;
          if (!first) {
            first = w.get();
            first_instr = &program->code[g.pc];
          }
          if (shown < 64) {
            list += "\n  " + describe_wait(w.get(), g);
            ++shown;
          }
        }
      }
    }
  }
  text += text_of("; %u waiting:", waiting) + list;
  if (waiting > shown) text += text_of("\n  and %u more", waiting - shown);
  fault_at(kind, first, first_instr, -1, text);
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

// ---------------------------------------------------------------- launch

Report launch(const Module& module, std::string_view kernel, const LaunchConfig& config,
              const std::vector<uint8_t>& params, Memory& memory) {
  Report report;
  report.seed = config.seed;
  auto start = std::chrono::steady_clock::now();
  auto refuse = [&](FaultKind kind, std::string message) {
    report.fault.kind = kind;
    report.fault.kernel = std::string(kernel);
    report.fault.message = std::move(message);
    return report;
  };
  if (!module.impl_) return refuse(FaultKind::kLaunch, "the module is empty");
  ModuleImpl& impl = *module.impl_;
  auto found = impl.function_names.find(std::string(kernel));
  if (found == impl.function_names.end() || !found->second->entry || !found->second->defined) {
    return refuse(FaultKind::kLaunch, "module " + impl.name + " has no kernel '" + std::string(kernel) + "'");
  }
  const Function& f = *found->second;
  const KernelInfo& info = f.info;
  auto& program = impl.programs[f.name];
  if (!program) program = decode(impl, f);
  if (!program->unsupported.empty()) {
    std::string more =
        program->unsupported.size() > 1 ? text_of(" (and %zu more)", program->unsupported.size() - 1) : "";
    return refuse(FaultKind::kUnsupported, program->unsupported[0] + more);
  }
  uint64_t threads = config.block.count();
  if (threads == 0 || threads > 1024)
    return refuse(FaultKind::kLaunch,
                  text_of("block of %llu threads: 1 to 1024 are allowed", static_cast<ull>(threads)));
  if (config.grid.count() == 0) return refuse(FaultKind::kLaunch, "the grid is empty");
  auto same = [](const Dim3& a, const Dim3& b) { return a.x == b.x && a.y == b.y && a.z == b.z; };
  if (info.reqntid.x && !same(info.reqntid, config.block)) {
    return refuse(FaultKind::kLaunch,
                  text_of("block (%u, %u, %u): the kernel requires (%u, %u, %u)", config.block.x,
                          config.block.y, config.block.z, info.reqntid.x, info.reqntid.y, info.reqntid.z));
  }
  if (info.maxntid.x && threads > info.maxntid.count()) {
    return refuse(FaultKind::kLaunch,
                  text_of("block of %llu threads: the kernel allows %llu", static_cast<ull>(threads),
                          static_cast<ull>(info.maxntid.count())));
  }
  Dim3 cluster = info.cluster.x ? info.cluster : Dim3{1, 1, 1};
  if (config.cluster.x) {
    if (info.cluster.x && !same(info.cluster, config.cluster)) {
      return refuse(FaultKind::kLaunch, text_of("cluster (%u, %u, %u): the kernel requires (%u, %u, %u)",
                                                config.cluster.x, config.cluster.y, config.cluster.z,
                                                info.cluster.x, info.cluster.y, info.cluster.z));
    }
    cluster = config.cluster;
  }
  if (cluster.count() > 16)
    return refuse(FaultKind::kLaunch,
                  text_of("cluster of %llu CTAs: at most 16 are allowed", static_cast<ull>(cluster.count())));
  if (config.grid.x % cluster.x || config.grid.y % cluster.y || config.grid.z % cluster.z) {
    return refuse(FaultKind::kLaunch,
                  text_of("grid (%u, %u, %u) is not a multiple of the cluster (%u, %u, %u)", config.grid.x,
                          config.grid.y, config.grid.z, cluster.x, cluster.y, cluster.z));
  }
  if (params.size() != info.param_bytes) {
    return refuse(FaultKind::kLaunch, text_of("parameter buffer of %zu bytes: the kernel takes %u",
                                              params.size(), info.param_bytes));
  }
  uint64_t shared = uint64_t{program->static_shared} + config.dynamic_shared_bytes;
  if (shared > config.max_shared_bytes) {
    return refuse(FaultKind::kLaunch,
                  text_of("%u bytes of static and %u of dynamic shared memory: the limit is %u",
                          program->static_shared, config.dynamic_shared_bytes, config.max_shared_bytes));
  }
  if (Status status = load_globals(module, memory); !status.ok())
    return refuse(FaultKind::kLaunch, status.message());

  static std::atomic<uint32_t> serial{0};
  Machine m;
  m.program = program.get();
  m.config = &config;
  m.memory = &memory.impl();
  m.params = &params;
  m.report = &report;
  m.rng = Rng(config.seed);
  m.grid = config.grid;
  m.block = config.block;
  m.cluster_shape = cluster;
  m.explicit_cluster = info.cluster.x || config.cluster.count() > 1;
  m.cluster_size = static_cast<uint32_t>(cluster.count());
  m.warps_per_cta = static_cast<uint32_t>((threads + 31) / 32);
  m.slots = 32;
  m.agents_per_cta = m.warps_per_cta + m.slots;
  m.agents = (m.cluster_size * m.agents_per_cta + 15) / 16 * 16;
  m.cell_bytes = (static_cast<uint32_t>(sizeof(Cell)) + 6 * m.warps_per_cta + 7) / 8 * 8;
  do {
    m.launch_serial = ++serial;
  } while (m.launch_serial == 0);
  m.smem_total = program->dynamic_base + config.dynamic_shared_bytes;
  m.shared_shadow = config.checks.unwritten || config.checks.shared_races || config.checks.proxy_fences;
  m.clusters_total = config.grid.count() / m.cluster_size;
  uint64_t total_warps = config.grid.count() * m.warps_per_cta;
  m.global_race = config.checks.global_races && total_warps <= 16384;
  m.total_warps = m.global_race ? static_cast<uint32_t>(total_warps) : 0;
  m.resident = config.resident_clusters ? std::min<uint64_t>(config.resident_clusters, m.clusters_total)
                                        : m.clusters_total;
  m.sm_count = config.sm_count ? config.sm_count : static_cast<uint32_t>(m.resident * m.cluster_size);
  uint32_t registers = config.registers_per_thread;
  if (!registers)
    registers = info.max_registers
                    ? info.max_registers
                    : static_cast<uint32_t>(std::min<uint64_t>(255, 65536 / (m.warps_per_cta * 32)) / 8 * 8);
  m.register_count = (registers + 7) / 8 * 8;
  m.profile = config.profile;
  if (m.profile) {
    m.counts.resize(program->opcodes.size());
    for (size_t i = 0; i < m.counts.size(); ++i) m.counts[i].opcode = program->opcodes[i];
  }
  m.constants = program->constants;
  m.const_space = impl.constants;
  auto addresses = m.memory->globals.find(&impl);
  auto global_at = [&](uint32_t index) { return addresses->second.at(impl.globals[index].name); };
  for (const auto& patch : program->patches) {
    uint64_t address = global_at(patch.global) + static_cast<uint64_t>(patch.addend);
    for (uint32_t i = 0; i < 32; ++i) std::memcpy(m.constants.data() + patch.offset + 8 * i, &address, 8);
  }
  for (const auto& r : impl.relocations) {
    const GlobalInfo& target = impl.globals[r.global];
    if (!target.constant) continue;
    for (const auto& symbol : impl.symbols) {
      if (symbol->name != target.name || symbol->space != Space::kConst) continue;
      uint64_t address =
          (r.symbol->space == Space::kGlobal ? global_at(static_cast<uint32_t>(r.symbol->offset))
                                             : r.symbol->offset + kConstWindow) +
          static_cast<uint64_t>(r.addend);
      std::memcpy(m.const_space.data() + symbol->offset + r.offset, &address, 8);
    }
  }
  m.constants.resize(m.constants.size() + 512);
  m.bases[1] = m.constants.data();
  m.run();
  if (m.profile) {
    for (OpcodeCount& count : m.counts) {
      if (count.warp_instructions) report.opcodes.push_back(std::move(count));
    }
    std::sort(report.opcodes.begin(), report.opcodes.end(),
              [](const OpcodeCount& a, const OpcodeCount& b) { return a.nanoseconds > b.nanoseconds; });
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace mla::emu
