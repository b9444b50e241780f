// SPDX-License-Identifier: Apache-2.0
//
// Launching: what reaches the driver, every argument error, and every failure of the driver.
#include <cmath>
#include <functional>
#include <limits>
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
  EXPECT_EQ(p.page_size_log2, 6);
  EXPECT_EQ(p.max_splits, 3);
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
  EXPECT_EQ(params().page_size_log2, 4);
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
    kernel.config.q_dtype = kernel.config.kv_dtype = MLA_DTYPE_BF16;
    kernel.config.k_box = 64;
    kernel.config.k_swizzle = 128;
    kernel.config.v_box = 32;
    kernel.config.v_swizzle = 0;
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
  good([](Args& a) { a.page_size = 128; });
  good([](Args& a) { a.batch = a.q_len = 1, a.max_pages_per_seq = 0x7fffffff / 64; });
  good([](Args& a) { a.kv_token_stride = ((int64_t{1} << 40) - 16) / 64 / 16 * 16; });
  good([](Args& a) { a.kv_token_stride = 592, a.kv_page_stride = 63 * 592 + 576; });
  // Pages that interleave: token 0 of all pages, then token 1.
  good([](Args& a) { a.kv_page_stride = 592, a.kv_token_stride = (a.pages - 1) * 592 + 576; });
  good([](Args& a) { a.page_table_stride = 32; });
  good([](Args& a) {
    a.softmax_scale = -1.0f, a.q_scale = 0.0f, a.kv_scale = std::numeric_limits<float>::max();
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
         "args.struct_size is 0; must be sizeof(mla_launch_args), 192 in this library (0.1.0)");
  expect([](Args& a) { a.struct_size = 188; },
         "args.struct_size is 188; must be sizeof(mla_launch_args), 192 in this library (0.1.0)");
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
      "args.struct_size is 200 and byte 199 is not zero; this library (0.1.0) knows the first 192 bytes of "
      "mla_launch_args: leave newer fields zero, or use a newer library");
}

TEST_F(LaunchTest, Flags) {
  expect([](Args& a) { a.flags = 3; }, "args.flags is 0x3; allowed: 0, MLA_LAUNCH_PDL (0x1)");
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
                          {"out", &Args::out, 16, false},
                          {"lse", &Args::lse, 4, true},
                          {"q_scale_ptr", &Args::q_scale_ptr, 4, true},
                          {"kv_scale_ptr", &Args::kv_scale_ptr, 4, true},
                          {"bad_page_counter", &Args::bad_page_counter, 4, true}};
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
  expect([](Args& a) { a.q_len = 0; }, "args.q_len is 0; allowed: 1 ... 64");
  expect([](Args& a) { a.q_len = 65; }, "args.q_len is 65; allowed: 1 ... 64");
  expect([](Args& a) { a.heads = 0; }, "args.heads is 0; allowed: 1 ... 128 (the row tile of k)");
  expect([](Args& a) { a.heads = 129; }, "args.heads is 129; allowed: 1 ... 128 (the row tile of k)");
  expect([](Args& a) { a.page_size = 8; }, "args.page_size is 8; allowed: powers of two from 16 to 128 (k)");
  expect([](Args& a) { a.page_size = 256; },
         "args.page_size is 256; allowed: powers of two from 16 to 128 (k)");
  expect([](Args& a) { a.page_size = 48; },
         "args.page_size is 48; allowed: powers of two from 16 to 128 (k)");
  expect([](Args& a) { a.page_size = -64; },
         "args.page_size is -64; allowed: powers of two from 16 to 128 (k)");
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
         "args.batch is 2147483647 with q_len 2 and room for 2048 tokens a sequence; allowed: batch * q_len "
         "* (tokens / "
         "64 + 2) up to 2^31 - 1");
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
         "args.kv is 0x7f0000100000; 2147483647 pages of 549755813888 bytes reach past the end of the "
         "address space");
}

TEST_F(LaunchTest, Scales) {
  const float inf = std::numeric_limits<float>::infinity();
  expect([&](Args& a) { a.softmax_scale = inf; }, "args.softmax_scale is inf; must be finite");
  expect([&](Args& a) { a.q_scale = -inf; }, "args.q_scale is -inf; must be finite");
  expect([&](Args& a) { a.kv_scale = std::nanf(""); }, "args.kv_scale is nan; must be finite");
  expect([&](Args& a) { a.softmax_scale = 0.0f; },
         "args.softmax_scale is 0; must be given, there is no default (often 1/sqrt(192))");
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
  EXPECT_ERROR(mla_workspace_init(nullptr, address, info.workspace_bytes, stream_),
               MLA_ERROR_INVALID_ARGUMENT, "kernel is null");
  EXPECT_ERROR(mla_workspace_init(kernel_, 0, info.workspace_bytes, stream_), MLA_ERROR_WORKSPACE,
               "workspace is 0x0; must be a device address aligned to 256 bytes");
  EXPECT_ERROR(mla_workspace_init(kernel_, address, 10, stream_), MLA_ERROR_WORKSPACE,
               "workspace_bytes is 10" + needs);
  EXPECT_EQ(fake_calls("cuMemsetD8Async"), 0);
  ASSERT_OK(mla_workspace_init(kernel_, address, info.workspace_bytes, stream_));
  EXPECT_EQ(fake_calls("cuMemsetD8Async"), 1);
  EXPECT_EQ(fake_last_memset()->address, address);
  EXPECT_EQ(fake_last_memset()->value, 0);
  EXPECT_EQ(fake_last_memset()->bytes, workspace_counter_bytes(47));
  EXPECT_EQ(fake_last_memset()->stream, stream_);
  fake_fail("cuMemsetD8Async", 1, 1);
  EXPECT_ERROR(mla_workspace_init(kernel_, address, info.workspace_bytes, stream_), MLA_ERROR_DRIVER,
               "cuMemsetD8Async failed: 1 CUDA_ERROR_INVALID_VALUE");
}

TEST_F(LaunchTest, FeaturesThatTheKernelLacks) {
  set_up([](manifest::Kernel& kernel) { kernel.config.features = 0; });
  expect([](Args& a) { a.flags = MLA_LAUNCH_PDL; },
         "args.flags has MLA_LAUNCH_PDL, which k does not support; select with MLA_FEATURE_PDL, or leave the "
         "flag out");
  expect([](Args& a) { a.lse = kBase; },
         "args.lse is 0x7f0000000000; k does not write it: select with MLA_FEATURE_LSE, or give null");
  expect([](Args& a) { a.v = kBase; },
         "args.v is 0x7f0000000000; k reads values from kv: select with MLA_FEATURE_SEPARATE_VALUES, or give "
         "null");
  EXPECT_OK(launch(good_args()));
}

TEST_F(LaunchTest, HeadsOfASmallerRowTile) {
  set_up([](manifest::Kernel& kernel) { kernel.config.rows = 64; });
  expect([](Args& a) { a.heads = 65; }, "args.heads is 65; allowed: 1 ... 64 (the row tile of k)");
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
  EXPECT_ERROR(mla_workspace_init(kernel_, kBase, uint64_t{1} << 40, other_device), MLA_ERROR_WRONG_DEVICE,
               "stream belongs to device 1; k was prepared on device 0: prepare it there too");
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
    EXPECT_OK(mla_workspace_init(kernel_, kBase, uint64_t{1} << 40, stream_));
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
  EXPECT_OK(mla_workspace_init(kernel_, kBase, uint64_t{1} << 40, stream_));
  EXPECT_OK(launch(good_args()));
  EXPECT_EQ(fake_all_calls() - before, 3 + 5) << "nothing but what may be called during a capture";
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
