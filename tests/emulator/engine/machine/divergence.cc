// SPDX-License-Identifier: Apache-2.0
//
// Groups of lanes that go different ways, and where they meet.
#include "tests/emulator/engine/machine.h"

namespace mla::emu {

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

// Joins groups of the warp that wait at the same instruction, with the same reconvergence point, into
// the running one. True when there was one.
bool Machine::merge_waiting_groups() {
  bool merged = false;
  for (size_t i = 0; i < warp->groups.size();) {
    Group& other = warp->groups[i];
    if (&other != group && other.blocked && other.wait.kind == WaitKind::kConverge && other.pc == group->pc &&
        other.rec == group->rec && other.calls == group->calls) {
      group->mask |= other.mask;
      remove_group(warp, i);
      merged = true;
    } else {
      ++i;
    }
  }
  return merged;
}

}  // namespace mla::emu
