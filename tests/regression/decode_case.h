// SPDX-License-Identifier: Apache-2.0
//
// A decode problem as a test or benchmark describes it, and its random data. Builder style: a case
// is one line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/reference/decode_reference.h"

namespace mla::test {

// As BadPage::id: the first id that is outside the pool.
inline constexpr int32_t kOnePastPool = 0x40000000;

// A NaN that some query tokens see.
struct Poison {
  enum Where { kQuery, kKey, kValue } where;
  int request;
  int position;  // query token, or token of the cache
  int element;   // of q (counted over its heads) or of the row of the cache; -1: all
};

// A token whose score is about `score` (natural units) for every head, whatever the others have.
struct Spike {
  int request;
  int position;
  double score;
  bool zero_value;  // its value is 0, as that of an attention sink; else N(0, sigma)
};

// A page id written into the page table instead of a good one.
struct BadPage {
  int request;
  int page;  // index within the request
  int32_t id;
};

struct DecodeCase {
  // What runs.
  std::vector<std::vector<int32_t>> steps = {{}};  // seq_lens of each launch, in order
  int page_tokens = 64;
  int query_len = 1;
  int query_heads = 0;  // 0: as many as the kernel has rows
  double sigma = 1.0;   // of the normal distribution of q and kv
  float softmax_factor = 1.0f / 24.0f;
  float q_factor = 1.0f;
  float kv_factor = 1.0f;
  bool scales_on_device = false;  // host scales are then given as NaN
  bool want_lse = true;
  bool want_bad_page_counter = true;
  int splits_cap = 0;
  int sms_cap = 0;
  bool use_pdl = false;
  bool is_causal = true;
  std::vector<int32_t> query_counts;  // query tokens of each request, at most query_len; empty: query_len
  int cp_rank = 0, cp_size = 1, cp_interleave = 1;
  std::vector<Poison> poisons;
  std::vector<Spike> spikes;
  float rival_distance = 0;    // > 0: see equal_rivals
  bool poison_scales = false;  // scales on the device: NaN
  bool initialise_workspace = true;
  bool compare_alone = false;  // request 0 must be bitwise the same in a batch of its own, with fewer SMs
  // Memory layout.
  bool own_values = false;
  int64_t token_padding = 0;        // bytes after every token
  int64_t page_padding = 0;         // bytes after every page
  int table_padding = 0;            // elements after every row of the page table
  int spare_columns = 2;            // columns of the page table beyond the longest request; < 0: short of it
  bool strided_rows = false;        // gaps between query tokens and heads of q and out; lse head-major
  bool token_major_layout = false;  // [page_size, pages, 576] instead of [pages, page_size, 576]
  int64_t least_pool_bytes = 0;     // the pool is made at least this large with unused pages
  int64_t distinct_full_pages = 0;  // requests share this many full pages; 0: every page is private
  std::vector<BadPage> bad;
  // How it runs.
  bool use_graph = false;  // captured once, replayed for every step
  int repeat_count = 1;    // launches of every step; all must agree bit for bit
  // The weights are nearly equal, or the values do not depend on the keys: the output is then a mean
  // of noise and shrinks with it, and the rounding of P to e4m3 shows in full. Looser exact bounds.
  bool flat = false;
  double exact_bound = 0;  // relative L2 error against exact attention; 0: by length and `flat`
  int stream_count = 1;    // the same problem with different data on streams of their own, at once

  DecodeCase& seq_lens(std::vector<int32_t> lens) { return steps = {std::move(lens)}, *this; }
  DecodeCase& equal(int batch, int32_t len) { return seq_lens(std::vector<int32_t>(batch, len)); }
  DecodeCase& ragged(int batch, int32_t least, int32_t most);  // uniform, the same in every run
  DecodeCase& then(std::vector<int32_t> lens) { return steps.push_back(std::move(lens)), *this; }
  DecodeCase& page_size(int tokens) { return page_tokens = tokens, *this; }
  DecodeCase& q_len(int tokens) { return query_len = tokens, *this; }
  DecodeCase& heads(int count) { return query_heads = count, *this; }
  DecodeCase& small_values() { return sigma = 0.1, flat = true, *this; }
  DecodeCase& softmax_scale(float scale) { return softmax_factor = scale, *this; }
  DecodeCase& scales(float q, float kv) { return q_factor = q, kv_factor = kv, *this; }
  DecodeCase& scale_pointers() { return scales_on_device = true, *this; }
  DecodeCase& no_lse() { return want_lse = false, *this; }
  DecodeCase& no_bad_page_counter() { return want_bad_page_counter = false, *this; }
  DecodeCase& non_causal() { return is_causal = false, *this; }
  DecodeCase& q_counts(std::vector<int32_t> counts) { return query_counts = std::move(counts), *this; }
  DecodeCase& context_parallel(int rank, int size, int interleave) {
    return cp_rank = rank, cp_size = size, cp_interleave = interleave, *this;
  }
  DecodeCase& poison(std::vector<Poison> list) { return poisons = std::move(list), *this; }
  DecodeCase& nan_scales() { return scales_on_device = poison_scales = true, *this; }
  DecodeCase& uninitialised_workspace() { return initialise_workspace = false, *this; }
  DecodeCase& alone_too() { return compare_alone = true, *this; }
  DecodeCase& short_table(int columns) { return spare_columns = -columns, *this; }
  DecodeCase& strided() { return strided_rows = true, *this; }
  // One token that takes `weight` of the softmax (N(0, 1) scores) and has the value 0, in request 0.
  DecodeCase& sink(double weight, int position);
  // The same with a value like the others.
  DecodeCase& needle(double weight, int position);
  // Token 0 of request 0 has score 0 and value 0, all others score -distance and value 1.
  DecodeCase& equal_rivals(float distance) {
    return rival_distance = distance, softmax_factor = distance / 13.0f, *this;
  }
  DecodeCase& within(double bound) { return exact_bound = bound, *this; }
  DecodeCase& max_splits(int count) { return splits_cap = count, *this; }
  DecodeCase& max_sms(int count) { return sms_cap = count, *this; }
  DecodeCase& pdl() { return use_pdl = true, *this; }
  DecodeCase& separate_values() { return own_values = true, flat = true, *this; }
  DecodeCase& flat_scores() { return flat = true, *this; }
  DecodeCase& pad_tokens(int64_t bytes) { return token_padding = bytes, *this; }
  DecodeCase& pad_pages(int64_t bytes) { return page_padding = bytes, *this; }
  DecodeCase& pad_table(int elements) { return table_padding = elements, *this; }
  DecodeCase& tight_table() { return spare_columns = 0, *this; }
  DecodeCase& token_major() { return token_major_layout = true, *this; }
  DecodeCase& pool_bytes(int64_t bytes) { return least_pool_bytes = bytes, *this; }
  DecodeCase& distinct_pages(int64_t count) { return distinct_full_pages = count, *this; }
  DecodeCase& bad_pages(std::vector<BadPage> pages) { return bad = std::move(pages), *this; }
  DecodeCase& graph() { return use_graph = true, *this; }
  DecodeCase& repeats(int count) { return repeat_count = count, *this; }
  DecodeCase& streams(int count) { return stream_count = count, *this; }

  int batch() const { return static_cast<int>(steps[0].size()); }
  int query_count(int request) const { return query_counts.empty() ? query_len : query_counts[request]; }
  // Tokens that the pool of this rank holds for a request of so many; negative lengths are 0.
  int32_t local_len(int32_t seq_len) const;
  int32_t longest() const;  // over all steps, of local_len
};

// What does not change between the steps of a case: sizes and strides.
struct Layout {
  int batch = 0;
  int heads = 0;
  int max_pages_per_seq = 0;
  int64_t page_table_stride = 0;  // elements
  int64_t pages = 0;
  int64_t element_bytes = 1;  // of the cache
  int64_t q_element_bytes = 1;
  int64_t kv_token_stride = 0, kv_page_stride = 0, kv_bytes = 0;  // bytes
  int64_t v_token_stride = 0, v_page_stride = 0, v_bytes = 0;     // zero without a value pool

  int64_t query_tokens = 0;  // of the whole batch
  // Of q and out in bytes, of lse in elements. Zero: dense.
  int64_t q_token_stride = 0, q_head_stride = 0, q_bytes = 0;
  int64_t out_token_stride = 0, out_head_stride = 0, out_bytes = 0;
  int64_t lse_token_stride = 0, lse_head_stride = 0;

  int64_t rows() const { return query_tokens * heads; }
};

Layout make_layout(const DecodeCase& c, int rows, reference::Format q_format, reference::Format kv_format);

// Random contents of one step. The cache is kept compactly on the host: only pages that the page
// table names, in host_table's numbering; device_table has the ids of the device's pool.
// Everything that a kernel must not look at is NaN (tails of last pages), or an absurd page id
// (unused slots of the page table).
struct DecodeData {
  const DecodeCase* c = nullptr;
  Layout layout;
  reference::Format q_format{}, kv_format{};
  std::vector<int32_t> seq_lens;
  std::vector<int32_t> q_offsets;     // empty: query_len of every request
  std::vector<uint8_t> q;             // dense, whatever the layout
  std::vector<uint8_t> keys;          // [host pages, page_size, 576]
  std::vector<uint8_t> values;        // [host pages, page_size, 512], empty without a value pool
  std::vector<int32_t> page_ids;      // device id of every host page
  std::vector<int32_t> device_table;  // [batch, page_table_stride]
  std::vector<int32_t> host_table;    // [batch, page_table_stride]

  // The problem for the reference; refers to this object.
  reference::DecodeProblem problem() const;
};

DecodeData make_data(const DecodeCase& c, const Layout& layout, reference::Format q_format,
                     reference::Format kv_format, size_t step, uint64_t seed);

// Byte that fills what must not be read: NaN in the format, whatever the alignment.
uint8_t nan_byte(reference::Format format);

// Fills `count` elements with values of the format, normally distributed with deviation sigma
// (65,536 quantiles, so at most 4.2 sigma).
void fill_normal(uint8_t* target, int64_t count, reference::Format format, double sigma, uint64_t seed);

}  // namespace mla::test
