// SPDX-License-Identifier: Apache-2.0
#include "tests/reference/decode_reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numbers>
#include <stdexcept>
#include <string>
#include <thread>

#include "kernels/common/mla_softmax.h"
#include "kernels/hopper/quantisation.h"
#include "tests/reference/hopper_model.h"
#include "tests/reference/number_formats.h"
#include "tests/reference/tile_math.h"

namespace mla::reference {

static_assert(kDepthK <= kMaxDepth);
static_assert(kTile == kTileOfTokens && kTile == hopper::kTileTokens);

namespace {

constexpr double kNegInf = -std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kHeadsPerTask = 32;

int64_t value_or(int64_t value, int64_t fallback) { return value != 0 ? value : fallback; }

// Reads one row of a cache or of q into doubles, `step` apart.
void decode_row(const uint8_t* row, Format format, int count, double* out, int step) {
  if (format == Format::kE4M3) {
    const double* table = e4m3_table();
    for (int d = 0; d < count; ++d) out[static_cast<size_t>(d) * step] = table[row[d]];
  } else {
    for (int d = 0; d < count; ++d) {
      uint16_t code;
      std::memcpy(&code, row + 2 * d, 2);
      out[static_cast<size_t>(d) * step] = bf16_to_float(code);
    }
  }
}

// Resolves cache positions to the bytes of keys and values.
class Cache {
 public:
  explicit Cache(const DecodeProblem& p)
      : p_(p),
        bytes_(p.kv_format == Format::kE4M3 ? 1 : 2),
        k_token_(value_or(p.kv_token_stride, kDepthK * bytes_)),
        k_page_(value_or(p.kv_page_stride, k_token_ * p.page_size)),
        v_token_(p.v ? value_or(p.v_token_stride, kDepthV * bytes_) : k_token_),
        v_page_(p.v ? value_or(p.v_page_stride, v_token_ * p.page_size) : k_page_),
        table_stride_(value_or(p.page_table_stride, p.max_pages_per_seq)) {}

  // Page id of a position, or -1 when it is outside the pool or the position beyond the table.
  int64_t page(int request, int64_t position) const {
    if (position >= int64_t{p_.max_pages_per_seq} * p_.page_size) return -1;
    const int64_t id = p_.page_table[request * table_stride_ + position / p_.page_size];
    return id >= 0 && id < p_.pages ? id : -1;
  }
  const uint8_t* key(int64_t page, int64_t position) const {
    return static_cast<const uint8_t*>(p_.kv) + page * k_page_ + position % p_.page_size * k_token_;
  }
  const uint8_t* value(int64_t page, int64_t position) const {
    const void* base = p_.v ? p_.v : p_.kv;
    return static_cast<const uint8_t*>(base) + page * v_page_ + position % p_.page_size * v_token_;
  }

 private:
  const DecodeProblem& p_;
  int64_t bytes_, k_token_, k_page_, v_token_, v_page_, table_stride_;
};

// Unnormalised attention of some rows over a range of tiles.
struct Partial {
  std::vector<double> acc;                      // [rows, 512]
  std::vector<RowReference<double>> reference;  // log2; of the exact result its maximum, twice
  std::vector<double> sum;
  std::vector<double> lse;  // log2; of the model with narrow scores

  explicit Partial(int rows)
      : acc(static_cast<size_t>(rows) * kDepthV, 0.0),
        reference(rows, {kNegInf, kNegInf}),
        sum(rows, 0.0),
        lse(rows, kNegInf) {}
};

struct Task {
  size_t query_token;  // index into the result
  int first_head;      // index into the result's heads
  int heads;
  int first_tile;
  int last_tile;
  std::unique_ptr<Partial> exact;
  std::unique_ptr<Partial> model;
};

// Applies scores (log2 units) of one tile, -infinity where masked, to a partial result. `quantise`
// rounds P to e4m3 and takes the references of mla_softmax.h.
void apply_scores(const std::vector<double>& scores, int rows, int padded_rows, int tokens,
                  const double* values, bool quantise, std::vector<double>& p, std::vector<double>& factor,
                  Partial& partial) {
  const double* table = e4m3_table();
  for (int row = 0; row < rows; ++row) {
    const double* s = scores.data() + row * kTile;
    double* prob = p.data() + row * kTile;
    double tile_max = kNegInf;  // NaN does not count, but spoils the sums
    bool nan = false;
    for (int token = 0; token < tokens; ++token) {
      if (s[token] > tile_max) tile_max = s[token];
      nan |= std::isnan(s[token]);
    }
    const RowReference<double> before = partial.reference[row];
    RowReference<double> now = next_reference(before, tile_max);
    if (!quantise) now.value = now.most;
    if (now.value == kNegInf) {
      std::fill(prob, prob + kTile, nan ? kNaN : 0.0);
      if (nan) partial.sum[row] = kNaN;
      factor[row] = 1.0;
      continue;
    }
    factor[row] = before.value == kNegInf ? 1.0 : std::exp2(before.value - now.value);
    double sum = 0.0;
    for (int token = 0; token < tokens; ++token) {
      double value = std::exp2(s[token] - now.value);
      if (quantise && !std::isnan(value)) value = table[to_e4m3(kE4M3Max * value)];
      prob[token] = value;
      sum += value;
    }
    partial.sum[row] = partial.sum[row] * factor[row] + sum;
    partial.reference[row] = now;
  }
  tile_math().accumulate(p.data(), padded_rows, values, tokens, kDepthV, factor.data(), partial.acc.data());
}

// The same for the model, in two parts where mla_softmax.h says so. Leaves `scores` changed.
void apply_model_tile(std::vector<double>& scores, int rows, int padded_rows, int tokens,
                      const double* values, std::vector<double>& p, std::vector<double>& factor,
                      Partial& partial) {
  std::vector<double> second_part(scores.size(), kNegInf);
  bool any = false;
  for (int row = 0; row < rows; ++row) {
    double* s = scores.data() + row * kTile;
    double most = kNegInf, rest = kNegInf;
    for (int token = 0; token < tokens; ++token) {
      if (s[token] > most) most = s[token];
    }
    const double cut = most - double{kFirstPart};
    for (int token = 0; token < tokens; ++token) {
      if (s[token] < cut && s[token] > rest) rest = s[token];
    }
    if (!needs_second_part(partial.reference[row], rest)) continue;
    any = true;
    for (int token = 0; token < tokens; ++token) {
      if (!(s[token] < cut)) continue;
      second_part[row * kTile + token] = s[token];
      s[token] = kNegInf;
    }
  }
  apply_scores(scores, rows, padded_rows, tokens, values, true, p, factor, partial);
  if (any) apply_scores(second_part, rows, padded_rows, tokens, values, true, p, factor, partial);
}

// A pair of tiles of the Hopper family, whose references hold for both.
struct HopperPair {
  static constexpr int kTokens = hopper::kPairTiles * kTile;
  std::vector<HopperRow> states;
  std::vector<double> scores;  // [rows, kTokens]
  std::vector<double> values;  // [kTokens, kDepthV]
  std::vector<double> p;       // [rows, kTokens]
  int tokens = 0;

  explicit HopperPair(int rows)
      : states(rows),
        scores(static_cast<size_t>(rows) * kTokens),
        values(static_cast<size_t>(kTokens) * kDepthV),
        p(static_cast<size_t>(rows) * kTokens) {}

  // All tiles of the pair but the last have kTile tokens.
  void add(const std::vector<double>& tile_scores, const std::vector<double>& tile_values, int tile_tokens) {
    for (size_t row = 0; row < states.size(); ++row) {
      std::copy_n(tile_scores.data() + row * kTile, tile_tokens, scores.data() + row * kTokens + tokens);
    }
    std::copy_n(tile_values.data(), tile_tokens * kDepthV, values.data() + tokens * kDepthV);
    tokens += tile_tokens;
  }
};

// The same for the Hopper family. The partial result is relative to the highest reference so far.
void apply_hopper_pair(HopperPair& pair, int padded_rows, std::vector<double>& p, std::vector<double>& factor,
                       Partial& partial) {
  for (size_t row = 0; row < pair.states.size(); ++row) {
    double* prob = pair.p.data() + row * pair.kTokens;
    const double level =
        quantise_hopper_pair(pair.scores.data() + row * pair.kTokens, pair.tokens, pair.states[row], prob);
    const double before = partial.reference[row].value, now = std::max(before, level);
    factor[row] = before == kNegInf ? 1.0 : std::exp2(before - now);
    const double weight = level == kNegInf ? 1.0 : std::exp2(level - now);
    double sum = 0.0;
    for (int token = 0; token < pair.tokens; ++token) {
      prob[token] *= weight;
      sum += prob[token];
    }
    partial.sum[row] = partial.sum[row] * factor[row] + sum;
    partial.reference[row].value = now;
  }
  for (int first = 0; first < pair.tokens; first += kTile) {
    const int tokens = std::min(kTile, pair.tokens - first);
    for (size_t row = 0; row < pair.states.size(); ++row) {
      std::copy_n(pair.p.data() + row * pair.kTokens + first, tokens, p.data() + row * kTile);
      if (first > 0) factor[row] = 1.0;
    }
    tile_math().accumulate(p.data(), padded_rows, pair.values.data() + static_cast<size_t>(first) * kDepthV,
                           tokens, kDepthV, factor.data(), partial.acc.data());
  }
  pair.tokens = 0;
}

// log2(2^a + 2^b); NaN if one is.
double add_logarithms(double a, double b) {
  if (!(std::min(a, b) > kNegInf)) return a == kNegInf ? b : b == kNegInf ? a : a + b;
  return std::max(a, b) + std::log2(1.0 + std::exp2(-std::abs(a - b)));
}

void run_task(const DecodeProblem& problem, const ReferenceOptions& options, const ReferenceResult& result,
              bool model, Task& task) {
  const Cache cache(problem);
  const QueryToken query_token = result.query_tokens[task.query_token];
  const int64_t visible =
      std::min(visible_tokens(problem, query_token), int64_t{problem.max_pages_per_seq} * problem.page_size);
  const int rows = task.heads;
  const int padded_rows = (rows + kRowBlock - 1) / kRowBlock * kRowBlock;

  const int q_bytes = problem.q_format == Format::kE4M3 ? 1 : 2;
  std::vector<double> q(static_cast<size_t>(padded_rows) * kDepthK, 0.0);
  for (int row = 0; row < rows; ++row) {
    const int64_t index =
        query_index(problem, query_token) * problem.heads + result.heads[task.first_head + row];
    decode_row(static_cast<const uint8_t*>(problem.q) + index * kDepthK * q_bytes, problem.q_format, kDepthK,
               q.data() + static_cast<size_t>(row) * kDepthK, 1);
  }

  const double scale =
      problem.softmax_scale * problem.q_scale * problem.kv_scale * std::numbers::log2e_v<double>;
  std::vector<double> keys(static_cast<size_t>(kDepthK) * kTile);
  std::vector<double> values(static_cast<size_t>(kTile) * kDepthV);
  std::vector<double> scores(static_cast<size_t>(padded_rows) * kTile);
  std::vector<double> p(static_cast<size_t>(padded_rows) * kTile, 0.0);
  std::vector<double> factor(padded_rows, 1.0);
  if (options.exact) task.exact = std::make_unique<Partial>(padded_rows);
  if (model) task.model = std::make_unique<Partial>(padded_rows);

  HopperPair pair(rows);

  const int last_tile = static_cast<int>(std::min<int64_t>(task.last_tile, (visible + kTile - 1) / kTile));
  for (int tile = task.first_tile; tile < last_tile; ++tile) {
    const int64_t first = static_cast<int64_t>(tile) * kTile;
    const int tokens = static_cast<int>(std::min<int64_t>(kTile, visible - first));
    bool masked[kTile] = {};
    for (int token = 0; token < kTile; ++token) {
      const int64_t page = token < tokens ? cache.page(query_token.request, first + token) : -1;
      masked[token] = page < 0;
      double* key = keys.data() + token;
      double* value = values.data() + static_cast<size_t>(token) * kDepthV;
      if (page < 0) {
        for (int d = 0; d < kDepthK; ++d) key[static_cast<size_t>(d) * kTile] = 0.0;
        std::fill(value, value + kDepthV, 0.0);
        continue;
      }
      decode_row(cache.key(page, first + token), problem.kv_format, kDepthK, key, kTile);
      decode_row(cache.value(page, first + token), problem.kv_format, kDepthV, value, 1);
    }
    const auto scale_and_mask = [&] {
      for (int row = 0; row < rows; ++row) {
        for (int token = 0; token < kTile; ++token) {
          double& score = scores[row * kTile + token];
          score = masked[token] ? kNegInf : score * scale;
        }
      }
    };
    tile_math().scores(q.data(), padded_rows, keys.data(), kDepthK, scores.data());
    scale_and_mask();
    if (task.exact) {
      apply_scores(scores, rows, padded_rows, tokens, values.data(), false, p, factor, *task.exact);
    }
    if (task.model && options.narrow_scores) {
      tile_math().narrow_scores(q.data(), padded_rows, keys.data(), kDepthK, scores.data());
      scale_and_mask();
      for (int row = 0; row < rows; ++row) {
        for (int token = 0; token < tokens; ++token) {
          task.model->lse[row] = add_logarithms(task.model->lse[row], scores[row * kTile + token]);
        }
      }
    }
    if (task.model && options.quantisation == Quantisation::kHopper) {
      pair.add(scores, values, tokens);
      if ((tile - task.first_tile) % hopper::kPairTiles == hopper::kPairTiles - 1 || tile + 1 == last_tile) {
        apply_hopper_pair(pair, padded_rows, p, factor, *task.model);
      }
    } else if (task.model) {
      apply_model_tile(scores, rows, padded_rows, tokens, values.data(), p, factor, *task.model);
    }
  }
}

// Merges the partial results of consecutive splits into one row of out; returns its lse.
double merge_row(const std::vector<const Partial*>& partials, int row, double kv_scale, double* out) {
  std::fill(out, out + kDepthV, 0.0);
  double max = kNegInf;
  for (const Partial* partial : partials) max = std::max(max, partial->reference[row].value);
  double sum = 0.0;
  for (const Partial* partial : partials) {
    if (partial->sum[row] == 0.0) continue;  // it saw nothing
    // One whose scores are all NaN has no maximum.
    const double weight =
        partial->reference[row].value == kNegInf ? kNaN : std::exp2(partial->reference[row].value - max);
    sum += weight * partial->sum[row];
    const double* acc = partial->acc.data() + static_cast<size_t>(row) * kDepthV;
    for (int d = 0; d < kDepthV; ++d) out[d] += weight * acc[d];
  }
  if (sum == 0.0) return kNegInf;
  for (int d = 0; d < kDepthV; ++d) out[d] *= kv_scale / sum;
  return std::numbers::ln2_v<double> * (max + std::log2(sum));
}

template <typename Function>
void parallel_for(int threads, size_t count, const Function& function) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) function(i);
  };
  std::vector<std::thread> pool;
  for (int i = 1; i < threads; ++i) pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
}

}  // namespace

int query_count(const DecodeProblem& problem, int request) {
  if (!problem.q_offsets) return problem.q_len;
  return problem.q_offsets[request + 1] - problem.q_offsets[request];
}

int64_t query_index(const DecodeProblem& problem, QueryToken query_token) {
  const int64_t first = problem.q_offsets ? int64_t{problem.q_offsets[query_token.request]}
                                          : int64_t{query_token.request} * problem.q_len;
  return first + query_token.token;
}

int64_t visible_tokens(const DecodeProblem& problem, QueryToken query_token) {
  const int64_t seq_len = std::max<int64_t>(0, problem.seq_lens[query_token.request]);
  const int64_t hidden =
      problem.causal ? query_count(problem, query_token.request) - 1 - query_token.token : 0;
  const int64_t positions = std::max<int64_t>(0, seq_len - hidden);
  if (problem.cp_size <= 1) return positions;
  int64_t held = 0;
  for (int64_t block = problem.cp_rank; block * problem.cp_interleave < positions; block += problem.cp_size) {
    held += std::min<int64_t>(problem.cp_interleave, positions - block * problem.cp_interleave);
  }
  return held;
}

bool has_bad_tokens(const DecodeProblem& problem) {
  const Cache cache(problem);
  for (int request = 0; request < problem.batch; ++request) {
    const int count = query_count(problem, request);
    if (count == 0) continue;
    const int64_t visible = visible_tokens(problem, {request, count - 1});
    if (visible > int64_t{problem.max_pages_per_seq} * problem.page_size) return true;
    for (int64_t first = 0; first < visible; first += problem.page_size) {
      if (cache.page(request, first) < 0) return true;
    }
  }
  return false;
}

ReferenceResult decode_reference(const DecodeProblem& problem, const ReferenceOptions& options) {
  ReferenceResult result;
  result.query_tokens = options.query_tokens;
  if (result.query_tokens.empty()) {
    for (int request = 0; request < problem.batch; ++request) {
      for (int token = 0; token < query_count(problem, request); ++token) {
        result.query_tokens.push_back({request, token});
      }
    }
  }
  result.heads = options.heads;
  if (result.heads.empty()) {
    for (int head = 0; head < problem.heads; ++head) result.heads.push_back(head);
  }
  const bool model = options.split_offsets && problem.kv_format == Format::kE4M3;
  const size_t heads = result.heads.size();
  const size_t rows = result.query_tokens.size() * heads;
  if (options.exact) {
    result.out.resize(rows * kDepthV);
    result.lse.resize(rows);
  }
  if (model) {
    result.model_out.resize(rows * kDepthV);
    if (options.narrow_scores) result.model_lse.resize(rows);
  }
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));

  // Query tokens are taken in groups so that every thread has work and partial results stay small.
  const size_t wanted_tasks = static_cast<size_t>(threads) * 8;
  std::vector<Task> tasks;
  const auto flush = [&] {
    parallel_for(threads, tasks.size(),
                 [&](size_t i) { run_task(problem, options, result, model, tasks[i]); });
    // Tasks of the same rows stand next to each other, in the order of their splits.
    for (size_t begin = 0; begin < tasks.size();) {
      size_t end = begin + 1;
      while (end < tasks.size() && tasks[end].query_token == tasks[begin].query_token &&
             tasks[end].first_head == tasks[begin].first_head) {
        ++end;
      }
      std::vector<const Partial*> exact, modelled;
      for (size_t i = begin; i < end; ++i) {
        if (tasks[i].exact) exact.push_back(tasks[i].exact.get());
        if (tasks[i].model) modelled.push_back(tasks[i].model.get());
      }
      for (int row = 0; row < tasks[begin].heads; ++row) {
        const size_t index = tasks[begin].query_token * heads + tasks[begin].first_head + row;
        if (options.exact) {
          result.lse[index] = merge_row(exact, row, problem.kv_scale, &result.out[index * kDepthV]);
        }
        if (model) {
          merge_row(modelled, row, problem.kv_scale, &result.model_out[index * kDepthV]);
          if (options.narrow_scores) {
            double& lse = result.model_lse[index] = kNegInf;
            for (const Partial* partial : modelled) lse = add_logarithms(lse, partial->lse[row]);
            lse *= std::numbers::ln2_v<double>;
          }
        }
      }
      begin = end;
    }
    tasks.clear();
  };

  for (size_t index = 0; index < result.query_tokens.size(); ++index) {
    const int64_t visible = std::min(visible_tokens(problem, result.query_tokens[index]),
                                     int64_t{problem.max_pages_per_seq} * problem.page_size);
    const int tiles = static_cast<int>((visible + kTile - 1) / kTile);
    for (size_t first = 0; first < heads;) {
      SplitOffsets offsets;
      size_t end = first + 1;  // heads in [first, end) have the same splits
      if (model) {
        offsets = options.split_offsets(result.query_tokens[index], result.heads[first]);
        while (end < heads && end - first < kHeadsPerTask &&
               options.split_offsets(result.query_tokens[index], result.heads[end]) == offsets) {
          ++end;
        }
      } else {
        for (int tile = 0; tile < tiles; tile += 32) offsets.push_back(tile);
        offsets.push_back(tiles);
        end = std::min(heads, first + kHeadsPerTask);
      }
      if (offsets.size() < 2) offsets = {0, tiles};
      if (offsets.front() != 0 || offsets.back() < tiles || !std::is_sorted(offsets.begin(), offsets.end())) {
        throw std::invalid_argument("split_offsets of request " +
                                    std::to_string(result.query_tokens[index].request) +
                                    " must rise from 0 to its " + std::to_string(tiles) + " tiles");
      }
      for (size_t split = 0; split + 1 < offsets.size(); ++split) {
        tasks.push_back({index, static_cast<int>(first), static_cast<int>(end - first), offsets[split],
                         offsets[split + 1], nullptr, nullptr});
      }
      first = end;
    }
    if (tasks.size() >= wanted_tasks) flush();
  }
  flush();
  return result;
}

}  // namespace mla::reference
