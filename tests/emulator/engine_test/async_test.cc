// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/engine_test/harness.h"

namespace mla::emu {
namespace {

const std::string kShared = ".shared .align 1024 .b8 buffer[8192];\n.shared .align 8 .b64 bar;\n";

// One warp; %r2 barrier (one arrival), %r3 buffer, %rd1-%rd3 = p0-p2, %p1 = lane 0.
const std::string kStart = R"(mov.u32 %r1, %tid.x;
  mov.u32 %r2, bar;
  mov.u32 %r3, buffer;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p1 fence.mbarrier_init.release.cluster;
  bar.sync 0;
  ld.param.u64 %rd1, [p0];
  ld.param.u64 %rd2, [p1];
  ld.param.u64 %rd3, [p2];
)";

const std::string kWait = R"(WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0;
  @!%p3 bra WAIT;
)";

// Copies `bytes` of the buffer to p0, 16 a lane.
std::string dump(uint32_t bytes) {
  return R"(shl.b32 %r10, %r1, 4;
  DUMP:
  add.u32 %r11, %r10, %r3;
  ld.shared.v4.u32 {%r12, %r13, %r14, %r15}, [%r11];
  cvt.u64.u32 %rd10, %r10;
  add.u64 %rd10, %rd10, %rd1;
  st.global.v4.u32 [%rd10], {%r12, %r13, %r14, %r15};
  add.u32 %r10, %r10, 512;
  setp.lt.u32 %p4, %r10, )" +
         std::to_string(bytes) + ";\n@%p4 bra DUMP;\n";
}

TensorMapImage tensor_map(uint64_t address, std::vector<uint64_t> dims, std::vector<uint64_t> strides,
                          std::vector<uint16_t> box, uint8_t type, uint8_t swizzle) {
  TensorMapImage map{};
  map.magic = kTensorMapMagic;
  map.data_type = type;
  map.rank = static_cast<uint8_t>(dims.size());
  map.swizzle = swizzle;
  map.address = address;
  for (size_t i = 0; i < dims.size(); ++i) {
    map.dim[i] = dims[i];
    map.box[i] = box[i];
    map.element_stride[i] = 1;
    if (i) map.stride_bytes[i - 1] = strides[i - 1];
  }
  return map;
}

// Uploads a map as the 128 bytes of a CUtensorMap.
uint64_t upload_map(Emulator& e, const TensorMapImage& map) {
  std::vector<uint8_t> bytes(128);
  std::memcpy(bytes.data(), &map, sizeof map);
  return e.upload(bytes);
}

std::vector<uint8_t> counted(size_t n) {
  std::vector<uint8_t> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<uint8_t>(i * 7 + i / 256);
  return v;
}

TEST(Async, TensorLoadWithSwizzle) {
  const uint32_t spans[] = {128, 32, 64, 128};
  for (uint8_t swizzle = 0; swizzle < 4; ++swizzle) {
    uint32_t span = spans[swizzle];
    Emulator e;
    auto source = counted(200 * 32);
    uint64_t data = e.upload(source);
    // 200 bytes a row do not matter: stride 208.
    std::vector<uint8_t> padded(208 * 32);
    for (uint32_t i = 0; i < 32; ++i) std::memcpy(&padded[i * 208], &source[i * 200], 200);
    data = e.upload(padded);
    uint64_t map =
        upload_map(e, tensor_map(data, {200, 32}, {208}, {static_cast<uint16_t>(span), 16}, 0, swizzle));
    uint64_t out = *e.memory.allocate(span * 16);
    e.run_seeds(kernel(kStart + R"(@!%p1 bra WAIT;
  mov.b64 %rd4, %rd2;
  mov.u32 %r4, 16;
  mov.u32 %r5, 5;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], )" +
                           std::to_string(span * 16) + R"(;
  cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd4, {%r4, %r5}], [%r2];
)" + kWait + "bar.warp.sync -1;\n" +
                           dump(span * 16),
                       "", kShared),
                {out, map}, 5);
    auto got = e.download<uint8_t>(out, span * 16);
    for (uint32_t row = 0; row < 16; ++row) {
      for (uint32_t i = 0; i < span; ++i) {
        // 16-byte chunks move by the row within the pattern of 8, 4 or 2 rows of 128 bytes.
        uint32_t linear = row * span + i;
        uint32_t line = linear / 128, chunk = linear / 16 % 8;
        uint32_t flip = swizzle == 0 ? 0 : swizzle == 1 ? line % 2 : swizzle == 2 ? line % 4 : line % 8;
        uint32_t at = line * 128 + (chunk ^ flip) * 16 + linear % 16;
        uint8_t want = 16 + i < 200 ? source[(row + 5) * 200 + 16 + i] : 0;
        ASSERT_EQ(got[at], want) << "swizzle " << int(swizzle) << " row " << row << " byte " << i;
      }
    }
  }
}

TEST(Async, TensorLoadFillsOutsideWithZero) {
  Emulator e;
  auto source = counted(64 * 4);
  uint64_t data = e.upload(source);
  uint64_t map = upload_map(e, tensor_map(data, {64, 2, 2}, {64, 128}, {32, 4, 1}, 0, 0));
  uint64_t out = *e.memory.allocate(512);
  std::string text = kernel(kStart + R"(@!%p1 bra WAIT;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
  mov.u32 %r4, -16;
  mov.u32 %r5, -1;
  mov.u32 %r6, 1;
  cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes [%r3], [%rd2, {%r4, %r5, %r6}], [%r2];
  mov.u32 %r4, 0;
  mov.u32 %r5, 0;
  mov.u32 %r6, -1;
  add.u32 %r7, %r3, 128;
  cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes [%r7], [%rd2, {%r4, %r5, %r6}], [%r2];
)" + kWait + "bar.warp.sync -1;\nsetp.lt.u32 %p2, %r1, 16;\n@!%p2 exit;\n" +
                                dump(16),
                            "", kShared);
  e.run_seeds(text, {out, map}, 5);
  auto got = e.download<uint8_t>(out, 256);
  for (uint32_t row = 0; row < 4; ++row) {
    for (uint32_t i = 0; i < 32; ++i) {
      int y = static_cast<int>(row) - 1, x = static_cast<int>(i) - 16;
      uint8_t want = y < 0 || y > 1 || x < 0
                         ? 0
                         : source[128 + static_cast<uint32_t>(y) * 64 + static_cast<uint32_t>(x)];
      ASSERT_EQ(got[row * 32 + i], want) << row << " " << i;
      EXPECT_EQ(got[128 + row * 32 + i], 0);
    }
  }
}

TEST(Async, TensorMapErrors) {
  Emulator e;
  uint64_t data = e.upload(counted(4096));
  auto text = [&](const std::string& extra) {
    return kernel(kStart + "@!%p1 exit;\nmov.u32 %r4, 0;\n" + extra +
                      "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r3], [%rd2, "
                      "{%r4, %r4}], [%r2];",
                  "", kShared);
  };
  uint64_t junk = e.upload(std::vector<uint8_t>(128, 1));
  EXPECT_TRUE(faults_with(e.run(text(""), {0, junk}), FaultKind::kTensorMap,
                          "it was not made by cuTensorMapEncodeTiled"));
  uint64_t map = upload_map(e, tensor_map(data, {64, 8, 8}, {64, 512}, {16, 8, 1}, 0, 0));
  EXPECT_TRUE(faults_with(e.run(text(""), {0, map}), FaultKind::kTensorMap,
                          "the tensor map has 3 dimensions, the instruction 2"));
  map = upload_map(e, tensor_map(data, {64, 8}, {64}, {16, 8}, 0, 0));
  EXPECT_TRUE(faults_with(e.run(text("add.u32 %r3, %r3, 16;\n"), {0, map}), FaultKind::kMisaligned,
                          "shared address 0x410 is not a multiple of 128"));
  EXPECT_TRUE(faults_with(e.run(text("add.u32 %r3, %r3, 8192;\n"), {0, map}), FaultKind::kOutOfBounds,
                          "is outside the shared memory of the CTA"));
  map = upload_map(e, tensor_map(data, {64, 80}, {64}, {16, 80}, 0, 0));
  EXPECT_TRUE(
      faults_with(e.run(text(""), {0, map}), FaultKind::kOutOfBounds, "asynchronous read of 16 bytes at"));
}

TEST(Async, BulkCopiesBothWays) {
  Emulator e;
  auto source = counted(4096);
  uint64_t data = e.upload(source), out = *e.memory.allocate(4096);
  e.run_seeds(kernel(kStart + R"(@!%p1 exit;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 4096;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd2], 4096, [%r2];
)" + kWait + R"(cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r3], 4096;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group.read 0;
  cp.async.bulk.wait_group 0;)",
                     "", kShared),
              {out, data}, 10);
  EXPECT_EQ(e.download<uint8_t>(out, 4096), source);
}

TEST(Async, TensorStoreClipsAndReduceAdds) {
  Emulator e;
  std::vector<uint32_t> initial(16 * 4, 1000);
  uint64_t data = e.upload(initial);
  uint64_t map = upload_map(e, tensor_map(data, {12, 4}, {64}, {8, 4}, 2, 0));
  e.run_seeds(kernel(kStart + R"(mul.lo.u32 %r4, %r1, 4;
  add.u32 %r4, %r4, %r3;
  st.shared.u32 [%r4], %r1;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  @!%p1 exit;
  mov.u32 %r5, 8;
  mov.u32 %r6, 1;
  cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd2, {%r5, %r6}], [%r3];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
  mov.u32 %r5, 0;
  cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd2, {%r5, %r6}], [%r3];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;)",
                     "", kShared),
              {0, map}, 1);
  auto got = e.download<uint32_t>(data, 64);
  for (uint32_t y = 0; y < 4; ++y) {
    for (uint32_t x = 0; x < 16; ++x) {
      uint32_t want = 1000;
      if (y >= 1 && x < 8) want += (y - 1) * 8 + x;
      if (y >= 1 && x >= 8 && x < 12) want = (y - 1) * 8 + x - 8;
      EXPECT_EQ(got[y * 16 + x], want) << x << " " << y;
    }
  }
}

TEST(Async, CopyKeepsUnwrittenMarks) {
  Emulator e;
  uint64_t data = *e.memory.allocate(64);
  e.memory.fill(data, 1, 4, 4);  // 16 of 64 bytes
  EXPECT_TRUE(faults_with(e.run(kernel(kStart + R"(@!%p1 exit;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 64;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd2], 64, [%r2];
)" + kWait + "ld.shared.u32 %r4, [%r3+12];\nld.shared.u32 %r4, [%r3+16];",
                                       "", kShared),
                                {0, data}),
                          FaultKind::kUnwritten, "'ld.shared.u32 %r4, [%r3+16];'"));
}

// Two CTAs of a cluster; %r4 is the rank; both wait at the end.
std::string cluster_kernel(const std::string& body) {
  return kernel(kStart + R"(mov.u32 %r4, %cluster_ctarank;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
)" + body + R"(
  bar.warp.sync -1;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;)",
                "", kShared);
}

TEST(Async, StAsyncAcrossTheCluster) {
  Emulator e;
  e.config.grid = {2, 1, 1};
  e.config.cluster = {2, 1, 1};
  uint64_t out = *e.memory.allocate(512);
  e.run_seeds(cluster_kernel(R"(setp.eq.u32 %p2, %r4, 0;
  @%p2 bra SEND;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
  WAIT:
  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r2], 0;
  @!%p3 bra WAIT;
)" + dump(512) + R"(bra END;
  SEND:
  mapa.shared::cluster.u32 %r5, %r3, 1;
  mapa.shared::cluster.u32 %r6, %r2, 1;
  shl.b32 %r7, %r1, 4;
  add.u32 %r5, %r5, %r7;
  st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r5], {%r1, %r1, %r7, %r1}, [%r6];
  END:)"),
              {out}, 20);
  auto got = e.download<uint32_t>(out, 128);
  EXPECT_EQ(got[4 * 31], 31u);
  EXPECT_EQ(got[4 * 31 + 2], 31u * 16);
}

TEST(Async, Multicast) {
  Emulator e;
  e.config.grid = {2, 1, 1};
  e.config.cluster = {2, 1, 1};
  auto source = counted(512);
  uint64_t data = e.upload(source), out = *e.memory.allocate(1024);
  e.run_seeds(cluster_kernel(R"(@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  setp.eq.and.u32 %p2, %r4, 0, %p1;
  mov.u16 %h1, 3;
  @%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r3], [%rd2], 512, [%r2], %h1;
)" + kWait + R"(mul.wide.u32 %rd5, %r4, 512;
  add.u64 %rd1, %rd1, %rd5;
)" + dump(512)),
              {out, data}, 20);
  auto got = e.download<uint8_t>(out, 1024);
  EXPECT_EQ(std::vector<uint8_t>(got.begin(), got.begin() + 512), source);
  EXPECT_EQ(std::vector<uint8_t>(got.begin() + 512, got.end()), source);
}

TEST(Async, SharedToSharedOfAnotherCta) {
  Emulator e;
  e.config.grid = {2, 1, 1};
  e.config.cluster = {2, 1, 1};
  uint64_t out = *e.memory.allocate(512);
  e.run_seeds(cluster_kernel(R"(setp.eq.u32 %p2, %r4, 0;
  @%p2 bra SEND;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
)" + kWait + dump(512) + R"(bra END;
  SEND:
  shl.b32 %r7, %r1, 4;
  add.u32 %r8, %r3, %r7;
  st.shared.v4.u32 [%r8+1024], {%r1, %r7, %r1, %r1};
  fence.proxy.async;
  bar.warp.sync -1;
  add.u32 %r9, %r3, 1024;
  mapa.shared::cluster.u32 %r5, %r3, 1;
  mapa.shared::cluster.u32 %r6, %r2, 1;
  @%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r5], [%r9], 512, [%r6];
  END:)"),
              {out}, 20);
  EXPECT_EQ(e.download<uint32_t>(out, 128)[4 * 30 + 1], 30u * 16);
}

TEST(Async, CpAsyncGroups) {
  Emulator e;
  auto source = counted(1024);
  uint64_t data = e.upload(source), out = *e.memory.allocate(1024);
  e.run_seeds(kernel(kStart + R"(shl.b32 %r4, %r1, 4;
  add.u32 %r5, %r3, %r4;
  cvt.u64.u32 %rd4, %r4;
  add.u64 %rd5, %rd2, %rd4;
  cp.async.cg.shared.global [%r5], [%rd5], 16;
  cp.async.commit_group;
  cp.async.ca.shared.global [%r5+512], [%rd5+512], 16, 8;
  cp.async.commit_group;
  cp.async.wait_group 1;
  ld.shared.u32 %r6, [%r5];
  cp.async.wait_all;
  bar.sync 0;
)" + dump(1024),
                     "", kShared),
              {out, data}, 10);
  for (uint32_t i = 520; i < 1024; i += 16) std::fill_n(&source[i], 8, uint8_t{0});
  EXPECT_EQ(e.download<uint8_t>(out, 1024), source);
}

TEST(Async, BulkMisuse) {
  Emulator e;
  uint64_t data = e.upload(counted(4096));
  auto text = [&](const std::string& copy) { return kernel(kStart + "@!%p1 exit;\n" + copy, "", kShared); };
  EXPECT_TRUE(faults_with(
      e.run(
          text("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd2], 24, [%r2];"),
          {0, data}),
      FaultKind::kMisaligned, "bulk copy of 24 bytes: the size must be a multiple of 16"));
  EXPECT_TRUE(faults_with(e.run(text("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                                     "[%r3], [%rd2+8], 32, [%r2];"),
                                {0, data}),
                          FaultKind::kMisaligned, "the address must be a multiple of 16"));
  EXPECT_TRUE(faults_with(e.run(text("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                                     "[%r3], [%rd2], 8192, [%r2];"),
                                {0, data}),
                          FaultKind::kOutOfBounds, "asynchronous read of"));
  // No one waits for the copy: the CTA ends under it.
  EXPECT_TRUE(
      faults_with(e.run(text("cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r3], 4096;"), {0, data}),
                  FaultKind::kClusterExit,
                  "the CTA exits while the asynchronous copy of PTX line 25 still uses its shared memory"));
}

TEST(Async, MissingExpectTxDeadlocks) {
  Emulator e;
  uint64_t data = e.upload(counted(64));
  EXPECT_TRUE(faults_with(e.run(kernel(kStart + R"(@!%p1 exit;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd2], 64, [%r2];
)" + kWait,
                                       "", kShared),
                                {0, data}),
                          FaultKind::kDeadlock, "1 of 1 arrivals and -64 bytes are missing"));
}

}  // namespace
}  // namespace mla::emu
