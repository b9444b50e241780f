// SPDX-License-Identifier: Apache-2.0
//
// Liveness of virtual registers and their places in the register file, 32 lanes side by side.
#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <set>

#include "tests/emulator/engine/decode/flow.h"

namespace mla::emu {

namespace {

// Bits of the sets that liveness keeps: half a gigabyte of them.
constexpr uint64_t kMostSetWords = uint64_t{1} << 24;

// For every register the first and the last instruction between which it is alive.
struct Lifetimes {
  std::vector<uint32_t> first, last;
};

bool find_lifetimes(const FlowGraph& graph, const Draft& d, Lifetimes* lifetimes) {
  const size_t blocks = graph.blocks();
  const size_t regs = d.function->regs.size();
  // Registers that occur, numbered without gaps.
  std::vector<uint32_t> number(regs, kNowhere), registers;
  for (size_t i = 0; i < d.code.size(); ++i) {
    for (const auto* list : {&d.uses[i], &d.defs[i]}) {
      for (uint32_t r : *list) {
        if (number[r] != kNowhere) continue;
        number[r] = static_cast<uint32_t>(registers.size());
        registers.push_back(r);
      }
    }
  }
  const size_t words = (registers.size() + 63) / 64;
  if (uint64_t{blocks} * words > kMostSetWords) return false;
  std::vector<uint64_t> gen(blocks * words), kill(blocks * words), live_in(blocks * words),
      live_out(blocks * words);
  auto bit = [&](std::vector<uint64_t>& set, size_t b, uint32_t r) -> bool {
    return (set[b * words + r / 64] >> (r % 64)) & 1;
  };
  auto set_bit = [&](std::vector<uint64_t>& set, size_t b, uint32_t r) {
    set[b * words + r / 64] |= uint64_t{1} << (r % 64);
  };
  for (size_t b = 0; b < blocks; ++b) {
    for (uint32_t i = graph.starts[b]; i < graph.end_of(b); ++i) {
      for (uint32_t r : d.uses[i]) {
        if (!bit(kill, b, number[r])) set_bit(gen, b, number[r]);
      }
      if (d.code[i].guard.present) continue;  // a guarded write does not end the old value's life
      for (uint32_t r : d.defs[i]) set_bit(kill, b, number[r]);
    }
  }
  bool changed = true;
  while (changed) {
    changed = false;
    for (size_t b = blocks; b-- > 0;) {
      for (size_t w = 0; w < words; ++w) {
        uint64_t out = 0;
        for (uint32_t to : graph.next[b]) {
          if (to < blocks) out |= live_in[to * words + w];
        }
        uint64_t in = gen[b * words + w] | (out & ~kill[b * words + w]);
        changed |= in != live_in[b * words + w];
        live_out[b * words + w] = out;
        live_in[b * words + w] = in;
      }
    }
  }
  lifetimes->first.assign(regs, kNowhere);
  lifetimes->last.assign(regs, 0);
  auto touch = [&](uint32_t r, uint32_t at) {
    lifetimes->first[r] = std::min(lifetimes->first[r], at);
    lifetimes->last[r] = std::max(lifetimes->last[r], at);
  };
  auto touch_all = [&](const std::vector<uint64_t>& sets, size_t b, uint32_t at) {
    for (size_t w = 0; w < words; ++w) {
      for (uint64_t set = sets[b * words + w]; set; set &= set - 1)
        touch(registers[w * 64 + static_cast<size_t>(std::countr_zero(set))], at);
    }
  };
  for (size_t b = 0; b < blocks; ++b) {
    touch_all(live_in, b, graph.starts[b]);
    touch_all(live_out, b, graph.end_of(b) - 1);
    for (uint32_t i = graph.starts[b]; i < graph.end_of(b); ++i) {
      for (uint32_t r : d.uses[i]) touch(r, i);
      for (uint32_t r : d.defs[i]) touch(r, i);
    }
  }
  return true;
}

void settle(Opd& o, const std::vector<uint32_t>& place) {
  if (!o.present) return;
  if (o.constant == 0) {
    o.offset = place[o.offset];
  } else if (o.constant == kFixedPlace) {
    o.constant = 0;
  }
}

}  // namespace

bool place_registers(const FlowGraph& graph, Draft* d, uint32_t* top) {
  Lifetimes lives;
  if (!find_lifetimes(graph, *d, &lives)) return false;
  const Function& f = *d->function;
  const auto &first = lives.first, &last = lives.last;
  std::vector<uint32_t> order;
  for (uint32_t r = 0; r < f.regs.size(); ++r) {
    if (first[r] != kNowhere) order.push_back(r);
  }
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return std::pair(first[a], a) < std::pair(first[b], b); });
  std::vector<uint32_t> place(f.regs.size(), 0);
  std::map<uint32_t, std::vector<uint32_t>> free_places;  // by size
  std::vector<std::pair<uint32_t, uint32_t>> active;      // heap of (last, register)
  auto later = std::greater<std::pair<uint32_t, uint32_t>>();
  for (uint32_t r : order) {
    while (!active.empty() && active.front().first < first[r]) {
      uint32_t done = active.front().second;
      std::pop_heap(active.begin(), active.end(), later);
      active.pop_back();
      free_places[slot_bytes(bits_of_class(f.regs[done].cls))].push_back(place[done]);
    }
    uint32_t size = slot_bytes(bits_of_class(f.regs[r].cls));
    auto& free = free_places[size];
    if (!free.empty()) {
      place[r] = free.back();
      free.pop_back();
    } else if (size == 4) {  // predicates: a line of 32 at a time
      for (uint32_t k = 31; k > 0; --k) free.push_back(*top + 4 * k);
      place[r] = *top;
      *top += 128;
    } else {
      place[r] = *top;
      *top += size;
    }
    active.push_back({last[r], r});
    std::push_heap(active.begin(), active.end(), later);
  }
  std::set<const Opd*> done;
  for (Instr& in : d->code) {
    settle(in.guard, place);
    for (Opd& o : in.o) settle(o, place);
    if (in.x && done.insert(in.x).second) {
      for (uint32_t k = 0; k < in.nx; ++k) settle(const_cast<Opd&>(in.x[k]), place);
    }
  }
  return true;
}

}  // namespace mla::emu
