// SPDX-License-Identifier: Apache-2.0
#include "tests/regression/verify.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "tests/reference/number_formats.h"

namespace mla::test {

using reference::kDepthV;
using reference::QueryToken;

namespace {

constexpr size_t kMostFaults = 8;

std::string format(const char* text, double a, double b) {
  char buffer[256];
  std::snprintf(buffer, sizeof(buffer), text, a, b);
  return buffer;
}

constexpr double kReferenceBytes = 2e9;  // most memory for the references' results

// Heads to compare: all of them, or as many as budget and memory allow, at least 4, ends included.
std::vector<int> sample_heads(const DecodeData& data, const VerifyOptions& options) {
  double tokens = 0;
  for (int b = 0; b < data.layout.batch; ++b) {
    tokens += double(data.c->local_len(data.seq_lens[b])) * data.c->query_count(b);
  }
  const double narrow = options.mma == MLA_MMA_WGMMA ? 4.0 * reference::kDepthK : 0.0;  // slow ones
  const double cost_per_head = tokens * (reference::kDepthK + narrow + 2.0 * kDepthV);
  const int heads = data.layout.heads;
  std::vector<int> all(heads);
  for (int i = 0; i < heads; ++i) all[i] = i;
  const double bytes_per_head = 2.0 * sizeof(double) * kDepthV * data.layout.query_tokens;
  const double affordable =
      std::min(options.budget / std::max(cost_per_head, 1.0), kReferenceBytes / bytes_per_head);
  const int wanted = static_cast<int>(std::clamp(affordable, 4.0, 1e6));
  if (wanted >= heads) return all;
  std::mt19937_64 random(options.seed);
  std::shuffle(all.begin() + 1, all.end() - 1, random);
  std::swap(all[1], all[heads - 1]);
  all.resize(wanted);
  std::sort(all.begin(), all.end());
  return all;
}

struct Norm {
  double error = 0, reference = 0;
  void add(double got, double want) {
    error += (got - want) * (got - want);
    reference += want * want;
  }
  void add(const Norm& other) {
    error += other.error;
    reference += other.reference;
  }
  bool empty() const { return reference == 0; }
  double relative() const { return std::sqrt(error / reference); }
};

}  // namespace

void Errors::merge(const Errors& other) {
  exact_short = std::max(exact_short, other.exact_short);
  exact_long = std::max(exact_long, other.exact_long);
  exact_flat = std::max(exact_flat, other.exact_flat);
  exact_row = std::max(exact_row, other.exact_row);
  model = std::max(model, other.model);
  model_row = std::max(model_row, other.model_row);
  lse = std::max(lse, other.lse);
  model_lse = std::max(model_lse, other.model_lse);
}

std::string Errors::text() const {
  std::string text;
  const auto add = [&](const char* name, double value) {
    if (value < 0) return;
    char buffer[64];
    std::snprintf(buffer, sizeof(buffer), "%s%s %.2e", text.empty() ? "" : ", ", name, value);
    text += buffer;
  };
  add("exact <1024", exact_short);
  add("exact >=1024", exact_long);
  add("exact, flat weights", exact_flat);
  add("worst row", exact_row);
  add("model", model);
  add("worst row", model_row);
  add("lse", lse);
  add("lse, model", model_lse);
  return text.empty() ? "nothing visible" : text;
}

Verdict verify(const DecodeData& data, const Outputs& outputs, const VerifyOptions& options) {
  Verdict verdict;
  const auto fault = [&](const std::string& text) {
    if (verdict.faults.size() < kMostFaults) verdict.faults.push_back(text);
  };
  const reference::DecodeProblem problem = data.problem();
  const bool e4m3 = data.kv_format == reference::Format::kE4M3;
  const double max_lse_relative = options.narrow ? kMaxLseRelativeNarrow : kMaxLseRelative;
  const double row_bound = e4m3 ? std::max(kMaxExactRow, 2 * data.c->exact_bound) : kMaxBf16Row;

  const bool wgmma = options.mma == MLA_MMA_WGMMA && e4m3;
  // Standard deviation of the scores of N(0, 1) inputs.
  const double score_size =
      std::abs(problem.softmax_scale * problem.q_scale * problem.kv_scale) * std::sqrt(reference::kDepthK);
  const double max_lse = options.narrow ? kMaxLseNarrow * std::max(1.0, score_size) : kMaxLse;
  // Where what narrow sums lose turns the scores upside down, only the model can tell.
  const bool exact_in_reach = !wgmma || kMaxLseWgmma * score_size < 1.0;

  ScheduleInput schedule;
  schedule.rule = options.rule;
  schedule.seq_lens = data.seq_lens;
  schedule.q_offsets = data.q_offsets;
  schedule.params.batch = problem.batch;
  schedule.params.q_len = problem.q_len;
  schedule.params.heads = problem.heads;
  schedule.params.page_size = problem.page_size;
  schedule.params.max_pages_per_seq = problem.max_pages_per_seq;
  schedule.params.causal = problem.causal;
  schedule.params.cp_rank = problem.cp_rank;
  schedule.params.cp_size = problem.cp_size;
  schedule.params.cp_interleave = problem.cp_interleave;
  // Without an initialised workspace nothing is split.
  schedule.params.max_splits = data.c->initialise_workspace ? data.c->splits_cap : 1;
  schedule.workers = options.workers;
  const ScheduleModel splits(schedule);

  reference::ReferenceOptions reference_options;
  reference_options.heads = sample_heads(data, options);
  reference_options.quantisation = options.family == MLA_FAMILY_HOPPER ? reference::Quantisation::kHopper
                                                                       : reference::Quantisation::kCluster;
  reference_options.narrow_scores = wgmma;
  reference_options.split_offsets = [&](QueryToken t, int head) {
    return splits.offsets(t.request, t.token, head);
  };
  const reference::ReferenceResult want = decode_reference(problem, reference_options);

  // Every value of every row must have been written with a number, sampled or not, unless something
  // in the case is NaN.
  if (data.c->poisons.empty() && !data.c->poison_scales && data.c->initialise_workspace) {
    for (size_t i = 0; i < outputs.out.size(); ++i) {
      if (std::isfinite(reference::bf16_to_float(outputs.out[i]))) continue;
      fault("out has " + std::to_string(reference::bf16_to_float(outputs.out[i])) + " in row " +
            std::to_string(i / kDepthV) + ", column " + std::to_string(i % kDepthV));
      break;
    }
    for (size_t i = 0; i < outputs.lse.size(); ++i) {
      if (!std::isnan(outputs.lse[i])) continue;
      fault("lse is NaN in row " + std::to_string(i));
      break;
    }
  }

  Norm exact_short, exact_long, exact_flat, model;
  int64_t border_rows = 0;
  const size_t heads = want.heads.size();
  for (size_t i = 0; i < want.query_tokens.size(); ++i) {
    const QueryToken t = want.query_tokens[i];
    const int64_t visible = visible_tokens(problem, t);
    for (size_t h = 0; h < heads; ++h) {
      const size_t row = i * heads + h;
      const size_t device_row = query_index(problem, t) * problem.heads + want.heads[h];
      const std::string where = "request " + std::to_string(t.request) + ", query token " +
                                std::to_string(t.token) + ", head " + std::to_string(want.heads[h]) + " (" +
                                std::to_string(visible) + " tokens visible): ";
      ++verdict.rows_compared;
      const uint16_t* got = &outputs.out[device_row * kDepthV];
      const float got_lse = outputs.lse.empty() ? 0.0f : outputs.lse[device_row];
      if (std::isinf(want.lse[row])) {
        for (int d = 0; d < kDepthV; ++d) {
          if (reference::bf16_to_float(got[d]) == 0.0f) continue;
          fault(where + "out must be 0 but is " + std::to_string(reference::bf16_to_float(got[d])) +
                " in column " + std::to_string(d));
          break;
        }
        if (!outputs.lse.empty() && !(std::isinf(got_lse) && got_lse < 0)) {
          fault(where + "lse must be -inf but is " + std::to_string(got_lse));
        }
        continue;
      }

      const double* exact = &want.out[row * kDepthV];
      const bool poisoned = !data.c->initialise_workspace || std::isnan(want.lse[row]) ||
                            std::any_of(exact, exact + kDepthV, [](double x) { return std::isnan(x); });
      for (int d = 0; d < kDepthV; ++d) {
        const bool nan = std::isnan(reference::bf16_to_float(got[d]));
        const bool must = !data.c->initialise_workspace || std::isnan(exact[d]);
        // A NaN among the values of a row may spoil its other columns, too.
        if (must ? nan : (poisoned || !nan)) continue;
        fault(where + "out is " + std::to_string(reference::bf16_to_float(got[d])) + " in column " +
              std::to_string(d) + (must ? ", NaN expected" : ", a number expected"));
        break;
      }
      if (!outputs.lse.empty()) {
        const bool must = !data.c->initialise_workspace || std::isnan(want.lse[row]);
        if (std::isnan(got_lse) != must && !(poisoned && !must)) {
          fault(where + "lse is " + std::to_string(got_lse) +
                (must ? ", NaN expected" : ", a number expected"));
        }
      }
      if (poisoned) continue;

      Norm exact_row, model_row;
      for (int d = 0; d < kDepthV; ++d) {
        const double value = reference::bf16_to_float(got[d]);
        if (exact_in_reach) exact_row.add(value, want.out[row * kDepthV + d]);
        if (!want.model_out.empty()) model_row.add(value, want.model_out[row * kDepthV + d]);
      }
      (data.c->flat || data.c->exact_bound > 0 ? exact_flat
       : visible >= kLongTokens                ? exact_long
                                               : exact_short)
          .add(exact_row);
      if (!exact_row.empty()) {
        verdict.errors.exact_row = std::max(verdict.errors.exact_row, exact_row.relative());
        if (!(exact_row.relative() <= row_bound)) {
          fault(where + format("relative error %.3g against exact attention, at most %.3g",
                               exact_row.relative(), row_bound));
        }
      }
      if (!want.model_out.empty() && !model_row.empty()) {
        model.add(model_row);
        verdict.errors.model_row = std::max(verdict.errors.model_row, model_row.relative());
        if (!(model_row.relative() <= kMaxModelBorderRow)) {
          fault(where + format("relative error %.3g against the model of the quantisation, at most %.3g",
                               model_row.relative(), kMaxModelBorderRow));
        }
        border_rows += model_row.relative() > kMaxModelRow;
      }
      if (!outputs.lse.empty()) {
        const double error = std::abs(got_lse - want.lse[row]);
        if (std::abs(want.lse[row]) < 1 / kMaxLse) verdict.errors.lse = std::max(verdict.errors.lse, error);
        const double size = std::abs(want.lse[row]);
        const double least = std::max(max_lse, max_lse_relative * size);
        const double most =
            wgmma ? kMaxLseWgmma * std::max(1.0, score_size) + kMaxLseWgmmaRelative * size : least;
        if (!(error <= most)) fault(where + format("lse is off by %.3g, at most %.3g", error, most));
        if (wgmma) {
          const double off = std::abs(got_lse - want.model_lse[row]);
          if (size < 1 / kMaxLse) verdict.errors.model_lse = std::max(verdict.errors.model_lse, off);
          if (!(off <= least)) {
            fault(where + format("lse is off by %.3g of the model of the sums, at most %.3g", off, least));
          }
        }
      }
    }
  }
  const auto bound = [&](const Norm& norm, double most, const char* what, double& error) {
    if (norm.empty()) return;
    error = norm.relative();
    if (!(error <= most)) {
      verdict.faults.insert(verdict.faults.begin(), std::string("relative L2 error ") + what +
                                                        format(" is %.3g, at most %.3g", error, most));
    }
  };
  bound(exact_short, e4m3 ? kMaxExactShort : kMaxBf16, "against exact attention (below 1024 tokens)",
        verdict.errors.exact_short);
  const double max_exact_long = options.family == MLA_FAMILY_HOPPER ? kMaxExactLongHopper : kMaxExactLong;
  bound(exact_long, e4m3 ? max_exact_long : kMaxBf16, "against exact attention (from 1024 tokens on)",
        verdict.errors.exact_long);
  bound(exact_flat,
        !e4m3                     ? kMaxBf16
        : data.c->exact_bound > 0 ? data.c->exact_bound
                                  : kMaxExactFlat,
        "against exact attention (flat weights)", verdict.errors.exact_flat);
  bound(model,
        wgmma            ? kMaxModelWgmma
        : options.narrow ? kMaxModelNarrow
                         : kMaxModel,
        "against the model of the quantisation", verdict.errors.model);
  const int64_t most_border_rows =
      1 + verdict.rows_compared / (options.narrow ? kRowsPerBorderRowNarrow : kRowsPerBorderRow);
  if (border_rows > most_border_rows) {
    fault(format("%.0f of %.0f rows are", static_cast<double>(border_rows),
                 static_cast<double>(verdict.rows_compared)) +
          format(" off by more than %.3g of the model of the quantisation, at most %.0f", kMaxModelRow,
                 static_cast<double>(most_border_rows)));
  }

  if (data.c->want_bad_page_counter) {
    const bool bad = has_bad_tokens(problem);
    if ((outputs.bad_pages > 0) != bad) {
      fault("the bad page counter is " + std::to_string(outputs.bad_pages) + ", expected " +
            (bad ? "more than 0" : "0"));
    }
  }
  return verdict;
}

}  // namespace mla::test
