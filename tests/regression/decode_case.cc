// SPDX-License-Identifier: Apache-2.0
#include "tests/regression/decode_case.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "tests/reference/number_formats.h"

namespace mla::test {

using reference::Format;
using reference::kDepthK;
using reference::kDepthV;

namespace {

int element_size(Format format) { return format == Format::kE4M3 ? 1 : 2; }

// splitmix64: a 64-bit generator whose state can start anywhere.
struct Random {
  uint64_t state;
  uint64_t operator()() {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t limit) { return static_cast<int64_t>((*this)() % static_cast<uint64_t>(limit)); }
};

// Inverse of the normal distribution function (bisection on erfc; only 32,768 calls a table).
double normal_quantile(double probability) {
  double low = -10.0, high = 10.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < probability ? low : high) = middle;
  }
  return (low + high) / 2;
}

// The codes of 65,536 equally likely values.
const std::vector<uint16_t>& quantiles(Format format, double sigma) {
  static std::mutex mutex;
  static std::map<std::pair<int, double>, std::vector<uint16_t>> tables;
  const std::lock_guard<std::mutex> lock(mutex);
  std::vector<uint16_t>& table = tables[{static_cast<int>(format), sigma}];
  if (table.empty()) {
    table.resize(65536);
    for (int i = 0; i < 32768; ++i) {
      const double x = sigma * normal_quantile((i + 0.5) / 65536.0);
      for (const bool mirrored : {false, true}) {
        const double value = mirrored ? -x : x;
        table[mirrored ? 65535 - i : i] = format == Format::kE4M3
                                              ? reference::to_e4m3(value)
                                              : reference::float_to_bf16(static_cast<float>(value));
      }
    }
  }
  return table;
}

template <typename Function>
void for_chunks(int64_t count, int64_t chunk, const Function& function) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t begin = next.fetch_add(chunk); begin < count; begin = next.fetch_add(chunk)) {
      function(begin, std::min(count, begin + chunk));
    }
  };
  const int threads =
      count <= chunk ? 1 : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> pool;
  for (int i = 1; i < threads; ++i) pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t full_and_partial_pages(const DecodeCase& c, const std::vector<int32_t>& lens, int64_t* full) {
  int64_t partial = 0;
  *full = 0;
  for (const int32_t seq_len : lens) {
    const int32_t len = c.local_len(seq_len);
    *full += len / c.page_tokens;
    partial += len % c.page_tokens != 0;
  }
  return partial;
}

}  // namespace

uint8_t nan_byte(Format format) { return format == Format::kE4M3 ? reference::kE4M3NaN : 0xff; }

void fill_normal(uint8_t* target, int64_t count, Format format, double sigma, uint64_t seed) {
  const std::vector<uint16_t>& table = quantiles(format, sigma);
  for_chunks(count, 1 << 20, [&](int64_t begin, int64_t end) {
    Random random{seed + 0x632be59bd9b4e019u * static_cast<uint64_t>(begin + 1)};
    uint64_t bits = 0;
    for (int64_t i = begin; i < end; ++i) {
      if ((i - begin) % 4 == 0) bits = random();
      const uint16_t code = table[bits & 0xffff];
      bits >>= 16;
      if (format == Format::kE4M3) {
        target[i] = static_cast<uint8_t>(code);
      } else {
        std::memcpy(target + 2 * i, &code, 2);
      }
    }
  });
}

DecodeCase& DecodeCase::ragged(int batch, int32_t least, int32_t most) {
  Random random{static_cast<uint64_t>(batch) * 1000003 + static_cast<uint64_t>(most)};
  std::vector<int32_t> lens(batch);
  for (int32_t& len : lens) len = static_cast<int32_t>(least + random.below(int64_t{most} - least + 1));
  return seq_lens(std::move(lens));
}

namespace {

// softmax weight w of a token whose rivals' scores are N(0, 1): their exponentials have mean sqrt(e).
double score_of_weight(double weight, int32_t rivals) {
  return std::log(weight / (1 - weight) * rivals) + 0.5;
}

}  // namespace

DecodeCase& DecodeCase::sink(double weight, int position) {
  spikes.push_back({0, position, score_of_weight(weight, steps[0][0] - 1), true});
  return *this;
}

DecodeCase& DecodeCase::needle(double weight, int position) {
  spikes.push_back({0, position, score_of_weight(weight, steps[0][0] - 1), false});
  return *this;
}

int32_t DecodeCase::local_len(int32_t seq_len) const {
  if (seq_len <= 0 || cp_size <= 1) return std::max(seq_len, 0);
  int32_t held = 0;
  for (int32_t i = 0; i < seq_len; ++i) held += i / cp_interleave % cp_size == cp_rank;
  return held;
}

int32_t DecodeCase::longest() const {
  int32_t longest = 0;
  for (const auto& lens : steps) {
    for (const int32_t len : lens) longest = std::max(longest, local_len(len));
  }
  return longest;
}

Layout make_layout(const DecodeCase& c, int rows, Format q_format, Format kv_format) {
  Layout layout;
  layout.batch = c.batch();
  layout.heads = c.query_heads ? c.query_heads : std::min(rows, 128);
  layout.element_bytes = element_size(kv_format);
  layout.q_element_bytes = element_size(q_format);
  layout.max_pages_per_seq =
      static_cast<int>(std::max<int64_t>(1, ceil_div(c.longest(), c.page_tokens) + c.spare_columns));
  // A table that is too short stands in a row that has room for the pages all the same, so that the
  // data are those of the whole sequence.
  layout.page_table_stride =
      std::max<int64_t>(layout.max_pages_per_seq, ceil_div(c.longest(), c.page_tokens)) + c.table_padding;
  for (int request = 0; request < layout.batch; ++request) layout.query_tokens += c.query_count(request);
  const int64_t q_row = kDepthK * layout.q_element_bytes, out_row = kDepthV * 2;
  layout.q_bytes = layout.rows() * q_row;
  layout.out_bytes = layout.rows() * out_row;
  if (c.strided_rows) {
    layout.q_head_stride = q_row + 32;
    layout.q_token_stride = layout.heads * layout.q_head_stride + 48;
    layout.q_bytes = layout.query_tokens * layout.q_token_stride;
    if (c.query_counts.empty()) {
      // Heads of out and lse lie further apart than query tokens.
      layout.out_token_stride = out_row + 16;
      layout.out_head_stride = layout.query_tokens * layout.out_token_stride + 64;
      layout.out_bytes = layout.heads * layout.out_head_stride;
      layout.lse_token_stride = 1;
      layout.lse_head_stride = layout.query_tokens;
    } else {
      layout.out_head_stride = out_row + 16;
      layout.out_token_stride = layout.heads * layout.out_head_stride + 64;
      layout.out_bytes = layout.query_tokens * layout.out_token_stride;
      layout.lse_head_stride = 1;
      layout.lse_token_stride = layout.heads;
    }
  }

  int64_t most = 0;
  for (const auto& lens : c.steps) {
    int64_t full;
    const int64_t partial = full_and_partial_pages(c, lens, &full);
    most = std::max(most, partial + (c.distinct_full_pages ? std::min(full, c.distinct_full_pages) : full));
  }
  // A third of the pool stays unused, so that a stray read shows.
  layout.pages = most + most / 2 + 3;
  layout.kv_token_stride = kDepthK * layout.element_bytes + c.token_padding;
  layout.v_token_stride = c.own_values ? kDepthV * layout.element_bytes + c.token_padding : 0;
  const int64_t page_bytes = layout.kv_token_stride * c.page_tokens + c.page_padding;
  layout.pages = std::max(layout.pages, ceil_div(c.least_pool_bytes, page_bytes));
  const auto place = [&](int depth, int64_t& token_stride, int64_t& page_stride, int64_t& bytes) {
    if (token_stride == 0) return;
    if (c.token_major_layout) {
      page_stride = token_stride;
      token_stride *= layout.pages;
    } else {
      page_stride = token_stride * c.page_tokens + c.page_padding;
    }
    // The pool ends with the last value of the last token.
    bytes =
        (layout.pages - 1) * page_stride + (c.page_tokens - 1) * token_stride + depth * layout.element_bytes;
  };
  place(kDepthK, layout.kv_token_stride, layout.kv_page_stride, layout.kv_bytes);
  place(kDepthV, layout.v_token_stride, layout.v_page_stride, layout.v_bytes);
  return layout;
}

namespace {

void put(std::vector<uint8_t>& target, int64_t index, Format format, double value) {
  if (format == Format::kE4M3) {
    target[index] = reference::to_e4m3(value);
  } else {
    const uint16_t code = reference::float_to_bf16(static_cast<float>(value));
    std::memcpy(target.data() + 2 * index, &code, 2);
  }
}

// First element of a cached token in a pool of `depth` elements a token.
int64_t element_of(const DecodeData& data, int request, int position, int depth) {
  const int page_tokens = data.c->page_tokens;
  const int64_t page = data.host_table[request * data.layout.page_table_stride + position / page_tokens];
  return (page * page_tokens + position % page_tokens) * depth;
}

// The last element of q is 8 for every row of the batch, that of every key 0 but for the spike's.
void place_spike(DecodeData& data, const Spike& spike) {
  constexpr double kQuery = 8.0;
  constexpr int kElement = kDepthK - 1;
  const DecodeCase& c = *data.c;
  for (int64_t row = 0; row < data.layout.rows(); ++row) {
    put(data.q, row * kDepthK + kElement, data.q_format, kQuery);
  }
  for (int token = 0; token < c.local_len(data.seq_lens[spike.request]); ++token) {
    put(data.keys, element_of(data, spike.request, token, kDepthK) + kElement, data.kv_format, 0.0);
  }
  const int64_t key = element_of(data, spike.request, spike.position, kDepthK);
  for (int d = 0; d < kDepthK && spike.zero_value; ++d) put(data.keys, key + d, data.kv_format, 0.0);
  put(data.keys, key + kElement, data.kv_format,
      spike.score / (double{c.softmax_factor} * c.q_factor * c.kv_factor * kQuery));
}

void place_rivals(DecodeData& data) {
  for (int64_t row = 0; row < data.layout.rows(); ++row) {
    for (int d = 0; d < kDepthK; ++d) put(data.q, row * kDepthK + d, data.q_format, d == kDepthV ? 1.0 : 0.0);
  }
  for (int token = 0; token < data.c->local_len(data.seq_lens[0]); ++token) {
    const int64_t key = element_of(data, 0, token, kDepthK);
    for (int d = 0; d < kDepthK; ++d) {
      const double value = token == 0 ? 0.0 : d < kDepthV ? 1.0 : d == kDepthV ? -13.0 : 0.0;
      put(data.keys, key + d, data.kv_format, value);
    }
  }
}

void place_poison(DecodeData& data, const Poison& poison) {
  const bool query = poison.where == Poison::kQuery;
  const Format format = query ? data.q_format : data.kv_format;
  const int64_t size = element_size(format);
  const int depth = query ? data.layout.heads * kDepthK : poison.where == Poison::kKey ? kDepthK : kDepthV;
  std::vector<uint8_t>& target = query ? data.q : poison.where == Poison::kKey ? data.keys : data.values;
  const int64_t first = query ? (poison.request * data.c->query_len + poison.position) * int64_t{depth}
                              : element_of(data, poison.request, poison.position, depth);
  const int64_t begin = poison.element < 0 ? first : first + poison.element;
  std::memset(target.data() + begin * size, nan_byte(format), (poison.element < 0 ? depth : 1) * size);
}

}  // namespace

DecodeData make_data(const DecodeCase& c, const Layout& layout, Format q_format, Format kv_format,
                     size_t step, uint64_t seed) {
  DecodeData data;
  data.c = &c;
  data.layout = layout;
  data.q_format = q_format;
  data.kv_format = kv_format;
  data.seq_lens = c.steps[step];
  Random random{seed * 7919 + step};

  if (!c.query_counts.empty()) {
    data.q_offsets = {0};
    for (const int32_t count : c.query_counts) data.q_offsets.push_back(data.q_offsets.back() + count);
  }
  data.q.resize(layout.rows() * kDepthK * layout.q_element_bytes);
  fill_normal(data.q.data(), layout.rows() * kDepthK, q_format, c.sigma, random());

  // Page tables. Unused slots alternate between the two ends of the range of int32.
  data.device_table.resize(layout.batch * layout.page_table_stride);
  for (size_t i = 0; i < data.device_table.size(); ++i) {
    data.device_table[i] = i % 2 ? -2147483647 : 0x7fffffff;
  }
  data.host_table = data.device_table;

  int64_t full;
  const int64_t partial = full_and_partial_pages(c, data.seq_lens, &full);
  const int64_t shared = c.distinct_full_pages ? std::min(full, c.distinct_full_pages) : 0;
  const int64_t host_pages = partial + (shared ? shared : full);
  // Host pages get random places in the pool; the first and the last page of the pool are used.
  std::vector<int32_t> ids(layout.pages);
  for (int64_t i = 0; i < layout.pages; ++i) ids[i] = static_cast<int32_t>(i);
  for (int64_t i = 0; i < std::min(host_pages, layout.pages - 1); ++i) {
    std::swap(ids[i], ids[i + random.below(layout.pages - i)]);
  }
  data.page_ids.assign(ids.begin(), ids.begin() + host_pages);
  for (const auto& [index, id] :
       {std::pair<int64_t, int32_t>{0, 0}, {1, static_cast<int32_t>(layout.pages - 1)}}) {
    if (index >= host_pages) continue;
    const auto holder = std::find(data.page_ids.begin(), data.page_ids.end(), id);
    if (holder != data.page_ids.end()) {
      std::swap(*holder, data.page_ids[index]);
    } else {
      data.page_ids[index] = id;
    }
  }

  int64_t next_page = shared;
  std::vector<std::pair<int64_t, int>> tails;  // host page, tokens in use
  for (int request = 0; request < layout.batch; ++request) {
    const int32_t len = c.local_len(data.seq_lens[request]);
    const int64_t count = ceil_div(len, c.page_tokens);
    for (int64_t i = 0; i < count; ++i) {
      const bool is_full = (i + 1) * c.page_tokens <= len;
      const int64_t page = is_full && shared ? random.below(shared) : next_page++;
      if (!is_full) tails.push_back({page, static_cast<int>(len % c.page_tokens)});
      data.host_table[request * layout.page_table_stride + i] = static_cast<int32_t>(page);
      data.device_table[request * layout.page_table_stride + i] = data.page_ids[page];
    }
  }
  for (const BadPage& bad : c.bad) {
    const int64_t slot = bad.request * layout.page_table_stride + bad.page;
    data.device_table[slot] = bad.id == kOnePastPool ? static_cast<int32_t>(layout.pages) : bad.id;
    data.host_table[slot] = -1;
  }

  const auto fill_pool = [&](std::vector<uint8_t>& pool, int depth) {
    const int64_t page_bytes = int64_t{c.page_tokens} * depth * layout.element_bytes;
    pool.resize(host_pages * page_bytes);
    fill_normal(pool.data(), host_pages * c.page_tokens * depth, kv_format, c.sigma, random());
    for (const auto& [page, used] : tails) {
      uint8_t* begin = pool.data() + page * page_bytes + int64_t{used} * depth * layout.element_bytes;
      std::memset(begin, nan_byte(kv_format), pool.data() + (page + 1) * page_bytes - begin);
    }
  };
  fill_pool(data.keys, kDepthK);
  if (c.own_values) fill_pool(data.values, kDepthV);
  if (c.rival_distance > 0) place_rivals(data);
  for (const Spike& spike : c.spikes) place_spike(data, spike);
  for (const Poison& poison : c.poisons) place_poison(data, poison);
  return data;
}

reference::DecodeProblem DecodeData::problem() const {
  reference::DecodeProblem p;
  p.batch = layout.batch;
  p.q_len = c->query_len;
  p.heads = layout.heads;
  p.page_size = c->page_tokens;
  p.pages = static_cast<int64_t>(page_ids.size());
  p.max_pages_per_seq = layout.max_pages_per_seq;
  p.page_table_stride = layout.page_table_stride;
  p.q_format = q_format;
  p.kv_format = kv_format;
  p.q = q.data();
  p.kv = keys.data();
  p.v = values.empty() ? nullptr : values.data();
  p.page_table = host_table.data();
  p.seq_lens = seq_lens.data();
  p.q_offsets = q_offsets.empty() ? nullptr : q_offsets.data();
  p.causal = c->is_causal;
  p.cp_rank = c->cp_rank;
  p.cp_size = c->cp_size;
  p.cp_interleave = c->cp_interleave;
  p.softmax_scale = c->softmax_factor;
  p.q_scale = c->q_factor;
  p.kv_scale = c->kv_factor;
  if (c->poison_scales) p.q_scale = p.kv_scale = std::nan("");
  return p;
}

}  // namespace mla::test
