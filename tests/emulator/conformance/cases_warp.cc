// SPDX-License-Identifier: Apache-2.0
//
// Instructions that warps and CTAs execute together.
#include "tests/emulator/conformance/case.h"

namespace mla::conformance {

void add_warp_cases(std::vector<Case>* cases) {
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
  const struct {
    const char* mode;
    const char* clamp;
  } shuffles[] = {{"up", "0"}, {"down", "0x1f"}, {"bfly", "0x1f"}, {"idx", "0x1f"}};
  for (const auto& [mode, clamp] : shuffles) {
    const std::string op = std::string("shfl.sync.") + mode + ".b32";
    for (const char* b : {"1", "2", "5", "16", "31"}) {
      add(op + " " + b, {"b32"}, {"b32", "b32"},
          op + " o0|p0, i0, " + b + ", " + clamp + ", 0xffffffff; selp.b32 o1, 1, 0, p0;");
    }
    // A source lane of its own per lane, and segments of 8 lanes.
    add(op + " per lane", {"b32", "lane"}, {"b32", "b32"},
        op + " o0|p0, i0, i1, " + clamp + ", 0xffffffff; selp.b32 o1, 1, 0, p0;");
    add(op + " width 8", {"b32"}, {"b32", "b32"},
        op + " o0|p0, i0, 3, " + (std::string(mode) == "up" ? "0x1800" : "0x181f") +
            ", 0xffffffff; selp.b32 o1, 1, 0, p0;");
  }
  add("shfl.sync with part of the warp", {"b32"}, {"b32"},
      " mov.b32 o0, 77; setp.lt.u32 p0, lane, 16; @!p0 bra REST;\n shfl.sync.bfly.b32 o0, i0, 1, 0x1f, "
      "0x0000ffff;\n REST:");
  add("vote.sync.all any uni ballot", {"s32"}, {"b32", "b32", "b32", "b32"},
      " setp.lt.s32 p0, i0, 0;\n vote.sync.all.pred p1, p0, 0xffffffff; vote.sync.any.pred p2, p0, "
      "0xffffffff;\n"
      " vote.sync.uni.pred p3, p0, 0xffffffff; vote.sync.ballot.b32 o3, p0, 0xffffffff;\n"
      " selp.b32 o0, 1, 0, p1; selp.b32 o1, 1, 0, p2; selp.b32 o2, 1, 0, p3;");
  add("vote.sync.ballot negated", {"s32"}, {"b32"},
      "setp.lt.s32 p0, i0, 0; vote.sync.ballot.b32 o0, !p0, 0xffffffff;");
  add("vote.sync.all of equal lanes", {"s32"}, {"b32"},
      "setp.lt.u32 p0, lane, 32; vote.sync.all.pred p1, p0, 0xffffffff; selp.b32 o0, 1, 0, p1;");
  add("match.any.sync.b32", {"lane"}, {"b32"}, "and.b32 r0, i0, 7; match.any.sync.b32 o0, r0, 0xffffffff;");
  add("match.all.sync.b32", {"lane"}, {"b32", "b32"},
      "shr.u32 r0, i0, 5; match.all.sync.b32 o0|p0, r0, 0xffffffff; selp.b32 o1, 1, 0, p0;");
  add("activemask.b32 in a branch", {"b32"}, {"b32"},
      " mov.b32 o0, 0; setp.lt.u32 p0, lane, 32; @!p0 bra REST; activemask.b32 o0;\n REST:");
  add("elect.sync", {"b32"}, {"b32", "b32"}, "elect.sync o0|p0, 0xffffffff; selp.b32 o1, 1, 0, p0;");
  add("elect.sync upper half", {"b32"}, {"b32"},
      " mov.b32 o0, 5; setp.ge.u32 p1, lane, 16; @!p1 bra REST; elect.sync r0|p0, 0xffff0000; selp.b32 o0, "
      "1, 0, p0;\n REST:");
  for (const char* op : {"add", "min", "max"}) {
    for (const char* type : {"s32", "u32"}) {
      add(std::string("redux.sync.") + op + "." + type, {type}, {"b32"},
          std::string("redux.sync.") + op + "." + type + " o0, i0, 0xffffffff;");
    }
  }
  for (const char* op : {"and", "or", "xor"}) {
    add(std::string("redux.sync.") + op + ".b32", {"b32"}, {"b32"},
        std::string("redux.sync.") + op + ".b32 o0, i0, 0xffffffff;");
  }
  // Barriers: values pass through shared memory.
  const std::string exchange =
      " .shared .align 4 .b32 cell[128];\n mov.u32 r0, cell; shl.b32 r1, tidx, 2; add.u32 r1, r0, r1; "
      "st.shared.b32 [r1], i0;\n";
  const std::string fetch =
      " xor.b32 r2, tidx, 127; shl.b32 r2, r2, 2; add.u32 r2, r0, r2; ld.shared.b32 o0, [r2];";
  for (const char* barrier : {"bar.sync 0;", "barrier.sync 1;", "bar.sync 2, 128;",
                              "barrier.cta.sync.aligned 3, 128;", "barrier.sync.aligned 0;"}) {
    add(std::string(barrier).substr(0, std::string(barrier).size() - 1), {"b32"}, {"b32"},
        exchange + " " + barrier + fetch);
  }
  add("bar.arrive and bar.sync", {"b32"}, {"b32"},
      exchange +
          " mov.b32 o0, 0; setp.lt.u32 p0, tidx, 64; @p0 bra PRODUCER;\n bar.sync 4, 128;\n"
          " xor.b32 r2, tidx, 127; shl.b32 r2, r2, 2; add.u32 r2, r0, r2; ld.shared.b32 o0, [r2]; bra DONE;\n"
          " PRODUCER: bar.arrive 4, 128;\n DONE:");
  add("bar.red.popc.u32", {"s32"}, {"b32"}, "setp.lt.s32 p0, i0, 0; bar.red.popc.u32 o0, 0, p0;");
  add("bar.red.and.pred or", {"s32"}, {"b32", "b32"},
      "setp.lt.s32 p0, i0, 0; bar.red.and.pred p1, 0, p0; bar.red.or.pred p2, 1, p0; selp.b32 o0, 1, 0, p1; "
      "selp.b32 o1, 1, 0, p2;");
  add("bar.warp.sync", {"b32"}, {"b32"},
      exchange +
          " bar.warp.sync 0xffffffff; xor.b32 r2, tidx, 31; shl.b32 r2, r2, 2; add.u32 r2, r0, r2; "
          "ld.shared.b32 o0, [r2];");
  add("nanosleep, fences", {"b32"}, {"b32"},
      "nanosleep.u32 20; fence.acq_rel.cta; fence.acq_rel.gpu; fence.sc.sys; membar.cta; membar.gl; "
      "fence.proxy.async; "
      "fence.proxy.async.shared::cta; fence.proxy.async.global; mov.b32 o0, i0;");
  add("griddepcontrol", {"b32"}, {"b32"},
      "griddepcontrol.wait; griddepcontrol.launch_dependents; mov.b32 o0, i0;");
}

}  // namespace mla::conformance
