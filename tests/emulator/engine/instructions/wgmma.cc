// SPDX-License-Identifier: Apache-2.0
//
// wgmma. Each warp of the warpgroup computes its 16 rows when it issues the instruction. Shared memory
// is read through the descriptors as the async proxy: the reads stay open, for the race checks, until
// wgmma.wait_group. What is not modelled: reading or changing the registers of an operation in flight.
#include <algorithm>
#include <array>
#include <memory>

#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/fp.h"
#include "tests/emulator/engine/mma_kernels.h"

namespace mla::emu {

namespace {

struct Descriptor {
  uint32_t start, leading, stride, base_offset, swizzle;  // swizzle: 0 none, 1 128B, 2 64B, 3 32B
  explicit Descriptor(uint64_t bits)
      : start(static_cast<uint32_t>(bits & 0x3fff) << 4),
        leading(static_cast<uint32_t>((bits >> 16) & 0x3fff) << 4),
        stride(static_cast<uint32_t>((bits >> 32) & 0x3fff) << 4),
        base_offset(static_cast<uint32_t>((bits >> 49) & 7)),
        swizzle(static_cast<uint32_t>(bits >> 62)) {}

  uint32_t span() const { return swizzle == 0 ? 16 : swizzle == 1 ? 128 : swizzle == 2 ? 64 : 32; }
  uint32_t swizzled(uint32_t address) const {
    const uint32_t keep = swizzle == 0 ? 0 : swizzle == 1 ? 0x70 : swizzle == 2 ? 0x30 : 0x10;
    return address ^ ((address >> 3) & keep);
  }
  // Address of the 16 bytes with index `chunk` along k of row `row`: k-major operands.
  uint32_t k_major(uint32_t row, uint32_t chunk) const {
    return swizzled(start + row % 8 * span() + row / 8 * stride + chunk * (swizzle == 0 ? leading : 16));
  }
  // Address of the 8 16-bit elements from row 8 * chunk at one k: operands stored the other way round.
  uint32_t mn_major(uint32_t chunk, uint32_t k) const {
    const uint32_t chunks = span() / 16;
    uint32_t far_chunk = swizzle == 0 ? stride : leading, far_k = swizzle == 0 ? leading : stride;
    return swizzled(start + chunk % chunks * 16 + chunk / chunks * far_chunk + k % 8 * span() +
                    k / 8 * far_k);
  }
};

enum Element : uint32_t { kE4m3, kE5m2, kHalf, kBf16 };

struct Form {
  uint32_t n = 0, k = 0;
  Element a = kE4m3, b = kE4m3;
  bool half_acc = false, a_in_registers = false;
  bool negate_a = false, negate_b = false, transpose_a = false, transpose_b = false;
  uint32_t d_regs = 0;
};

float value_of(Element element, const uint8_t* p) {
  uint16_t h;
  switch (element) {
    case kE4m3: {
      static const auto table = [] {
        std::array<float, 256> t;
        for (uint32_t i = 0; i < 256; ++i) t[i] = e4m3_to_f32(static_cast<uint8_t>(i));
        return t;
      }();
      return table[*p];
    }
    case kE5m2:
      return e5m2_to_f32(*p);
    case kHalf:
      std::memcpy(&h, p, 2);
      return f16_to_f32(h);
    default:
      std::memcpy(&h, p, 2);
      return f32_from(uint32_t{h} << 16);
  }
}

// Checks and records a read of 16 bytes by the group; nullptr after a fault.
const uint8_t* read_chunk(Machine& m, AsyncOp* op, bool has_slot, uint32_t address) {
  uint32_t offset = 0;
  Cta* owner = m.shared_target(-1, false, address, 16, 16, &offset);
  if (!owner) return nullptr;
  if (m.shared_shadow) {
    if (has_slot && !m.check_async_shared(op, owner, offset, 16, false, true, false)) return nullptr;
    uint32_t missing = 0xffff & ~m.cell(owner, offset)->written;
    if (missing && !m.finding(Check::kUnwritten, FaultKind::kUnwritten, -1,
                              "wgmma reads 16 bytes at %s, but nothing has written the byte at 0x%x",
                              m.shared_name(owner, offset).c_str(),
                              offset + static_cast<uint32_t>(__builtin_ctz(missing)))) {
      return nullptr;
    }
  }
  return owner->shared.data() + offset;
}

// x: d registers, then a registers if there are any; o[1] descriptor of A, o[2] of B, o[3] scale-d.
Next do_wgmma(Machine& m, const Instr& in, uint32_t mask) {
  if (!m.all_live(-1, mask, "wgmma.mma_async")) return Next::kFault;
  const Form& f = *static_cast<const Form*>(in.p);
  Warp* w = m.warp;
  if (mask != ~0u)
    return m.fault(FaultKind::kDivergence, -1, "wgmma.mma_async needs all threads of the warpgroup");
  if (m.warps_per_cta % 4)
    return m.fault(FaultKind::kInstruction, -1, "wgmma needs CTAs of whole warpgroups, 128 threads each");
  if (!w->wgmma_fenced)
    return m.fault(FaultKind::kInstruction, -1, "wgmma.mma_async without wgmma.fence before the first one");
  if (!w->wgmma_open) {
    Warp::WgmmaGroup group;
    for (uint32_t i = 0; i < m.slots; ++i) {
      if (m.cta->slot_busy[i]) continue;
      group.slot = i;
      group.clock = m.cta->slot_clock[i] += 2;
      m.cta->slot_busy[i] = 1;
      m.cta->slot_line[i] = in.line;
      break;
    }
    w->wgmma_groups.push_back(group);
    w->wgmma_open = true;
  }
  const Warp::WgmmaGroup& group = w->wgmma_groups.back();
  AsyncOp op;
  op.issuer = m.cta;
  op.warp = w;
  op.slot = group.slot;
  op.clock = group.clock;
  op.lane = ~0u;  // the whole warp
  const bool has_slot = group.slot != ~0u;

  const uint32_t bytes = f.a >= kHalf ? 2 : 1, per_chunk = 16 / bytes, chunks = f.k / per_chunk;
  static thread_local std::vector<float> storage;
  storage.resize((16 + 256) * 32 + 16 * 256 + 64);
  float* a = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(storage.data()) + 63) / 64 * 64);
  float* b = a + 16 * 32;
  float* c = b + 256 * 32;
  const uint32_t row_base = w->index % 4 * 16;
  if (f.a_in_registers) {
    const uint32_t per_register = 4 / bytes;
    for (uint32_t r = 0; r < 4; ++r) {
      const uint32_t* v = lanes<uint32_t>(m, in.x[f.d_regs + r]);
      for (uint32_t lane = 0; lane < 32; ++lane) {
        uint32_t row = lane / 4 + 8 * (r % 2), k = per_register * (lane % 4) + 4 * per_register * (r / 2);
        const uint8_t* p = reinterpret_cast<const uint8_t*>(&v[lane]);
        for (uint32_t i = 0; i < per_register; ++i) a[row * f.k + k + i] = value_of(f.a, p + i * bytes);
      }
    }
  } else {
    const Descriptor d(lanes<uint64_t>(m, in.o[1])[0]);
    if (f.transpose_a) {
      for (uint32_t k = 0; k < f.k; ++k) {
        for (uint32_t chunk = 0; chunk < 2; ++chunk) {
          const uint8_t* p = read_chunk(m, &op, has_slot, d.mn_major(row_base / 8 + chunk, k));
          if (!p) return Next::kFault;
          for (uint32_t i = 0; i < 8; ++i) a[(chunk * 8 + i) * f.k + k] = value_of(f.a, p + 2 * i);
        }
      }
    } else {
      for (uint32_t row = 0; row < 16; ++row) {
        for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
          const uint8_t* p = read_chunk(m, &op, has_slot, d.k_major(row_base + row, chunk));
          if (!p) return Next::kFault;
          if (f.a == kE4m3) {
            e4m3_to_floats(p, a + row * f.k + chunk * 16, 16);
            continue;
          }
          for (uint32_t i = 0; i < per_chunk; ++i)
            a[row * f.k + chunk * per_chunk + i] = value_of(f.a, p + i * bytes);
        }
      }
    }
  }
  const Descriptor d(lanes<uint64_t>(m, in.o[2])[0]);
  if (f.transpose_b) {
    for (uint32_t k = 0; k < f.k; ++k) {
      for (uint32_t chunk = 0; chunk < f.n / 8; ++chunk) {
        const uint8_t* p = read_chunk(m, &op, has_slot, d.mn_major(chunk, k));
        if (!p) return Next::kFault;
        for (uint32_t i = 0; i < 8; ++i) b[k * f.n + chunk * 8 + i] = value_of(f.b, p + 2 * i);
      }
    }
  } else {
    for (uint32_t column = 0; column < f.n; ++column) {
      for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
        const uint8_t* p = read_chunk(m, &op, has_slot, d.k_major(column, chunk));
        if (!p) return Next::kFault;
        for (uint32_t i = 0; i < per_chunk; ++i)
          b[(chunk * per_chunk + i) * f.n + column] = value_of(f.b, p + i * bytes);
      }
    }
  }
  if (f.negate_a != f.negate_b) {
    for (uint32_t i = 0; i < 16 * f.k; ++i) a[i] = -a[i];
  }
  const uint32_t keep = predicate(m, in.o[3]);
  for (uint32_t r = 0; r < f.d_regs; ++r) {
    const uint32_t* v = lanes<uint32_t>(m, in.x[r]);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      if (f.half_acc) {
        float* to = c + (lane / 4 + 8 * (r % 2)) * f.n + 8 * (r / 2) + 2 * (lane % 4);
        to[0] = keep & 1 ? f16_to_f32(static_cast<uint16_t>(v[lane])) : 0;
        to[1] = keep & 1 ? f16_to_f32(static_cast<uint16_t>(v[lane] >> 16)) : 0;
      } else {
        c[(lane / 4 + 8 * (r / 2 % 2)) * f.n + 8 * (r / 4) + 2 * (lane % 4) + r % 2] =
            keep & 1 ? f32_from(v[lane]) : 0;
      }
    }
  }
  if (f.a == kBf16) {
    mma_16xn_wide(a, b, c, f.k, f.n);
  } else if (f.a < kHalf && !f.half_acc) {
    mma_16xn_narrow(a, b, c, f.k, f.n, f.a == kE4m3 ? -6 : -14, f.b == kE4m3 ? -6 : -14);
  } else {
    mma_16xn(a, b, c, f.k, f.n);
  }
  for (uint32_t r = 0; r < f.d_regs; ++r) {
    uint32_t* v = lanes<uint32_t>(m, in.x[r]);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      if (f.half_acc) {
        const float* from = c + (lane / 4 + 8 * (r % 2)) * f.n + 8 * (r / 2) + 2 * (lane % 4);
        v[lane] = f16_from_double(from[0]) | uint32_t{f16_from_double(from[1])} << 16;
      } else {
        v[lane] =
            f32_bits(canonical(c[(lane / 4 + 8 * (r / 2 % 2)) * f.n + 8 * (r / 4) + 2 * (lane % 4) + r % 2]));
      }
    }
  }
  m.report->macs += uint64_t{16} * f.n * f.k;
  return Next::kNext;
}

Next do_wgmma_fence(Machine& m, const Instr&, uint32_t mask) {
  if (!m.all_live(-1, mask, "wgmma.fence")) return Next::kFault;
  m.warp->wgmma_fenced = true;
  return Next::kNext;
}

Next do_wgmma_commit(Machine& m, const Instr&, uint32_t mask) {
  if (!m.all_live(-1, mask, "wgmma.commit_group")) return Next::kFault;
  Warp* w = m.warp;
  if (!w->wgmma_open) w->wgmma_groups.emplace_back();
  w->wgmma_open = false;
  w->wgmma_log.push_back(w->wgmma_groups.back());
  if (w->wgmma_log.size() > 64) w->wgmma_log.pop_front();
  ++w->wgmma_committed;
  ++m.progress;
  m.wake(m.cta->warpgroup_waiters);
  return Next::kNext;
}

Next do_wgmma_wait(Machine& m, const Instr& in, uint32_t mask) {
  if (!m.all_live(-1, mask, "wgmma.wait_group")) return Next::kFault;
  Warp* w = m.warp;
  if (w->wgmma_committed <= in.a[0]) return Next::kNext;
  // An operation is complete for the whole warpgroup at once, so all four warps must have issued it, and
  // who waits knows of the reads of all four.
  const uint64_t done = w->wgmma_committed - in.a[0];
  const uint32_t first = w->index / 4 * 4;
  for (uint32_t i = first; i < first + 4 && i < m.warps_per_cta; ++i) {
    if (m.cta->warps[i]->wgmma_committed < done) {
      m.wait_on(WaitKind::kWarpgroup, &m.cta->warpgroup_waiters);
      return Next::kBlocked;
    }
  }
  for (uint32_t i = first; i < first + 4 && i < m.warps_per_cta; ++i) {
    const Warp& other = *m.cta->warps[i];
    uint64_t number = other.wgmma_committed - other.wgmma_log.size();
    for (const Warp::WgmmaGroup& group : other.wgmma_log) {
      if (number++ >= done) break;
      if (group.slot == ~0u) continue;
      uint32_t& known = w->clocks.v[m.cta->first_agent + m.warps_per_cta + group.slot];
      known = std::max(known, group.clock);
    }
  }
  const size_t stay = in.a[0] + (w->wgmma_open ? 1 : 0);
  while (w->wgmma_groups.size() > stay) {
    if (w->wgmma_groups.front().slot != ~0u) m.cta->slot_busy[w->wgmma_groups.front().slot] = 0;
    w->wgmma_groups.pop_front();
  }
  return Next::kNext;
}

void decode_wgmma(Decoder& d) {
  Instr& in = d.in;
  std::string what = d.one_of({"mma_async", "fence", "commit_group", "wait_group"});
  if (!d.mod("sync") || !d.mod("aligned")) d.fail(d.s.op_text + " needs .sync.aligned");
  if (d.program().module->sm != 90 || d.program().module->suffix != 'a') d.fail("wgmma needs .target sm_90a");
  if (what == "fence" || what == "commit_group") {
    d.need(0);
    in.fn = what == "fence" ? do_wgmma_fence : do_wgmma_commit;
    return;
  }
  if (what == "wait_group") {
    d.need(1);
    in.fn = do_wgmma_wait;
    in.a[0] = static_cast<uint32_t>(d.immediate(0));
    return;
  }
  if (what != "mma_async") d.fail("instruction " + d.s.op_text + " is not supported");
  auto form = std::make_shared<Form>();
  for (uint32_t n = 8; n <= 256 && !form->n; n += 8) {
    for (uint32_t k : {16u, 32u}) {
      if (d.mod("m64n" + std::to_string(n) + "k" + std::to_string(k))) {
        form->n = n;
        form->k = k;
      }
    }
  }
  if (!form->n) d.fail("shape of " + d.s.op_text + " is not supported");
  T td = d.type_in({T::kF32, T::kF16});
  T ta = d.type_in({T::kE4M3, T::kE5M2, T::kF16, T::kBF16});
  T tb = d.type_in({T::kE4M3, T::kE5M2, T::kF16, T::kBF16});
  bool sixteen = bits_of(ta) == 16;
  if (bits_of(tb) != bits_of(ta) || (sixteen && ta != tb) || form->k != (sixteen ? 16u : 32u) ||
      (td == T::kF16 && ta == T::kBF16)) {
    d.fail(d.s.op_text + " is not supported");
  }
  auto code = [](T t) {
    return t == T::kE4M3 ? kE4m3 : t == T::kE5M2 ? kE5m2 : t == T::kF16 ? kHalf : kBf16;
  };
  form->a = code(ta);
  form->b = code(tb);
  form->half_acc = td == T::kF16;
  form->d_regs = form->n / (form->half_acc ? 4 : 2);
  form->a_in_registers = d.count() > 1 && d.operand(1).kind == Operand::kVector;
  // d, a, b, scale-d, scale-a, scale-b [, trans-a (descriptor only), trans-b]
  size_t transposes = sixteen ? (form->a_in_registers ? 1 : 2) : 0;
  d.need(6 + transposes);
  auto sign = [&](size_t i) {
    int64_t v = d.immediate(i);
    if (v != 1 && v != -1) d.fail("scale of A and B must be 1 or -1, found " + std::to_string(v));
    return v == -1;
  };
  auto flag = [&](size_t i) {
    int64_t v = d.immediate(i);
    if (v != 0 && v != 1) d.fail("transposition must be 0 or 1, found " + std::to_string(v));
    return v == 1;
  };
  std::vector<Opd> operands;
  auto list = d.elements(d.operand(0));
  if (list.size() != form->d_regs)
    d.fail(d.s.op_text + " needs " + std::to_string(form->d_regs) + " accumulators, found " +
           std::to_string(list.size()));
  for (const Operand* o : list) {
    operands.push_back(d.dst(*o, 32));
    d.src(*o, T::kB32);  // read as well
  }
  if (form->a_in_registers) {
    auto regs = d.elements(d.operand(1));
    if (regs.size() != 4)
      d.fail(d.s.op_text + " needs 4 registers of A, found " + std::to_string(regs.size()));
    for (const Operand* o : regs) operands.push_back(d.src(*o, T::kB32));
  } else {
    in.o[1] = d.src(1, T::kB64);
  }
  in.o[2] = d.src(2, T::kB64);
  in.o[3] = d.src_pred(d.operand(3));
  form->negate_a = sign(4);
  form->negate_b = sign(5);
  if (transposes == 2) form->transpose_a = flag(6);
  if (transposes) form->transpose_b = flag(5 + transposes);
  in.fn = do_wgmma;
  in.p = form.get();
  d.program().call_tables.push_back(std::move(form));
  d.pool(std::move(operands));
}

}  // namespace

void add_wgmma_instructions(InstructionTable* table) { (*table)["wgmma"] = decode_wgmma; }

}  // namespace mla::emu
