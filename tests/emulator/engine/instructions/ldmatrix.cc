// SPDX-License-Identifier: Apache-2.0
//
// ldmatrix, stmatrix, movmatrix.
#include "tests/emulator/engine/decode/table.h"

namespace mla::emu {

namespace {

// x: registers; o[1] address; a[0] number of 8x8 matrices, a[1] transposed, a[2] generic address.
Next do_ldmatrix(Machine& m, const Instr& in, uint32_t mask) {
  if (!m.all_live(-1, mask, "ldmatrix")) return Next::kFault;
  const uint32_t n = in.a[0];
  uint16_t tile[4][8][8];
  for (uint32_t row = 0; row < 8 * n; ++row) {
    uint64_t address =
        (in.o[1].negated ? lanes<uint64_t>(m, in.o[1])[row] : lanes<uint32_t>(m, in.o[1])[row]) +
        static_cast<uint64_t>(in.imm);
    const uint8_t* p = m.resolve(static_cast<int>(row), in.a[2] ? Space::kGeneric : Space::kShared, false,
                                 address, 16, kRead);
    if (!p) return Next::kFault;
    std::memcpy(tile[row / 8][row % 8], p, 16);
  }
  for (uint32_t k = 0; k < n; ++k) {
    uint32_t* d = lanes<uint32_t>(m, in.x[k]);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      uint32_t r = lane / 4, c = 2 * (lane % 4);
      d[lane] = in.a[1] ? tile[k][c][r] | uint32_t{tile[k][c + 1][r]} << 16
                        : tile[k][r][c] | uint32_t{tile[k][r][c + 1]} << 16;
    }
  }
  return Next::kNext;
}

// 16x16 matrices of bytes, transposed: lanes 16 * j + r give the address of row r of matrix j. Register
// 2 * j holds, of the transposed matrix, row lane / 4 and columns 4 * (lane % 4) on; register 2 * j + 1
// the row 8 further on.
Next do_ldmatrix_b8(Machine& m, const Instr& in, uint32_t mask) {
  if (!m.all_live(-1, mask, "ldmatrix")) return Next::kFault;
  const uint32_t n = in.a[0];
  uint8_t tile[2][16][16];
  for (uint32_t row = 0; row < 16 * n; ++row) {
    uint64_t address =
        (in.o[1].negated ? lanes<uint64_t>(m, in.o[1])[row] : lanes<uint32_t>(m, in.o[1])[row]) +
        static_cast<uint64_t>(in.imm);
    const uint8_t* p = m.resolve(static_cast<int>(row), in.a[2] ? Space::kGeneric : Space::kShared, false,
                                 address, 16, kRead);
    if (!p) return Next::kFault;
    std::memcpy(tile[row / 16][row % 16], p, 16);
  }
  for (uint32_t k = 0; k < 2 * n; ++k) {
    uint32_t* d = lanes<uint32_t>(m, in.x[k]);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      uint32_t column = lane / 4 + 8 * (k % 2), row = 4 * (lane % 4), v = 0;
      for (uint32_t i = 0; i < 4; ++i) v |= uint32_t{tile[k / 2][row + i][column]} << (8 * i);
      d[lane] = v;
    }
  }
  return Next::kNext;
}

Next do_stmatrix(Machine& m, const Instr& in, uint32_t mask) {
  if (!m.all_live(-1, mask, "stmatrix")) return Next::kFault;
  const uint32_t n = in.a[0];
  uint16_t tile[4][8][8];
  for (uint32_t k = 0; k < n; ++k) {
    const uint32_t* s = lanes<uint32_t>(m, in.x[k]);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      uint32_t r = lane / 4, c = 2 * (lane % 4);
      uint16_t low = static_cast<uint16_t>(s[lane]), high = static_cast<uint16_t>(s[lane] >> 16);
      if (in.a[1]) {
        tile[k][c][r] = low;
        tile[k][c + 1][r] = high;
      } else {
        tile[k][r][c] = low;
        tile[k][r][c + 1] = high;
      }
    }
  }
  for (uint32_t row = 0; row < 8 * n; ++row) {
    uint64_t address =
        (in.o[1].negated ? lanes<uint64_t>(m, in.o[1])[row] : lanes<uint32_t>(m, in.o[1])[row]) +
        static_cast<uint64_t>(in.imm);
    uint8_t* p = m.resolve(static_cast<int>(row), in.a[2] ? Space::kGeneric : Space::kShared, false, address,
                           16, kWrite);
    if (!p) return Next::kFault;
    std::memcpy(p, tile[row / 8][row % 8], 16);
  }
  return Next::kNext;
}

Next do_movmatrix(Machine& m, const Instr& in, uint32_t mask) {
  if (!m.all_live(-1, mask, "movmatrix")) return Next::kFault;
  uint16_t tile[8][8];
  const uint32_t* s = lanes<uint32_t>(m, in.o[1]);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    tile[lane / 4][2 * (lane % 4)] = static_cast<uint16_t>(s[lane]);
    tile[lane / 4][2 * (lane % 4) + 1] = static_cast<uint16_t>(s[lane] >> 16);
  }
  uint32_t* d = lanes<uint32_t>(m, in.o[0]);
  for (uint32_t lane = 0; lane < 32; ++lane)
    d[lane] = tile[2 * (lane % 4)][lane / 4] | uint32_t{tile[2 * (lane % 4) + 1][lane / 4]} << 16;
  return Next::kNext;
}

void decode_ldmatrix(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  bool load = name == "ldmatrix";
  if (!d.mod("sync") || !d.mod("aligned")) d.fail(name + " needs .sync.aligned");
  std::string shape = d.one_of({"m8n8", "m16n16"});
  std::string number = d.one_of({"x1", "x2", "x4"});
  bool trans = d.mod("trans");
  bool shared = !d.one_of({"shared", "shared::cta"}).empty();
  T t = d.type_in({T::kB16, T::kB8});
  uint32_t n = number == "x1" ? 1 : number == "x2" ? 2 : number == "x4" ? 4 : 0;
  if (n == 0) d.fail(d.s.op_text + " needs .x1, .x2 or .x4");
  d.need(2);
  const Operand& list = d.operand(load ? 0 : 1);
  const Operand& address = d.operand(load ? 1 : 0);
  uint32_t registers = n;
  if (shape == "m16n16") {
    if (!load || t != T::kB8 || !trans || n > 2) d.fail(d.s.op_text + " is not supported");
    registers = 2 * n;
    in.fn = do_ldmatrix_b8;
  } else if (shape == "m8n8" && t == T::kB16) {
    in.fn = load ? do_ldmatrix : do_stmatrix;
  } else {
    d.fail(d.s.op_text + " is not supported");
  }
  auto elements = d.elements(list);
  if (elements.size() != registers)
    d.fail(d.s.op_text + " needs " + std::to_string(registers) + " registers, found " +
           std::to_string(elements.size()));
  std::vector<Opd> operands;
  for (const Operand* o : elements) operands.push_back(load ? d.dst(*o, 32) : d.src(*o, T::kB32));
  in.a[0] = n;
  in.a[1] = trans;
  in.a[2] = !shared;
  in.o[1] = d.address(address, shared ? Space::kShared : Space::kGeneric);
  d.pool(std::move(operands));
}

void decode_movmatrix(Decoder& d) {
  Instr& in = d.in;
  if (!d.mod("sync") || !d.mod("aligned") || !d.mod("m8n8") || !d.mod("trans"))
    d.fail(d.s.op_text + " is not supported");
  d.type_in({T::kB16});
  d.need(2);
  in.fn = do_movmatrix;
  in.o[0] = d.dst(0, T::kB32);
  in.o[1] = d.src(1, T::kB32);
}

}  // namespace

void add_matrix_instructions(InstructionTable* table) {
  (*table)["ldmatrix"] = decode_ldmatrix;
  (*table)["stmatrix"] = decode_ldmatrix;
  (*table)["movmatrix"] = decode_movmatrix;
}

}  // namespace mla::emu
