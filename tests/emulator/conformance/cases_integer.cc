// SPDX-License-Identifier: Apache-2.0
//
// Integer, logic, comparison and selection instructions.
#include "tests/emulator/conformance/case.h"

namespace mla::conformance {
namespace {

class Table {
 public:
  explicit Table(std::vector<Case>* cases) : cases_(cases) {}
  // `body` without operands: "<name> o0, i0, i1, ...;".
  Case& add(const std::string& name, std::vector<std::string> in, std::vector<std::string> out,
            std::string body = "") {
    if (body.empty()) {
      body = name + " o0";
      for (size_t i = 0; i < in.size(); ++i) body += ", i" + std::to_string(i);
      body += ";";
    }
    Case c;
    c.name = name;
    c.in = std::move(in);
    c.out = std::move(out);
    c.body = std::move(body);
    cases_->push_back(std::move(c));
    return cases_->back();
  }

 private:
  std::vector<Case>* cases_;
};

std::string untyped(const std::string& type) { return "b" + type.substr(1); }

std::string wide(const std::string& type) {
  return type.substr(0, 1) + (type.substr(1) == "16" ? "32" : "64");
}

// An instruction with a predicate result, stored as 0 or 1.
std::string stored(const std::string& instruction) { return instruction + "\n selp.b32 o0, 1, 0, p0;"; }

}  // namespace

void add_integer_cases(std::vector<Case>* cases) {
  Table t(cases);
  const std::vector<std::string> all = {"s16", "u16", "s32", "u32", "s64", "u64"};
  for (const std::string& type : all) {
    for (const char* op : {"add", "sub", "mul.lo", "min", "max"}) {
      t.add(std::string(op) + "." + type, {type, type}, {untyped(type)});
    }
    t.add("mul.hi." + type, {type, type}, {untyped(type)});
    t.add("mad.lo." + type, {type, type, type}, {untyped(type)});
    if (type != "s16" && type != "u16") t.add("mad.hi." + type, {type, type, type}, {untyped(type)});
    const std::string divisor = type.substr(1) == "64" ? "div64" : "div32";
    if (type.substr(1) != "16") {
      t.add("div." + type, {type, divisor}, {untyped(type)});
      t.add("rem." + type, {type, divisor}, {untyped(type)});
    } else {
      // 16-bit divisors: never 0 or -1.
      for (const char* op : {"div", "rem"}) {
        const std::string name = std::string(op) + "." + type;
        t.add(name, {type, "div32"}, {"b16"},
              "cvt.u16.u32 h0, i1; or.b16 h0, h0, 2; and.b16 h0, h0, 0x7fff;\n " + name + " o0, i0, h0;");
      }
    }
    if (type.substr(1) != "64") {
      t.add("mul.wide." + type, {type, type}, {untyped(wide(type))});
      t.add("mad.wide." + type, {type, type, wide(type)}, {untyped(wide(type))});
    }
    t.add("shr." + type, {type, "sh"}, {untyped(type)});
    if (type[0] == 's') {
      t.add("abs." + type, {type}, {untyped(type)});
      t.add("neg." + type, {type}, {untyped(type)});
    }
    for (const char* comparison : {"eq", "ne", "lt", "le", "gt", "ge"}) {
      t.add("setp." + std::string(comparison) + "." + type, {type, type}, {"b32"},
            stored("setp." + std::string(comparison) + "." + type + " p0, i0, i1;"));
    }
    if (type[0] == 'u') {
      for (const char* comparison : {"lo", "ls", "hi", "hs"}) {
        t.add("setp." + std::string(comparison) + "." + type, {type, type}, {"b32"},
              stored("setp." + std::string(comparison) + "." + type + " p0, i0, i1;"));
      }
    }
  }
  for (const char* type : {"b16", "b32", "b64"}) {
    const std::string suffix = std::string(".") + type;
    for (const char* op : {"and", "or", "xor"}) t.add(op + suffix, {type, type}, {type});
    for (const char* op : {"not", "cnot"}) t.add(op + suffix, {type}, {type});
    t.add("shl" + suffix, {type, "sh"}, {type});
    t.add("shr" + suffix, {type, "sh"}, {type});
    t.add("setp.eq" + suffix, {type, type}, {"b32"}, stored("setp.eq" + suffix + " p0, i0, i1;"));
    t.add("selp" + suffix, {type, type, "b32"}, {type},
          "setp.lt.s32 p0, i2, 0;\n selp" + suffix + " o0, i0, i1, p0;");
    t.add("mov" + suffix, {type}, {type}, "mov" + suffix + " o0, i0;");
  }
  for (const char* type : {"b32", "b64"}) {
    const std::string suffix = std::string(".") + type;
    t.add("popc" + suffix, {type}, {"b32"});
    t.add("clz" + suffix, {type}, {"b32"});
    t.add("brev" + suffix, {type}, {type});
    t.add("bfi" + suffix, {type, type, "sh", "sh"}, {type});
  }
  for (const char* type : {"u32", "s32", "u64", "s64"}) {
    const std::string suffix = std::string(".") + type;
    t.add("bfe" + suffix, {type, "sh", "sh"}, {untyped(type)});
    t.add("bfind" + suffix, {type}, {"b32"});
    t.add("bfind.shiftamt" + suffix, {type}, {"b32"});
  }
  t.add("add.sat.s32", {"s32", "s32"}, {"b32"});
  t.add("sub.sat.s32", {"s32", "s32"}, {"b32"});
  t.add("mad.hi.sat.s32", {"s32", "s32", "s32"}, {"b32"});
  t.add("mul24.lo.s32", {"s32", "s32"}, {"b32"});
  t.add("mul24.lo.u32", {"u32", "u32"}, {"b32"});
  t.add("mad24.lo.u32", {"u32", "u32", "u32"}, {"b32"});
  t.add("sad.s32", {"s32", "s32", "u32"}, {"b32"});
  t.add("sad.u32", {"u32", "u32", "u32"}, {"b32"});
  t.add("add.cc.u32 addc.u32", {"u32", "u32", "u32", "u32"}, {"b32", "b32"},
        "add.cc.u32 o0, i0, i1;\n addc.u32 o1, i2, i3;");
  t.add("add.cc.u32 addc.cc.u32", {"u32", "u32", "u32", "u32"}, {"b32", "b32", "b32"},
        "add.cc.u32 o0, i0, i1;\n addc.cc.u32 o1, i2, i3;\n addc.u32 o2, 0, 0;");
  t.add("sub.cc.u32 subc.u32", {"u32", "u32", "u32", "u32"}, {"b32", "b32"},
        "sub.cc.u32 o0, i0, i1;\n subc.u32 o1, i2, i3;");
  t.add("mad.lo.cc.u32 madc.hi.u32", {"u32", "u32", "u32", "u32"}, {"b32", "b32"},
        "mad.lo.cc.u32 o0, i0, i1, i2;\n madc.hi.u32 o1, i0, i1, i3;");
  for (const char* mode : {"clamp", "wrap"}) {
    t.add(std::string("shf.l.") + mode + ".b32", {"b32", "b32", "sh"}, {"b32"});
    t.add(std::string("shf.r.") + mode + ".b32", {"b32", "b32", "sh"}, {"b32"});
  }
  // Every table of three inputs that matters: each single bit, and the common functions.
  for (const char* lut : {"0x01", "0x02", "0x04", "0x08", "0x10", "0x20", "0x40", "0x80", "0x96", "0xe8",
                          "0xca", "0xf8", "0xea"}) {
    t.add(std::string("lop3.b32 ") + lut, {"b32", "b32", "b32"}, {"b32"},
          std::string("lop3.b32 o0, i0, i1, i2, ") + lut + ";");
  }
  t.add("prmt.b32", {"b32", "b32", "b32"}, {"b32"});
  for (const char* mode : {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"})
    t.add(std::string("prmt.b32.") + mode, {"b32", "b32", "b32"}, {"b32"});
  t.add("dp4a.s32.s32", {"b8x4", "b8x4", "s32"}, {"b32"});
  t.add("dp4a.u32.u32", {"b8x4", "b8x4", "u32"}, {"b32"});
  t.add("dp2a.lo.s32.s32", {"b32", "b8x4", "s32"}, {"b32"});
  t.add("bmsk.clamp.b32", {"sh", "sh"}, {"b32"});
  t.add("bmsk.wrap.b32", {"sh", "sh"}, {"b32"});
  t.add("szext.clamp.s32", {"s32", "sh"}, {"b32"});
  t.add("szext.wrap.u32", {"u32", "sh"}, {"b32"});
  t.add("fns.b32", {"b32", "lane"}, {"b32"}, "and.b32 r0, i1, 3; add.s32 r0, r0, 1; fns.b32 o0, i0, i1, r0;");
  t.add("slct.s32.s32", {"s32", "s32", "s32"}, {"b32"});
  t.add("slct.f32.s32", {"f32", "f32", "s32"}, {"b32"});
  t.add("slct.s32.f32", {"s32", "s32", "f32"}, {"b32"});
  t.add("set.lt.u32.s32", {"s32", "s32"}, {"b32"});
  t.add("set.gt.f32.u32", {"u32", "u32"}, {"b32"});
  for (const char* op : {"add.u16x2", "add.s16x2", "min.s16x2", "max.u16x2"})
    t.add(op, {"b32", "b32"}, {"b32"});
  t.add("min.s16x2.relu", {"b32", "b32"}, {"b32"}, "min.relu.s16x2 o0, i0, i1;");
  t.add("min.relu.s32", {"s32", "s32"}, {"b32"});
  // Predicates.
  for (const char* op : {"and", "or", "xor"}) {
    t.add(std::string(op) + ".pred", {"s32", "s32"}, {"b32"},
          "setp.lt.s32 p1, i0, 0; setp.lt.s32 p2, i1, 5;\n " + stored(std::string(op) + ".pred p0, p1, p2;"));
  }
  t.add("not.pred", {"s32"}, {"b32"}, "setp.lt.s32 p1, i0, 0;\n " + stored("not.pred p0, p1;"));
  t.add("mov.pred", {"s32"}, {"b32"}, "setp.lt.s32 p1, i0, 0;\n " + stored("mov.pred p0, p1;"));
  for (const char* op : {"and", "or", "xor"}) {
    t.add(std::string("setp.lt.") + op + ".s32", {"s32", "s32", "s32"}, {"b32", "b32"},
          std::string("setp.gt.s32 p2, i2, 7;\n setp.lt.") + op +
              ".s32 p0|p1, i0, i1, p2;\n selp.b32 o0, 1, 0, p0;\n selp.b32 o1, 1, 0, p1;");
    t.add(std::string("setp.lt.") + op + ".s32 negated", {"s32", "s32", "s32"}, {"b32"},
          std::string("setp.gt.s32 p2, i2, 7;\n ") +
              stored(std::string("setp.lt.") + op + ".s32 p0, i0, i1, !p2;"));
  }
  // Packing and unpacking moves.
  t.add("mov.b32 {b16,b16}", {"b16", "b16"}, {"b32"}, "mov.b32 o0, {i0, i1};");
  t.add("mov.b64 {b32,b32}", {"b32", "b32"}, {"b64"}, "mov.b64 o0, {i0, i1};");
  t.add("mov.b64 {b16,b16,b16,b16}", {"b16", "b16"}, {"b64"}, "mov.b64 o0, {i0, i1, i1, i0};");
  t.add("mov {b16,b16} b32", {"b32"}, {"b16", "b16"}, "mov.b32 {o0, o1}, i0;");
  t.add("mov {b32,b32} b64", {"b64"}, {"b32", "b32"}, "mov.b64 {o0, o1}, i0;");
  t.add("mov {_,b32} b64", {"b64"}, {"b32"}, "mov.b64 {_, o0}, i0;");
  // Control flow.
  t.add("bra: loop of a length of its own per lane", {"lane", "u32"}, {"b32"},
        " mov.u32 o0, i1; mov.u32 r0, 0;\n LOOP: setp.ge.u32 p0, r0, i0; @p0 bra DONE;\n"
        " mad.lo.u32 o0, o0, 1664525, 1013904223; add.u32 r0, r0, 1; bra LOOP;\n DONE:");
  t.add("bra: nested divergence", {"u32", "u32"}, {"b32"},
        " setp.lt.u32 p0, i0, i1; @p0 bra SMALL;\n and.b32 r0, i0, 1; setp.eq.u32 p1, r0, 0; @p1 bra EVEN;\n"
        " mul.lo.u32 o0, i0, 3; bra.uni JOIN1;\n EVEN: shr.u32 o0, i0, 1;\n JOIN1: add.u32 o0, o0, 1; bra "
        "JOIN2;\n"
        " SMALL: sub.u32 o0, i1, i0;\n JOIN2: xor.b32 o0, o0, 0x5a;");
  t.add("brx.idx", {"u32"}, {"b32"},
        " TABLE: .branchtargets A, B, C;\n rem.u32 r0, i0, 3; brx.idx r0, TABLE;\n A: mov.u32 o0, 10; bra "
        "END;\n"
        " B: mov.u32 o0, 20; bra END;\n C: mov.u32 o0, i0;\n END:");
  Case& call = t.add(
      "call", {"u32", "u32"}, {"b32"},
      " { .param .b32 a0; .param .b32 a1; .param .b32 res;\n st.param.b32 [a0], i0; st.param.b32 [a1], i1;\n"
      " call.uni (res), helper, (a0, a1);\n ld.param.b32 o0, [res]; }");
  call.module =
      ".func (.param .b32 result) helper(.param .b32 x, .param .b32 y)\n{\n .reg .b32 q<3>;\n ld.param.b32 "
      "q0, [x];"
      " ld.param.b32 q1, [y];\n sub.u32 q2, q0, q1; st.param.b32 [result], q2; ret;\n}\n";
  t.add("ret of some lanes", {"s32"}, {"b32"},
        " mov.u32 o0, 7; setp.lt.s32 p0, i0, 0; @p0 bra OUT; mov.u32 o0, 9; OUT:");
  // Special registers that do not depend on the machine.
  t.add("%tid %ntid %ctaid %nctaid", {"b32"}, {"b32", "b32", "b32", "b32"},
        "mov.u32 o0, %tid.x; mov.u32 o1, %ntid.x; mov.u32 o2, %ctaid.x; mov.u32 o3, %nctaid.x;");
  t.add("%tid.y %ntid.z %ctaid.y %nctaid.z", {"b32"}, {"b32", "b32", "b32", "b32"},
        "mov.u32 o0, %tid.y; mov.u32 o1, %ntid.z; mov.u32 o2, %ctaid.y; mov.u32 o3, %nctaid.z;");
  t.add("%laneid %warpid %nwarpid", {"b32"}, {"b32"}, "mov.u32 o0, %laneid;");
  t.add("%lanemask", {"b32"}, {"b32", "b32", "b32", "b32", "b32"},
        "mov.u32 o0, %lanemask_eq; mov.u32 o1, %lanemask_lt; mov.u32 o2, %lanemask_le; mov.u32 o3, "
        "%lanemask_gt; mov.u32 "
        "o4, %lanemask_ge;");
  Case& smem =
      t.add("%dynamic_smem_size %total_smem_size", {"b32"}, {"b32"}, "mov.u32 o0, %dynamic_smem_size;");
  smem.dynamic_smem = 4096;
}

}  // namespace mla::conformance
