// SPDX-License-Identifier: Apache-2.0
//
// Loads, stores, state spaces, atomics.
#include "tests/emulator/conformance/case.h"

namespace mla::conformance {

void add_memory_cases(std::vector<Case>* cases) {
  const auto add = [&](const std::string& name, std::vector<std::string> in, std::vector<std::string> out,
                       std::string body) -> Case& {
    Case c;
    c.name = name;
    c.in = std::move(in);
    c.out = std::move(out);
    c.body = std::move(body);
    c.grid = 4;
    cases->push_back(std::move(c));
    return cases->back();
  };

  // ---- global loads: each thread its 16 bytes of the source
  const std::string at = " mul.wide.u32 d1, gidx, 16; add.u64 d1, psrc, d1; cvta.to.global.u64 d2, d1;\n ";
  for (const char* type : {"u8", "s8", "u16", "s16", "u32", "s32", "b32", "f32"}) {
    add(std::string("ld.global.") + type, {}, {"b32"},
        at + "ld.global." + type + " r0, [d2+4]; mov.b32 o0, r0;");
  }
  for (const char* type : {"u64", "b64", "f64"})
    add(std::string("ld.global.") + type, {}, {"b64"}, at + "ld.global." + type + " o0, [d2+8];");
  add("ld.global.u32 to 64 bits", {}, {"b64"}, at + "ld.global.u32 o0, [d2];");
  add("ld.global.s16 to 64 bits", {}, {"b64"}, at + "ld.global.s16 o0, [d2+2];");
  for (const char* op : {"ld.global.v2.b32", "ld.global.v2.u32", "ld.global.nc.v2.f32"}) {
    add(op, {}, {"b32", "b32"}, at + op + " {o0, o1}, [d2];");
  }
  for (const char* op : {"ld.global.v4.b32", "ld.global.v4.u32", "ld.global.nc.v4.u32", "ld.global.cg.v4.f32",
                         "ld.global.ca.v4.u32", "ld.global.cs.v4.u32", "ld.global.L1::no_allocate.v4.u32",
                         "ld.global.nc.L1::no_allocate.L2::128B.v4.u32", "ld.v4.b32"}) {
    const std::string address = std::string(op) == "ld.v4.b32" ? "[d1]" : "[d2]";
    add(op, {}, {"b32", "b32", "b32", "b32"}, at + op + " {o0, o1, o2, o3}, " + address + ";");
  }
  add("ld.global.v2.b64", {}, {"b64", "b64"}, at + "ld.global.v2.b64 {o0, o1}, [d2];");
  add("ld.global.v4.u16", {}, {"b16", "b16", "b16", "b16"}, at + "ld.global.v4.u16 {o0, o1, o2, o3}, [d2];");
  add("ld.global.v4.u8", {}, {"b16", "b16", "b16", "b16"}, at + "ld.global.v4.u8 {o0, o1, o2, o3}, [d2];");
  add("ld.global.v2.s8", {}, {"b16", "b16"}, at + "ld.global.v2.s8 {o0, o1}, [d2];");
  for (const char* op : {"ld.volatile.global.u32", "ld.relaxed.gpu.global.u32", "ld.acquire.gpu.global.u32",
                         "ld.acquire.sys.global.u32", "ld.relaxed.cluster.global.u32", "ld.global.cv.u32",
                         "ld.global.lu.u32", "ld.weak.global.u32"}) {
    add(op, {}, {"b32"}, at + op + " o0, [d2];");
  }
  add("ld.global negative offset", {}, {"b32"}, at + "add.u64 d2, d2, 12; ld.global.b32 o0, [d2+-8];");
  add("prefetch", {}, {"b32"},
      at + "prefetch.global.L2 [d2]; prefetch.global.L1 [d2]; ld.global.b32 o0, [d2];");

  // ---- global stores
  const std::string cell = " mul.wide.u32 d1, gidx, 16; add.u64 d1, pmem, d1; cvta.to.global.u64 d2, d1;\n ";
  const auto store = [&](const std::string& op, std::vector<std::string> in, const std::string& operands) {
    Case& c = add(op, std::move(in), {}, cell + op + " " + operands);
    c.uses_mem = true;
  };
  store("st.global.u8", {"b32"}, "[d2+3], i0;");
  store("st.global.u16", {"b16"}, "[d2+2], i0;");
  store("st.global.b32", {"b32"}, "[d2], i0;");
  store("st.global.f32", {"f32"}, "[d2+4], i0;");
  store("st.global.b64", {"b64"}, "[d2+8], i0;");
  store("st.global.v2.b32", {"b32", "b32"}, "[d2], {i0, i1};");
  store("st.global.v4.b32", {"b32", "b32", "b32", "b32"}, "[d2], {i0, i1, i2, i3};");
  store("st.global.v4.f32", {"f32", "f32", "f32", "f32"}, "[d2], {i0, i1, i2, i3};");
  store("st.global.v2.u64", {"b64", "b64"}, "[d2], {i0, i1};");
  store("st.global.v4.u16", {"b16", "b16"}, "[d2], {i0, i1, i1, i0};");
  store("st.global.v2.u8", {"b16", "b16"}, "[d2], {i0, i1};");
  store("st.v2.b32", {"b32", "b32"}, "[d1], {i0, i1};");
  for (const char* op :
       {"st.global.cg.b32", "st.global.cs.b32", "st.global.wt.b32", "st.volatile.global.b32",
        "st.relaxed.gpu.global.b32", "st.release.gpu.global.b32", "st.release.cluster.global.b32",
        "st.weak.global.b32", "st.global.L1::no_allocate.b32"}) {
    store(op, {"b32"}, "[d2], i0;");
  }

  // ---- shared, local, constant and parameter space
  const std::string smem =
      " .shared .align 16 .b8 s[2048];\n mov.u32 r0, s; shl.b32 r1, tidx, 4; add.u32 r1, r0, r1;\n ";
  add("st.shared.v4.b32 ld.shared.v4.b32", {"b32", "b32", "b32", "b32"}, {"b32", "b32", "b32", "b32"},
      smem +
          "st.shared.v4.b32 [r1], {i0, i1, i2, i3}; bar.sync 0; xor.b32 r1, r1, 0x7f0; sub.u32 r1, r1, 0; "
          "ld.shared.v4.b32 {o0, o1, o2, o3}, [r1];");
  cases->back().body = smem +
                       "st.shared.v4.b32 [r1], {i0, i1, i2, i3}; bar.sync 0; xor.b32 r2, tidx, 127; shl.b32 "
                       "r2, r2, 4; add.u32 r2, r0, r2; "
                       "ld.shared.v4.b32 {o0, o1, o2, o3}, [r2];";
  add("st.shared.v2.b64 ld.shared.v2.b64", {"b64", "b64"}, {"b64", "b64"},
      smem + "st.shared.v2.b64 [r1], {i0, i1}; ld.shared.v2.b64 {o0, o1}, [r1];");
  add("st.shared.u8 ld.shared.s8", {"b32"}, {"b32"},
      smem + "st.shared.u8 [r1+5], i0; ld.shared.s8 o0, [r1+5];");
  add("st.shared.u16 ld.shared.u16", {"b16"}, {"b32"},
      smem + "st.shared.u16 [r1+6], i0; ld.shared.u16 o0, [r1+6];");
  add("st.shared.v2.f32 ld.shared.v2.u32", {"f32", "f32"}, {"b32", "b32"},
      smem + "st.shared.v2.f32 [r1+8], {i0, i1}; ld.shared.v2.u32 {o0, o1}, [r1+8];");
  add("ld.volatile.shared.b32", {"b32"}, {"b32"},
      smem + "st.volatile.shared.b32 [r1], i0; ld.volatile.shared.b32 o0, [r1];");
  add("st.shared::cta ld.shared::cta", {"b32"}, {"b32"},
      smem + "st.shared::cta.b32 [r1], i0; ld.shared::cta.b32 o0, [r1];");
  add("shared memory at its address", {"b32"}, {"b32"},
      " .shared .align 4 .b32 t[128];\n shl.b32 r1, tidx, 2; mov.u32 r2, t; add.u32 r2, r2, r1; "
      "st.shared.b32 [r2], i0; bar.sync 0; ld.shared.b32 o0, [t+12];");
  add("ld generic from shared", {"b32"}, {"b32"},
      smem + "cvt.u64.u32 d3, r1; cvta.shared.u64 d4, d3; st.b32 [d4], i0; ld.shared.b32 o0, [r1];");
  add("cvta.to.shared", {"b32"}, {"b32"},
      smem +
          "cvt.u64.u32 d3, r1; cvta.shared.u64 d4, d3; cvta.to.shared.u64 d5, d4; cvt.u32.u64 r3, d5; "
          "sub.u32 o0, r3, r1;");
  add("isspacep", {"b32"}, {"b32", "b32", "b32"},
      smem +
          "cvt.u64.u32 d3, r1; cvta.shared.u64 d4, d3; isspacep.shared p0, d4; isspacep.global p1, d4; "
          "isspacep.global p2, pmem; "
          "selp.b32 o0, 1, 0, p0; selp.b32 o1, 1, 0, p1; selp.b32 o2, 1, 0, p2;");
  add("local memory", {"b32", "b32", "lane"}, {"b32"},
      " .local .align 16 .b8 stack[64];\n mov.u32 r0, stack; and.b32 r1, i2, 15; shl.b32 r1, r1, 2; mov.u32 "
      "r2, 0;\n"
      " FILL: shl.b32 r3, r2, 2; add.u32 r3, r0, r3; add.u32 r4, i0, r2; st.local.b32 [r3], r4; add.u32 r2, "
      "r2, 1;\n"
      " setp.lt.u32 p0, r2, 16; @p0 bra FILL;\n add.u32 r1, r0, r1; ld.local.b32 o0, [r1]; xor.b32 o0, o0, "
      "i1;");
  Case& constant = add("ld.const", {"lane"}, {"b32", "b32", "b32"},
                       " mov.u64 d1, table; and.b32 r0, i0, 3; mul.wide.u32 d2, r0, 4; add.u64 d2, d1, d2; "
                       "ld.const.b32 o0, [d2];\n"
                       " ld.const.b32 o1, [table+8]; ld.const.v2.b32 {r1, r2}, [table]; add.u32 o2, r1, r2;");
  constant.module = ".const .align 8 .b32 table[4] = {11, 22, 0x80000000, 4294967295};\n";
  Case& global = add("variable in global space", {"lane"}, {"b32", "b32"},
                     " mov.u64 d1, variable; and.b32 r0, i0, 3; mul.wide.u32 d2, r0, 4; add.u64 d2, d1, d2; "
                     "ld.global.b32 o0, [d2]; ld.global.u8 o1, [variable+1];");
  global.module = ".global .align 4 .u32 variable[4] = {1, 0x1234, 3};\n";
  add("ld.param.v2 and unaligned parts", {}, {"b32", "b32"},
      " ld.param.v2.b32 {r0, r1}, [p_src]; mov.b64 d1, {r0, r1}; sub.u64 d1, d1, psrc; cvt.u32.u64 o0, d1; "
      "ld.param.b32 r2, [p_src+4]; sub.u32 o1, r2, r1;");

  // ---- atomics: old values from a cell of each thread's own, final content from memory
  const auto atomic = [&](const std::string& op, const std::string& type, std::vector<std::string> in,
                          const std::string& operands) {
    Case& c = add("atom.global." + op, std::move(in), {type},
                  cell + "atom.global." + op + " o0, [d2], " + operands + ";");
    c.uses_mem = true;
  };
  for (const char* op : {"add.u32", "add.s32", "and.b32", "or.b32", "xor.b32", "exch.b32", "min.s32",
                         "max.s32", "min.u32", "max.u32", "inc.u32", "dec.u32"}) {
    atomic(op, "b32", {"b32"}, "i0");
  }
  for (const char* op :
       {"add.u64", "and.b64", "or.b64", "xor.b64", "exch.b64", "min.s64", "max.s64", "min.u64", "max.u64"}) {
    atomic(op, "b64", {"b64"}, "i0");
  }
  atomic("add.f32", "f32", {"f32"}, "i0");
  atomic("add.f64", "f64", {"f64"}, "i0");
  atomic("add.noftz.f16x2", "b32", {"f16x2"}, "i0");
  atomic("add.noftz.bf16x2", "b32", {"bf16x2"}, "i0");
  atomic("add.noftz.f16", "b16", {"f16"}, "i0");
  atomic("cas.b32", "b32", {"b32"}, "0x01010101, i0");
  atomic("cas.b64", "b64", {"b64"}, "0x0101010101010101, i0");
  atomic("cas.b16", "b16", {"b16"}, "h0, i0");
  cases->back().body = cell + "mov.b16 h0, 0x0101; atom.global.cas.b16 o0, [d2], h0, i0;";
  for (const char* op :
       {"atom.add.acq_rel.gpu.global.u32", "atom.add.relaxed.gpu.global.u32",
        "atom.add.release.cta.global.u32", "atom.add.acquire.sys.global.u32", "atom.add.u32"}) {
    const std::string address = std::string(op) == "atom.add.u32" ? "[d1]" : "[d2]";
    Case& c = add(op, {"b32"}, {"b32"}, cell + op + " o0, " + address + ", i0;");
    c.uses_mem = true;
  }
  // Contention: the sum of all threads does not depend on their order.
  const auto contended = [&](const std::string& op, std::vector<std::string> in) {
    Case& c = add(
        op + " contended", std::move(in), {},
        " and.b32 r0, tidx, 7; mul.wide.u32 d1, r0, 8; add.u64 d1, pmem, d1; cvta.to.global.u64 d2, d1;\n " +
            op + " [d2], i0;");
    c.uses_mem = true;
  };
  for (const char* op : {"red.global.add.u32", "red.global.and.b32", "red.global.or.b32",
                         "red.global.xor.b32", "red.global.min.s32", "red.global.max.u32",
                         "red.relaxed.gpu.global.add.u32", "red.release.gpu.global.add.u32"}) {
    contended(op, {"b32"});
  }
  contended("red.global.add.u64", {"b64"});
  add("atom.shared.add.u32 contended", {"b32"}, {"b32"},
      " .shared .align 4 .b32 sum;\n setp.eq.u32 p0, tidx, 0; @p0 st.shared.b32 [sum], 5; bar.sync 0;\n "
      "mov.u32 r0, sum; atom.shared.add.u32 r1, [r0], i0; bar.sync 0; ld.shared.b32 o0, [sum];");
  add("atom.shared.cas.b32", {"b32", "b32"}, {"b32", "b32"},
      smem +
          "and.b32 r2, i0, 1; st.shared.b32 [r1], r2; atom.shared.cas.b32 o0, [r1], 1, i1; ld.shared.b32 o1, "
          "[r1];");
  add("atom.shared.exch.b32 max.s32", {"s32", "s32"}, {"b32", "b32", "b32"},
      smem +
          "st.shared.b32 [r1], i0; atom.shared.max.s32 o0, [r1], i1; atom.shared.exch.b32 o1, [r1], i0; "
          "ld.shared.b32 o2, [r1];");
  add("red.shared.max.s32 contended", {"s32"}, {"b32"},
      " .shared .align 4 .b32 best;\n setp.eq.u32 p0, tidx, 0; @p0 st.shared.b32 [best], 0x80000000; "
      "bar.sync 0;\n red.shared.max.s32 [best], i0; bar.sync 0; ld.shared.b32 o0, [best];");
  add("red.shared.inc.u32 contended", {"b32"}, {"b32"},
      " .shared .align 4 .b32 count;\n setp.eq.u32 p0, tidx, 0; @p0 st.shared.b32 [count], 0; bar.sync 0;\n "
      "atom.shared.inc.u32 r1, [count], 99; bar.sync 0; ld.shared.b32 o0, [count];");
}

}  // namespace mla::conformance
