// SPDX-License-Identifier: Apache-2.0
//
// Forms of instructions that kernels in the field use: each must be understood. ptxas takes all of them.
#include "tests/emulator/engine_test/harness.h"

namespace mla::emu {
namespace {

std::string registers(const char* prefix, int first, int count) {
  std::string text = "{";
  for (int i = 0; i < count; ++i) text += (i ? ", " : "") + std::string(prefix) + std::to_string(first + i);
  return text + "}";
}

void expect_known(const std::string& target, const std::vector<std::string>& forms) {
  for (const std::string& form : forms) {
    Module module;
    const Status status =
        parse_ptx(kernel(form, "", ".shared .align 1024 .b8 s[4096];\n", target), "test.ptx", &module);
    ASSERT_TRUE(status.ok()) << status.message();
    for (const std::string& problem : module.find_kernel("k")->unsupported) ADD_FAILURE() << problem;
  }
}

TEST(Forms, Sm90a) {
  std::vector<std::string> forms = {
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 {%r1, %r2, %r3, %r4}, [%r5];",
      "stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%r5], {%r1, %r2, %r3, %r4};",
      "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r5], {%r1};",
      "movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2;",
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%r1], "
      "[%rd1, {%r2, %r3}], [%r4], %h1;",
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r1], "
      "[%rd1, "
      "{%r2, %r3, %r5}], [%r4], %rd2;",
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::"
      "cache_hint "
      "[%r1], [%rd1, {%r2, %r3}], [%r4], %h1, %rd2;",
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%rd1, {%r1, %r2, %r3}], [%r4];",
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%rd1, {%r1, %r2}], [%r4];",
      "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd1, {%r1, %r2}];",
      "cp.async.bulk.prefetch.L2.global [%rd1], %r1;",
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], %r2, [%r3];",
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%rd1], "
      "%r2, "
      "[%r3], %h1;",
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r4], %r2, [%r3];",
      "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1], %r2, [%r3];",
      "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], %r2;",
      "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%rd1], [%r1], %r2, %rd2;",
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r1], %r2;",
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%rd1], [%r1], %r2;",
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.u32 [%rd1], [%r1], %r2;",
      "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.s32 [%r1], [%r2], "
      "%r3, "
      "[%r4];",
      "cp.async.bulk.commit_group;",
      "cp.async.bulk.wait_group 0;",
      "cp.async.bulk.wait_group.read 0;",
      "cp.async.wait_group 0;",
      "cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16;",
      "cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;",
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];",
      "mbarrier.init.shared::cta.b64 [%r1], 1;",
      "mbarrier.inval.shared::cta.b64 [%r1];",
      "mbarrier.arrive.shared::cta.b64 _, [%r1];",
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];",
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1], 2;",
      "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r1], %r2;",
      "mbarrier.arrive.expect_tx.shared::cta.b64 %rd1, [%r1], %r2;",
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], %r2;",
      "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r1], %r2;",
      "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r2;",
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r1], %r2, %r3;",
      "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r1], %r2;",
      "setmaxnreg.inc.sync.aligned.u32 240;",
      "setmaxnreg.dec.sync.aligned.u32 24;",
      "barrier.cta.red.or.pred %p1, 1, 256, %p2;",
      "barrier.cta.red.or.aligned.pred %p1, 1, 256, %p2;",
      "barrier.cta.sync.aligned 1, 256;",
      "barrier.cta.arrive 1, 256;",
      "barrier.red.popc.u32 %r1, 1, %p2;",
      "bar.red.popc.u32 %r1, 1, 256, %p2;",
      "bar.red.or.pred %p1, 1, 256, !%p2;",
      "bar.red.and.pred %p1, %r1, %r2, %p2;",
      "bar.cta.sync 0;",
      "bar.arrive 1, 128;",
      "barrier.cluster.arrive.relaxed.aligned;",
      "barrier.cluster.arrive.release;",
      "barrier.cluster.wait.acquire.aligned;",
      "prmt.b32 %r1, %r2, %r3, 0x5140;",
      "ex2.approx.ftz.f32 %f1, %f2;",
      "ex2.approx.ftz.bf16x2 %r1, %r2;",
      "ex2.approx.f16x2 %r1, %r2;",
      "lg2.approx.ftz.f32 %f1, %f2;",
      "rcp.approx.ftz.f32 %f1, %f2;",
      "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;",
      "cvt.rn.satfinite.relu.e4m3x2.f32 %h1, %f1, %f2;",
      "cvt.rn.f16x2.e4m3x2 %r1, %h1;",
      "cvt.rn.relu.f16x2.e5m2x2 %r1, %h1;",
      "cvt.rn.satfinite.e4m3x2.f16x2 %h1, %r1;",
      "cvt.rn.bf16x2.f32 %r1, %f1, %f2;",
      "cvt.rn.f16x2.f32 %r1, %f1, %f2;",
      "cvt.rz.bf16.f32 %h1, %f1;",
      "fma.rn.bf16x2 %r1, %r2, %r3, %r4;",
      "fma.rn.relu.bf16x2 %r1, %r2, %r3, %r4;",
      "mul.bf16x2 %r1, %r2, %r3;",
      "mul.rn.bf16x2 %r1, %r2, %r3;",
      "fma.rn.f16x2 %r1, %r2, %r3, %r4;",
      "max.NaN.f32 %f1, %f2, %f3;",
      "max.ftz.f32 %f1, %f2, %f3;",
      "redux.sync.add.u32 %r1, %r2, %r3;",
      "redux.sync.max.s32 %r1, %r2, 0xffffffff;",
      "redux.sync.or.b32 %r1, %r2, 0xffffffff;",
      "elect.sync _|%p1, 0xffffffff;",
      "elect.sync %r1|%p1, -1;",
      "fence.proxy.async;",
      "fence.proxy.async.shared::cta;",
      "fence.proxy.async.shared::cluster;",
      "fence.proxy.async.global;",
      "fence.proxy.tensormap::generic.release.gpu;",
      "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;",
      "fence.mbarrier_init.release.cluster;",
      "fence.acq_rel.gpu;",
      "fence.acq_rel.cluster;",
      "fence.acquire.gpu;",
      "fence.release.gpu;",
      "fence.sc.sys;",
      "membar.gl;",
      "griddepcontrol.wait;",
      "griddepcontrol.launch_dependents;",
      "atom.add.acq_rel.gpu.u32 %r1, [%rd1], 1;",
      "atom.add.acq_rel.gpu.global.u32 %r1, [%rd1], 1;",
      "atom.global.add.acq_rel.gpu.u32 %r1, [%rd1], 1;",
      "atom.acq_rel.gpu.global.add.u32 %r1, [%rd1], 1;",
      "atom.relaxed.gpu.global.cas.b32 %r1, [%rd1], %r2, %r3;",
      "atom.acquire.gpu.global.exch.b64 %rd1, [%rd1], %rd2;",
      "red.release.gpu.global.add.u32 [%rd1], %r1;",
      "red.release.gpu.global.add.s32 [%rd1], %r1;",
      "red.global.add.v4.f32 [%rd1], {%f1, %f2, %f3, %f4};",
      "red.global.v4.f32.add [%rd1], {%f1, %f2, %f3, %f4};",
      "ld.acquire.gpu.global.u32 %r1, [%rd1];",
      "ld.relaxed.gpu.global.b32 %r1, [%rd1];",
      "ld.global.nc.L1::no_allocate.L2::256B.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];",
      "ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1], %rd2;",
      "st.release.gpu.global.u32 [%rd1], %r1;",
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r1], {%r2, %r3, %r4, %r5}, [%r6];",
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r1], %rd1, [%r6];",
      "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], %r2, [%r6];",
      "st.shared::cluster.v4.f32 [%r1], {%f1, %f2, %f3, %f4};",
      "ld.shared::cluster.u32 %r1, [%r2];",
      "mapa.shared::cluster.u32 %r1, %r2, %r3;",
      "mapa.u64 %rd1, %rd2, %r3;",
      "getctarank.shared::cluster.u32 %r1, %r2;",
      "isspacep.shared::cta %p1, %rd1;",
      "prefetch.tensormap [%rd1];",
      "prefetch.param.tensormap [p0];",
      "prefetch.global.L2 [%rd1];",
      "createpolicy.fractional.L2::evict_last.b64 %rd1, 0f3F800000;",
      "createpolicy.fractional.L2::evict_first.b64 %rd1;",
      "applypriority.global.L2::evict_normal [%rd1], 128;",
      "nanosleep.u32 64;",
      "wgmma.fence.sync.aligned;",
      "wgmma.commit_group.sync.aligned;",
      "wgmma.wait_group.sync.aligned 1;",
      "shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1;",
      "match.any.sync.b32 %r1, %r2, -1;",
      "activemask.b32 %r1;",
      "lop3.b32 %r1, %r2, %r3, %r4, 0xea;",
      "lop3.or.b32 %r1|%p1, %r2, %r3, %r4, 0xea, %p2;",
      "vote.sync.any.pred %p1, %p2, -1;",
      "mad.wide.u32 %rd1, %r1, %r2, %rd2;",
      "bfe.u32 %r1, %r2, 3, 5;",
      "szext.clamp.s32 %r1, %r2, %r3;",
      "dp4a.s32.s32 %r1, %r2, %r3, %r4;",
      "dp2a.lo.s32.s32 %r1, %r2, %r3, %r4;",
      "mov.u32 %r1, %lanemask_lt;",
      "mov.u64 %rd1, %globaltimer;",
      "mov.u32 %r1, %smid;",
      "mov.u32 %r1, %dynamic_smem_size;",
      "mov.pred %p1, %is_explicit_cluster;",
  };
  for (const int n : {8, 16, 24, 32, 64, 96, 128, 256}) {
    const std::string size = std::to_string(n);
    if (n <= 128) {  // as many registers as the harness declares
      const std::string d = registers("%f", 0, n / 2);
      for (const char* types : {"e4m3.e4m3", "e5m2.e4m3", "e4m3.e5m2"}) {
        const std::string op = "wgmma.mma_async.sync.aligned.m64n" + size + "k32.f32." + types + " " + d;
        forms.push_back(op + ", {%r1, %r2, %r3, %r4}, %rd1, %p1, 1, 1;");
        forms.push_back(op + ", %rd2, %rd1, 1, 1, 1;");
      }
      for (const char* types : {"f16.f16", "bf16.bf16"}) {
        const std::string op = "wgmma.mma_async.sync.aligned.m64n" + size + "k16.f32." + types + " " + d;
        forms.push_back(op + ", {%r1, %r2, %r3, %r4}, %rd1, %p1, 1, 1, 1;");
        forms.push_back(op + ", %rd2, %rd1, %p1, 1, -1, 0, 1;");
      }
    }
    forms.push_back("wgmma.mma_async.sync.aligned.m64n" + size + "k16.f16.f16.f16 " +
                    registers("%r", 0, n / 4) + ", %rd2, %rd1, %p1, 1, 1, 0, 0;");
  }
  expect_known("sm_90a", forms);
}

}  // namespace
}  // namespace mla::emu
