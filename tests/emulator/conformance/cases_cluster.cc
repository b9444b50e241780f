// SPDX-License-Identifier: Apache-2.0
//
// Thread block clusters: barriers, distributed shared memory, remote arrivals, multicast.
#include "tests/emulator/conformance/case.h"

namespace mla::conformance {

void add_cluster_cases(std::vector<Case>* cases) {
  const auto add = [&](const std::string& name, std::vector<std::string> in, std::vector<std::string> out,
                       std::string body, uint32_t cluster = 4) -> Case& {
    Case c;
    c.name = name;
    c.in = std::move(in);
    c.out = std::move(out);
    c.body = std::move(body);
    c.grid = 8;
    c.block = 64;
    c.cluster = cluster;
    cases->push_back(std::move(c));
    return cases->back();
  };
  const std::string sync = " barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n";
  add("cluster special registers", {}, {"b32", "b32", "b32", "b32", "b32", "b32"},
      "mov.u32 o0, %cluster_ctarank; mov.u32 o1, %cluster_nctarank; mov.u32 o2, %clusterid.x; mov.u32 o3, "
      "%nclusterid.x; mov.u32 o4, "
      "%cluster_ctaid.x; mov.u32 o5, %cluster_nctaid.x;");
  add("%is_explicit_cluster", {}, {"b32"}, "mov.pred p0, %is_explicit_cluster; selp.b32 o0, 1, 0, p0;");
  Case& none = add("%is_explicit_cluster without", {}, {"b32", "b32", "b32"},
                   "mov.pred p0, %is_explicit_cluster; selp.b32 o0, 1, 0, p0; mov.u32 o1, %cluster_nctarank; "
                   "mov.u32 o2, %clusterid.x;",
                   1);
  none.grid = 2;
  // r0: own cell array; r1: own cell; r2: rank; r3: the next rank.
  const std::string cells =
      " .shared .align 16 .b8 s[1024];\n mov.u32 r0, s; shl.b32 r1, tidx, 4; add.u32 r1, r0, r1; mov.u32 r2, "
      "%cluster_ctarank; add.u32 r3, r2, 1; and.b32 r3, r3, 3;\n";
  for (const char* barrier :
       {" barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n",
        " barrier.cluster.arrive; barrier.cluster.wait;\n",
        " barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n",
        " fence.acq_rel.cluster; barrier.cluster.arrive.relaxed.aligned; "
        "barrier.cluster.wait.acquire.aligned;\n"}) {
    std::string name = std::string("mapa ld.shared::cluster after") + barrier;
    name.pop_back();
    add(name, {"b32"}, {"b32"},
        cells + " st.shared.b32 [r1], i0;\n" + barrier +
            " mapa.shared::cluster.u32 r4, r1, r3; ld.shared::cluster.b32 o0, [r4];\n" + sync);
  }
  add("mapa.shared::cluster of a variable", {"b32"}, {"b32", "b32"},
      " .shared .align 4 .b32 v;\n setp.eq.u32 p0, tidx, 0; @p0 st.shared.b32 [v], i0;\n" + sync +
          " mov.u32 r2, %cluster_ctarank; xor.b32 r3, r2, 1; mapa.shared::cluster.u32 r4, v, r3; "
          "ld.shared::cluster.u32 o0, [r4]; getctarank.shared::cluster.u32 o1, r4;\n" +
          sync);
  add("mapa.u64 ld generic", {"b32"}, {"b32", "b32", "b32", "b32"},
      cells + " st.shared.b32 [r1], i0;\n" + sync +
          " cvt.u64.u32 d1, r1; cvta.shared.u64 d2, d1; mapa.u64 d3, d2, r3; ld.b32 o0, [d3]; getctarank.u64 "
          "o1, d3; isspacep.shared::cluster p0, d3; selp.b32 o2, 1, 0, p0;"
          " isspacep.shared::cta p1, d3; selp.b32 o3, 1, 0, p1;\n" +
          sync);
  add("st.shared::cluster.v4.b32", {"b32", "b32", "b32", "b32"}, {"b32", "b32", "b32", "b32"},
      cells + sync +
          " mapa.shared::cluster.u32 r4, r1, r3; st.shared::cluster.v4.b32 [r4], {i0, i1, i2, i3};\n" + sync +
          " ld.shared.v4.b32 {o0, o1, o2, o3}, [r1];");
  add("ld.shared::cluster.v2.b64", {"b64", "b64"}, {"b64", "b64"},
      cells + " st.shared.v2.b64 [r1], {i0, i1};\n" + sync +
          " mapa.shared::cluster.u32 r4, r1, r3; ld.shared::cluster.v2.b64 {o0, o1}, [r4];\n" + sync);
  add("atom.shared::cluster.add.u32 contended", {"b32"}, {"b32"},
      " .shared .align 4 .b32 sum;\n setp.eq.u32 p0, tidx, 0; @p0 st.shared.b32 [sum], 0;\n" + sync +
          " mov.u32 r0, sum; mapa.shared::cluster.u32 r4, r0, 0; atom.shared::cluster.add.u32 r5, [r4], "
          "i0;\n" +
          sync + " ld.shared::cluster.b32 o0, [r4];\n" + sync);
  add("red.shared::cluster.max.s32", {"s32"}, {"b32"},
      " .shared .align 4 .b32 best;\n setp.eq.u32 p0, tidx, 0; @p0 st.shared.b32 [best], 0x80000000;\n" +
          sync +
          " mov.u32 r0, best; mapa.shared::cluster.u32 r4, r0, 2; "
          "red.relaxed.cluster.shared::cluster.max.s32 [r4], i0;\n" +
          sync + " ld.shared::cluster.b32 o0, [r4];\n" + sync);

  // ---- remote barriers: r20 the own mbarrier, waiting for `arrivals`
  const auto barrier = [](const std::string& arrivals) {
    return " .shared .align 1024 .b8 s[1024]; .shared .align 8 .b64 bar;\n mov.u32 r0, s; shl.b32 r1, tidx, "
           "4; "
           "add.u32 r1, r0, r1; mov.u32 r20, bar; mov.u32 r2, %cluster_ctarank; "
           "add.u32 r3, r2, 1; and.b32 r3, r3, 3;\n mov.b32 r4, 0xeeeeeeee; st.shared.v4.b32 [r1], {r4, r4, "
           "r4, r4}; setp.eq.u32 p7, tidx, 0; @p7 mbarrier.init.shared::cta.b64 [r20], " +
           arrivals +
           "; @p7 fence.mbarrier_init.release.cluster;\n barrier.cluster.arrive.release.aligned; "
           "barrier.cluster.wait.acquire.aligned;\n mapa.shared::cluster.u32 r21, r20, r3; "
           "mapa.shared::cluster.u32 r22, r1, r3;\n";
  };
  const std::string wait =
      " mov.u32 r40, 0;\n WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p0, [r20], 0; @p0 "
      "bra GOT;\n"
      " add.u32 r40, r40, 1; setp.lt.u32 p1, r40, 100000; @p1 bra WAIT; trap;\n GOT:\n";
  const std::string result = " ld.shared.v4.b32 {o0, o1, o2, o3}, [r1];\n";
  const std::vector<std::string> four = {"b32", "b32", "b32", "b32"};
  add("mbarrier.arrive.release.cluster.shared::cluster", {"b32"}, four,
      barrier("64") +
          " st.shared::cluster.b32 [r22+4], i0; mbarrier.arrive.release.cluster.shared::cluster.b64 _, "
          "[r21];\n" +
          wait + result + sync);
  add("mbarrier.arrive.shared::cluster with count", {"b32"}, four,
      barrier("128") +
          " st.shared::cluster.b32 [r22], i0; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r21], "
          "2;\n" +
          wait + result + sync);
  add("mbarrier.arrive.expect_tx.shared::cluster", {"b32"}, four,
      barrier("64") +
          " mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [r21], 4; "
          "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [r22], i0, [r21];\n" +
          wait + result + sync);
  const auto st_async = [&](const std::string& suffix, std::vector<std::string> in,
                            const std::string& operand, uint32_t bytes) {
    const std::string op = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes." + suffix;
    add(op, std::move(in), four,
        barrier("1") + " @p7 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [r20], " +
            std::to_string(bytes * 64) + ";\n " + op + " [r22], " + operand + ", [r21];\n" + wait + result +
            sync);
  };
  st_async("b32", {"b32"}, "i0", 4);
  st_async("u32", {"b32"}, "i0", 4);
  st_async("f32", {"f32"}, "i0", 4);
  st_async("b64", {"b64"}, "i0", 8);
  st_async("v2.b32", {"b32", "b32"}, "{i0, i1}", 8);
  st_async("v4.b32", {"b32", "b32", "b32", "b32"}, "{i0, i1, i2, i3}", 16);
  st_async("v2.b64", {"b64", "b64"}, "{i0, i1}", 16);
  st_async("v4.f32", {"f32", "f32", "f32", "f32"}, "{i0, i1, i2, i3}", 16);
  {
    const std::string op = "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32";
    add(op, {"b32"}, four,
        barrier("1") + " @p7 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [r20], 256;\n " + op +
            " [r22], i0, [r21];\n" + wait + result + sync);
  }
  for (const char* reduction :
       {"add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "inc.u32", "dec.u32", "add.u64"}) {
    const bool wide = std::string(reduction) == "add.u64";
    const std::string text =
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes." + std::string(reduction);
    add(text, {wide ? "b64" : "b32"}, four,
        barrier("1") + " @p7 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [r20], " +
            (wide ? "512" : "256") + ";\n " + text + " [r22], i0, [r21];\n" + wait + result + sync);
  }
  // Bulk copy between CTAs, and multicast loads.
  const std::string fenced = [&] {
    // The buffer is filled by generic stores and overwritten by the async proxy.
    std::string text = barrier("1");
    const std::string init = " barrier.cluster.arrive.release.aligned;";
    text.insert(text.find(init), " fence.proxy.async.shared::cta;");
    return text;
  }();
  add("cp.async.bulk.shared::cluster.shared::cta", {"b32", "b32", "b32", "b32"}, four,
      fenced +
          " .shared .align 16 .b8 t[1024];\n mov.u32 r10, t; shl.b32 r11, tidx, 4; add.u32 r11, r10, r11; "
          "st.shared.v4.b32 [r11], {i0, i1, i2, i3}; fence.proxy.async.shared::cta; bar.sync 0;\n"
          " mapa.shared::cluster.u32 r23, r0, r3; @p7 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 "
          "_, [r20], 768;\n"
          " @p7 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [r23], [r10+128], "
          "768, [r21];\n" +
          wait + result + sync);
  add("cp.async.bulk multicast", {}, four,
      fenced +
          " @p7 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [r20], 512;\n mov.u32 r5, "
          "%clusterid.x; mul.wide.u32 d1, r5, 1024; add.u64 d1, psrc, d1; cvta.to.global.u64 d1, d1;\n"
          " setp.eq.u32 p1, r2, 1; and.pred p1, p1, p7; mov.b16 h0, 0xb; @p1 "
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [r0], [d1], "
          "512, [r20], h0;\n"
          " setp.eq.u32 p1, r2, 2; and.pred p1, p1, p7; @p1 "
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r0+512], [d1+64], 512, "
          "[r20];\n" +
          wait + result + sync);
  {
    Case& c = add("cp.async.bulk.tensor.2d multicast", {}, four,
                  fenced +
                      " @p7 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [r20], 1024;\n mov.u16 "
                      "h0, 5; mov.u16 h1, 10; mov.u32 r5, %clusterid.x;\n"
                      " setp.eq.u32 p1, r2, 0; and.pred p1, p1, p7; @p1 "
                      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast:"
                      ":cluster [r0], [pmap, {0, r5}], [r20], h0;\n"
                      " setp.eq.u32 p1, r2, 3; and.pred p1, p1, p7; @p1 "
                      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast:"
                      ":cluster [r0], [pmap, {16, r5}], [r20], h1;\n" +
                      wait + result + sync);
    TensorMapSpec spec;
    spec.type = 0;
    spec.dims = {128, 64};
    spec.strides = {128};
    spec.box = {64, 16};
    spec.swizzle = 2;
    c.tensor_map = {spec};
  }
  add("cluster of two", {"b32"}, {"b32", "b32"},
      " .shared .align 16 .b8 s[1024];\n mov.u32 r0, s; shl.b32 r1, tidx, 4; add.u32 r1, r0, r1; mov.u32 o1, "
      "%cluster_ctarank; xor.b32 r3, o1, 1; st.shared.b32 [r1], i0;\n" +
          sync + " mapa.shared::cluster.u32 r4, r1, r3; ld.shared::cluster.b32 o0, [r4];\n" + sync,
      2);
  {
    Case& c =
        add("setmaxnreg", {"b32"}, {"b32"},
            " setp.lt.u32 p0, tidx, 128; @p0 bra LESS;\n setmaxnreg.inc.sync.aligned.u32 224; add.u32 o0, "
            "i0, 1; bra.uni DONE;\n LESS: setmaxnreg.dec.sync.aligned.u32 56; add.u32 o0, i0, 2;\n DONE:",
            1);
    c.grid = 2;
    c.block = 384;  // 168 registers each at launch
  }
}

}  // namespace mla::conformance
