// SPDX-License-Identifier: Apache-2.0
//
// cp.async.bulk.tensor and its reductions.
#include <algorithm>

#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/copy.h"
#include "tests/emulator/engine/tensor_map.h"
#include "tests/emulator/engine/text.h"

namespace mla::emu {

namespace {

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

}  // namespace

void decode_tensor_copy(Decoder& d, bool reduce) {
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
    return;
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
}

}  // namespace mla::emu
