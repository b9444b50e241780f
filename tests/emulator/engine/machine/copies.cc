// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous copies in flight. An operation is queued when issued and runs in pieces, at random times and
// in random order. Its accesses are checked against the issuing warp's clocks and recorded when it is issued,
// so a reader that does not wait is found whatever the timing.
#include <algorithm>

#include "tests/emulator/engine/instructions/memory_ops.h"
#include "tests/emulator/engine/text.h"

namespace mla::emu {

AsyncOp* Machine::new_op(int lane) {
  uint32_t free = kNowhere;
  for (uint32_t i = 0; i < slots; ++i) {
    if (!cta->slot_busy[i]) {
      free = i;
      break;
    }
  }
  if (free == kNowhere) {
    if (!flush_slot(cta)) return nullptr;
    for (uint32_t i = 0; i < slots; ++i) {
      if (!cta->slot_busy[i]) free = i;
    }
  }
  auto op = std::make_unique<AsyncOp>();
  op->issuer = cta;
  op->warp = warp;
  op->lane = static_cast<uint32_t>(lane);
  op->slot = free;
  op->clock = cta->slot_clock[free] += 2;
  op->line = instr->line;
  op->instr = instr;
  cta->slot_busy[free] = 1;
  cta->slot_line[free] = instr->line;
  draft_ops.push_back(std::move(op));
  return draft_ops.back().get();
}

// Completes some operation of the CTA, to free its slot.
bool Machine::flush_slot(Cta* owner) {
  std::vector<size_t> candidates;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i]->issuer == owner) candidates.push_back(i);
  }
  if (candidates.empty()) {
    fault(FaultKind::kInstruction, -1, "too many asynchronous copies of one instruction");
    return false;
  }
  AsyncOp* op = ops[candidates[rng.below(static_cast<uint32_t>(candidates.size()))]].get();
  while (true) {
    size_t index = 0;
    while (index < ops.size() && ops[index].get() != op) ++index;
    if (index == ops.size()) return true;
    if (!advance_op(index)) return false;
  }
}

bool Machine::issue(AsyncOp* op) {
  ++report->async_operations;
  for (Piece& piece : op->pieces) {
    bool strong = piece.reduce != Piece::kCopy;
    const uint32_t valid = piece.bytes - piece.fill_before - piece.fill_after;
    if (piece.to_cta) {
      if (!for_chunks(piece, false, [&](uint32_t offset, uint32_t, uint32_t bytes) {
            return check_async_shared(op, piece.to_cta, offset, bytes, true, op->proxy, strong);
          })) {
        return false;
      }
    } else if (valid) {
      Region* region = region_of(piece.to, valid);
      if (!region) {
        fault(FaultKind::kOutOfBounds, static_cast<int>(op->lane),
              "asynchronous write of %u bytes at 0x%llx is in no allocation: %s", piece.bytes,
              static_cast<ull>(piece.to), memory->describe(piece.to).c_str());
        return false;
      }
      if (!check_global(static_cast<int>(op->lane), region, piece.to - region->address, valid,
                        kWrite | kAsync | (strong ? kStrong : 0u), op)) {
        return false;
      }
    }
    if (piece.source == Piece::kGlobalSource && valid) {
      Region* region = region_of(piece.from, valid);
      if (!region) {
        fault(FaultKind::kOutOfBounds, static_cast<int>(op->lane),
              "asynchronous read of %u bytes at 0x%llx is in no allocation: %s", valid,
              static_cast<ull>(piece.from), memory->describe(piece.from).c_str());
        return false;
      }
      if (!check_global(static_cast<int>(op->lane), region, piece.from - region->address, valid,
                        kRead | (op->proxy ? kAsync : 0u), op)) {
        return false;
      }
    } else if (piece.source == Piece::kSharedSource) {
      if (!for_chunks(piece, true, [&](uint32_t offset, uint32_t, uint32_t bytes) {
            return check_async_shared(op, piece.from_cta, offset, bytes, false, op->proxy, false);
          })) {
        return false;
      }
    }
  }
  // Random order.
  for (size_t i = op->pieces.size(); i > 1; --i) {
    std::swap(op->pieces[i - 1], op->pieces[rng.below(static_cast<uint32_t>(i))]);
  }
  uint32_t kind = rng.below(16);
  op->not_before = turns + rng.below(kind < 8 ? 4 : kind < 15 ? 64 : 1024);
  for (const Piece& piece : op->pieces) {
    for (Cta* user : {piece.to_cta, piece.from_cta, piece.barrier_cta}) {
      if (user && std::find(op->touched.begin(), op->touched.end(), user) == op->touched.end())
        op->touched.push_back(user);
    }
  }
  for (Cta* user : op->touched) ++user->in_flight;
  if (op->group) {
    ++op->group->running;
    ++op->group->reading;
    op->group->epochs.push_back(
        {static_cast<uint16_t>(op->issuer->first_agent + warps_per_cta + op->slot), op->clock});
  }
  op->clocks = warp->clocks;
  ++warp->clocks.v[warp->agent];
  ++cta->cluster->async_operations;
  for (size_t i = 0; i < draft_ops.size(); ++i) {
    if (draft_ops[i].get() == op) {
      ops.push_back(std::move(draft_ops[i]));
      draft_ops.erase(draft_ops.begin() + static_cast<long>(i));
      break;
    }
  }
  return true;
}

void Machine::wake_group_waiters(Warp* w) {
  for (Group& g : w->groups) {
    if (g.blocked && (g.wait.kind == WaitKind::kBulkGroup || g.wait.kind == WaitKind::kAsyncGroup)) {
      g.blocked = false;
      g.wait.kind = WaitKind::kNone;
      make_runnable(w);
    }
  }
}

bool Machine::advance_op(size_t index) {
  AsyncOp* op = ops[index].get();
  if (op->two_steps && !op->read_done) {
    op->staging.clear();
    op->staging_written.clear();
    for (const Piece& piece : op->pieces) {
      for_chunks(piece, true, [&](uint32_t offset, uint32_t, uint32_t bytes) {
        const uint8_t* p = piece.from_cta->shared.data() + offset;
        op->staging.insert(op->staging.end(), p, p + bytes);
        for (uint32_t i = 0; i < bytes; ++i) {
          op->staging_written.push_back(
              !shared_shadow || ((cell(piece.from_cta, offset + i)->written >> ((offset + i) & 15)) & 1));
        }
        return true;
      });
    }
    op->read_done = true;
    // Its source may be written again, and the CTA that holds it may end, unless it is a target too.
    for (size_t i = op->touched.size(); i-- > 0;) {
      Cta* user = op->touched[i];
      bool target = std::any_of(op->pieces.begin(), op->pieces.end(), [&](const Piece& piece) {
        return piece.to_cta == user || piece.barrier_cta == user;
      });
      if (target) continue;
      --user->in_flight;
      op->touched.erase(op->touched.begin() + static_cast<long>(i));
    }
    if (op->group) {
      --op->group->reading;
      wake_group_waiters(op->warp);
    }
    ++progress;
    return true;
  }
  uint32_t left = static_cast<uint32_t>(op->pieces.size());
  uint32_t count = rng.below(2) ? left : 1 + rng.below(left);
  if (!run_pieces(op, count)) return false;
  if (op->pieces.empty()) {
    size_t at = 0;
    while (at < ops.size() && ops[at].get() != op) ++at;
    finish_op(at);
  }
  return true;
}

}  // namespace mla::emu
