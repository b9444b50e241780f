// SPDX-License-Identifier: Apache-2.0
#include "tests/regression/decode_runner.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/common/mla_params.h"

namespace mla::test {

namespace {

constexpr uint64_t kGuardBytes = 4096;
constexpr uint8_t kGuardByte = 0xa5;
// Pools up to this size are put together on the host and copied at once.
constexpr int64_t kImageBytes = int64_t{1} << 28;

}  // namespace

DeviceBuffer::DeviceBuffer(const Driver& driver, uint64_t bytes, bool guarded)
    : driver_(&driver), bytes_(bytes), guard_(guarded ? kGuardBytes : 0) {
  // A batch without query tokens has empty buffers, whose addresses are needed all the same.
  MLA_CU(driver, cuMemAlloc, &base_, std::max<uint64_t>(bytes_ + 2 * guard_, 16));
  if (guarded) {
    MLA_CU(driver, cuMemsetD8, base_, kGuardByte, guard_);
    MLA_CU(driver, cuMemsetD8, base_ + guard_ + bytes_, kGuardByte, guard_);
  }
}

DeviceBuffer::~DeviceBuffer() {
  if (base_) driver_->cuMemFree(base_);
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(guard_, other.guard_);
  return *this;
}

void DeviceBuffer::fill(uint8_t byte) {
  if (bytes_ > 0) MLA_CU(*driver_, cuMemsetD8, address(), byte, bytes_);
}

void DeviceBuffer::write(const void* source, uint64_t bytes, uint64_t offset) {
  if (bytes > 0) MLA_CU(*driver_, cuMemcpyHtoD, address() + offset, source, bytes);
}

void DeviceBuffer::read(void* target, uint64_t bytes, uint64_t offset) const {
  if (bytes > 0) MLA_CU(*driver_, cuMemcpyDtoH, target, address() + offset, bytes);
}

std::string DeviceBuffer::check_guards(const std::string& name) const {
  std::vector<uint8_t> zone(guard_);
  for (const bool after : {false, true}) {
    MLA_CU(*driver_, cuMemcpyDtoH, zone.data(), after ? base_ + guard_ + bytes_ : base_, guard_);
    for (uint64_t i = 0; i < guard_; ++i) {
      if (zone[i] == kGuardByte) continue;
      return after ? name + ": written " + std::to_string(i) + " bytes behind its end"
                   : name + ": written " + std::to_string(guard_ - i) + " bytes before its start";
    }
  }
  return "";
}

reference::Format format_of(mla_dtype dtype) {
  return dtype == MLA_DTYPE_E4M3 ? reference::Format::kE4M3 : reference::Format::kBF16;
}

PreparedKernel describe(const LoaderApi& api, const mla_bundle* bundle, const mla_kernel* kernel) {
  PreparedKernel described;
  described.bundle = bundle;
  described.kernel = kernel;
  mla_bundle_info info = MLA_BUNDLE_INFO_INIT;
  MLA_API_CALL(api, mla_bundle_get_info, bundle, &info);
  described.workspace_zeroed_bytes = info.workspace_zeroed_bytes;
  MLA_API_CALL(api, mla_kernel_get_info, kernel, &described.prepared);
  MLA_API_CALL(api, mla_bundle_get_kernel, bundle, described.prepared.kernel_index, &described.info);
  return described;
}

int launch_workers(const PreparedKernel& kernel, const DecodeCase& c) {
  const int workers = kernel.prepared.max_workers, cluster = kernel.info.cluster_size;
  if (c.sms_cap == 0) return workers;
  const int ctas_per_sm = std::max(1, workers * cluster / kernel.prepared.sm_count);
  return std::clamp(c.sms_cap * ctas_per_sm / cluster, 1, workers);
}

DecodeRunner::DecodeRunner(const Driver& driver, const LoaderApi& api, const PreparedKernel& kernel,
                           const DecodeCase& c, const Layout& layout, bool poison_workspace)
    : driver_(driver), api_(api), kernel_(kernel), c_(c), layout_(layout) {
  MLA_CU(driver_, cuStreamCreate, &stream_, kStreamNonBlocking);
  q_ = DeviceBuffer(driver, layout.q_bytes, false);
  kv_ = DeviceBuffer(driver, layout.kv_bytes, false);
  if (layout.v_bytes) v_ = DeviceBuffer(driver, layout.v_bytes, false);
  page_table_ = DeviceBuffer(driver, layout.batch * layout.page_table_stride * sizeof(int32_t), false);
  seq_lens_ = DeviceBuffer(driver, layout.batch * sizeof(int32_t), false);
  if (!c.query_counts.empty()) q_offsets_ = DeviceBuffer(driver, (layout.batch + 1) * sizeof(int32_t), false);
  out_ = DeviceBuffer(driver, layout.out_bytes, true);
  if (c.want_lse) lse_ = DeviceBuffer(driver, layout.rows() * sizeof(float), true);
  if (c.scales_on_device) scales_ = DeviceBuffer(driver, 2 * sizeof(float), false);
  if (c.want_bad_page_counter) bad_pages_ = DeviceBuffer(driver, sizeof(uint32_t), false);
  workspace_ = DeviceBuffer(driver, kernel.prepared.workspace_bytes, true);
  if (poison_workspace) workspace_.fill(0xff);
  if (!c.initialise_workspace) workspace_.fill(0x02);
  MLA_CU(driver_, cuCtxSynchronize);
  if (!c.initialise_workspace) return;
  MLA_API_CALL(api_, mla_workspace_init, kernel.bundle, workspace_.address(), workspace_.bytes(), stream_);
  synchronize();
}

DecodeRunner::~DecodeRunner() {
  if (graph_exec_) driver_.cuGraphExecDestroy(graph_exec_);
  if (graph_) driver_.cuGraphDestroy(graph_);
  if (stream_) driver_.cuStreamDestroy(stream_);
}

uint64_t DecodeRunner::device_bytes() const {
  uint64_t sum = 0;
  for (const DeviceBuffer* buffer : {&q_, &kv_, &v_, &page_table_, &out_, &lse_, &workspace_}) {
    sum += buffer->bytes();
  }
  return sum;
}

void DecodeRunner::upload_pool(DeviceBuffer& pool, const DecodeData& data, const std::vector<uint8_t>& source,
                               int depth, int64_t token_stride, int64_t page_stride) {
  const int64_t token_bytes = depth * layout_.element_bytes;
  const int64_t source_page = token_bytes * c_.page_tokens;
  const uint8_t nan = nan_byte(data.kv_format);
  const bool whole = static_cast<int64_t>(pool.bytes()) <= kImageBytes || c_.token_major_layout;
  std::vector<uint8_t> image(whole ? pool.bytes() : (c_.page_tokens - 1) * token_stride + token_bytes, nan);
  if (!whole) pool.fill(nan);
  for (size_t page = 0; page < data.page_ids.size(); ++page) {
    uint8_t* target = image.data() + (whole ? data.page_ids[page] * page_stride : 0);
    for (int token = 0; token < c_.page_tokens; ++token) {
      std::memcpy(target + token * token_stride, source.data() + page * source_page + token * token_bytes,
                  token_bytes);
    }
    if (!whole) pool.write(image.data(), image.size(), data.page_ids[page] * page_stride);
  }
  if (whole) pool.write(image.data(), image.size());
}

void DecodeRunner::upload(const DecodeData& data) {
  if (!c_.strided_rows) {
    q_.write(data.q.data(), data.q.size());
  } else {
    const int64_t row_bytes = reference::kDepthK * layout_.q_element_bytes;
    std::vector<uint8_t> image(q_.bytes(), nan_byte(data.q_format));
    for (int64_t row = 0; row < layout_.rows(); ++row) {
      std::memcpy(image.data() + row / layout_.heads * layout_.q_token_stride +
                      row % layout_.heads * layout_.q_head_stride,
                  data.q.data() + row * row_bytes, row_bytes);
    }
    q_.write(image.data(), image.size());
  }
  if (q_offsets_.bytes()) q_offsets_.write(data.q_offsets.data(), q_offsets_.bytes());
  upload_pool(kv_, data, data.keys, reference::kDepthK, layout_.kv_token_stride, layout_.kv_page_stride);
  if (v_.bytes())
    upload_pool(v_, data, data.values, reference::kDepthV, layout_.v_token_stride, layout_.v_page_stride);
  page_table_.write(data.device_table.data(), page_table_.bytes());
  seq_lens_.write(data.seq_lens.data(), seq_lens_.bytes());
  if (c_.scales_on_device) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float scales[2] = {c_.poison_scales ? nan : c_.q_factor, c_.poison_scales ? nan : c_.kv_factor};
    scales_.write(scales, sizeof(scales));
  }
  MLA_CU(driver_, cuCtxSynchronize);
}

void DecodeRunner::poison_outputs() {
  out_.fill(0xff);
  if (lse_.bytes()) lse_.fill(0xff);
  if (bad_pages_.bytes()) bad_pages_.fill(0);
  MLA_CU(driver_, cuCtxSynchronize);
}

void DecodeRunner::launch() { launch(layout_.batch, c_.sms_cap); }

void DecodeRunner::launch_alone(int max_sms) { launch(1, max_sms); }

void DecodeRunner::launch(int batch, int max_sms) {
  mla_launch_args args = MLA_LAUNCH_ARGS_INIT;
  args.flags = (c_.use_pdl ? MLA_LAUNCH_PDL : 0) | (c_.is_causal ? 0 : MLA_LAUNCH_NON_CAUSAL);
  args.q = q_.address();
  args.kv = kv_.address();
  args.v = v_.address();
  args.page_table = page_table_.address();
  args.seq_lens = seq_lens_.address();
  args.q_offsets = q_offsets_.address();
  args.out = out_.address();
  args.lse = lse_.address();
  args.bad_page_counter = bad_pages_.address();
  args.workspace = workspace_.address();
  args.workspace_bytes = workspace_.bytes();
  args.kv_page_stride = layout_.kv_page_stride;
  args.kv_token_stride = layout_.kv_token_stride;
  args.v_page_stride = layout_.v_page_stride;
  args.v_token_stride = layout_.v_token_stride;
  args.page_table_stride = layout_.page_table_stride;
  args.q_token_stride = layout_.q_token_stride;
  args.q_head_stride = layout_.q_head_stride;
  args.out_token_stride = layout_.out_token_stride;
  args.out_head_stride = layout_.out_head_stride;
  args.lse_token_stride = layout_.lse_token_stride;
  args.lse_head_stride = layout_.lse_head_stride;
  if (c_.cp_size > 1) {
    args.cp_rank = c_.cp_rank;
    args.cp_size = c_.cp_size;
    args.cp_interleave = c_.cp_interleave;
  }
  args.pages = layout_.pages;
  args.batch = batch;
  args.q_len = c_.query_len;
  args.heads = layout_.heads;
  args.page_size = c_.page_tokens;
  args.max_pages_per_seq = layout_.max_pages_per_seq;
  args.softmax_scale = c_.softmax_factor;
  if (c_.scales_on_device) {
    args.q_scale_ptr = scales_.address();
    args.kv_scale_ptr = scales_.address() + sizeof(float);
    args.q_scale = args.kv_scale = 1e6f;  // a pointer wins over these
  } else {
    args.q_scale = c_.q_factor;
    args.kv_scale = c_.kv_factor;
  }
  args.max_splits = c_.splits_cap;
  args.max_sms = max_sms;
  MLA_API_CALL(api_, mla_launch, kernel_.kernel, &args, stream_);
}

void DecodeRunner::capture(int launches) {
  MLA_CU(driver_, cuStreamBeginCapture, stream_, kCaptureModeGlobal);
  for (int i = 0; i < launches; ++i) launch();
  MLA_CU(driver_, cuStreamEndCapture, stream_, &graph_);
  MLA_CU(driver_, cuGraphInstantiate, &graph_exec_, graph_, 0);
}

void DecodeRunner::replay() { MLA_CU(driver_, cuGraphLaunch, graph_exec_, stream_); }

void DecodeRunner::synchronize() { MLA_CU(driver_, cuStreamSynchronize, stream_); }

Outputs DecodeRunner::fetch() const {
  Outputs outputs;
  std::vector<uint16_t> out(out_.bytes() / 2);
  out_.read(out.data(), out_.bytes());
  outputs.lse.resize(lse_.bytes() / sizeof(float));
  if (lse_.bytes()) lse_.read(outputs.lse.data(), lse_.bytes());
  if (c_.strided_rows) {
    const std::vector<float> lse = outputs.lse;
    outputs.out.resize(layout_.rows() * reference::kDepthV);
    for (int64_t row = 0; row < layout_.rows(); ++row) {
      const int64_t token = row / layout_.heads, head = row % layout_.heads;
      std::memcpy(outputs.out.data() + row * reference::kDepthV,
                  out.data() + (token * layout_.out_token_stride + head * layout_.out_head_stride) / 2,
                  reference::kDepthV * 2);
      if (!lse.empty()) {
        outputs.lse[row] = lse[token * layout_.lse_token_stride + head * layout_.lse_head_stride];
      }
    }
  } else {
    outputs.out = std::move(out);
  }
  if (bad_pages_.bytes()) bad_pages_.read(&outputs.bad_pages, sizeof(uint32_t));
  return outputs;
}

std::vector<std::string> DecodeRunner::check_memory() const {
  std::vector<std::string> faults;
  const auto add = [&](std::string fault) {
    if (!fault.empty()) faults.push_back(std::move(fault));
  };
  add(out_.check_guards("out"));
  if (lse_.bytes()) add(lse_.check_guards("lse"));
  add(workspace_.check_guards("workspace"));

  // The header and, behind it, counters that are zero between launches; or what was there before, of
  // a workspace that was never initialised.
  if (!c_.initialise_workspace) {
    std::vector<uint8_t> bytes(workspace_.bytes());
    workspace_.read(bytes.data(), bytes.size());
    if (std::any_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte != 2; })) {
      add("workspace: it was never initialised, and the launch wrote to it");
    }
    return faults;
  }
  std::vector<uint8_t> counters(std::min(workspace_.bytes(), kernel_.workspace_zeroed_bytes));
  if (counters.empty()) return faults;
  workspace_.read(counters.data(), counters.size());
  uint64_t magic = 0;
  std::memcpy(&magic, counters.data(), sizeof(magic));
  if (magic != kWorkspaceMagic) add("workspace: the header's magic word is gone after the launch");
  const auto nonzero =
      std::find_if(counters.begin() + sizeof(magic), counters.end(), [](uint8_t byte) { return byte != 0; });
  if (nonzero != counters.end()) {
    add("workspace: the counters are not zero after the launch (byte " +
        std::to_string(nonzero - counters.begin()) + ")");
  }
  return faults;
}

}  // namespace mla::test
