// SPDX-License-Identifier: Apache-2.0
//
// ld and st.
#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/copy.h"

namespace mla::emu {

namespace {

enum LdFlags : uint32_t { kWideTarget = 1, kSignExtend = 2, kTarget16 = 4 };
constexpr uint32_t kFrameSpace = 100;

uint8_t* frame_of(Machine& m, uint32_t lane) {
  return m.warp->frame.data() + size_t{lane} * m.program->frame_bytes;
}

// x: targets (or o[0]); o[1]: address; a[0] space, a[1] bytes of an element, a[2] LdFlags,
// a[3] OrderFlags.
Next do_ld(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t n = in.nx, element = in.a[1], total = n * element;
  const bool frame = in.a[0] == kFrameSpace;
  const Space space = static_cast<Space>(in.a[0]);
  const uint32_t access = kRead | (in.a[3] & kStrongOrder ? kStrong : 0u);
  const bool narrow = space == Space::kShared;
  uint8_t buffer[32][64];
  MLA_FOR_LANES(lane, mask) {
    const uint8_t* p;
    uint64_t address = lane_address(m, in.o[1], in.imm, lane, narrow);
    if (frame) {
      p = frame_of(m, lane) + address;
    } else {
      p = m.resolve(static_cast<int>(lane), space, in.a[3] & kClusterSpace, address, total, access);
      if (!p) return Next::kFault;
      if (access & kStrong) m.sync_acquire(sync_key(m, space, address), in.a[3] & kAcquire);
    }
    std::memcpy(buffer[lane], p, total);
  }
  for (uint32_t k = 0; k < n; ++k) {
    uint8_t* target = operand_at(m, in.x[k]);
    if (element == 16) {
      MLA_FOR_LANES(lane, mask) {
        std::memcpy(target + lane * 8, buffer[lane] + k * 16, 8);
        std::memcpy(target + 256 + lane * 8, buffer[lane] + k * 16 + 8, 8);
      }
      continue;
    }
    MLA_FOR_LANES(lane, mask) {
      uint64_t v = 0;
      std::memcpy(&v, buffer[lane] + k * element, element);
      if (in.a[2] & kSignExtend) {
        uint32_t shift = 64 - 8 * element;
        v = static_cast<uint64_t>(static_cast<int64_t>(v << shift) >> shift);
      }
      if (in.a[2] & kWideTarget) {
        std::memcpy(target + lane * 8, &v, 8);
      } else {
        uint32_t w = static_cast<uint32_t>(v);
        if (in.a[2] & kTarget16) w &= 0xffff;
        std::memcpy(target + lane * 4, &w, 4);
      }
    }
  }
  return Next::kNext;
}

Next do_st(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t n = in.nx, element = in.a[1], total = n * element;
  const bool frame = in.a[0] == kFrameSpace;
  const Space space = static_cast<Space>(in.a[0]);
  const uint32_t access = kWrite | (in.a[3] & kStrongOrder ? kStrong : 0u);
  const bool narrow = space == Space::kShared;
  MLA_FOR_LANES(lane, mask) {
    uint8_t* p;
    uint64_t address = lane_address(m, in.o[1], in.imm, lane, narrow);
    if (frame) {
      p = frame_of(m, lane) + address;
    } else {
      p = m.resolve(static_cast<int>(lane), space, in.a[3] & kClusterSpace, address, total, access);
      if (!p) return Next::kFault;
      if (access & kStrong) m.sync_release(sync_key(m, space, address), in.a[3] & kRelease, false);
    }
    for (uint32_t k = 0; k < n; ++k) {
      const uint8_t* source = operand_at(m, in.x[k]);
      if (element == 16) {
        std::memcpy(p + k * 16, source + lane * 8, 8);
        std::memcpy(p + k * 16 + 8, source + 256 + lane * 8, 8);
      } else {
        std::memcpy(p + k * element, source + lane * (in.a[2] & kWideTarget ? 8 : 4), element);
      }
    }
  }
  return Next::kNext;
}

void cache_modifiers(Decoder& d, bool load) {
  d.one_of(
      {"L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"});
  d.one_of({"L2::evict_normal", "L2::evict_first", "L2::evict_last"});
  if (load) {
    d.one_of({"L2::64B", "L2::128B", "L2::256B"});
    d.one_of({"ca", "cg", "cs", "lu", "cv"});
  } else {
    d.one_of({"wb", "cg", "cs", "wt"});
  }
}

void decode_load_store(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  if (name == "st" && d.s.op.size() > 1 && d.s.op[1] == "async") return decode_st_async(d);
  bool load = name != "st";
  std::string sem = d.one_of({"weak", "relaxed", "acquire", "release", "volatile", "mmio"});
  std::string scope = d.one_of({"cta", "cluster", "gpu", "sys"});
  if (load && sem == "release") d.fail("ld.release does not exist");
  if (!load && sem == "acquire") d.fail("st.acquire does not exist");
  d.mod("nc");
  SpaceChoice space = space_of(d, true);
  cache_modifiers(d, load);
  bool hint = d.mod("L2::cache_hint");
  std::string vec = d.one_of({"v2", "v4", "v8"});
  T t = d.type();
  uint32_t bits = bits_of(t);
  if (bits < 8 || t == T::kF16x2 || t == T::kBF16x2 ||
      (bits == 8 && t != T::kB8 && t != T::kU8 && t != T::kS8)) {
    d.fail("type ." + std::string(type_name(t)) + " is not supported for " + name);
  }
  d.need(hint ? 3 : 2);
  uint32_t n = vec.empty() ? 1 : vec == "v2" ? 2 : vec == "v4" ? 4 : 8;
  if (n * bits > 256) d.fail("vector of " + std::to_string(n * bits) + " bits is not supported");
  const Operand& values = d.operand(load ? 0 : 1);
  const Operand& address = d.operand(load ? 1 : 0);
  if ((values.kind == Operand::kVector) != (n > 1))
    d.fail(d.s.op_text + " needs " + std::to_string(n) + " registers");
  auto elements = d.elements(values);
  if (elements.size() != n)
    d.fail(d.s.op_text + " needs " + std::to_string(n) + " registers, found " +
           std::to_string(elements.size()));
  in.fn = load ? do_ld : do_st;
  in.a[0] = static_cast<uint32_t>(space.space);
  in.a[1] = bits / 8;
  if (space.cluster) in.a[3] |= kClusterSpace;
  if (!sem.empty() && sem != "weak") in.a[3] |= kStrongOrder;
  if (sem == "acquire") in.a[3] |= kAcquire;
  if (sem == "release") in.a[3] |= kRelease;
  in.o[1] = d.address(address, space.space);
  if (space.space == Space::kParam) {
    const Operand* base = address.parts.empty() ? nullptr : &address.parts[0];
    bool formal = base && base->kind == Operand::kSymbol && d.function().entry &&
                  base->symbol->offset < d.function().info.param_bytes;
    if (base && base->kind == Operand::kSymbol && !formal) {
      in.a[0] = kFrameSpace;
      in.imm += d.frame_base();
    } else if (!load) {
      d.fail("store to a kernel parameter");
    }
  }
  uint32_t target_bits = 0;
  std::vector<Opd> operands;
  for (const Operand* element : elements) {
    uint32_t have = element->kind == Operand::kReg ? d.register_bits(element->reg) : bits;
    if (target_bits && have != target_bits && element->kind == Operand::kReg)
      d.fail("registers of different widths in one vector");
    target_bits = have;
    operands.push_back(load ? d.dst(*element, bits, true) : d.src(*element, t, true));
  }
  if (target_bits == 64) in.a[2] |= kWideTarget;
  if (target_bits == 128 && bits != 128) d.fail("128-bit register in " + d.s.op_text);
  if (load && is_signed(t)) in.a[2] |= kSignExtend;
  if (load && target_bits == 16) in.a[2] |= kTarget16;
  d.pool(std::move(operands));
}

}  // namespace

SpaceChoice space_of(Decoder& d, bool param_too) {
  std::string name = d.one_of({"global", "shared", "shared::cta", "shared::cluster", "local", "const",
                               "param", "param::entry", "param::func"});
  if (name.empty()) return {Space::kGeneric, true};
  if (name == "global") return {Space::kGlobal, false};
  if (name == "shared" || name == "shared::cta") return {Space::kShared, false};
  if (name == "shared::cluster") return {Space::kShared, true};
  if (name == "local") return {Space::kLocal, false};
  if (name == "const") return {Space::kConst, false};
  if (!param_too) d.fail("state space ." + name + " is not supported for " + d.name());
  return {Space::kParam, false};
}

void add_load_store_instructions(InstructionTable* table) {
  (*table)["ld"] = decode_load_store;
  (*table)["ldu"] = decode_load_store;
  (*table)["st"] = decode_load_store;
}

}  // namespace mla::emu
