// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/engine/decode/flow.h"

#include <algorithm>

namespace mla::emu {

namespace {

bool ends_block(const Instr& in) { return in.flow != Flow::kNext && in.flow != Flow::kCall; }

}  // namespace

FlowGraph::FlowGraph(const Draft& d) : code_size(static_cast<uint32_t>(d.code.size())) {
  const size_t n = d.code.size();
  std::vector<uint8_t> leader(n + 1, 0);
  leader[0] = 1;
  for (size_t i = 0; i < n; ++i) {
    if (!d.target_label[i].empty()) leader[d.code[i].target] = 1;
    for (uint32_t t : d.more_targets[i]) leader[t] = 1;
    if (ends_block(d.code[i])) leader[i + 1] = 1;
  }
  std::vector<uint32_t> block_of(n);
  for (size_t i = 0; i < n; ++i) {
    if (leader[i]) starts.push_back(static_cast<uint32_t>(i));
    block_of[i] = static_cast<uint32_t>(starts.size() - 1);
  }
  next.resize(blocks());
  previous.resize(blocks() + 1);
  for (size_t b = 0; b < blocks(); ++b) {
    const uint32_t last = end_of(b) - 1;
    const Instr& in = d.code[last];
    auto add = [&](uint32_t to) {
      if (std::find(next[b].begin(), next[b].end(), to) == next[b].end()) next[b].push_back(to);
    };
    if (in.flow == Flow::kBranch) add(block_of[in.target]);
    for (uint32_t t : d.more_targets[last]) add(block_of[t]);
    if (in.flow == Flow::kEnd || in.flow == Flow::kReturn) add(exit());
    const bool falls = !ends_block(in) || in.guard.present;
    if (falls) add(last + 1 < n ? block_of[last + 1] : exit());
    for (uint32_t to : next[b]) previous[to].push_back(static_cast<uint32_t>(b));
  }
}

// Reverse post-order of the reversed graph, then the iteration of Cooper, Harvey and Kennedy.
void find_reconvergence(const FlowGraph& graph, Draft* d) {
  const size_t blocks = graph.blocks();
  const uint32_t exit_block = graph.exit();
  std::vector<uint32_t> order;
  std::vector<uint8_t> seen(blocks + 1, 0);
  std::vector<std::pair<uint32_t, size_t>> stack{{exit_block, 0}};
  seen[exit_block] = 1;
  while (!stack.empty()) {
    auto& [block, at] = stack.back();
    if (at < graph.previous[block].size()) {
      uint32_t to = graph.previous[block][at++];
      if (!seen[to]) {
        seen[to] = 1;
        stack.push_back({to, 0});
      }
    } else {
      order.push_back(block);
      stack.pop_back();
    }
  }
  std::vector<uint32_t> number(blocks + 1, kNowhere);
  for (size_t i = 0; i < order.size(); ++i) number[order[i]] = static_cast<uint32_t>(i);
  std::vector<uint32_t> dominator(blocks + 1, kNowhere);
  dominator[exit_block] = exit_block;
  bool changed = true;
  while (changed) {
    changed = false;
    for (size_t i = order.size(); i-- > 0;) {
      uint32_t b = order[i];
      if (b == exit_block) continue;
      uint32_t best = kNowhere;
      for (uint32_t to : graph.next[b]) {
        if (dominator[to] == kNowhere) continue;
        if (best == kNowhere) {
          best = to;
          continue;
        }
        uint32_t x = best, y = to;
        while (x != y) {
          while (number[x] < number[y]) x = dominator[x];
          while (number[y] < number[x]) y = dominator[y];
        }
        best = x;
      }
      if (best != dominator[b]) {
        dominator[b] = best;
        changed = true;
      }
    }
  }
  for (size_t b = 0; b < blocks; ++b) {
    Instr& in = d->code[graph.end_of(b) - 1];
    if (in.flow != Flow::kBranch && in.flow != Flow::kBranchTable && in.flow != Flow::kReturn) continue;
    uint32_t to = dominator[b];
    in.reconverge = to == kNowhere || to == exit_block ? kNowhere : graph.starts[to];
  }
}

}  // namespace mla::emu
