// SPDX-License-Identifier: Apache-2.0
//
// Conversions: between integers, between floats, and to and from 8-bit floats.
#include "tests/emulator/conformance/case.h"

namespace mla::conformance {

void add_convert_cases(std::vector<Case>* cases) {
  const auto add = [&](const std::string& name, std::vector<std::string> in, std::vector<std::string> out,
                       std::string body = "") -> Case& {
    Case c;
    c.name = name;
    c.body = std::move(body);
    if (c.body.empty()) {
      c.body = name + " o0";
      for (size_t i = 0; i < in.size(); ++i) c.body += ", i" + std::to_string(i);
      c.body += ";";
    }
    c.in = std::move(in);
    c.out = std::move(out);
    cases->push_back(std::move(c));
    return cases->back();
  };
  const std::vector<std::string> integers = {"s16", "u16", "s32", "u32", "s64", "u64"};
  const auto bits = [](const std::string& type) { return "b" + type.substr(1); };
  for (const std::string& to : integers) {
    for (const std::string& from : integers) {
      if (to == from) continue;
      add("cvt." + to + "." + from, {from}, {bits(to)});
      // Saturation is refused where the source's range lies within the target's.
      const int to_bits = std::stoi(to.substr(1)), from_bits = std::stoi(from.substr(1));
      const bool fits = to[0] == from[0] ? to_bits >= from_bits : to[0] == 's' && to_bits > from_bits;
      if (!fits) add("cvt.sat." + to + "." + from, {from}, {bits(to)});
    }
  }
  // 8-bit integers live in wider registers.
  for (const char* type : {"s8", "u8"}) {
    add(std::string("cvt.") + type + ".s32", {"s32"}, {"b32"},
        std::string("cvt.") + type + ".s32 r0, i0; mov.b32 o0, r0;");
    add(std::string("cvt.sat.") + type + ".s32", {"s32"}, {"b32"},
        std::string("cvt.sat.") + type + ".s32 r0, i0; mov.b32 o0, r0;");
    add(std::string("cvt.s32.") + type, {"b32"}, {"b32"});
    add(std::string("cvt.u16.") + type, {"b32"}, {"b16"},
        std::string("cvt.u16.u32 h0, i0; cvt.u16.") + type + " o0, h0;");
  }
  for (const std::string& type : integers) {
    for (const char* rounding : {"rni", "rzi", "rmi", "rpi"}) {
      add(std::string("cvt.") + rounding + "." + type + ".f32", {"f32"}, {bits(type)});
      if (type.substr(1) != "16") {
        add(std::string("cvt.") + rounding + "." + type + ".f64", {"f64"}, {bits(type)});
        add(std::string("cvt.") + rounding + "." + type + ".f16", {"f16"}, {bits(type)});
      }
    }
    for (const char* rounding : {"rn", "rz", "rm", "rp"}) {
      add(std::string("cvt.") + rounding + ".f32." + type, {type}, {"f32"});
      add(std::string("cvt.") + rounding + ".f64." + type, {type}, {"f64"});
      add(std::string("cvt.") + rounding + ".f16." + type, {type}, {"b16"});
    }
  }
  add("cvt.rzi.ftz.s32.f32", {"f32"}, {"b32"});
  add("cvt.rni.sat.u32.f32", {"f32"}, {"b32"});
  for (const char* rounding : {"rni", "rzi", "rmi", "rpi"}) {
    add(std::string("cvt.") + rounding + ".f32.f32", {"f32"}, {"f32"});
    add(std::string("cvt.") + rounding + ".ftz.f32.f32", {"f32"}, {"f32"});
    add(std::string("cvt.") + rounding + ".f64.f64", {"f64"}, {"f64"});
  }
  for (const char* rounding : {"rn", "rz", "rm", "rp"}) {
    add(std::string("cvt.") + rounding + ".f32.f64", {"f64"}, {"f32"});
    add(std::string("cvt.") + rounding + ".f16.f32", {"f32"}, {"b16"});
  }
  add("cvt.sat.f32.f32", {"f32"}, {"f32"});
  add("cvt.rn.ftz.f32.f64", {"f64"}, {"f32"});
  add("cvt.rn.sat.f16.f32", {"f32"}, {"b16"});
  add("cvt.f64.f32", {"f32"}, {"f64"});
  add("cvt.ftz.f64.f32", {"f32"}, {"f64"});
  Case& half = add("cvt.f32.f16", {"f16"}, {"f32"});
  half.grid = 512;
  half.exhaustive = true;
  add("cvt.ftz.f32.f16", {"f16"}, {"f32"});
  add("cvt.f32.bf16", {"bf16"}, {"f32"});
  for (const char* op :
       {"cvt.rn.bf16.f32", "cvt.rz.bf16.f32", "cvt.rn.relu.bf16.f32", "cvt.rn.satfinite.bf16.f32"}) {
    add(op, {"f32"}, {"b16"});
  }
  for (const char* op :
       {"cvt.rn.bf16x2.f32", "cvt.rz.bf16x2.f32", "cvt.rn.relu.bf16x2.f32", "cvt.rn.f16x2.f32",
        "cvt.rz.f16x2.f32", "cvt.rn.relu.f16x2.f32", "cvt.rn.satfinite.f16x2.f32"}) {
    add(op, {"f32", "f32"}, {"b32"});
  }
  add("cvt.rna.tf32.f32", {"f32"}, {"b32"});
  for (const char* format : {"e4m3x2", "e5m2x2"}) {
    const std::string f = format;
    add("cvt.rn.satfinite." + f + ".f32", {"f32", "f32"}, {"b16"});
    add("cvt.rn.satfinite.relu." + f + ".f32", {"f32", "f32"}, {"b16"});
    Case& narrow = add("cvt.rn.satfinite." + f + ".f16x2", {"b16"}, {"b16"},
                       "mov.b32 r0, {i0, i0}; cvt.rn.satfinite." + f + ".f16x2 o0, r0;");
    narrow.grid = 512;
    narrow.exhaustive = true;
    add("cvt.rn.satfinite.relu." + f + ".f16x2", {"f16x2"}, {"b16"});
    Case& widen = add("cvt.rn.f16x2." + f, {"b16"}, {"b32"});
    widen.grid = 512;
    widen.exhaustive = true;
    add("cvt.rn.relu.f16x2." + f, {"b16"}, {"b32"});
    // Every boundary between neighbouring values: halves and their neighbours, scaled through the range.
    add("cvt.rn.satfinite." + f + ".f32 ties", {"b16", "b32"}, {"b16"},
        // A 16-bit value's upper bits make an f32 in the format's range; the low bit breaks or makes a tie.
        " cvt.u32.u16 r0, i0; shl.b32 r1, r0, 16; and.b32 r1, r1, 0x80000000; and.b32 r2, r0, 0x7ff; shl.b32 "
        "r2, r2, 18;\n"
        " add.u32 r2, r2, 0x38000000; or.b32 r1, r1, r2; and.b32 r3, i1, 1; or.b32 r1, r1, r3;\n"
        " xor.b32 r4, r1, 0x80000001; cvt.rn.satfinite." +
            f + ".f32 o0, r1, r4;");
  }
}

}  // namespace mla::conformance
