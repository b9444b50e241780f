// SPDX-License-Identifier: Apache-2.0
//
// What a piece of a copy does to memory, and how an operation ends.
#include <algorithm>

#include "tests/emulator/engine/instructions/memory_ops.h"
#include "tests/emulator/engine/text.h"

namespace mla::emu {

bool Machine::run_pieces(AsyncOp* op, uint32_t count) {
  for (uint32_t n = 0; n < count; ++n) {
    Piece piece = op->pieces.back();
    op->pieces.pop_back();
    bool last = op->pieces.empty();
    uint8_t data[kMaxPieceBytes];
    uint8_t written[kMaxPieceBytes];
    bool all_written = true;
    uint32_t valid = piece.bytes - piece.fill_before - piece.fill_after;
    switch (piece.source) {
      case Piece::kGlobalSource: {
        if (piece.fill_before || piece.fill_after) {
          for (uint32_t i = 0; i < piece.bytes; ++i)
            data[i] = static_cast<uint8_t>(piece.fill >> (8 * (i % piece.fill_unit)));
        }
        if (valid) {
          Region* region = memory->find_range(piece.from, valid);
          uint64_t offset = piece.from - region->address;
          std::memcpy(data + piece.fill_before, region->host + offset, valid);
          if (!region->is_written(offset, valid)) {
            all_written = false;
            std::memset(written, 1, piece.bytes);
            for (uint32_t i = 0; i < valid; ++i)
              written[piece.fill_before + i] = region->is_written(offset + i, 1);
          }
        }
        break;
      }
      case Piece::kSharedSource:
        if (op->two_steps) {
          // Pieces were staged in order, and are taken from the back.
          size_t at = op->staging.size() - piece.bytes;
          std::memcpy(data, op->staging.data() + at, piece.bytes);
          for (uint32_t i = 0; i < piece.bytes; ++i) {
            written[i] = op->staging_written[at + i];
            all_written &= written[i] != 0;
          }
          op->staging.resize(at);
          op->staging_written.resize(at);
        } else {
          for_chunks(piece, true, [&](uint32_t offset, uint32_t at, uint32_t bytes) {
            std::memcpy(data + at, piece.from_cta->shared.data() + offset, bytes);
            for (uint32_t i = 0; i < bytes; ++i) {
              written[at + i] =
                  !shared_shadow || ((cell(piece.from_cta, offset + i)->written >> ((offset + i) & 15)) & 1);
              all_written &= written[at + i] != 0;
            }
            return true;
          });
        }
        break;
      case Piece::kData:
        std::memcpy(data, piece.data, piece.bytes);
        break;
      case Piece::kFill:
        for (uint32_t i = 0; i < piece.bytes; ++i)
          data[i] = static_cast<uint8_t>(piece.fill >> (8 * (i % piece.fill_unit)));
        break;
    }
    auto reduce = [&](uint8_t* to, const uint8_t* from, uint32_t bytes) {
      if (piece.reduce == Piece::kCopy) {
        std::memcpy(to, from, bytes);
        return;
      }
      T t = static_cast<T>(piece.reduce_type);
      uint32_t unit = bits_of(t) / 8;
      for (uint32_t i = 0; i + unit <= bytes; i += unit) {
        uint64_t old = 0, b = 0;
        std::memcpy(&old, to + i, unit);
        std::memcpy(&b, from + i, unit);
        static const AtomOp kOps[] = {AtomOp::kExch, AtomOp::kAdd, AtomOp::kMin, AtomOp::kMax, AtomOp::kInc,
                                      AtomOp::kDec,  AtomOp::kAnd, AtomOp::kOr,  AtomOp::kXor};
        uint64_t now = atom_apply(kOps[piece.reduce], t, old, b, 0);
        std::memcpy(to + i, &now, unit);
      }
    };
    if (piece.to_cta) {
      for_chunks(piece, false, [&](uint32_t offset, uint32_t at, uint32_t bytes) {
        reduce(piece.to_cta->shared.data() + offset, data + at, bytes);
        if (shared_shadow) {
          for (uint32_t i = 0; i < bytes;) {
            uint32_t o = offset + i, run = std::min(16 - (o & 15), bytes - i);
            uint32_t mask = ((1u << run) - 1) << (o & 15);
            Cell* c = cell(piece.to_cta, o);
            if (all_written) {
              c->written |= static_cast<uint16_t>(mask);
            } else {
              for (uint32_t k = 0; k < run; ++k) {
                uint16_t bit = static_cast<uint16_t>(1u << ((o & 15) + k));
                if (written[at + i + k]) {
                  c->written |= bit;
                } else {
                  c->written &= static_cast<uint16_t>(~bit);
                }
              }
            }
            i += run;
          }
        }
        return true;
      });
    } else if (valid) {
      Region* region = memory->find_range(piece.to, valid);
      uint64_t offset = piece.to - region->address;
      reduce(region->host + offset, data + piece.fill_before, valid);
      if (all_written) {
        region->mark(offset, valid, true);
      } else {
        for (uint32_t i = 0; i < valid; ++i) region->mark(offset + i, 1, written[piece.fill_before + i]);
      }
    }
    ++progress;
    if (piece.barrier_cta) {
      auto found = piece.barrier_cta->mbarriers.find(piece.barrier_offset);
      if (found == piece.barrier_cta->mbarriers.end()) {
        fault_at(FaultKind::kBarrier, op->warp, op->instr, static_cast<int>(op->lane),
                 "asynchronous copy completes on the mbarrier at " +
                     shared_name(piece.barrier_cta, piece.barrier_offset) + ", which is no longer valid");
        return false;
      }
      Mbarrier* b = found->second.get();
      if (last) {
        join(b->arriving, op->clocks);
        uint32_t agent = op->issuer->first_agent + warps_per_cta + op->slot;
        uint32_t& known = b->arriving.v[agent];
        known = std::max(known, op->clock);
      }
      if (piece.arrive) {
        if (piece.arrive > b->pending) {
          fault_at(FaultKind::kBarrier, op->warp, op->instr, static_cast<int>(op->lane),
                   "cp.async.mbarrier.arrive at an mbarrier that waits for no more arrivals");
          return false;
        }
        b->pending -= piece.arrive;
      }
      b->tx -= piece.tx;
      if (b->tx < -((1 << 20) - 1)) {
        fault_at(FaultKind::kBarrier, op->warp, op->instr, static_cast<int>(op->lane),
                 "the transaction count of the mbarrier leaves its range");
        return false;
      }
      try_complete(b);
    }
  }
  return true;
}

void Machine::finish_op(size_t index) {
  std::unique_ptr<AsyncOp> op = std::move(ops[index]);
  ops[index] = std::move(ops.back());
  ops.pop_back();
  op->issuer->slot_busy[op->slot] = 0;
  for (Cta* user : op->touched) --user->in_flight;
  --op->issuer->cluster->async_operations;
  if (op->group) {
    if (!op->read_done) --op->group->reading;
    --op->group->running;
    wake_group_waiters(op->warp);
  }
  ++progress;
}

}  // namespace mla::emu
