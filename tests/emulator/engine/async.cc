// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous copies: st.async, red.async, cp.async, bulk and tensor copies. An operation is queued
// when issued and runs in pieces, at random times and in random order. Its accesses are checked
// against the issuing warp's clocks and recorded when it is issued, so a reader that does not wait is
// found whatever the timing.
#include <algorithm>

#include "tests/emulator/engine/decoder.h"
#include "tests/emulator/engine/memory_ops.h"
#include "tests/emulator/engine/tensor_map.h"

namespace mla::emu {

namespace {

using ull = unsigned long long;

}  // namespace

// ---------------------------------------------------------------- operations

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
  op->clock = ++cta->slot_clock[free];
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

// Checks an access of the async agent to shared memory and records it.
bool Machine::check_async_shared(AsyncOp* op, Cta* owner, uint32_t offset, uint32_t bytes, bool write,
                                 bool proxy, bool strong) {
  if (!shared_shadow) return true;
  const uint32_t* clock = warp->clocks.v.data();
  const uint32_t* local = clock + owner->first_agent;
  const uint32_t agent = op->issuer->first_agent + warps_per_cta + op->slot;
  const bool races = config->checks.shared_races;
  const bool proxies = proxy && config->checks.proxy_fences;
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
        fault(FaultKind::kRace, lane,
              "asynchronous %s of %s races with the write by %s: no barrier orders them",
              write ? "write" : "read", shared_name(owner, shown).c_str(),
              agent_name(*owner->cluster, c->w_agent).c_str());
        return false;
      }
      if (proxies && !(c->w_kind & kAsync) && c->w_clock > clock[agents + c->w_agent]) {
        fault(FaultKind::kProxy, lane,
              "asynchronous copy %s %s, which %s wrote with an ordinary store; there is no fence.proxy.async "
              "between them",
              write ? "overwrites" : "reads", shared_name(owner, shown).c_str(),
              agent_name(*owner->cluster, c->w_agent).c_str());
        return false;
      }
    }
    if (write) {
      uint32_t* reads = c->clocks();
      uint16_t* masks = read_masks(c);
      for (uint32_t i = 0; i < warps_per_cta; ++i) {
        if (reads[i] > local[i] && (masks[i] & mask) && owner->first_agent + i != warp->agent) {
          fault(FaultKind::kRace, lane,
                "asynchronous write of %s races with the read by %s: no barrier orders them",
                shared_name(owner, shown).c_str(),
                agent_name(*owner->cluster, owner->first_agent + i).c_str());
          return false;
        }
      }
      if ((c->ar_mask & mask) && c->ar_agent != agent && c->ar_clock > clock[c->ar_agent]) {
        fault(FaultKind::kRace, lane,
              "asynchronous write of %s races with the read by %s, which is not known to be complete",
              shared_name(owner, shown).c_str(), agent_name(*owner->cluster, c->ar_agent).c_str());
        return false;
      }
      if ((c->rr_mask & mask) && c->rr_agent != warp->agent && c->rr_clock > clock[c->rr_agent]) {
        fault(FaultKind::kRace, lane,
              "asynchronous write of %s races with the read by %s: no barrier orders them",
              shared_name(owner, shown).c_str(), agent_name(*owner->cluster, c->rr_agent).c_str());
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
                        kWrite | kAsync | (strong ? kStrong : 0u))) {
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
                        kRead | (op->proxy ? kAsync : 0u))) {
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

// ---------------------------------------------------------------- instructions

namespace {

struct BarrierTarget {
  Cta* cta = nullptr;
  uint32_t offset = 0;
};

// The mbarrier that a copy completes on. Fails unless it is initialised and stands beside the
// destination.
bool barrier_target(Machine& m, uint32_t lane, const Opd& o, int64_t imm, bool generic, Cta* destination,
                    BarrierTarget* out) {
  uint64_t address = lane_address(m, o, imm, lane, true);
  if (generic) address -= kSharedWindow;
  out->cta = m.shared_target(static_cast<int>(lane), true, address, 8, 8, &out->offset);
  if (!out->cta) return false;
  if (destination && out->cta != destination) {
    m.fault(FaultKind::kBarrier, static_cast<int>(lane),
            "the mbarrier lies in the CTA with cluster rank %u, the destination in the one with rank %u: "
            "both must be the same",
            out->cta->rank, destination->rank);
    return false;
  }
  return m.find_barrier(static_cast<int>(lane), out->cta, out->offset) != nullptr;
}

// st.async, red.async: o[1] address, x values, o[2] mbarrier; a[0] bytes of an element, a[1] Piece::Reduce,
// a[2] type, a[3]: 1 generic addresses. p: the mbarrier's immediate offset.
Next do_st_async(Machine& m, const Instr& in, uint32_t mask) {
  AsyncOp* op = m.new_op(__builtin_ctz(mask));
  if (!op) return Next::kFault;
  uint32_t element = in.a[0], total = element * in.nx;
  int64_t barrier_imm = static_cast<int32_t>(in.target);
  MLA_FOR_LANES(lane, mask) {
    op->lane = lane;
    uint64_t address = lane_address(m, in.o[1], in.imm, lane, true);
    if (in.a[3]) address -= kSharedWindow;
    Piece piece;
    uint32_t offset = 0;
    piece.to_cta = m.shared_target(static_cast<int>(lane), true, address, total, total, &offset);
    if (!piece.to_cta) return Next::kFault;
    BarrierTarget b;
    if (!barrier_target(m, lane, in.o[2], barrier_imm, in.a[3], piece.to_cta, &b)) return Next::kFault;
    piece.to = offset;
    piece.bytes = total;
    piece.tx = total;
    piece.reduce = static_cast<Piece::Reduce>(in.a[1]);
    piece.reduce_type = static_cast<uint8_t>(in.a[2]);
    piece.barrier_cta = b.cta;
    piece.barrier_offset = b.offset;
    for (uint32_t k = 0; k < in.nx; ++k) {
      std::memcpy(piece.data + k * element, operand_at(m, in.x[k]) + lane * (element == 8 ? 8 : 4), element);
    }
    op->pieces.push_back(piece);
  }
  return m.issue(op) ? Next::kNext : Next::kFault;
}

enum CopyFlags : uint32_t {
  kToShared = 1,
  kFromShared = 2,
  kMulticast = 4,
  kToClusterSpace = 8,
  kStore = 16
};

void split(Machine& m, const Piece& whole, uint32_t bytes, std::vector<Piece>* out) {
  uint32_t at = 0;
  while (at < bytes) {
    uint32_t size = std::min(bytes - at, 16 * (1 + m.rng.below(kMaxPieceBytes / 16)));
    Piece piece = whole;
    piece.to += at;
    piece.from += at;
    piece.bytes = size;
    piece.tx = whole.barrier_cta ? size : 0;
    out->push_back(piece);
    at += size;
  }
}

std::shared_ptr<BulkGroup> open_group(std::map<uint32_t, ThreadGroups>& groups, uint32_t lane) {
  ThreadGroups& mine = groups[lane];
  if (!mine.current) mine.current = std::make_shared<BulkGroup>();
  return mine.current;
}

// Immediates of the further address operands.
struct CopyImm {
  int64_t source = 0, barrier = 0;
};

// cp.async.bulk. o[0] destination, o[1] source, o[2] size, o[3] mbarrier, o[4] multicast mask.
Next do_bulk(Machine& m, const Instr& in, uint32_t mask) {
  const CopyImm& imm = *static_cast<const CopyImm*>(in.p);
  MLA_FOR_LANES(lane, mask) {
    uint32_t bytes = lanes<uint32_t>(m, in.o[2])[lane];
    if (bytes == 0) continue;
    if (bytes % 16)
      return m.fault(FaultKind::kMisaligned, static_cast<int>(lane),
                     "bulk copy of %u bytes: the size must be a multiple of 16", bytes);
    uint64_t to = lane_address(m, in.o[0], in.imm, lane, in.a[0] & kToShared);
    uint64_t from = lane_address(m, in.o[1], imm.source, lane, in.a[0] & kFromShared);
    Piece whole;
    whole.source = in.a[0] & kFromShared ? Piece::kSharedSource : Piece::kGlobalSource;
    whole.reduce = static_cast<Piece::Reduce>(in.a[1]);
    whole.reduce_type = static_cast<uint8_t>(in.a[2]);
    if (in.a[0] & kFromShared) {
      uint32_t offset = 0;
      whole.from_cta = m.shared_target(static_cast<int>(lane), false, from, bytes, 16, &offset);
      if (!whole.from_cta) return Next::kFault;
      whole.from = offset;
    } else {
      if (from % 16)
        return m.fault(FaultKind::kMisaligned, static_cast<int>(lane),
                       "bulk copy from 0x%llx: the address must be a multiple of 16", static_cast<ull>(from));
      whole.from = from;
    }
    std::vector<uint32_t> ranks;
    uint32_t to_offset = 0;
    Cta* target = nullptr;
    if (in.a[0] & kToShared) {
      target = m.shared_target(static_cast<int>(lane), in.a[0] & kToClusterSpace, to, bytes, 16, &to_offset);
      if (!target) return Next::kFault;
      if (in.a[0] & kMulticast) {
        uint32_t wanted = lanes<uint32_t>(m, in.o[4])[lane] & 0xffff;
        for (uint32_t r = 0; r < 16; ++r) {
          if ((wanted >> r) & 1) ranks.push_back(r);
        }
      } else {
        ranks.push_back(target->rank);
      }
    } else {
      if (to % 16)
        return m.fault(FaultKind::kMisaligned, static_cast<int>(lane),
                       "bulk copy to 0x%llx: the address must be a multiple of 16", static_cast<ull>(to));
      ranks.push_back(0);
    }
    for (uint32_t rank : ranks) {
      if ((in.a[0] & kMulticast) && rank >= m.cluster_size) {
        return m.fault(FaultKind::kOutOfBounds, static_cast<int>(lane),
                       "multicast to CTA rank %u of a cluster of %u CTAs", rank, m.cluster_size);
      }
      AsyncOp* op = m.new_op(static_cast<int>(lane));
      if (!op) return Next::kFault;
      op->proxy = true;
      Piece piece = whole;
      if (in.a[0] & kToShared) {
        piece.to_cta = m.cta->cluster->ctas[rank].get();
        uint64_t address = in.a[0] & kMulticast ? (uint64_t{rank} + 1) << kRankShift | to_offset : to;
        if (!m.shared_target(static_cast<int>(lane), true, address, bytes, 16, &to_offset))
          return Next::kFault;
        piece.to = to_offset;
        BarrierTarget b;
        if (!barrier_target(m, lane, in.o[3], imm.barrier, false,
                            in.a[0] & kMulticast ? nullptr : piece.to_cta, &b))
          return Next::kFault;
        if (in.a[0] & kMulticast) {
          b.cta = piece.to_cta;
          if (!m.find_barrier(static_cast<int>(lane), b.cta, b.offset)) return Next::kFault;
        }
        piece.barrier_cta = b.cta;
        piece.barrier_offset = b.offset;
      } else {
        piece.to = to;
        op->two_steps = true;
        op->group = open_group(m.warp->bulk, lane);
      }
      split(m, piece, bytes, &op->pieces);
      if (!m.issue(op)) return Next::kFault;
    }
  }
  return Next::kNext;
}

// Tensor copies. o[0] shared address, o[1] tensor map, o[3] mbarrier, o[4] multicast mask; x: coordinates.
Next do_tensor(Machine& m, const Instr& in, uint32_t mask) {
  const CopyImm& imm = *static_cast<const CopyImm*>(in.p);
  const uint32_t rank = in.nx;
  const bool store = in.a[0] & kStore;
  MLA_FOR_LANES(lane, mask) {
    const int l = static_cast<int>(lane);
    uint64_t map_address = lane_address(m, in.o[1], imm.source, lane, false);
    if (map_address % 64)
      return m.fault(FaultKind::kMisaligned, l, "tensor map at 0x%llx: the address must be a multiple of 64",
                     static_cast<ull>(map_address));
    const uint8_t* p = m.resolve(l, Space::kGeneric, false, map_address, 128, kRead, 64);
    if (!p) return Next::kFault;
    TensorMapImage map;
    std::memcpy(&map, p, sizeof map);
    if (map.magic != kTensorMapMagic) {
      return m.fault(FaultKind::kTensorMap, l,
                     "there is no tensor map at 0x%llx: it was not made by cuTensorMapEncodeTiled",
                     static_cast<ull>(map_address));
    }
    if (map.rank != rank)
      return m.fault(FaultKind::kTensorMap, l, "the tensor map has %u dimensions, the instruction %u",
                     map.rank, rank);
    if (map.interleave) return m.fault(FaultKind::kTensorMap, l, "interleaved tensor maps are not supported");
    uint32_t element = element_bytes(map.data_type);
    if (element == 0)
      return m.fault(FaultKind::kTensorMap, l, "the tensor map has the unknown data type %u", map.data_type);
    for (uint32_t i = 0; i < rank; ++i) {
      if (map.element_stride[i] > 1)
        return m.fault(FaultKind::kTensorMap, l, "tensor maps with an element stride of %u are not supported",
                       map.element_stride[i]);
    }
    uint32_t row = map.box[0] * element;
    static const uint32_t kSpans[] = {~0u, 32, 64, 128};
    if (map.swizzle > 3)
      return m.fault(FaultKind::kTensorMap, l, "the tensor map has the unknown swizzle %u", map.swizzle);
    if (row > kSpans[map.swizzle])
      return m.fault(FaultKind::kTensorMap, l, "box row of %u bytes is longer than the swizzle span of %u",
                     row, kSpans[map.swizzle]);
    if (row % 16)
      return m.fault(FaultKind::kTensorMap, l, "box row of %u bytes is not a multiple of 16", row);
    uint64_t rows = 1;
    for (uint32_t i = 1; i < rank; ++i) rows *= map.box[i];
    // A swizzled row takes the whole span, even when the box is narrower.
    const uint32_t pitch = map.swizzle ? kSpans[map.swizzle] : row;
    uint32_t total = static_cast<uint32_t>(rows * pitch);
    int64_t at[5] = {};
    for (uint32_t i = 0; i < rank; ++i) at[i] = static_cast<int32_t>(lanes<uint32_t>(m, in.x[i])[lane]);

    uint64_t shared = lane_address(m, in.o[0], in.imm, lane, true);
    uint32_t offset = 0;
    Cta* target = m.shared_target(l, in.a[0] & kToClusterSpace, shared, total, 128, &offset);
    if (!target) return Next::kFault;
    // Swizzling permutes within 1024, 512 or 256 bytes: the tile must not be pushed out of its place.
    std::vector<uint32_t> ranks;
    if (in.a[0] & kMulticast) {
      uint32_t wanted = lanes<uint32_t>(m, in.o[4])[lane] & 0xffff;
      for (uint32_t r = 0; r < 16; ++r) {
        if ((wanted >> r) & 1) ranks.push_back(r);
      }
    } else {
      ranks.push_back(target->rank);
    }
    for (uint32_t r : ranks) {
      if (r >= m.cluster_size)
        return m.fault(FaultKind::kOutOfBounds, l, "multicast to CTA rank %u of a cluster of %u CTAs", r,
                       m.cluster_size);
      AsyncOp* op = m.new_op(l);
      if (!op) return Next::kFault;
      op->proxy = true;
      Cta* owner = store ? target : m.cta->cluster->ctas[r].get();
      uint64_t own_address = (uint64_t{owner->rank} + 1) << kRankShift | offset;
      if (!m.shared_target(l, true, own_address, total, 128, &offset)) return Next::kFault;
      BarrierTarget b;
      if (!store) {
        if (!barrier_target(m, lane, in.o[3], imm.barrier, false, in.a[0] & kMulticast ? nullptr : owner, &b))
          return Next::kFault;
        if (in.a[0] & kMulticast) {
          b.cta = owner;
          if (!m.find_barrier(l, b.cta, b.offset)) return Next::kFault;
        }
      } else {
        op->two_steps = true;
        op->group = open_group(m.warp->bulk, lane);
      }
      for (uint64_t n = 0; n < rows; ++n) {
        uint64_t rest = n, address = map.address;
        bool inside = true;
        for (uint32_t i = 1; i < rank; ++i) {
          int64_t c = at[i] + static_cast<int64_t>(rest % map.box[i]);
          rest /= map.box[i];
          if (c < 0 || static_cast<uint64_t>(c) >= map.dim[i]) {
            inside = false;
          } else {
            address += static_cast<uint64_t>(c) * map.stride_bytes[i - 1];
          }
        }
        int64_t first = std::clamp<int64_t>(-at[0], 0, map.box[0]);
        int64_t last = std::clamp<int64_t>(static_cast<int64_t>(map.dim[0]) - at[0], 0, map.box[0]);
        if (!inside || last <= first) first = last = 0;
        Piece piece;
        piece.bytes = row;
        piece.swizzle = map.swizzle;
        piece.fill_before = static_cast<uint32_t>(first) * element;
        piece.fill_after = row - static_cast<uint32_t>(last) * element;
        if (first == last) {
          piece.fill_before = row;
          piece.fill_after = 0;
        }
        if (store && piece.fill_after && first != last) {
          // Stores write whole units of 16 bytes: the H200 was seen to write past the end of a row whose
          // length is no multiple of that.
          uint64_t over = map.dim[0] * element % 16;
          if (over)
            piece.fill_after -= std::min<uint32_t>(piece.fill_after, static_cast<uint32_t>(16 - over));
        }
        uint64_t global = address + static_cast<uint64_t>(at[0] + first) * element;
        if (map.oob_fill) {
          piece.fill = 0x7ff7;  // in every 16 bits, whatever the type
          piece.fill_unit = 2;
        }
        uint64_t place = offset + n * pitch;
        if (store) {
          piece.source = Piece::kSharedSource;
          piece.from_cta = owner;
          piece.from = place;
          piece.to = global;
          piece.reduce = static_cast<Piece::Reduce>(in.a[1]);
          piece.reduce_type = map.data_type == 7   ? static_cast<uint8_t>(T::kF32)
                              : map.data_type == 6 ? static_cast<uint8_t>(T::kF16)
                              : map.data_type == 9 ? static_cast<uint8_t>(T::kBF16)
                              : map.data_type == 3 ? static_cast<uint8_t>(T::kS32)
                              : map.data_type == 4 ? static_cast<uint8_t>(T::kU64)
                                                   : static_cast<uint8_t>(T::kU32);
          if (first == last) continue;
        } else {
          piece.source = Piece::kGlobalSource;
          piece.from = global;
          piece.to_cta = owner;
          piece.to = place;
          piece.tx = row;
          piece.barrier_cta = b.cta;
          piece.barrier_offset = b.offset;
        }
        op->pieces.push_back(piece);
      }
      if (op->pieces.empty()) {  // a store wholly outside the tensor
        Piece nothing;
        op->pieces.push_back(nothing);
        op->two_steps = false;
      }
      if (!m.issue(op)) return Next::kFault;
    }
  }
  return Next::kNext;
}

Next do_bulk_commit(Machine& m, const Instr&, uint32_t mask) {
  MLA_FOR_LANES(lane, mask) {
    ThreadGroups& mine = m.warp->bulk[lane];
    if (!mine.current) mine.current = std::make_shared<BulkGroup>();
    mine.committed.push_back(std::move(mine.current));
    mine.current.reset();
  }
  return Next::kNext;
}

bool groups_done(ThreadGroups& mine, uint32_t allowed, bool read) {
  for (size_t i = 0; i + allowed < mine.committed.size(); ++i) {
    if (read ? mine.committed[i]->reading : mine.committed[i]->running) return false;
  }
  return true;
}

void retire_groups(Machine& m, ThreadGroups& mine, uint32_t allowed, bool read) {
  uint32_t* clock = m.warp->clocks.v.data();
  for (size_t i = 0; i + allowed < mine.committed.size(); ++i) {
    for (auto [agent, value] : mine.committed[i]->epochs) clock[agent] = std::max(clock[agent], value);
  }
  while (mine.committed.size() > allowed && (!read || mine.committed.front()->running == 0))
    mine.committed.pop_front();
}

// a[0] groups that may stay, a[1] .read.
Next do_bulk_wait(Machine& m, const Instr& in, uint32_t mask) {
  MLA_FOR_LANES(lane, mask) {
    auto found = m.warp->bulk.find(lane);
    if (found == m.warp->bulk.end()) continue;
    if (!groups_done(found->second, in.a[0], in.a[1])) {
      m.group->wait.offset = in.a[0];
      m.group->wait.lane = lane;
      m.group->wait.read_only = in.a[1];
      m.wait_on(WaitKind::kBulkGroup, nullptr);
      return Next::kBlocked;
    }
  }
  MLA_FOR_LANES(lane, mask) {
    auto found = m.warp->bulk.find(lane);
    if (found != m.warp->bulk.end()) retire_groups(m, found->second, in.a[0], in.a[1]);
  }
  return Next::kNext;
}

// cp.async: o[0] shared address, o[1] global address, o[2] source size (optional) or ignore predicate;
// a[0] bytes, a[1] 1: o[2] is a size, 2: a predicate.
Next do_cp_async(Machine& m, const Instr& in, uint32_t mask) {
  const CopyImm& imm = *static_cast<const CopyImm*>(in.p);
  AsyncOp* op = m.new_op(__builtin_ctz(mask));
  if (!op) return Next::kFault;
  uint32_t ignore = in.a[1] == 2 ? predicate(m, in.o[2]) : 0;
  MLA_FOR_LANES(lane, mask) {
    op->lane = lane;
    uint64_t to = lane_address(m, in.o[0], in.imm, lane, true),
             from = lane_address(m, in.o[1], imm.source, lane, false);
    uint32_t offset = 0, bytes = in.a[0];
    Piece piece;
    piece.to_cta = m.shared_target(static_cast<int>(lane), false, to, bytes, bytes, &offset);
    if (!piece.to_cta) return Next::kFault;
    if (from % bytes)
      return m.fault(FaultKind::kMisaligned, static_cast<int>(lane),
                     "global address 0x%llx is not a multiple of %u", static_cast<ull>(from), bytes);
    uint32_t valid = in.a[1] == 1 ? lanes<uint32_t>(m, in.o[2])[lane] : (ignore >> lane) & 1 ? 0 : bytes;
    if (valid > bytes)
      return m.fault(FaultKind::kInstruction, static_cast<int>(lane), "cp.async reads %u bytes and writes %u",
                     valid, bytes);
    piece.to = offset;
    piece.bytes = bytes;
    piece.source = Piece::kGlobalSource;
    piece.from = from;
    piece.fill_after = bytes - valid;
    op->pieces.push_back(piece);
  }
  op->group = open_group(m.warp->cp_async, 0);
  return m.issue(op) ? Next::kNext : Next::kFault;
}

Next do_cp_commit(Machine& m, const Instr&, uint32_t) {
  ThreadGroups& mine = m.warp->cp_async[0];
  if (!mine.current) mine.current = std::make_shared<BulkGroup>();
  mine.committed.push_back(std::move(mine.current));
  mine.current.reset();
  return Next::kNext;
}

// a[0] groups that may stay, a[1] 1: wait_all.
Next do_cp_wait(Machine& m, const Instr& in, uint32_t mask) {
  ThreadGroups& mine = m.warp->cp_async[0];
  if (in.a[1] && mine.current) do_cp_commit(m, in, mask);
  if (!groups_done(mine, in.a[0], false)) {
    m.group->wait.offset = in.a[0];
    m.wait_on(WaitKind::kAsyncGroup, nullptr);
    return Next::kBlocked;
  }
  retire_groups(m, mine, in.a[0], false);
  return Next::kNext;
}

// cp.async.mbarrier.arrive: the arrival happens when the cp.async of the thread before it are done. The
// emulator waits for them here. a[0] 1: noinc.
Next do_cp_arrive(Machine& m, const Instr& in, uint32_t mask) {
  ThreadGroups& mine = m.warp->cp_async[0];
  bool busy = mine.current && mine.current->running;
  for (auto& group : mine.committed) busy |= group->running != 0;
  if (busy) {
    m.wait_on(WaitKind::kAsyncGroup, nullptr);
    return Next::kBlocked;
  }
  Clocks seen = m.warp->clocks;
  auto take = [&](const BulkGroup& group) {
    for (auto [agent, value] : group.epochs) seen.v[agent] = std::max(seen.v[agent], value);
  };
  if (mine.current) take(*mine.current);
  for (auto& group : mine.committed) take(*group);
  // Only the copies are released by it, not the thread's other writes: the slots' clocks.
  Clocks released;
  released.v.assign(2 * m.agents, 0);
  for (uint32_t rank = 0; rank < m.cluster_size; ++rank) {
    for (uint32_t s = 0; s < m.slots; ++s) {
      uint32_t agent = rank * m.agents_per_cta + m.warps_per_cta + s;
      released.v[agent] = seen.v[agent];
    }
  }
  MLA_FOR_LANES(lane, mask) {
    uint64_t address = lane_address(m, in.o[1], in.imm, lane, true);
    if (in.a[1]) address -= kSharedWindow;
    uint32_t offset = 0;
    Cta* owner = m.shared_target(static_cast<int>(lane), false, address, 8, 8, &offset);
    if (!owner) return Next::kFault;
    Mbarrier* b = m.find_barrier(static_cast<int>(lane), owner, offset);
    if (!b) return Next::kFault;
    m.join(b->arriving, released);
    if (in.a[0]) {
      if (!m.arrive(static_cast<int>(lane), owner, offset, b, 1, 0)) return Next::kFault;
    } else {
      ++m.progress;
      m.try_complete(b);  // pending is raised and lowered again
    }
  }
  return Next::kNext;
}

Next do_nothing(Machine&, const Instr&, uint32_t) { return Next::kNext; }

Piece::Reduce reduce_op(Decoder& d) {
  switch (atom_op(d)) {
    case AtomOp::kAdd:
      return Piece::kAdd;
    case AtomOp::kMin:
      return Piece::kMin;
    case AtomOp::kMax:
      return Piece::kMax;
    case AtomOp::kInc:
      return Piece::kInc;
    case AtomOp::kDec:
      return Piece::kDec;
    case AtomOp::kAnd:
      return Piece::kAnd;
    case AtomOp::kOr:
      return Piece::kOr;
    case AtomOp::kXor:
      return Piece::kXor;
    default:
      d.fail("operation of " + d.s.op_text + " is not supported");
  }
}

// Address operand that is not the first: its immediate goes elsewhere.
Opd further_address(Decoder& d, size_t i, Space space, int64_t* imm) {
  int64_t keep = d.in.imm;
  Opd o = d.address(d.operand(i), space);
  *imm = d.in.imm;
  d.in.imm = keep;
  return o;
}

CopyImm* copy_imm(Decoder& d) {
  auto owned = std::make_shared<CopyImm>();
  CopyImm* p = owned.get();
  d.program().call_tables.push_back(std::move(owned));
  d.in.p = p;
  return p;
}

bool decode_tensor(Decoder& d, bool reduce) {
  Instr& in = d.in;
  std::string dims = d.one_of({"1d", "2d", "3d", "4d", "5d"});
  if (dims.empty()) d.fail(d.s.op_text + " needs .1d to .5d");
  uint32_t rank = static_cast<uint32_t>(dims[0] - '0');
  std::string to = d.one_of({"shared::cluster", "shared::cta", "global"});
  std::string from = d.one_of({"global", "shared::cta"});
  d.mod("tile");
  CopyImm* imm = copy_imm(d);
  auto coordinates = [&](const Operand& o) {
    if (o.kind != Operand::kAddress || o.parts.size() != 2)
      d.fail(d.s.op_text + " needs [tensor map, {coordinates}]");
    auto list = d.elements(o.parts[1]);
    if (list.size() != rank)
      d.fail(d.s.op_text + " needs " + std::to_string(rank) + " coordinates, found " +
             std::to_string(list.size()));
    std::vector<Opd> result;
    for (const Operand* c : list) result.push_back(d.src(*c, T::kS32));
    d.pool(std::move(result));
  };
  in.fn = do_tensor;
  if (to != "global") {
    if (from != "global" || reduce) d.fail(d.s.op_text + " is not supported");
    if (!d.mod("mbarrier::complete_tx::bytes")) d.fail(d.s.op_text + " needs .mbarrier::complete_tx::bytes");
    bool multicast = d.mod("multicast::cluster"), hint = d.mod("L2::cache_hint");
    d.need(3u + (multicast ? 1u : 0u) + (hint ? 1u : 0u));
    in.a[0] = kToShared | (to == "shared::cluster" ? kToClusterSpace : 0u) | (multicast ? kMulticast : 0u);
    in.o[0] = d.address(d.operand(0), Space::kShared);
    in.o[1] = further_address(d, 1, Space::kGeneric, &imm->source);
    coordinates(d.operand(1));
    in.o[3] = further_address(d, 2, Space::kShared, &imm->barrier);
    if (multicast) in.o[4] = d.src(3, T::kU16);
    if (hint) in.o[2] = d.src(d.count() - 1, T::kB64);
    return true;
  }
  if (from != "shared::cta") d.fail(d.s.op_text + " is not supported");
  if (reduce) in.a[1] = reduce_op(d);
  if (!d.mod("bulk_group")) d.fail(d.s.op_text + " needs .bulk_group");
  bool hint = d.mod("L2::cache_hint");
  d.need(hint ? 3 : 2);
  in.a[0] = kStore | kFromShared;
  in.o[0] = d.address(d.operand(1), Space::kShared);
  in.o[1] = further_address(d, 0, Space::kGeneric, &imm->source);
  coordinates(d.operand(0));
  if (hint) in.o[2] = d.src(2, T::kB64);
  return true;
}

}  // namespace

bool decode_async(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  if ((name == "st" || name == "red") && d.s.op.size() > 1 && d.s.op[1] == "async") d.mod("async");

  bool st_async = name == "st" && d.s.op.size() > 1 && d.s.op[1] == "async";
  bool red_async = name == "red" && d.s.op.size() > 1 && d.s.op[1] == "async";
  if (st_async || red_async) {
    d.one_of({"weak", "relaxed"});
    d.mod("cluster");
    bool shared = d.mod("shared::cluster");
    if (!d.mod("mbarrier::complete_tx::bytes")) d.fail(d.s.op_text + " needs .mbarrier::complete_tx::bytes");
    if (red_async) in.a[1] = reduce_op(d);
    std::string vec = d.one_of({"v2", "v4"});
    T t = d.type();
    uint32_t bits = bits_of(t), n = vec.empty() ? 1 : vec == "v2" ? 2 : 4;
    if ((bits != 32 && bits != 64) || n * bits > 128) d.fail(d.s.op_text + " is not supported");
    if (red_async && n != 1) d.fail(d.s.op_text + " is not supported");
    d.need(3);
    in.fn = do_st_async;
    in.a[0] = bits / 8;
    in.a[2] = static_cast<uint32_t>(t);
    in.a[3] = !shared;
    in.o[1] = d.address(d.operand(0), shared ? Space::kShared : Space::kGeneric);
    auto list = d.elements(d.operand(1));
    if (list.size() != n) d.fail(d.s.op_text + " needs " + std::to_string(n) + " values");
    std::vector<Opd> values;
    for (const Operand* o : list) values.push_back(d.src(*o, t));
    d.pool(std::move(values));
    int64_t barrier_imm = 0;
    in.o[2] = further_address(d, 2, shared ? Space::kShared : Space::kGeneric, &barrier_imm);
    in.target = static_cast<uint32_t>(static_cast<int32_t>(barrier_imm));
    return true;
  }

  if (name != "cp") return false;
  bool reduce = d.mod("reduce");
  if (!d.mod("async")) d.fail("instruction " + d.s.op_text + " is not supported");
  if (!d.mod("bulk")) {
    if (reduce) d.fail("instruction " + d.s.op_text + " is not supported");
    if (d.mod("commit_group")) {
      d.need(0);
      in.fn = do_cp_commit;
      return true;
    }
    if (d.mod("wait_group")) {
      d.need(1);
      in.fn = do_cp_wait;
      in.a[0] = static_cast<uint32_t>(d.immediate(0));
      return true;
    }
    if (d.mod("wait_all")) {
      d.need(0);
      in.fn = do_cp_wait;
      in.a[1] = 1;
      return true;
    }
    if (d.mod("mbarrier")) {
      if (!d.mod("arrive")) d.fail("instruction " + d.s.op_text + " is not supported");
      in.a[0] = d.mod("noinc");
      std::string space = d.one_of({"shared", "shared::cta"});
      d.type_in({T::kB64});
      d.need(1);
      in.fn = do_cp_arrive;
      in.a[1] = space.empty();
      in.o[1] = d.address(d.operand(0), space.empty() ? Space::kGeneric : Space::kShared);
      return true;
    }
    if (d.one_of({"ca", "cg"}).empty()) d.fail("instruction " + d.s.op_text + " is not supported");
    if (d.one_of({"shared", "shared::cta"}).empty() || !d.mod("global"))
      d.fail("instruction " + d.s.op_text + " is not supported");
    bool hint = d.mod("L2::cache_hint");
    d.one_of({"L2::64B", "L2::128B", "L2::256B"});
    d.need(hint ? 4 : 3, hint ? 5 : 4);
    int64_t bytes = d.immediate(2);
    if (bytes != 4 && bytes != 8 && bytes != 16) d.fail("cp.async copies 4, 8 or 16 bytes");
    CopyImm* imm = copy_imm(d);
    in.fn = do_cp_async;
    in.a[0] = static_cast<uint32_t>(bytes);
    in.o[0] = d.address(d.operand(0), Space::kShared);
    in.o[1] = further_address(d, 1, Space::kGlobal, &imm->source);
    if (d.count() == (hint ? 5u : 4u)) {
      const Operand& o = d.operand(3);
      bool is_predicate = o.kind == Operand::kReg && d.register_bits(o.reg) == 1;
      in.a[1] = is_predicate ? 2 : 1;
      in.o[2] = is_predicate ? d.src_pred(o) : d.src(o, T::kU32);
    }
    if (hint) in.o[4] = d.src(d.count() - 1, T::kB64);
    return true;
  }
  if (d.mod("commit_group")) {
    d.need(0);
    in.fn = do_bulk_commit;
    return true;
  }
  if (d.mod("wait_group")) {
    d.need(1);
    in.fn = do_bulk_wait;
    in.a[1] = d.mod("read");
    in.a[0] = static_cast<uint32_t>(d.immediate(0));
    return true;
  }
  if (d.mod("prefetch")) {
    bool tensor = d.mod("tensor");
    d.one_of({"1d", "2d", "3d", "4d", "5d"});
    if (!d.mod("L2") || !d.mod("global")) d.fail("instruction " + d.s.op_text + " is not supported");
    d.mod("tile");
    d.mod("L2::cache_hint");
    d.need(tensor ? 1 : 2, tensor ? 2 : 3);
    in.fn = do_nothing;
    return true;
  }
  if (d.mod("tensor")) return decode_tensor(d, reduce);

  std::string to = d.one_of({"shared::cluster", "shared::cta", "global"});
  std::string from = d.one_of({"global", "shared::cta"});
  CopyImm* imm = copy_imm(d);
  in.fn = do_bulk;
  if (to == "global") {
    if (from != "shared::cta") d.fail("instruction " + d.s.op_text + " is not supported");
    if (!d.mod("bulk_group")) d.fail(d.s.op_text + " needs .bulk_group");
    bool hint = d.mod("L2::cache_hint");
    if (reduce) {
      in.a[1] = reduce_op(d);
      d.mod("noftz");
      in.a[2] = static_cast<uint32_t>(d.type_in(
          {T::kF16, T::kBF16, T::kF32, T::kF64, T::kU32, T::kS32, T::kU64, T::kS64, T::kB32, T::kB64}));
    }
    d.need(hint ? 4 : 3);
    in.a[0] = kFromShared;
    in.o[0] = d.address(d.operand(0), Space::kGlobal);
    in.o[1] = further_address(d, 1, Space::kShared, &imm->source);
    in.o[2] = d.src(2, T::kU32);
    if (hint) in.o[4] = d.src(3, T::kB64);
    return true;
  }
  if (to.empty() || from.empty()) d.fail("instruction " + d.s.op_text + " is not supported");
  if (!d.mod("mbarrier::complete_tx::bytes")) d.fail(d.s.op_text + " needs .mbarrier::complete_tx::bytes");
  bool multicast = d.mod("multicast::cluster"), hint = d.mod("L2::cache_hint");
  if (from == "shared::cta" && (to != "shared::cluster" || multicast || hint))
    d.fail("instruction " + d.s.op_text + " is not supported");
  if (reduce) {
    in.a[1] = reduce_op(d);
    in.a[2] = static_cast<uint32_t>(d.type_in({T::kU32, T::kS32, T::kU64, T::kB32}));
  }
  d.need(4u + (multicast ? 1u : 0u) + (hint ? 1u : 0u));
  in.a[0] = kToShared | (to == "shared::cluster" ? kToClusterSpace : 0u) |
            (from == "shared::cta" ? kFromShared : 0u) | (multicast ? kMulticast : 0u);
  in.o[0] = d.address(d.operand(0), Space::kShared);
  in.o[1] = further_address(d, 1, from == "global" ? Space::kGlobal : Space::kShared, &imm->source);
  in.o[2] = d.src(2, T::kU32);
  in.o[3] = further_address(d, 3, Space::kShared, &imm->barrier);
  if (multicast) in.o[4] = d.src(4, T::kU16);
  if (hint) d.src(d.count() - 1, T::kB64);
  return true;
}

}  // namespace mla::emu
