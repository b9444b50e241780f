// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous copies and the barriers they complete on.
#include "tests/emulator/conformance/case.h"

namespace mla::conformance {
namespace {

// CUtensorMapDataType, CUtensorMapSwizzle.
enum : uint32_t { kUint8 = 0, kUint16 = 1, kInt32 = 3, kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9 };
enum : uint32_t { kNone = 0, kSwizzle32 = 1, kSwizzle64 = 2, kSwizzle128 = 3 };

// Bounded: a fault of a case must not hang the machine that records.
const char kWait[] =
    " mov.u32 r40, 0;\n WAIT: mbarrier.try_wait.parity.shared::cta.b64 p0, [r20], 0; @p0 bra GOT;\n"
    " add.u32 r40, r40, 1; setp.lt.u32 p1, r40, 100000; @p1 bra WAIT; trap;\n GOT:\n";

// r0: the buffer s (8 KiB, filled with 0xee), r20: an mbarrier expecting one arrival.
std::string prologue(uint32_t bytes = 8192) {
  return " .shared .align 1024 .b8 s[" + std::to_string(bytes) +
         "];\n .shared .align 8 .b64 bar;\n mov.u32 r0, s; mov.u32 r20, bar; mov.u32 r1, tidx;\n"
         " FILL: shl.b32 r2, r1, 2; add.u32 r2, r0, r2; st.shared.b32 [r2], 0xeeeeeeee; add.u32 r1, r1, "
         "128;\n"
         " setp.lt.u32 p0, r1, " +
         std::to_string(bytes / 4) +
         "; @p0 bra FILL;\n setp.eq.u32 p7, tidx, 0; @p7 mbarrier.init.shared::cta.b64 [r20], 1; @p7 "
         "fence.mbarrier_init.release.cluster;\n"
         " fence.proxy.async.shared::cta; bar.sync 0;\n";
}

// 16 bytes of each thread into o0-o3, the whole of the first 2 KiB.
const char kResult[] = " shl.b32 r1, tidx, 4; add.u32 r1, r0, r1; ld.shared.v4.b32 {o0, o1, o2, o3}, [r1];";

const std::vector<std::string> kFour = {"b32", "b32", "b32", "b32"};

uint32_t element_size(uint32_t type) {
  switch (type) {
    case kUint8:
      return 1;
    case kUint16:
    case kFloat16:
    case kBfloat16:
      return 2;
    default:
      return 4;
  }
}

TensorMapSpec map(uint32_t type, std::vector<uint64_t> dims, std::vector<uint32_t> box,
                  uint32_t swizzle = kNone) {
  TensorMapSpec spec;
  spec.type = type;
  uint64_t stride = element_size(type) * dims[0];
  for (size_t i = 1; i < dims.size(); ++i) {
    stride = (stride + 15) / 16 * 16;
    spec.strides.push_back(stride);
    stride *= dims[i];
  }
  spec.dims = std::move(dims);
  spec.box = std::move(box);
  spec.swizzle = swizzle;
  return spec;
}

uint32_t box_bytes(const TensorMapSpec& spec) {
  uint32_t bytes = element_size(spec.type);
  for (const uint32_t extent : spec.box) bytes *= extent;
  return bytes;
}

std::string coordinates(const std::vector<int>& at) {
  std::string text = "{";
  for (size_t i = 0; i < at.size(); ++i) text += (i ? ", " : "") + std::to_string(at[i]);
  return text + "}";
}

}  // namespace

void add_async_cases(std::vector<Case>* cases) {
  const auto add = [&](const std::string& name, std::vector<std::string> in, std::vector<std::string> out,
                       std::string body) -> Case& {
    Case c;
    c.name = name;
    c.in = std::move(in);
    c.out = std::move(out);
    c.body = std::move(body);
    c.grid = 2;
    cases->push_back(std::move(c));
    return cases->back();
  };

  // ---- cp.async
  const std::string to_cell = prologue(2048) +
                              " mul.wide.u32 d1, gidx, 16; add.u64 d1, psrc, d1; cvta.to.global.u64 d1, d1; "
                              "shl.b32 r2, tidx, 4; add.u32 r2, r0, r2;\n ";
  const std::string finish =
      std::string(" cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;\n") + kResult;
  for (const char* op :
       {"cp.async.ca.shared.global [r2], [d1], 4;", "cp.async.ca.shared.global [r2+8], [d1], 8;",
        "cp.async.ca.shared.global [r2], [d1], 16;", "cp.async.cg.shared.global [r2], [d1], 16;"}) {
    add(op, {}, kFour, to_cell + op + finish);
  }
  add("cp.async.cg zero fill", {"lane"}, kFour,
      to_cell + "and.b32 r3, i0, 15; cp.async.cg.shared.global [r2], [d1], 16, r3;" + finish);
  add("cp.async.ca ignore source", {"lane"}, kFour,
      to_cell + "setp.lt.u32 p1, i0, 16; cp.async.ca.shared.global [r2], [d1], 8, p1;" + finish);
  add("cp.async.wait_all", {}, kFour,
      to_cell + "cp.async.ca.shared.global [r2], [d1], 16; cp.async.wait_all; bar.sync 0;\n" + kResult);
  add("cp.async.wait_group 1", {}, kFour,
      to_cell +
          "cp.async.ca.shared.global [r2], [d1], 16; cp.async.commit_group; cp.async.commit_group; "
          "cp.async.wait_group 1;\n ld.shared.v4.b32 {o0, o1, o2, o3}, [r2];\n cp.async.wait_all;");
  {
    std::string body =
        to_cell +
        "cp.async.ca.shared.global [r2], [d1], 16; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [r20];\n" +
        kWait + kResult;
    const std::string one = "[r20], 1; @p7 fence";
    body.replace(body.find(one), one.size(), "[r20], 128; @p7 fence");
    add("cp.async.mbarrier.arrive.noinc", {}, kFour, body);
  }

  // ---- mbarriers: every thread has its own, so that the results are fixed
  const std::string own =
      " .shared .align 8 .b8 bars[1024];\n mov.u32 r0, bars; shl.b32 r1, tidx, 3; add.u32 r20, r0, r1;\n ";
  add("mbarrier.init arrive test_wait", {}, {"b32", "b32", "b32", "b32"},
      own +
          "mbarrier.init.shared::cta.b64 [r20], 2;\n mbarrier.arrive.shared::cta.b64 d1, [r20]; "
          "mbarrier.test_wait.shared::cta.b64 p0, [r20], d1; selp.b32 o0, 1, 0, p0;\n"
          " mbarrier.arrive.shared::cta.b64 d2, [r20]; mbarrier.test_wait.shared::cta.b64 p1, [r20], d1; "
          "selp.b32 o1, 1, 0, p1;\n"
          " mbarrier.test_wait.parity.shared::cta.b64 p2, [r20], 0; selp.b32 o2, 1, 0, p2; "
          "mbarrier.test_wait.parity.shared::cta.b64 p3, [r20], 1; selp.b32 o3, 1, 0, p3;");
  add("mbarrier.arrive with count", {}, {"b32", "b32"},
      own +
          "mbarrier.init.shared::cta.b64 [r20], 5; mbarrier.arrive.shared::cta.b64 d1, [r20], 3; "
          "mbarrier.test_wait.parity.shared::cta.b64 p0, [r20], 0; selp.b32 o0, 1, 0, p0;\n"
          " mbarrier.arrive.release.cta.shared::cta.b64 _, [r20], 2; "
          "mbarrier.test_wait.parity.shared::cta.b64 p1, [r20], 0; selp.b32 o1, 1, 0, p1;");
  add("mbarrier.pending_count", {}, {"b32", "b32"},
      own +
          "mbarrier.init.shared::cta.b64 [r20], 7; mbarrier.arrive.shared::cta.b64 d1, [r20], 2; "
          "mbarrier.pending_count.b64 o0, d1;\n"
          " mbarrier.arrive.noComplete.release.cta.shared::cta.b64 d2, [r20], 1; mbarrier.pending_count.b64 "
          "o1, d2;");
  add("mbarrier.expect_tx complete_tx", {}, {"b32", "b32", "b32"},
      own +
          "mbarrier.init.shared::cta.b64 [r20], 1; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [r20], 64; "
          "mbarrier.arrive.shared::cta.b64 d1, [r20];\n"
          " mbarrier.test_wait.shared::cta.b64 p0, [r20], d1; selp.b32 o0, 1, 0, p0; "
          "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [r20], 48;\n"
          " mbarrier.test_wait.shared::cta.b64 p0, [r20], d1; selp.b32 o1, 1, 0, p0; "
          "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [r20], 16;\n"
          " mbarrier.test_wait.shared::cta.b64 p0, [r20], d1; selp.b32 o2, 1, 0, p0;");
  add("mbarrier.arrive.expect_tx, complete_tx ahead", {}, {"b32", "b32"},
      own +
          "mbarrier.init.shared::cta.b64 [r20], 1; mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [r20], "
          "32;\n"
          " mbarrier.test_wait.parity.shared::cta.b64 p0, [r20], 0; selp.b32 o0, 1, 0, p0; "
          "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [r20], 32;\n"
          " mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p0, [r20], 0; selp.b32 o1, 1, 0, p0;");
  add("mbarrier.arrive_drop", {}, {"b32", "b32", "b32"},
      own +
          "mbarrier.init.shared::cta.b64 [r20], 2; mbarrier.arrive_drop.shared::cta.b64 d1, [r20]; "
          "mbarrier.arrive.shared::cta.b64 d2, [r20];\n"
          " mbarrier.test_wait.shared::cta.b64 p0, [r20], d1; selp.b32 o0, 1, 0, p0; "
          "mbarrier.arrive.shared::cta.b64 d3, [r20];\n"
          " mbarrier.test_wait.shared::cta.b64 p0, [r20], d3; selp.b32 o1, 1, 0, p0; "
          "mbarrier.test_wait.parity.shared::cta.b64 p0, [r20], 1; selp.b32 o2, 1, 0, p0;");
  add("mbarrier phases", {}, {"b32", "b32", "b32", "b32"},
      own +
          "mbarrier.init.shared::cta.b64 [r20], 1; mbarrier.test_wait.parity.shared::cta.b64 p0, [r20], 0; "
          "selp.b32 o0, 1, 0, p0;\n"
          " mbarrier.test_wait.parity.shared::cta.b64 p0, [r20], 1; selp.b32 o1, 1, 0, p0; "
          "mbarrier.arrive.shared::cta.b64 d1, [r20]; mbarrier.arrive.shared::cta.b64 d2, [r20];\n"
          " mbarrier.test_wait.parity.shared::cta.b64 p0, [r20], 0; selp.b32 o2, 1, 0, p0; "
          "mbarrier.test_wait.parity.shared::cta.b64 p0, [r20], 1; selp.b32 o3, 1, 0, p0;");
  add("mbarrier.inval and another init", {}, {"b32"},
      own +
          "mbarrier.init.shared::cta.b64 [r20], 3; mbarrier.inval.shared::cta.b64 [r20]; "
          "mbarrier.init.shared::cta.b64 [r20], 1; mbarrier.arrive.shared::cta.b64 d1, [r20];\n"
          " mbarrier.try_wait.shared::cta.b64 p0, [r20], d1; selp.b32 o0, 1, 0, p0;");
  add("mbarrier: hand over through shared memory", {"b32"}, {"b32"},
      " .shared .align 8 .b64 bar; .shared .align 4 .b32 cell[128];\n mov.u32 r20, bar; setp.eq.u32 p7, "
      "tidx, 0; @p7 mbarrier.init.shared::cta.b64 [r20], 128; bar.sync 0;\n"
      " mov.u32 r0, cell; shl.b32 r1, tidx, 2; add.u32 r1, r0, r1; st.shared.b32 [r1], i0; "
      "mbarrier.arrive.release.cta.shared::cta.b64 d1, [r20];\n"
      " mov.u32 r40, 0;\n WAIT: mbarrier.try_wait.acquire.cta.shared::cta.b64 p0, [r20], d1, 1000; @p0 bra "
      "GOT;\n add.u32 r40, r40, 1; setp.lt.u32 p1, r40, 100000; @p1 bra WAIT; trap;\n GOT:\n xor.b32 "
      "r2, tidx, 127; shl.b32 r2, r2, 2; add.u32 r2, r0, r2; ld.shared.b32 o0, [r2];");

  // ---- bulk copies
  const std::string block =
      " mov.u32 r3, %ctaid.x; mul.wide.u32 d1, r3, 2048; add.u64 d1, psrc, d1; cvta.to.global.u64 d1, d1;\n";
  for (const char* target : {"shared::cluster", "shared::cta"}) {
    const std::string op = std::string("cp.async.bulk.") + target + ".global.mbarrier::complete_tx::bytes";
    add(op, {}, kFour,
        prologue(2048) + block + " @p7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r20], 1984;\n @p7 " +
            op + " [r0], [d1], 1024, [r20];\n @p7 " + op + " [r0+1072], [d1+16], 960, [r20];\n" + kWait +
            kResult);
  }
  add("cp.async.bulk with a cache hint", {}, kFour,
      prologue(2048) + block +
          " createpolicy.fractional.L2::evict_first.b64 d3, 1.0;\n @p7 "
          "mbarrier.arrive.expect_tx.shared::cta.b64 _, [r20], 2048;\n"
          " @p7 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [r0], [d1], "
          "2048, [r20], d3;\n" +
          kWait + kResult);
  const std::string own_words =
      " shl.b32 r1, tidx, 4; add.u32 r1, r0, r1; st.shared.v4.b32 [r1], {i0, i1, i2, i3}; "
      "fence.proxy.async.shared::cta; bar.sync 0;\n"
      " mov.u32 r3, %ctaid.x; mul.wide.u32 d1, r3, 2048; add.u64 d1, pmem, d1; cvta.to.global.u64 d1, d1;\n";
  const auto stored = [&](const std::string& name, const std::string& type, const std::string& instruction,
                          const char* wait = "wait_group 0") -> Case& {
    Case& c = add(name, std::vector<std::string>(4, type), {},
                  prologue(2048) + own_words + " @p7 " + instruction +
                      "\n @p7 cp.async.bulk.commit_group; @p7 cp.async.bulk." + wait + ";");
    c.uses_mem = true;
    return c;
  };
  stored("cp.async.bulk.global.shared::cta.bulk_group", "b32",
         "cp.async.bulk.global.shared::cta.bulk_group [d1+32], [r0], 1040;");
  stored("cp.async.bulk.wait_group.read", "b32",
         "cp.async.bulk.global.shared::cta.bulk_group [d1], [r0+64], 512;", "wait_group.read 0");
  for (const char* op : {"add.u32", "add.s32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32",
                         "inc.u32", "dec.u32", "add.u64", "min.s64"}) {
    stored(std::string("cp.reduce.async.bulk.global.shared::cta.bulk_group.") + op, "b32",
           std::string("cp.reduce.async.bulk.global.shared::cta.bulk_group.") + op + " [d1], [r0], 1024;");
  }
  stored("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32", "f32",
         "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [d1], [r0], 1024;");
  stored("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16", "bf16x2",
         "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [d1], [r0], 1024;");
  stored("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16", "f16x2",
         "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [d1], [r0], 1024;");
  add("cp.async.bulk.prefetch", {}, {"b32"},
      block + " cp.async.bulk.prefetch.L2.global [d1], 1024; ld.global.b32 o0, [d1];");

  // ---- tensor copies
  const auto load = [&](const std::string& label, TensorMapSpec spec, const std::vector<int>& at,
                        const char* target = "shared::cluster", const char* tile = "") {
    const std::string rank = std::to_string(spec.dims.size());
    const std::string op =
        "cp.async.bulk.tensor." + rank + "d." + target + ".global" + tile + ".mbarrier::complete_tx::bytes";
    Case& c =
        add(op + " " + label, {}, kFour,
            prologue() +
                " @p7 prefetch.tensormap [pmap];\n @p7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r20], " +
                std::to_string(box_bytes(spec)) + ";\n @p7 " + op + " [r0], [pmap, " + coordinates(at) +
                "], [r20];\n" + kWait + kResult);
    c.tensor_map = {std::move(spec)};
    c.grid = 1;
  };
  load("inside", map(kUint8, {4096}, {256}), {48});
  load("inside", map(kUint8, {4096}, {256}), {48}, "shared::cta");
  load("inside, tile mode", map(kUint8, {4096}, {256}), {48}, "shared::cta", ".tile");
  load("over the end", map(kUint8, {1000}, {256}), {900});
  load("before the start", map(kInt32, {512}, {128}), {-20});
  for (const char* target : {"shared::cluster", "shared::cta"}) {
    load("inside", map(kUint8, {128, 64}, {64, 32}), {32, 5}, target);
    load("inside", map(kUint8, {576, 16, 6}, {64, 16, 1}), {128, 0, 3}, target);
  }
  load("corner outside", map(kUint8, {128, 64}, {64, 32}), {96, 50});
  load("negative corner", map(kUint8, {128, 64}, {64, 32}), {-16, -3});
  load("all outside", map(kUint8, {128, 64}, {64, 32}), {0, 64});
  load("odd width", map(kUint8, {100, 64}, {64, 32}), {64, 2});
  load("3-D over the page", map(kUint8, {576, 16, 6}, {64, 32, 1}), {512, 4, 2});
  load("3-D page outside", map(kUint8, {576, 16, 6}, {64, 16, 1}), {0, 0, 6});
  load("3-D negative page", map(kUint8, {576, 16, 6}, {64, 16, 1}), {0, 0, -1});
  load("4-D", map(kUint16, {32, 3, 5, 7}, {32, 2, 3, 4}), {0, 1, 1, 2});
  load("5-D", map(kUint8, {32, 3, 4, 3, 5}, {32, 2, 2, 2, 4}), {0, 1, 1, 0, 2});
  load("5-D outside", map(kUint8, {32, 3, 4, 3, 5}, {32, 2, 2, 2, 4}), {16, 2, 3, 2, 3});
  load("bf16", map(kBfloat16, {64, 128}, {64, 16}), {0, 7});
  load("swizzle 32B", map(kUint8, {32, 256}, {32, 64}, kSwizzle32), {0, 3});
  load("swizzle 64B", map(kUint8, {64, 128}, {64, 32}, kSwizzle64), {0, 3});
  load("swizzle 64B, 3-D", map(kUint8, {576, 64, 2}, {64, 32, 1}, kSwizzle64), {192, 16, 1});
  load("swizzle 128B", map(kUint8, {128, 128}, {128, 16}, kSwizzle128), {0, 3});
  load("swizzle 128B, 3-D", map(kUint8, {512, 32, 4}, {128, 16, 1}, kSwizzle128), {256, 8, 2});
  load("swizzle 128B, bf16", map(kBfloat16, {64, 128}, {64, 16}, kSwizzle128), {0, 9});
  load("swizzle 128B, narrow box", map(kUint8, {128, 128}, {64, 16}, kSwizzle128), {32, 3});
  load("swizzle 32B, outside", map(kUint8, {40, 60}, {32, 64}, kSwizzle32), {16, -2});
  {
    TensorMapSpec spec = map(kFloat32, {32, 32}, {16, 16});
    spec.fill_nan = 1;
    load("NaN fill, f32", spec, {24, 20});
    spec = map(kBfloat16, {32, 32}, {16, 16});
    spec.fill_nan = 1;
    load("NaN fill, bf16", spec, {24, 20});
    spec = map(kFloat16, {32, 32}, {16, 16});
    spec.fill_nan = 1;
    load("NaN fill, f16", spec, {-8, -8});
  }
  const auto store = [&](const std::string& label, TensorMapSpec spec, const std::vector<int>& at,
                         const std::string& type = "b32", const std::string& reduce = "") {
    spec.over_mem = true;
    const std::string rank = std::to_string(spec.dims.size());
    const std::string op = (reduce.empty() ? "cp.async.bulk.tensor." : "cp.reduce.async.bulk.tensor.") +
                           rank + "d.global.shared::cta" + (reduce.empty() ? "" : "." + reduce) +
                           ".bulk_group";
    Case& c = stored(op + " " + label, type, op + " [pmap, " + coordinates(at) + "], [r0];");
    c.tensor_map = {std::move(spec)};
    c.grid = 1;
  };
  store("inside", map(kUint8, {4096}, {256}), {48});
  store("inside", map(kUint8, {128, 64}, {64, 32}), {32, 5});
  store("corner outside", map(kUint8, {128, 64}, {64, 32}), {96, 50});
  store("negative corner", map(kUint8, {128, 64}, {64, 32}), {-16, -3});
  store("negative row", map(kUint8, {128, 64}, {64, 32}), {0, -3});
  store("negative column", map(kUint8, {128, 64}, {64, 32}), {-16, 0});
  store("all outside", map(kUint8, {128, 64}, {64, 32}), {0, 64});
  store("odd width", map(kUint8, {100, 64}, {64, 32}), {64, 2});
  store("swizzle 128B", map(kBfloat16, {64, 128}, {64, 16}, kSwizzle128), {0, 9});
  store("swizzle 64B", map(kUint8, {64, 128}, {64, 32}, kSwizzle64), {0, 3});
  store("3-D", map(kUint8, {64, 16, 6}, {64, 16, 2}), {0, 4, 3});
  store("add u32", map(kInt32, {64, 32}, {16, 16}), {8, 20}, "b32", "add");
  store("max s32", map(kInt32, {64, 32}, {16, 16}), {8, 3}, "b32", "max");
  store("xor", map(kInt32, {64, 32}, {16, 16}), {60, 3}, "b32", "xor");
  store("add f32", map(kFloat32, {64, 32}, {16, 16}), {8, 3}, "f32", "add");
  store("add bf16", map(kBfloat16, {64, 32}, {16, 16}), {8, 3}, "bf16x2", "add");
  {
    Case& c = add("cp.async.bulk.prefetch.tensor", {}, {"b32"},
                  " cp.async.bulk.prefetch.tensor.2d.L2.global [pmap, {0, 0}]; mov.b32 o0, 3;");
    c.tensor_map = {map(kUint8, {128, 64}, {64, 32})};
    c.grid = 1;
  }
}

}  // namespace mla::conformance
