// SPDX-License-Identifier: Apache-2.0
//
// Launching: what reaches the driver, every argument error, and every failure of the driver.
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "kernels/common/mla_params.h"
#include "loader/src/cuda_abi.h"
#include "tests/loader/loader_fixture.h"

namespace mla::test {
namespace {

constexpr uint64_t kBase = 0x7f0000000000;

// A decode step that every test kernel takes.
mla_launch_args good_args() {
  mla_launch_args args = MLA_LAUNCH_ARGS_INIT;
  args.q = kBase + 0x1000;
  args.kv = kBase + 0x100000;
  args.page_table = kBase + 0x4004;
  args.seq_lens = kBase + 0x5008;
  args.out = kBase + 0x6010;
  args.workspace = kBase + 0x10000000;
  args.workspace_bytes = uint64_t{1} << 40;
  args.pages = 1000;
  args.batch = 4;
  args.q_len = 2;
  args.heads = 128;
  args.page_size = 64;
  args.max_pages_per_seq = 32;
  args.softmax_scale = 0.125f;
  return args;
}

class LaunchTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    set_up([](manifest::Kernel&) {});
  }
  // A bundle with one kernel, changed as the test needs, prepared.
  void set_up(const std::function<void(manifest::Kernel&)>& change) {
    bundle_.reset();
    files_ = std::make_unique<TestBundle>();
    change(files_->add("k"));
    files_->write();
    bundle_ = open_bundle(*files_);
    ASSERT_OK(mla_prepare_index(bundle_.get(), 0, nullptr, &kernel_));
    stream_ = fake_new_stream(context_);
  }
  mla_status launch(const mla_launch_args& args) { return mla_launch(kernel_, &args, stream_); }
  // Changes good arguments and expects a refusal, without any call that reaches the device.
  void expect(const std::function<void(mla_launch_args&)>& change, const std::string& sentence,
              mla_status status = MLA_ERROR_INVALID_ARGUMENT) {
    mla_launch_args args = good_args();
    change(args);
    const int before = fake_all_calls();
    EXPECT_ERROR(launch(args), status, sentence);
    EXPECT_EQ(fake_all_calls(), before) << "the driver was called with a bad argument";
  }
  const DecodeParams& params() { return *reinterpret_cast<const DecodeParams*>(aligned_params()); }
  const void* aligned_params() {
    std::memcpy(&copy_, fake_last_launch()->params, sizeof copy_);
    return &copy_;
  }

  std::unique_ptr<TestBundle> files_;
  Bundle bundle_;
  mla_kernel* kernel_ = nullptr;
  void* stream_ = nullptr;
  DecodeParams copy_;
};

using Args = mla_launch_args;

// ---- what reaches the driver -------------------------------------------------------------------

TEST_F(LaunchTest, OneLaunchWithTheParameters) {
  mla_launch_args args = good_args();
  args.lse = kBase + 0x7004;
  args.q_scale_ptr = kBase + 0x8004;
  args.kv_scale_ptr = kBase + 0x8008;
  args.bad_page_counter = kBase + 0x800c;
  args.q_scale = 0.5f;
  args.kv_scale = -2.0f;
  args.max_splits = 3;
  args.page_table_stride = 40;
  const int before = fake_all_calls();
  ASSERT_OK(launch(args));
  EXPECT_EQ(fake_calls("cuLaunchKernelEx"), 1);
  EXPECT_EQ(fake_calls("cuTensorMapEncodeTiled"), 2);
  EXPECT_EQ(fake_all_calls() - before, 5) << "stream's context, current context, two maps, launch";
  const FakeLaunch& launched = *fake_last_launch();
  EXPECT_STREQ(launched.symbol, "mla_kernel_120");
  EXPECT_EQ(launched.grid[0], 47u * 4);
  EXPECT_EQ(launched.grid[1], 1u);
  EXPECT_EQ(launched.grid[2], 1u);
  EXPECT_EQ(launched.block[0], 384u);
  EXPECT_EQ(launched.block[1], 1u);
  EXPECT_EQ(launched.block[2], 1u);
  EXPECT_EQ(launched.shared_bytes, 100224u);
  EXPECT_EQ(launched.stream, stream_);
  EXPECT_EQ(launched.attribute_count, 0u) << "the cluster is fixed in the code";
  const DecodeParams& p = params();
  EXPECT_EQ(p.q, args.q);
  EXPECT_EQ(p.page_table, args.page_table);
  EXPECT_EQ(p.seq_lens, args.seq_lens);
  EXPECT_EQ(p.out, args.out);
  EXPECT_EQ(p.lse, args.lse);
  EXPECT_EQ(p.q_scale_ptr, args.q_scale_ptr);
  EXPECT_EQ(p.kv_scale_ptr, args.kv_scale_ptr);
  EXPECT_EQ(p.workspace, args.workspace);
  EXPECT_EQ(p.bad_page_counter, args.bad_page_counter);
  EXPECT_EQ(p.page_table_stride, 40);
  EXPECT_EQ(p.softmax_scale, 0.125f);
  EXPECT_EQ(p.q_scale, 0.5f);
  EXPECT_EQ(p.kv_scale, -2.0f);
  EXPECT_EQ(p.batch, 4);
  EXPECT_EQ(p.q_len, 2);
  EXPECT_EQ(p.heads, 128);
  EXPECT_EQ(p.pages, 1000);
  EXPECT_EQ(p.max_pages_per_seq, 32);
  EXPECT_EQ(p.kv, args.kv);
  EXPECT_EQ(p.v, args.kv);
  EXPECT_EQ(p.partials, args.workspace + 4096);
  EXPECT_EQ(p.kv_token_stride, 576);
  EXPECT_EQ(p.kv_page_stride, 64 * 576);
  EXPECT_EQ(p.v_token_stride, 576);
  EXPECT_EQ(p.v_page_stride, 64 * 576);
  EXPECT_EQ(p.q_head_stride, 576);
  EXPECT_EQ(p.q_token_stride, 128 * 576);
  EXPECT_EQ(p.out_head_stride, 1024);
  EXPECT_EQ(p.out_token_stride, 128 * 1024);
  EXPECT_EQ(p.lse_head_stride, 1);
  EXPECT_EQ(p.lse_token_stride, 128);
  EXPECT_EQ(p.page_size, 64);
  EXPECT_EQ(page_of(639, p.page_magic, p.page_shift), 9);
  EXPECT_EQ(page_of(640, p.page_magic, p.page_shift), 10);
  EXPECT_EQ(p.box_tokens_log2, 6u);
  EXPECT_EQ(p.causal, 1);
  EXPECT_EQ(p.max_splits, 3);
  EXPECT_EQ(p.q_offsets, 0u);
  EXPECT_EQ(p.sparse_indices, 0u);
  EXPECT_EQ(p.window, 0);
  EXPECT_EQ(p.split_tokens, 0);
  EXPECT_EQ(p.cp_size, 0);
  EXPECT_EQ(p.zero, 0);
}

void expect_map(const void* encoded, const FakeTensorMap& expected) {
  FakeTensorMap map;
  ASSERT_TRUE(fake_decode_map(encoded, &map));
  EXPECT_EQ(map.type, expected.type);
  EXPECT_EQ(map.rank, 3u);
  EXPECT_EQ(map.address, expected.address);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(map.dims[i], expected.dims[i]) << i;
    EXPECT_EQ(map.box[i], expected.box[i]) << i;
    EXPECT_EQ(map.element_strides[i], 1u) << i;
  }
  for (int i = 0; i < 2; ++i) EXPECT_EQ(map.strides[i], expected.strides[i]) << i;
  EXPECT_EQ(map.interleave, cuda::kTensorMapInterleaveNone);
  EXPECT_EQ(map.swizzle, expected.swizzle);
  EXPECT_EQ(map.l2_promotion, cuda::kTensorMapL2Promotion256B);
  EXPECT_EQ(map.oob_fill, cuda::kTensorMapOobFillZero);
}

TEST_F(LaunchTest, TensorMapsDense) {
  const Args args = good_args();
  ASSERT_OK(launch(args));
  FakeTensorMap expected = {};
  expected.type = cuda::kTensorMapUint8;
  expected.address = args.kv;
  expected.swizzle = cuda::kTensorMapSwizzle64B;
  expected = {expected.type,    3, args.kv, {576, 64, 1000}, {576, 36864}, {64, 64, 1}, {}, 0,
              expected.swizzle, 0, 0};
  expect_map(&params().k_map, expected);
  expected.dims[0] = 512;
  expected.box[0] = 128;
  expected.swizzle = cuda::kTensorMapSwizzle128B;
  expect_map(&params().v_map, expected);
}

TEST_F(LaunchTest, TensorMapsWithStridesAndValuesOfTheirOwn) {
  Args args = good_args();
  args.page_size = 16;
  args.max_pages_per_seq = 64;
  args.kv_token_stride = 656;
  args.kv_page_stride = 16384;
  args.v = kBase + 0x900000;
  args.v_token_stride = 528;
  ASSERT_OK(launch(args));
  FakeTensorMap expected = {
      cuda::kTensorMapUint8,      3, args.kv, {576, 16, 1000}, {656, 16384}, {64, 16, 1}, {}, 0,
      cuda::kTensorMapSwizzle64B, 0, 0};
  expect_map(&params().k_map, expected);
  expected = {cuda::kTensorMapUint8,       3, args.v, {512, 16, 1000}, {528, 528 * 16}, {128, 16, 1}, {}, 0,
              cuda::kTensorMapSwizzle128B, 0, 0};
  expect_map(&params().v_map, expected);
  EXPECT_EQ(params().box_tokens_log2, 4u);
  EXPECT_EQ(params().v, args.v);
  EXPECT_EQ(params().v_token_stride, 528);
  EXPECT_EQ(params().v_page_stride, 528 * 16);
}

TEST_F(LaunchTest, ValuesInKvUseItsStrides) {
  Args args = good_args();
  args.page_size = 128;
  args.kv_token_stride = 592;
  args.kv_page_stride = 592 * 128 + 16;
  args.v_token_stride = 7;  // ignored when v is null
  ASSERT_OK(launch(args));
  expect_map(&params().v_map, {cuda::kTensorMapUint8,
                               3,
                               args.kv,
                               {512, 128, 1000},
                               {592, 592 * 128 + 16},
                               {128, 64, 1},
                               {},
                               0,
                               cuda::kTensorMapSwizzle128B,
                               0,
                               0});
}

TEST_F(LaunchTest, TensorMapsOfBf16) {
  set_up([](manifest::Kernel& kernel) {
    kernel.facts.q_dtype = kernel.facts.kv_dtype = MLA_DTYPE_BF16;
    kernel.facts.k_box = 64;
    kernel.facts.k_swizzle = 128;
    kernel.facts.v_box = 32;
    kernel.facts.v_swizzle = 0;
  });
  const Args args = good_args();
  ASSERT_OK(launch(args));
  expect_map(&params().k_map, {cuda::kTensorMapBfloat16,
                               3,
                               args.kv,
                               {576, 64, 1000},
                               {1152, 1152 * 64},
                               {64, 64, 1},
                               {},
                               0,
                               cuda::kTensorMapSwizzle128B,
                               0,
                               0});
  expect_map(&params().v_map, {cuda::kTensorMapBfloat16,
                               3,
                               args.kv,
                               {512, 64, 1000},
                               {1152, 1152 * 64},
                               {32, 64, 1},
                               {},
                               0,
                               cuda::kTensorMapSwizzleNone,
                               0,
                               0});
}

TEST_F(LaunchTest, PoolLargerThanFourGigabytes) {
  Args args = good_args();
  args.pages = int64_t{1} << 20;
  args.page_size = 128;
  args.kv_page_stride = int64_t{1} << 20;
  ASSERT_OK(launch(args));
  FakeTensorMap map;
  ASSERT_TRUE(fake_decode_map(&params().k_map, &map));
  EXPECT_EQ(map.dims[2], uint64_t{1} << 20);
  EXPECT_EQ(map.strides[1], uint64_t{1} << 20);
  EXPECT_EQ(params().pages, 1 << 20);
}

TEST_F(LaunchTest, Pdl) {
  Args args = good_args();
  args.flags = MLA_LAUNCH_PDL;
  ASSERT_OK(launch(args));
  EXPECT_EQ(fake_last_launch()->attribute_count, 1u);
  EXPECT_EQ(fake_last_launch()->attribute_ids[0], cuda::kLaunchProgrammaticStreamSerialization);
  EXPECT_EQ(fake_last_launch()->pdl, 1);
}

TEST_F(LaunchTest, ClusterThatIsNotFixedInTheCode) {
  fake_set_function_attribute(cuda::kFunctionRequiredClusterWidth, 0);
  fake_set_function_attribute(cuda::kFunctionRequiredClusterHeight, 0);
  fake_set_function_attribute(cuda::kFunctionRequiredClusterDepth, 0);
  set_up([](manifest::Kernel&) {});
  Args args = good_args();
  args.flags = MLA_LAUNCH_PDL;
  ASSERT_OK(launch(args));
  const FakeLaunch& launched = *fake_last_launch();
  EXPECT_EQ(launched.attribute_count, 2u);
  EXPECT_EQ(launched.cluster[0], 4u);
  EXPECT_EQ(launched.cluster[1], 1u);
  EXPECT_EQ(launched.cluster[2], 1u);
  EXPECT_EQ(launched.pdl, 1);
}

TEST_F(LaunchTest, CapOnSms) {
  const std::pair<int, unsigned> cases[] = {{0, 188}, {1000, 188}, {188, 188}, {187, 184}, {7, 4}, {4, 4}};
  for (const auto& [max_sms, grid] : cases) {
    Args args = good_args();
    args.max_sms = max_sms;
    ASSERT_OK(launch(args));
    EXPECT_EQ(fake_last_launch()->grid[0], grid) << max_sms;
  }
}

TEST_F(LaunchTest, SmallestAndLargestValues) {
  const auto good = [&](const std::function<void(Args&)>& change) {
    Args args = good_args();
    change(args);
    EXPECT_OK(launch(args));
  };
  good([](Args& a) { a.heads = 1; });
  good([](Args& a) { a.q_len = 64; });
  good([](Args& a) { a.batch = 10000; });
  good([](Args& a) { a.pages = 1; });
  good([](Args& a) { a.pages = 0x7fffffff; });
  good([](Args& a) { a.page_size = 16; });
  good([](Args& a) { a.page_size = 944; });
  good([](Args& a) { a.page_size = 1024; });
  good([](Args& a) { a.q_len = 0; });
  good([](Args& a) { a.batch = a.q_len = 1, a.max_pages_per_seq = 0x7fffffff / 64; });
  good([](Args& a) { a.kv_token_stride = ((int64_t{1} << 40) - 16) / 64 / 16 * 16; });
  good([](Args& a) { a.kv_token_stride = 592, a.kv_page_stride = 63 * 592 + 576; });
  // Pages that interleave: token 0 of all pages, then token 1.
  good([](Args& a) { a.kv_page_stride = 592, a.kv_token_stride = (a.pages - 1) * 592 + 576; });
  good([](Args& a) { a.page_table_stride = 32; });
  good([](Args& a) {
    a.softmax_scale = -1.0f, a.q_scale = 0.5f, a.kv_scale = std::numeric_limits<float>::max();
  });
}

// ---- argument errors ---------------------------------------------------------------------------

TEST_F(LaunchTest, NullHandles) {
  const Args args = good_args();
  EXPECT_ERROR(mla_launch(nullptr, &args, stream_), MLA_ERROR_INVALID_ARGUMENT, "kernel is null");
  EXPECT_ERROR(mla_launch(kernel_, nullptr, stream_), MLA_ERROR_INVALID_ARGUMENT, "args is null");
}

TEST_F(LaunchTest, StructSize) {
  expect([](Args& a) { a.struct_size = 0; },
         "args.struct_size is 0; must be sizeof(mla_launch_args), 304 in this library (0.1.0)");
  expect([](Args& a) { a.struct_size = 300; },
         "args.struct_size is 300; must be sizeof(mla_launch_args), 304 in this library (0.1.0)");
  struct Later {
    Args known;
    uint64_t more;
  };
  Later later = {good_args(), 0};
  later.known.struct_size = sizeof later;
  EXPECT_OK(mla_launch(kernel_, &later.known, stream_));
  later.more = uint64_t{1} << 56;
  EXPECT_ERROR(
      mla_launch(kernel_, &later.known, stream_), MLA_ERROR_INVALID_ARGUMENT,
      "args.struct_size is 312 and byte 311 is not zero; this library (0.1.0) knows the first 304 bytes of "
      "mla_launch_args: leave newer fields zero, or use a newer library");
}

TEST_F(LaunchTest, Flags) {
  expect([](Args& a) { a.flags = 5; },
         "args.flags is 0x5; allowed: 0, MLA_LAUNCH_PDL (0x1) and MLA_LAUNCH_NON_CAUSAL (0x2)");
}

TEST_F(LaunchTest, Addresses) {
  struct Field {
    const char* name;
    uint64_t Args::*field;
    int alignment;
    bool optional;
  };
  const Field fields[] = {{"q", &Args::q, 16, false},
                          {"kv", &Args::kv, 16, false},
                          {"v", &Args::v, 16, true},
                          {"page_table", &Args::page_table, 4, false},
                          {"seq_lens", &Args::seq_lens, 4, false},
                          {"q_offsets", &Args::q_offsets, 4, true},
                          {"out", &Args::out, 16, false},
                          {"lse", &Args::lse, 4, true},
                          {"q_scale_ptr", &Args::q_scale_ptr, 4, true},
                          {"kv_scale_ptr", &Args::kv_scale_ptr, 4, true},
                          {"bad_page_counter", &Args::bad_page_counter, 4, true},
                          {"sparse_indices", &Args::sparse_indices, 4, true}};
  for (const Field& f : fields) {
    const std::string name = f.name, alignment = std::to_string(f.alignment);
    if (!f.optional) {
      expect([&](Args& a) { a.*f.field = 0; },
             "args." + name + " is null; must be a device address aligned to " + alignment + " bytes");
    }
    expect([&](Args& a) { a.*f.field = 0x7f0000000002; },
           "args." + name + " is 0x7f0000000002; must be " + (f.optional ? "null or " : "") +
               "a device address aligned to " + alignment + " bytes");
  }
}

TEST_F(LaunchTest, Sizes) {
  expect([](Args& a) { a.batch = 0; }, "args.batch is 0; allowed: 1 ... 2147483647");
  expect([](Args& a) { a.batch = -5; }, "args.batch is -5; allowed: 1 ... 2147483647");
  expect([](Args& a) { a.q_len = -1; }, "args.q_len is -1; allowed: 1 ... 64");
  expect([](Args& a) { a.q_len = 65; }, "args.q_len is 65; allowed: 1 ... 64");
  expect([](Args& a) { a.heads = 0; }, "args.heads is 0; allowed: 1 ... 128");
  expect([](Args& a) { a.heads = 129; }, "args.heads is 129; allowed: 1 ... 128");
  expect([](Args& a) { a.page_size = 8; }, "args.page_size is 8; allowed: multiples of 16 up to 1024 (k)");
  expect([](Args& a) { a.page_size = 1040; },
         "args.page_size is 1040; allowed: multiples of 16 up to 1024 (k)");
  expect([](Args& a) { a.page_size = 72; }, "args.page_size is 72; allowed: multiples of 16 up to 1024 (k)");
  expect([](Args& a) { a.page_size = -64; },
         "args.page_size is -64; allowed: multiples of 16 up to 1024 (k)");
  expect([](Args& a) { a.pages = 0; }, "args.pages is 0; allowed: 1 ... 2147483647");
  expect([](Args& a) { a.pages = int64_t{1} << 31; }, "args.pages is 2147483648; allowed: 1 ... 2147483647");
  expect([](Args& a) { a.max_pages_per_seq = 0; },
         "args.max_pages_per_seq is 0; allowed: 1 ... 33554431 (a sequence has at most 2^31 - 1 tokens)");
  expect(
      [](Args& a) { a.max_pages_per_seq = 33554432; },
      "args.max_pages_per_seq is 33554432; allowed: 1 ... 33554431 (a sequence has at most 2^31 - 1 tokens)");
  expect([](Args& a) { a.page_table_stride = 31; },
         "args.page_table_stride is 31 elements; must be 0 (dense) or from max_pages_per_seq (32) to 2^31");
  expect([](Args& a) { a.page_table_stride = -32; },
         "args.page_table_stride is -32 elements; must be 0 (dense) or from max_pages_per_seq (32) to 2^31");
  expect([](Args& a) { a.page_table_stride = int64_t{1} << 32; },
         "args.page_table_stride is 4294967296 elements; must be 0 (dense) or from max_pages_per_seq (32) to "
         "2^31");
  expect([](Args& a) { a.batch = 0x7fffffff; },
         "args.batch is 2147483647 with 2 row tiles a request and room for 2048 tokens; allowed: batch * row "
         "tiles * (tokens / 64 + 2) up to 2^31 - 1");
  expect([](Args& a) { a.max_splits = -1; }, "args.max_splits is -1; allowed: 0 ... 2147483647");
  expect([](Args& a) { a.max_sms = 3; }, "args.max_sms is 3; must be 0 (all) or at least 4 (a cluster of k)");
  expect([](Args& a) { a.max_sms = -1; },
         "args.max_sms is -1; must be 0 (all) or at least 4 (a cluster of k)");
}

TEST_F(LaunchTest, Strides) {
  const std::string token = " bytes; must be 0 (dense) or a multiple of 16 from ";
  expect([](Args& a) { a.kv_token_stride = 560; },
         "args.kv_token_stride is 560" + token + "576 (one token) to below 2^40");
  expect([](Args& a) { a.kv_token_stride = 577; },
         "args.kv_token_stride is 577" + token + "576 (one token) to below 2^40");
  expect([](Args& a) { a.kv_token_stride = -576; },
         "args.kv_token_stride is -576" + token + "576 (one token) to below 2^40");
  expect([](Args& a) { a.kv_token_stride = int64_t{1} << 40; },
         "args.kv_token_stride is 1099511627776" + token + "576 (one token) to below 2^40");
  expect([](Args& a) { a.kv_token_stride = int64_t{1} << 36; },
         "args.kv_token_stride is 68719476736 bytes; a dense page of 64 tokens must be below 2^40 bytes");
  expect([](Args& a) { a.kv_token_stride = int64_t{1} << 36, a.kv_page_stride = 16; },
         "args.kv_token_stride is 68719476736 bytes; a page of 64 tokens must be below 2^40 bytes");
  expect([](Args& a) { a.kv_page_stride = 36848; },
         "args.kv_page_stride is 36848" + token + "36864 (64 tokens) to below 2^40");
  expect([](Args& a) { a.kv_page_stride = 592, a.kv_token_stride = (a.pages - 1) * 592 + 560; },
         "args.kv_page_stride is 592" + token +
             [&] {
               const int64_t stride = (good_args().pages - 1) * 592 + 560;
               return std::to_string(63 * stride + 576);
             }() +
             " (64 tokens) to below 2^40");
  expect([](Args& a) { a.kv_page_stride = 36872; },
         "args.kv_page_stride is 36872" + token + "36864 (64 tokens) to below 2^40");
  expect([](Args& a) { a.kv_page_stride = -36864; },
         "args.kv_page_stride is -36864" + token + "36864 (64 tokens) to below 2^40");
  expect([](Args& a) { a.kv_page_stride = int64_t{1} << 40; },
         "args.kv_page_stride is 1099511627776" + token + "36864 (64 tokens) to below 2^40");
  expect([](Args& a) { a.v = kBase, a.v_token_stride = 496; },
         "args.v_token_stride is 496" + token + "512 (one token) to below 2^40");
  expect([](Args& a) { a.v = kBase, a.v_page_stride = 32752; },
         "args.v_page_stride is 32752" + token + "32768 (64 tokens) to below 2^40");
  expect([](Args& a) { a.pages = 0x7fffffff, a.kv_page_stride = int64_t{1} << 39; },
         "args.kv is 0x7f0000100000; its 1.18059e+21 bytes reach past the end of the address space");
}

TEST_F(LaunchTest, Scales) {
  const float inf = std::numeric_limits<float>::infinity();
  expect([&](Args& a) { a.softmax_scale = inf; }, "args.softmax_scale is inf; must be finite");
  expect([&](Args& a) { a.q_scale = -inf; }, "args.q_scale is -inf; must be finite");
  expect([&](Args& a) { a.kv_scale = std::nanf(""); }, "args.kv_scale is nan; must be finite");
  expect(
      [&](Args& a) { a.softmax_scale = 0.0f; },
      "args.softmax_scale is 0; must be given, there is no default: 1/sqrt(192) for DeepSeek and Kimi, whose "
      "heads have 128 + 64 elements before absorption (times mscale^2 with YaRN), 1/sqrt(576) only for a "
      "model that scales by the dimension after absorption");
  expect([&](Args& a) { a.softmax_scale = 3e38f; },
         "args.softmax_scale * q_scale * kv_scale is 3e+38; scores are float: its magnitude must be at most "
         "2.35866e+38");
  expect([&](Args& a) { a.softmax_scale = a.q_scale = a.kv_scale = -1e20f; },
         "args.softmax_scale * q_scale * kv_scale is -1e+60; scores are float: its magnitude must be at most "
         "2.35866e+38");
}

// 0 is the default; a wanted 0 comes by pointer.
TEST_F(LaunchTest, ScaleOfZeroMeansOne) {
  Args args = good_args();
  args.q_scale = args.kv_scale = 0.0f;
  ASSERT_OK(launch(args));
  EXPECT_EQ(params().q_scale, 1.0f);
  EXPECT_EQ(params().kv_scale, 1.0f);
}

// Two factors may overflow although the product of all three does not: the kernel's affair, which takes
// the exponents out first.
TEST_F(LaunchTest, ScalesAreHandedOn) {
  const float scales[][3] = {{1e25f, 1e25f, 1e-38f}, {1e-25f, 1e-20f, 1e38f}, {-3e30f, 2e-30f, 7.0f}};
  for (const auto& [softmax_scale, q_scale, kv_scale] : scales) {
    Args args = good_args();
    args.softmax_scale = softmax_scale;
    args.q_scale = q_scale;
    args.kv_scale = kv_scale;
    ASSERT_OK(launch(args));
    EXPECT_EQ(params().softmax_scale, softmax_scale);
    EXPECT_EQ(params().q_scale, q_scale);
    EXPECT_EQ(params().kv_scale, kv_scale);
  }
}

// The kernel's arithmetic must not wrap: more splits than tiles there cannot be.
TEST_F(LaunchTest, SplitsAreBounded) {
  for (const int32_t wanted : {0, 1, 31, 32, 33, 0x7ffffffe, 0x7fffffff}) {
    Args args = good_args();  // room for 2048 tokens: 32 tiles
    args.max_splits = wanted;
    ASSERT_OK(launch(args));
    EXPECT_EQ(params().max_splits, std::min(wanted, 32)) << wanted;
  }
}

TEST_F(LaunchTest, EndOfTheAddressSpace) {
  struct Field {
    const char* name;
    uint64_t Args::*field;
    uint64_t bytes;
  };
  const uint64_t tokens = 4 * 2;
  const Field fields[] = {{"q", &Args::q, tokens * 128 * 576},  {"kv", &Args::kv, 1000 * 64 * 576},
                          {"v", &Args::v, 1000 * 64 * 512},     {"page_table", &Args::page_table, 4 * 32 * 4},
                          {"seq_lens", &Args::seq_lens, 4 * 4}, {"out", &Args::out, tokens * 128 * 1024},
                          {"lse", &Args::lse, tokens * 128 * 4}};
  for (const Field& f : fields) {
    Args args = good_args();
    args.*f.field = 0 - f.bytes;
    EXPECT_OK(launch(args)) << f.name;
    const uint64_t beyond = 0 - f.bytes + (f.bytes > 16 ? 16 : 4);
    char hex[32];
    std::snprintf(hex, sizeof hex, "0x%llx", static_cast<unsigned long long>(beyond));
    expect([&](Args& a) { a.*f.field = beyond; }, std::string("args.") + f.name + " is " + hex + "; its " +
                                                      std::to_string(f.bytes) +
                                                      " bytes reach past the end of the address space");
  }
  expect([&](Args& a) { a.workspace = 0 - uint64_t{256}; },
         "args.workspace is 0xffffffffffffff00; its 1099511627776 bytes reach past the end of the address "
         "space",
         MLA_ERROR_WORKSPACE);
}

// ---- what needs a feature of the kernel ----------------------------------------------------------

constexpr uint32_t kAllFeatures = 0x3ff;

TEST_F(LaunchTest, EverythingAtOnce) {
  set_up([](manifest::Kernel& kernel) { kernel.facts.features = kAllFeatures; });
  Args args = good_args();
  args.flags = MLA_LAUNCH_NON_CAUSAL;
  args.lse = kBase + 0x7004;
  args.q_offsets = kBase + 0x9004;
  args.sparse_indices = kBase + 0xa004;
  args.sparse_count = 100;
  args.sparse_stride = 128;
  args.q_token_stride = 200000;
  args.q_head_stride = 592;
  args.out_token_stride = 1024;  // heads apart, tokens together
  args.out_head_stride = 65536;
  args.lse_head_stride = 3;
  args.window = 4096;
  args.split_tokens = 512;
  args.cp_rank = 2;
  args.cp_size = 4;
  args.cp_interleave = 64;
  ASSERT_OK(launch(args));
  const DecodeParams& p = params();
  EXPECT_EQ(p.causal, 0);
  EXPECT_EQ(p.q_offsets, args.q_offsets);
  EXPECT_EQ(p.sparse_indices, args.sparse_indices);
  EXPECT_EQ(p.sparse_count, 100);
  EXPECT_EQ(p.sparse_stride, 128);
  EXPECT_EQ(p.q_token_stride, 200000);
  EXPECT_EQ(p.q_head_stride, 592);
  EXPECT_EQ(p.out_token_stride, 1024);
  EXPECT_EQ(p.out_head_stride, 65536);
  EXPECT_EQ(p.lse_token_stride, 3 * 128);
  EXPECT_EQ(p.lse_head_stride, 3);
  EXPECT_EQ(p.window, 4096);
  EXPECT_EQ(p.split_tokens, 512);
  EXPECT_EQ(p.cp_rank, 2);
  EXPECT_EQ(p.cp_size, 4);
  EXPECT_EQ(p.cp_interleave, 64);
  args.sparse_stride = 0;
  ASSERT_OK(launch(args));
  EXPECT_EQ(params().sparse_stride, 100);
}

TEST_F(LaunchTest, NewArgumentsOutOfRange) {
  set_up([](manifest::Kernel& kernel) { kernel.facts.features = kAllFeatures; });
  expect([](Args& a) { a.q_head_stride = 560; },
         "args.q_head_stride is 560 bytes; must be 0 (dense) or a multiple of 16 from 576 (one row) to below "
         "2^40 bytes");
  expect([](Args& a) { a.q_head_stride = 584; },
         "args.q_head_stride is 584 bytes; must be 0 (dense) or a multiple of 16 from 576 (one row) to below "
         "2^40 bytes");
  expect([](Args& a) { a.out_token_stride = 130048; },
         "args.out_token_stride is 130048 bytes; must be 0 (dense) or a multiple of 16 from 131072 to below "
         "2^40 bytes");
  expect([](Args& a) { a.lse_token_stride = -1; },
         "args.lse_token_stride is -1 elements; must be 0 (dense) or from 128 to below 2^40 bytes");
  expect([](Args& a) { a.out_head_stride = int64_t{1} << 36; },
         "args.out_head_stride is 68719476736 bytes; 128 rows must be below 2^40 bytes");
  expect([](Args& a) { a.window = -1; }, "args.window is -1; allowed: 0 ... 2147483647");
  expect([](Args& a) { a.split_tokens = -64; }, "args.split_tokens is -64; allowed: 0 ... 2147483647");
  expect([](Args& a) { a.split_tokens = 100; },
         "args.split_tokens is 100; allowed: multiples of 64 (a tile of k)");
  expect([](Args& a) { a.cp_size = -1; }, "args.cp_size is -1; allowed: 0 ... 65536");
  expect([](Args& a) { a.cp_size = 4, a.cp_rank = 4, a.cp_interleave = 1; },
         "args.cp_rank is 4; allowed: 0 ... 3 (cp_size - 1)");
  expect([](Args& a) { a.cp_size = 4; }, "args.cp_interleave is 0; allowed: 1 ... 1048576");
  expect([](Args& a) { a.cp_rank = 1; }, "args.cp_rank is 1; allowed: 0 ... 0 (cp_size is 0 or 1)");
  expect([](Args& a) { a.sparse_count = 5; },
         "args.sparse_count is 5; allowed: 0 ... 0 (sparse_indices is null)");
  expect([](Args& a) { a.sparse_indices = kBase; }, "args.sparse_count is 0; allowed: 1 ... 2147483647");
  expect([](Args& a) { a.sparse_indices = kBase, a.sparse_count = 8, a.sparse_stride = 7; },
         "args.sparse_stride is 7 elements; must be 0 (dense) or from sparse_count (8) to 2^31");
}

// Page sizes that are no powers of two: boxes shrink to what divides them, pages are found by the
// divisor.
TEST_F(LaunchTest, AnyPageSize) {
  const std::tuple<int, uint32_t> cases[] = {{16, 4}, {48, 4}, {96, 5}, {192, 6}, {944, 4}, {1024, 6}};
  for (const auto& [page_size, box_log2] : cases) {
    Args args = good_args();
    args.page_size = page_size;
    args.max_pages_per_seq = 100000;
    ASSERT_OK(launch(args));
    const DecodeParams& p = params();
    EXPECT_EQ(p.box_tokens_log2, box_log2) << page_size;
    FakeTensorMap map;
    ASSERT_TRUE(fake_decode_map(&p.k_map, &map));
    EXPECT_EQ(map.dims[1], static_cast<uint64_t>(page_size));
    EXPECT_EQ(map.box[1], 1u << box_log2);
    for (const int token : {0, page_size - 1, page_size, 99999 * page_size + 1}) {
      EXPECT_EQ(page_of(token, p.page_magic, p.page_shift), token / page_size) << token;
    }
  }
}

TEST_F(LaunchTest, KernelWithoutTensorMaps) {
  set_up([](manifest::Kernel& kernel) { kernel.facts.tensor_maps = 0; });
  ASSERT_OK(launch(good_args()));
  EXPECT_EQ(fake_calls("cuTensorMapEncodeTiled"), 0);
  const TensorMap none{};
  EXPECT_EQ(std::memcmp(&params().k_map, &none, sizeof none), 0);
  EXPECT_EQ(params().kv, good_args().kv);
}

// Families of CTAs that share an SM: the cap counts SMs, not CTAs.
TEST_F(LaunchTest, CapOnSmsWithTwoCtasOnEach) {
  fake_set_function_attribute(cuda::kFunctionRequiredClusterWidth, 1);
  fake_set_max_clusters(0, 376);
  set_up([](manifest::Kernel& kernel) {
    kernel.facts.cluster_size = 1;
    kernel.facts.max_workers = 1024;
  });
  for (const auto& [max_sms, grid] : {std::pair(0, 376u), {1, 2u}, {10, 20u}, {188, 376u}, {500, 376u}}) {
    Args args = good_args();
    args.max_sms = max_sms;
    ASSERT_OK(launch(args));
    EXPECT_EQ(fake_last_launch()->grid[0], grid) << max_sms;
  }
  expect([](Args& a) { a.max_sms = -1; }, "args.max_sms is -1; must be 0 (all) or at least 1 (a CTA of k)");
}

// Whatever the numbers: a sentence, or parameters whose every address lies within the address space and
// whose every sum the kernel can hold. (With UBSan: nothing overflows here.)
TEST_F(LaunchTest, RandomArguments) {
  set_up([](manifest::Kernel& kernel) { kernel.facts.features = kAllFeatures; });
  std::mt19937_64 random(8);
  const auto any = [&](auto& field) {
    using T = std::decay_t<decltype(field)>;
    const int64_t special[] = {0,
                               1,
                               2,
                               -1,
                               16,
                               64,
                               576,
                               4096,
                               65536,
                               1 << 20,
                               0x7ffffffe,
                               0x7fffffff,
                               -0x7fffffff - 1,
                               1 << 30,
                               1 << 24,
                               123456784,
                               944,
                               128,
                               3,
                               48};
    const int64_t wide[] = {int64_t{1} << 40, int64_t{1} << 36, INT64_MIN, INT64_MAX, -16, int64_t{1} << 31};
    int64_t value = special[random() % std::size(special)];
    if (sizeof(T) == 8 && random() % 4 == 0) value = wide[random() % std::size(wide)];
    if constexpr (std::is_floating_point_v<T>) {
      const float floats[] = {0.0f, 1.0f, -3.0f, 1e38f, 1e-38f, NAN, INFINITY, 0.07f};
      field = floats[random() % std::size(floats)];
    } else {
      field = static_cast<T>(value);
    }
  };
  int good = 0;
  for (int i = 0; i < 200000; ++i) {
    Args args = good_args();
    // A few at a time, so that some get through.
    for (int changes = static_cast<int>(random() % 4) + 1; changes > 0; --changes) {
      switch (random() % 30) {
#define MLA_ANY(number, field) \
  case number:                 \
    any(args.field);           \
    break
        MLA_ANY(0, flags);
        MLA_ANY(1, q);
        MLA_ANY(2, kv);
        MLA_ANY(3, v);
        MLA_ANY(4, page_table);
        MLA_ANY(5, seq_lens);
        MLA_ANY(6, q_offsets);
        MLA_ANY(7, out);
        MLA_ANY(8, sparse_indices);
        MLA_ANY(9, kv_page_stride);
        MLA_ANY(10, kv_token_stride);
        MLA_ANY(11, page_table_stride);
        MLA_ANY(12, q_token_stride);
        MLA_ANY(13, q_head_stride);
        MLA_ANY(14, out_token_stride);
        MLA_ANY(15, lse_head_stride);
        MLA_ANY(16, sparse_stride);
        MLA_ANY(17, pages);
        MLA_ANY(18, batch);
        MLA_ANY(19, q_len);
        MLA_ANY(20, heads);
        MLA_ANY(21, page_size);
        MLA_ANY(22, max_pages_per_seq);
        MLA_ANY(23, softmax_scale);
        MLA_ANY(24, q_scale);
        MLA_ANY(25, max_splits);
        MLA_ANY(26, split_tokens);
        MLA_ANY(27, cp_size);
        MLA_ANY(28, max_sms);
        MLA_ANY(29, sparse_count);
#undef MLA_ANY
      }
    }
    args.cp_interleave = args.cp_size > 1 ? 64 : 0;
    const mla_status status = launch(args);
    if (status != MLA_SUCCESS) {
      ASSERT_EQ(status, MLA_ERROR_INVALID_ARGUMENT) << mla_last_error();
      continue;
    }
    ++good;
    const DecodeParams& p = params();
    const auto ends = [](uint64_t address, __int128 bytes) {
      return static_cast<unsigned __int128>(address) + static_cast<unsigned __int128>(bytes) <=
             static_cast<unsigned __int128>(1) << 64;
    };
    const __int128 tokens = static_cast<__int128>(p.batch) * p.q_len;
    const __int128 row_tiles = (static_cast<__int128>(p.q_len) * p.heads + 127) / 128;
    const __int128 capacity = p.sparse_indices != 0
                                  ? static_cast<__int128>(p.sparse_count)
                                  : static_cast<__int128>(p.max_pages_per_seq) * p.page_size;
    const __int128 tiles = (capacity + 63) / 64;
    ASSERT_TRUE(p.batch * row_tiles * (tiles + 2) <= 0x7fffffff) << "units of the schedule";
    ASSERT_TRUE(p.max_splits >= 0 && p.max_splits <= tiles);
    ASSERT_TRUE(p.heads >= 1 && p.heads <= 128 && p.q_len >= 1 && p.q_len <= 64);
    ASSERT_TRUE(p.page_size >= 16 && p.page_size % 16 == 0);
    ASSERT_EQ(page_of(0x7fffffff, p.page_magic, p.page_shift), 0x7fffffff / p.page_size);
    ASSERT_TRUE(std::isfinite(p.softmax_scale * p.q_scale * p.kv_scale));
    ASSERT_TRUE(ends(p.q, (tokens - 1) * p.q_token_stride + (p.heads - 1) * p.q_head_stride + 576));
    ASSERT_TRUE(ends(p.out, (tokens - 1) * p.out_token_stride + (p.heads - 1) * p.out_head_stride + 1024));
    ASSERT_TRUE(ends(p.kv, static_cast<__int128>(p.pages - 1) * p.kv_page_stride +
                               static_cast<__int128>(p.page_size - 1) * p.kv_token_stride + 576));
    ASSERT_TRUE(ends(p.page_table,
                     4 * (static_cast<__int128>(p.batch - 1) * p.page_table_stride + p.max_pages_per_seq)));
    ASSERT_TRUE(p.sparse_indices == 0 ||
                ends(p.sparse_indices, 4 * ((tokens - 1) * p.sparse_stride + p.sparse_count)));
  }
  EXPECT_GT(good, 5000);
}

// ---- the caller's own error buffer ---------------------------------------------------------------

TEST_F(LaunchTest, ErrorBuffer) {
  char buffer[64];
  std::memset(buffer, '#', sizeof buffer);
  Args args = good_args();
  args.error = buffer;
  args.error_size = sizeof buffer;
  ASSERT_OK(launch(args));
  EXPECT_EQ(buffer[0], '#') << "untouched by a success";
  args.heads = 0;
  std::thread([&] { EXPECT_EQ(launch(args), MLA_ERROR_INVALID_ARGUMENT); }).join();
  EXPECT_STREQ(buffer, "args.heads is 0; allowed: 1 ... 128");
  args.error_size = 10;
  EXPECT_EQ(launch(args), MLA_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(buffer, "args.head");
  EXPECT_STREQ(mla_last_error(), "args.heads is 0; allowed: 1 ... 128");
}

// ---- merge ---------------------------------------------------------------------------------------

class MergeTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    fake_set_function_attribute(cuda::kFunctionRequiredClusterWidth, 1);
    fake_set_params(1, sizeof(MergeParams));
    files_.add(make_merge_kernel("m", 120, "f"));
    files_.write();
    bundle_ = open_bundle(files_);
    ASSERT_OK(mla_prepare_index(bundle_.get(), 0, nullptr, &kernel_));
    stream_ = fake_new_stream(context_);
  }
  static mla_merge_args good() {
    mla_merge_args args = MLA_MERGE_ARGS_INIT;
    args.partial_out = kBase + 0x10;
    args.partial_lse = kBase + 0x4004;
    args.out = kBase + 0x8000;
    args.shards = 3;
    args.tokens = 5;
    args.heads = 16;
    return args;
  }
  void expect(const std::function<void(mla_merge_args&)>& change, const std::string& sentence) {
    mla_merge_args args = good();
    change(args);
    const int before = fake_all_calls();
    EXPECT_ERROR(mla_merge_launch(kernel_, &args, stream_), MLA_ERROR_INVALID_ARGUMENT, sentence);
    EXPECT_EQ(fake_all_calls(), before);
  }
  MergeParams params() {
    MergeParams copy;
    std::memcpy(&copy, fake_last_launch()->params, sizeof copy);
    return copy;
  }
  TestBundle files_;
  Bundle bundle_;
  mla_kernel* kernel_ = nullptr;
  void* stream_ = nullptr;
};

TEST_F(MergeTest, Launch) {
  mla_merge_args args = good();
  args.lse = kBase + 0x9004;
  ASSERT_OK(mla_merge_launch(kernel_, &args, stream_));
  EXPECT_EQ(fake_last_launch()->grid[0], 47u);
  EXPECT_EQ(fake_last_launch()->block[0], 384u);
  MergeParams p = params();
  EXPECT_EQ(p.partial_out, args.partial_out);
  EXPECT_EQ(p.partial_lse, args.partial_lse);
  EXPECT_EQ(p.out, args.out);
  EXPECT_EQ(p.lse, args.lse);
  EXPECT_EQ(p.partial_out_shard_stride, 5 * 16 * 1024);
  EXPECT_EQ(p.partial_out_token_stride, 16 * 1024);
  EXPECT_EQ(p.partial_out_head_stride, 1024);
  EXPECT_EQ(p.partial_lse_shard_stride, 5 * 16);
  EXPECT_EQ(p.partial_lse_token_stride, 16);
  EXPECT_EQ(p.partial_lse_head_stride, 1);
  EXPECT_EQ(p.out_token_stride, 16 * 1024);
  EXPECT_EQ(p.out_head_stride, 1024);
  EXPECT_EQ(p.lse_token_stride, 16);
  EXPECT_EQ(p.lse_head_stride, 1);
  EXPECT_EQ(p.shards, 3);
  EXPECT_EQ(p.tokens, 5);
  EXPECT_EQ(p.heads, 16);
  args.partial_out_shard_stride = 1 << 20;
  args.partial_out_head_stride = 2048;
  args.partial_lse_token_stride = 20;
  args.max_sms = 3;
  ASSERT_OK(mla_merge_launch(kernel_, &args, stream_));
  p = params();
  EXPECT_EQ(fake_last_launch()->grid[0], 3u);
  EXPECT_EQ(p.partial_out_shard_stride, 1 << 20);
  EXPECT_EQ(p.partial_out_token_stride, 16 * 2048);
  EXPECT_EQ(p.partial_lse_shard_stride, 100);
}

TEST_F(MergeTest, Arguments) {
  using A = mla_merge_args;
  expect([](A& a) { a.flags = 2; }, "args.flags is 0x2; allowed: 0, MLA_LAUNCH_PDL (0x1)");
  expect([](A& a) { a.flags = 1; },
         "args.flags has MLA_LAUNCH_PDL, which m does not support; select with MLA_FEATURE_PDL, or leave the "
         "flag out");
  expect([](A& a) { a.partial_out = 0; },
         "args.partial_out is null; must be a device address aligned to 16 bytes");
  expect([](A& a) { a.partial_lse = 2; },
         "args.partial_lse is 0x2; must be a device address aligned to 4 bytes");
  expect([](A& a) { a.out = 8; }, "args.out is 0x8; must be a device address aligned to 16 bytes");
  expect([](A& a) { a.shards = 0; }, "args.shards is 0; allowed: 1 ... 65536");
  expect([](A& a) { a.tokens = 0; }, "args.tokens is 0; allowed: 1 ... 16777215");
  expect([](A& a) { a.heads = 129; }, "args.heads is 129; allowed: 1 ... 128");
  expect([](A& a) { a.partial_out_shard_stride = 24; },
         "args.partial_out_shard_stride is 24 bytes; must be 0 (dense) or a multiple of 16 from 1024 (one "
         "row) to below 2^40 bytes");
  expect([](A& a) { a.partial_lse = 0xfffffffffffffff0; },
         "args.partial_lse is 0xfffffffffffffff0; its 960 bytes reach past the end of the address space");
  mla_launch_args decode = good_args();
  EXPECT_ERROR(mla_launch(kernel_, &decode, stream_), MLA_ERROR_INVALID_ARGUMENT,
               "kernel is m, of kind merge: launch it with mla_merge_launch");
}

TEST_F(LaunchTest, MergeOfADecodeKernel) {
  mla_merge_args args = MLA_MERGE_ARGS_INIT;
  EXPECT_ERROR(mla_merge_launch(kernel_, &args, stream_), MLA_ERROR_INVALID_ARGUMENT,
               "kernel is k, of kind decode: launch it with mla_launch");
}

TEST_F(LaunchTest, Workspace) {
  mla_prepared_info info = MLA_PREPARED_INFO_INIT;
  ASSERT_OK(mla_kernel_get_info(kernel_, &info));
  const std::string needs = "; k needs " + std::to_string(info.workspace_bytes) + " bytes on device 0";
  expect([](Args& a) { a.workspace = 0; },
         "args.workspace is 0x0; must be a device address aligned to 256 bytes", MLA_ERROR_WORKSPACE);
  expect([](Args& a) { a.workspace += 128; },
         "args.workspace is 0x7f0010000080; must be a device address aligned to 256 bytes",
         MLA_ERROR_WORKSPACE);
  expect([&](Args& a) { a.workspace_bytes = info.workspace_bytes - 1; },
         "args.workspace_bytes is " + std::to_string(info.workspace_bytes - 1) + needs, MLA_ERROR_WORKSPACE);
  Args args = good_args();
  args.workspace_bytes = info.workspace_bytes;
  EXPECT_OK(launch(args));

  const uint64_t address = kBase;
  mla_bundle* const bundle = bundle_.get();
  EXPECT_ERROR(mla_workspace_init(nullptr, address, info.workspace_bytes, stream_),
               MLA_ERROR_INVALID_ARGUMENT, "bundle is null");
  EXPECT_ERROR(mla_workspace_init(bundle, 0, info.workspace_bytes, stream_), MLA_ERROR_WORKSPACE,
               "workspace is 0x0; must be a device address aligned to 256 bytes");
  EXPECT_ERROR(mla_workspace_init(bundle, address, 4095, stream_), MLA_ERROR_WORKSPACE,
               "workspace_bytes is 4095; the counters of this bundle alone take 4096 bytes: ask "
               "mla_workspace_bytes");
  EXPECT_ERROR(mla_workspace_init(bundle, 0 - uint64_t{256}, 5000, stream_), MLA_ERROR_WORKSPACE,
               "workspace is 0xffffffffffffff00; its 5000 bytes reach past the end of the address space");
  EXPECT_EQ(fake_calls("cuMemsetD8Async"), 0);
  ASSERT_OK(mla_workspace_init(bundle, address, info.workspace_bytes, stream_));
  EXPECT_EQ(fake_calls("cuMemsetD8Async"), 1);
  EXPECT_EQ(fake_calls("cuMemsetD32Async"), 2);
  // Zeros first, then the two halves of the magic word.
  const FakeMemset& zeros = *fake_last_memset(2);
  EXPECT_EQ(zeros.address, address);
  EXPECT_EQ(zeros.element, 1);
  EXPECT_EQ(zeros.value, 0u);
  EXPECT_EQ(zeros.bytes, 4096u);
  EXPECT_EQ(zeros.stream, stream_);
  uint64_t magic = 0;
  for (const unsigned before : {1u, 0u}) {
    const FakeMemset& half = *fake_last_memset(before);
    EXPECT_EQ(half.element, 4);
    EXPECT_EQ(half.bytes, 4u);
    EXPECT_EQ(half.stream, stream_);
    magic |= half.value << 8 * (half.address - address);
  }
  EXPECT_EQ(magic, kWorkspaceMagic);
  fake_fail("cuMemsetD8Async", 1, 1);
  EXPECT_ERROR(mla_workspace_init(bundle, address, info.workspace_bytes, stream_), MLA_ERROR_DRIVER,
               "cuMemsetD8Async failed: 1 CUDA_ERROR_INVALID_VALUE");
  fake_fail("cuMemsetD32Async", 2, 1);
  EXPECT_ERROR(mla_workspace_init(bundle, address, info.workspace_bytes, stream_), MLA_ERROR_DRIVER,
               "cuMemsetD32Async failed: 1 CUDA_ERROR_INVALID_VALUE");
}

// One workspace for every kernel of the bundle: partial results begin behind the largest counters.
TEST_F(LaunchTest, WorkspaceOfSeveralKernels) {
  TestBundle files;
  files.add("small").facts.zeroed_bytes = 512;
  cubin::Facts& large = files.add("large").facts;
  large.zeroed_bytes = 10000;
  large.bytes_per_worker = 1000;
  cubin::Facts& elsewhere = files.add("hopper", 90, "a").facts;
  elsewhere.zeroed_bytes = 20000;
  elsewhere.fixed_bytes = 1 << 30;
  files.add("unusable").facts.params_version = 9;
  files.manifest().kernels.back().facts.zeroed_bytes = 1 << 20;
  files.write();
  const Bundle bundle = open_bundle(files);
  uint64_t bytes = 0;
  ASSERT_OK(mla_workspace_bytes(bundle.get(), nullptr, &bytes));
  // 188 SMs hold 47 clusters of four CTAs at most, one CTA each.
  EXPECT_EQ(bytes, 20224u + 1000 + 47 * 600000);
  mla_bundle_info bundle_info = MLA_BUNDLE_INFO_INIT;
  ASSERT_OK(mla_bundle_get_info(bundle.get(), &bundle_info));
  EXPECT_EQ(bundle_info.workspace_zeroed_bytes, 20000u);
  for (const uint32_t index : {0u, 1u}) {
    mla_kernel* kernel = nullptr;
    ASSERT_OK(mla_prepare_index(bundle.get(), index, nullptr, &kernel));
    mla_prepared_info info = MLA_PREPARED_INFO_INIT;
    ASSERT_OK(mla_kernel_get_info(kernel, &info));
    EXPECT_EQ(info.workspace_bytes, 20224u + 1000 + 47 * (index == 0 ? 600000u : 1000u));
    Args args = good_args();
    ASSERT_OK(mla_launch(kernel, &args, stream_));
    EXPECT_EQ(params().partials, args.workspace + 20224);
  }

  // Of problems: those kernels that serve them.
  mla_problem problem = any_problem();
  const mla_problem* problems[] = {&problem, &problem};
  mla_workspace_query query = MLA_WORKSPACE_QUERY_INIT;
  query.problems = problems;
  query.problem_count = 2;
  ASSERT_OK(mla_workspace_bytes(bundle.get(), &query, &bytes));
  EXPECT_EQ(bytes, 20224u + 1000 + 47 * 600000);
  char buffer[256];
  query.error = buffer;
  query.error_size = sizeof buffer;
  const auto expect_error = [&](mla_status status, const std::string& sentence) {
    EXPECT_ERROR(mla_workspace_bytes(bundle.get(), &query, &bytes), status, sentence);
    EXPECT_EQ(sentence.substr(0, sizeof buffer - 1), buffer);
  };
  problem.heads = 0;
  expect_error(MLA_ERROR_INVALID_ARGUMENT,
               "query.problems[0]: problem.heads is 0; must be given, there is no default: the query heads "
               "on this device, 1 ... 128");
  problem = problem_for(9, 0);
  expect_error(MLA_ERROR_WRONG_DEVICE,
               "query.problems[0]: problem asks for compute capability 9.0; the context belongs to device 0 "
               "(compute capability 12.0)");
  problems[1] = nullptr;
  expect_error(MLA_ERROR_INVALID_ARGUMENT, "query.problems[1] is null");
  query.problems = nullptr;
  expect_error(MLA_ERROR_INVALID_ARGUMENT, "query.problem_count is 2 and query.problems is null");
  query.problem_count = 0;
  query.flags = 1;
  expect_error(MLA_ERROR_INVALID_ARGUMENT, "query.flags is 0x1; allowed: 0");
  query.flags = 0;
  query.split_tokens = 64;
  expect_error(MLA_ERROR_INVALID_ARGUMENT,
               "query.split_tokens is 64; allowed: 0 (this library launches no fixed splits whose workspace "
               "grows)");
  EXPECT_ERROR(mla_workspace_bytes(bundle.get(), nullptr, nullptr), MLA_ERROR_INVALID_ARGUMENT,
               "bytes is null");
}

// A bound made from the attributes of the device: registers, threads, shared memory and CTAs.
TEST_F(LaunchTest, WorkspaceBoundOfManyCtas) {
  TestBundle files;
  manifest::Kernel& kernel = files.add("ctas");
  kernel.facts.cluster_size = 1;
  kernel.facts.threads = 128;
  kernel.facts.dynamic_smem = 1000;
  kernel.facts.max_workers = 65536;
  kernel.resources.registers = 100;
  files.write();
  const Bundle bundle = open_bundle(files);
  const auto workers = [&] {
    uint64_t bytes = 0;
    EXPECT_OK(mla_workspace_bytes(bundle.get(), nullptr, &bytes));
    return (bytes - 4096 - 1000) / 600000;
  };
  EXPECT_EQ(workers(), 188u * 5) << "65536 registers, 12800 a CTA";
  fake_set_device_attribute(0, cuda::kDeviceMaxThreadsPerMultiprocessor, 512);
  EXPECT_EQ(workers(), 188u * 4);
  fake_set_device_attribute(0, cuda::kDeviceMaxSharedMemoryPerMultiprocessor, 3500);
  EXPECT_EQ(workers(), 188u * 3);
  fake_set_device_attribute(0, cuda::kDeviceMaxBlocksPerMultiprocessor, 2);
  EXPECT_EQ(workers(), 188u * 2);
}

TEST_F(LaunchTest, FeaturesThatTheKernelLacks) {
  set_up([](manifest::Kernel& kernel) { kernel.facts.features = 0; });
  expect([](Args& a) { a.flags = MLA_LAUNCH_PDL; },
         "args.flags has MLA_LAUNCH_PDL, which k does not support; select with MLA_FEATURE_PDL, or leave the "
         "flag out");
  expect([](Args& a) { a.flags = MLA_LAUNCH_NON_CAUSAL; },
         "args.flags has MLA_LAUNCH_NON_CAUSAL, which k does not support; select with "
         "MLA_FEATURE_NON_CAUSAL, or leave the flag out");
  const auto lacks = [&](const std::function<void(Args&)>& change, const std::string& given,
                         const std::string& feature, const std::string& absent) {
    expect(change, "args." + given + "; k lacks the feature " + feature + ": select with MLA_FEATURE_" +
                       feature + ", or give " + absent);
  };
  lacks([](Args& a) { a.lse = kBase; }, "lse is 0x7f0000000000", "LSE", "null");
  lacks([](Args& a) { a.v = kBase; }, "v is 0x7f0000000000", "SEPARATE_VALUES", "null");
  lacks([](Args& a) { a.q_offsets = kBase; }, "q_offsets is 0x7f0000000000", "RAGGED_Q", "null");
  lacks([](Args& a) { a.sparse_indices = kBase, a.sparse_count = 1; }, "sparse_indices is 0x7f0000000000",
        "SPARSE", "null");
  lacks([](Args& a) { a.q_head_stride = 592; }, "q_head_stride is 592", "STRIDES", "0");
  lacks([](Args& a) { a.q_token_stride = 128 * 592; }, "q_token_stride is 75776", "STRIDES", "0");
  lacks([](Args& a) { a.out_head_stride = 2048; }, "out_head_stride is 2048", "STRIDES", "0");
  lacks([](Args& a) { a.lse_token_stride = 200; }, "lse_token_stride is 200", "STRIDES", "0");
  lacks([](Args& a) { a.window = 128; }, "window is 128", "WINDOW", "0");
  lacks([](Args& a) { a.split_tokens = 128; }, "split_tokens is 128", "FIXED_SPLIT", "0");
  lacks([](Args& a) { a.cp_size = 2, a.cp_interleave = 1; }, "cp_size is 2", "CONTEXT_PARALLEL", "0");
  EXPECT_OK(launch(good_args()));
  // Strides that say what is so anyway.
  Args args = good_args();
  args.q_head_stride = 576;
  args.q_token_stride = 128 * 576;
  args.out_head_stride = 1024;
  args.lse_token_stride = 128;
  EXPECT_OK(launch(args));
}

TEST_F(LaunchTest, HeadsOfASmallerRowTile) {
  set_up([](manifest::Kernel& kernel) { kernel.facts.rows = 64; });
  EXPECT_OK(launch(good_args())) << "four row tiles for 2 * 128 rows";
  set_up([](manifest::Kernel& kernel) {
    kernel.facts.rows = 64;
    kernel.facts.requires_bits = requirement::kPARTIALS;
  });
  expect([](Args& a) { a.heads = 65; }, "args.heads is 65; allowed: 1 ... 64");
}

// ---- streams and contexts ----------------------------------------------------------------------

TEST_F(LaunchTest, StreamOfAnotherDeviceOrContext) {
  fake_set_device_count(2);
  void* other_device = fake_new_stream(fake_new_context(1));
  void* other_context = fake_new_stream(fake_new_context(0));
  const Args args = good_args();
  EXPECT_ERROR(mla_launch(kernel_, &args, other_device), MLA_ERROR_WRONG_DEVICE,
               "stream belongs to device 1; k was prepared on device 0: prepare it there too");
  EXPECT_ERROR(
      mla_launch(kernel_, &args, other_context), MLA_ERROR_WRONG_DEVICE,
      "stream belongs to another context of device 0 than the one k was prepared in: prepare it in that "
      "context too");
  EXPECT_EQ(fake_calls("cuLaunchKernelEx"), 0);
  EXPECT_EQ(fake_calls("cuMemsetD8Async"), 0);
}

TEST_F(LaunchTest, DefaultStream) {
  const Args args = good_args();
  EXPECT_OK(mla_launch(kernel_, &args, nullptr));
  EXPECT_EQ(fake_last_launch()->stream, nullptr);
  fake_set_current(nullptr);
  EXPECT_ERROR(mla_launch(kernel_, &args, nullptr), MLA_ERROR_WRONG_DEVICE,
               "stream is null (the default stream) and no context is current on this thread; k was prepared "
               "on device 0");
  fake_set_device_count(2);
  fake_set_current(fake_new_context(1));
  EXPECT_ERROR(mla_launch(kernel_, &args, nullptr), MLA_ERROR_WRONG_DEVICE,
               "stream belongs to device 1; k was prepared on device 0: prepare it there too");
}

TEST_F(LaunchTest, ContextNeedNotBeCurrent) {
  std::thread([&] {
    EXPECT_OK(launch(good_args()));
    EXPECT_EQ(fake_last_launch()->current, context_);
    EXPECT_OK(mla_workspace_init(bundle_.get(), kBase, uint64_t{1} << 40, stream_));
    EXPECT_EQ(fake_last_memset()->current, context_);
    EXPECT_EQ(fake_current(), nullptr);
    EXPECT_EQ(fake_pushed(), 0);
  }).join();
  fake_set_device_count(2);
  void* other = fake_new_context(1);
  fake_set_current(other);
  EXPECT_OK(launch(good_args()));
  EXPECT_EQ(fake_last_launch()->current, context_);
  EXPECT_EQ(fake_current(), other);
}

TEST_F(LaunchTest, LegalDuringCapture) {
  fake_set_capture(kFakeCaptureBlocking);
  const int before = fake_all_calls();
  EXPECT_OK(mla_workspace_init(bundle_.get(), kBase, uint64_t{1} << 40, stream_));
  EXPECT_OK(launch(good_args()));
  EXPECT_EQ(fake_all_calls() - before, 5 + 5) << "nothing but what may be called during a capture";
}

TEST_F(LaunchTest, EveryFailureOfTheDriver) {
  const std::string map_text =
      ": tensor map of args.kv at 0x7f0000100000, dims 576 x 64 x 1000, strides 576 and 36864 bytes";
  const std::string v_map_text =
      ": tensor map of args.kv at 0x7f0000100000, dims 512 x 64 x 1000, strides 576 and 36864 bytes";
  struct Failure {
    const char* function;
    int nth;
    std::string rest;
  };
  const Failure failures[] = {
      {"cuStreamGetCtx", 1, ""},
      {"cuCtxGetCurrent", 1, ""},
      {"cuTensorMapEncodeTiled", 1, map_text},
      {"cuTensorMapEncodeTiled", 2, v_map_text},
      {"cuLaunchKernelEx", 1, ": k on device 0, grid 188, block 384, 100224 bytes of dynamic shared memory"}};
  for (const Failure& failure : failures) {
    fake_fail(failure.function, failure.nth, 1);
    EXPECT_ERROR(launch(good_args()), MLA_ERROR_DRIVER,
                 std::string(failure.function) + " failed: 1 CUDA_ERROR_INVALID_VALUE" + failure.rest);
    EXPECT_OK(launch(good_args()));
  }
  fake_set_current(nullptr);
  fake_fail("cuCtxPushCurrent", 1, 1);
  EXPECT_ERROR(launch(good_args()), MLA_ERROR_DRIVER, "cuCtxPushCurrent failed: 1 CUDA_ERROR_INVALID_VALUE");
}

TEST_F(LaunchTest, FromManyThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      void* stream = fake_new_stream(context_);
      const Args args = good_args();
      for (int k = 0; k < 200; ++k) EXPECT_OK(mla_launch(kernel_, &args, stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake_calls("cuLaunchKernelEx"), 8 * 200);
}

}  // namespace
}  // namespace mla::test
