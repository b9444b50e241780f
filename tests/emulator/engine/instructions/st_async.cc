// SPDX-License-Identifier: Apache-2.0
//
// st.async and red.async.
#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/copy.h"

namespace mla::emu {

namespace {

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

}  // namespace

void decode_st_async(Decoder& d) {
  Instr& in = d.in;
  d.mod("async");
  const bool red_async = d.name() == "red";
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
}

}  // namespace mla::emu
