// SPDX-License-Identifier: Apache-2.0
//
// MLA decode attention over a paged cache in float64, on the host.
//
//   score(t, i) = softmax_scale * q_scale * kv_scale * <q_t, k_i>
//   out(t)      = kv_scale * sum_i softmax(score(t, .))_i * v_i
//   lse(t)      = log sum_i exp(score(t, i))
//
// Query token t of a request's `count` sees positions i < seq_len - (count - 1) + t, or all of them
// when not causal; of those, the ones that this rank's pool holds. Tokens whose page id is outside
// [0, pages) or that lie beyond the page table are masked. A query token that sees nothing gives
// out = 0 and lse = -inf; NaN in what it sees gives NaN. Nothing outside the visible tokens is read.
//
// Two results from one pass: the exact one, and one that models how the kernels quantise P to e4m3.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace mla::reference {

inline constexpr int kDepthK = 576;       // values of a key
inline constexpr int kDepthV = 512;       // values of a value row
inline constexpr int kTileOfTokens = 64;  // tokens of a tile in the model of the quantisation

enum class Format { kE4M3, kBF16 };

// One decode step. Pointers are host memory; layouts as in loader/include/mla_loader.h.
struct DecodeProblem {
  int batch = 0;
  int q_len = 1;
  int heads = 0;
  int page_size = 64;             // tokens
  int64_t pages = 0;              // pages in the pool
  int max_pages_per_seq = 0;      // columns of page_table
  int64_t page_table_stride = 0;  // elements between rows; 0: max_pages_per_seq
  Format q_format = Format::kE4M3;
  Format kv_format = Format::kE4M3;
  const void* q = nullptr;              // [batch, q_len, heads, 576] or, ragged, [tokens, heads, 576]; dense
  const void* kv = nullptr;             // [pages, page_size, 576]
  int64_t kv_page_stride = 0;           // bytes; 0: dense
  int64_t kv_token_stride = 0;          // bytes; 0: dense
  const void* v = nullptr;              // [pages, page_size, 512]; null: the first 512 values of kv
  int64_t v_page_stride = 0;            // bytes; 0: dense
  int64_t v_token_stride = 0;           // bytes; 0: dense
  const int32_t* page_table = nullptr;  // [batch, max_pages_per_seq]
  const int32_t* seq_lens = nullptr;    // [batch]; over all ranks; negative: 0
  const int32_t* q_offsets = nullptr;   // [batch + 1], cumulative query counts; null: q_len each
  bool causal = true;
  int cp_rank = 0;  // this pool holds the blocks of cp_interleave tokens with number cp_rank modulo
  int cp_size = 1;  // cp_size, one after another
  int cp_interleave = 1;
  double softmax_scale = 1.0;
  double q_scale = 1.0;
  double kv_scale = 1.0;
};

struct QueryToken {
  int request = 0;
  int token = 0;  // 0 ... count - 1
};

// Tile offsets at which the work on a row is split: 0 = first < ... < last >= the tiles that it sees.
// Empty where there are no tiles.
using SplitOffsets = std::vector<int>;

// Whose rules the model of the quantisation follows: kernels/common/mla_softmax.h,
// tests/reference/hopper_model.h.
enum class Quantisation { kCluster, kHopper };

struct ReferenceOptions {
  std::vector<QueryToken> query_tokens;  // which to compute; empty: all
  std::vector<int> heads;                // which to compute; empty: all
  // The splits of a head of a query token. Null: no model of the quantisation is computed.
  std::function<SplitOffsets(QueryToken, int head)> split_offsets;
  Quantisation quantisation = Quantisation::kCluster;
  bool narrow_scores = false;  // in the model; see TileMath
  bool exact = true;           // compute the exact result
  int threads = 0;             // 0: one per core
};

// Rows are ordered by query token, then head, both in the order of the options.
struct ReferenceResult {
  std::vector<QueryToken> query_tokens;
  std::vector<int> heads;
  std::vector<double> out;        // [query tokens, heads, 512]
  std::vector<double> lse;        // [query tokens, heads]
  std::vector<double> model_out;  // [query tokens, heads, 512], empty without the model
  std::vector<double> model_lse;  // [query tokens, heads], of narrow scores; else empty
};

// Query tokens of a request.
int query_count(const DecodeProblem& problem, int request);

// Row of a query token in q, out and lse, in units of heads.
int64_t query_index(const DecodeProblem& problem, QueryToken query_token);

// Tokens of the pool that a query token sees, masked ones included.
int64_t visible_tokens(const DecodeProblem& problem, QueryToken query_token);

// Whether a visible token has a page id outside the pool or lies beyond the page table.
bool has_bad_tokens(const DecodeProblem& problem);

// The model of the quantisation, for e4m3 caches. Within a split, tiles of 64 positions in order, each
// with the reference m that the rules of options.quantisation give (units of log2):
//   p = e4m3(448 * exp2(score * log2(e) - m)), rounded to nearest even
// or in two parts, as they say. Accumulators and row sum are brought from one reference to the
// next by exp2 of their difference, the row sum is taken from the quantised p, and splits are merged
// with weights exp2(m_split - max of them). lse comes from the row sum before quantisation, so that it
// has a model only with narrow scores. Computed only when options.split_offsets is given and the cache is
// e4m3. Throws std::invalid_argument when split_offsets do not cover the tiles of a query token. Thread-safe;
// uses options.threads threads of its own.
ReferenceResult decode_reference(const DecodeProblem& problem, const ReferenceOptions& options);

}  // namespace mla::reference
