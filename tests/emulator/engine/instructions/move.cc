// SPDX-License-Identifier: Apache-2.0
//
// mov: registers, special registers, packing and unpacking.
#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/pick.h"

namespace mla::emu {

namespace {

bool mov_pred(bool a) { return a; }

template <class X>
X identity(X a) {
  return a;
}

Next do_mov128(Machine& m, const Instr& in, uint32_t mask) {
  uint64_t* d = lanes<uint64_t>(m, in.o[0]);
  const uint64_t* s = lanes<uint64_t>(m, in.o[1]);
  uint64_t t[64];
  std::memcpy(t, s, sizeof t);
  store_lanes(d, t, mask);
  store_lanes(d + 32, t + 32, mask);
  return Next::kNext;
}

// mov.v4 of a special register: x[0..nx/2) = x[nx/2..nx).
Next do_mov_vector(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t n = in.nx / 2;
  for (uint32_t k = 0; k < n; ++k) {
    store_lanes(lanes<uint32_t>(m, in.x[k]), lanes<uint32_t>(m, in.x[n + k]), mask);
  }
  return Next::kNext;
}

// Packs x[0..nx) of a[0] bits each into o[0] of a[1] bits.
Next do_pack(Machine& m, const Instr& in, uint32_t mask) {
  uint64_t low[32] = {}, high[32] = {};
  for (uint32_t k = 0; k < in.nx; ++k) {
    uint32_t shift = k * in.a[0];
    for (int i = 0; i < 32; ++i) {
      uint64_t v = in.a[0] <= 32 ? lanes<uint32_t>(m, in.x[k])[i] : lanes<uint64_t>(m, in.x[k])[i];
      if (shift < 64) {
        low[i] |= v << shift;
      } else {
        high[i] |= v << (shift - 64);
      }
    }
  }
  if (in.a[1] <= 32) {
    uint32_t narrow[32];
    for (int i = 0; i < 32; ++i) narrow[i] = static_cast<uint32_t>(low[i]);
    store_lanes(lanes<uint32_t>(m, in.o[0]), narrow, mask);
  } else {
    store_lanes(lanes<uint64_t>(m, in.o[0]), low, mask);
    if (in.a[1] == 128) store_lanes(lanes<uint64_t>(m, in.o[0]) + 32, high, mask);
  }
  return Next::kNext;
}

// Unpacks o[1] of a[1] bits into x[0..nx) of a[0] bits each.
Next do_unpack(Machine& m, const Instr& in, uint32_t mask) {
  uint64_t low[32], high[32] = {};
  for (int i = 0; i < 32; ++i) {
    low[i] = in.a[1] <= 32 ? lanes<uint32_t>(m, in.o[1])[i] : lanes<uint64_t>(m, in.o[1])[i];
    if (in.a[1] == 128) high[i] = lanes<uint64_t>(m, in.o[1])[32 + i];
  }
  uint64_t ones = in.a[0] == 64 ? ~uint64_t{0} : (uint64_t{1} << in.a[0]) - 1;
  for (uint32_t k = 0; k < in.nx; ++k) {
    uint32_t shift = k * in.a[0];
    if (in.a[0] <= 32) {
      uint32_t v[32];
      for (int i = 0; i < 32; ++i)
        v[i] = static_cast<uint32_t>(((shift < 64 ? low[i] >> shift : high[i] >> (shift - 64))) & ones);
      store_lanes(lanes<uint32_t>(m, in.x[k]), v, mask);
    } else {
      store_lanes(lanes<uint64_t>(m, in.x[k]), shift < 64 ? low : high, mask);
    }
  }
  return Next::kNext;
}

// %clock, %clock64, %globaltimer: grow with executed instructions.
template <class X>
Next do_clock(Machine& m, const Instr& in, uint32_t mask) {
  uint64_t t = m.report->warp_instructions + (in.a[0] ? 1'000'000'000'000u : 0);
  X v[32];
  for (int i = 0; i < 32; ++i) v[i] = static_cast<X>(in.a[1] ? t >> 32 : t);
  store_lanes(lanes<X>(m, in.o[0]), reinterpret_cast<const Store<X>*>(v), mask);
  return Next::kNext;
}

void decode_mov(Decoder& d) {
  Instr& in = d.in;
  std::string vec = d.one_of({"v2", "v4"});
  T t = d.type();
  d.need(2);
  const Operand &to = d.operand(0), &from = d.operand(1);
  if (!vec.empty()) {
    if (from.kind != Operand::kSpecial || bits_of(t) != 32)
      d.fail(d.s.op_text + " is supported for 32-bit special registers only");
    auto targets = d.elements(to);
    const size_t n = vec == "v2" ? 2 : 4;
    if (targets.size() != n)
      d.fail(d.s.op_text + " needs " + std::to_string(n) + " registers, found " +
             std::to_string(targets.size()));
    std::vector<Opd> parts;
    for (const Operand* target : targets) parts.push_back(d.dst(*target, 32));
    for (const char* component : {".x", ".y", ".z", ".w"}) {
      Operand part = from;
      part.text += component;
      if (parts.size() < 2 * n) parts.push_back(d.src(part, t));
    }
    in.fn = do_mov_vector;
    d.pool(std::move(parts));
    return;
  }
  if (from.kind == Operand::kVector || to.kind == Operand::kVector) {
    bool pack = from.kind == Operand::kVector;
    const Operand& list = pack ? from : to;
    uint32_t n = static_cast<uint32_t>(list.parts.size()), bits = bits_of(t);
    if ((n != 2 && n != 4) || bits % n || bits / n < 8)
      d.fail("mov between " + std::to_string(n) + " elements and ." + type_name(t) + " is not supported");
    uint32_t part = bits / n;
    T part_type = part == 8 ? T::kB8 : part == 16 ? T::kB16 : part == 32 ? T::kB32 : T::kB64;
    std::vector<Opd> parts;
    for (const Operand& o : list.parts) {
      parts.push_back(pack ? d.src(o, part_type) : d.dst(o, part));
    }
    in.a[0] = part;
    in.a[1] = bits;
    in.fn = pack ? do_pack : do_unpack;
    if (pack) {
      in.o[0] = d.dst(0, t);
    } else {
      in.o[1] = d.src(1, t);
    }
    d.pool(std::move(parts));
    return;
  }
  if (from.kind == Operand::kSpecial) {
    const std::string& special = from.text;
    bool clock = special.rfind("%clock", 0) == 0 && special.rfind("%cluster", 0) != 0;
    bool timer = special.rfind("%globaltimer", 0) == 0;
    if (clock || timer) {
      bool wide = special == "%clock64" || special == "%globaltimer";
      if ((wide ? 64u : 32u) != bits_of(t))
        d.fail(special + " does not have " + std::to_string(bits_of(t)) + " bits");
      in.fn = wide ? Handler(do_clock<uint64_t>) : Handler(do_clock<uint32_t>);
      in.a[0] = timer;
      in.a[1] = special.size() > 3 && special.substr(special.size() - 3) == "_hi";
      in.o[0] = d.dst(0, t);
      return;
    }
    if (special.rfind("%envreg", 0) == 0) d.fail(special + " is not supported");
  }
  if (t == T::kPred) {
    in.fn = alu<mov_pred, Pred, Pred>;
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src_pred(from);
    return;
  }
  in.fn = t == T::kB128 ? Handler(do_mov128) : MLA_PICK_BITS(t, (alu<identity<X>, X, X>));
  if (!in.fn) d.fail("type ." + std::string(type_name(t)) + " is not supported for mov");
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
}

}  // namespace

void add_move_instructions(InstructionTable* table) { (*table)["mov"] = decode_mov; }

}  // namespace mla::emu
