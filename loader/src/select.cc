// SPDX-License-Identifier: Apache-2.0
#include "loader/src/select.h"

#include <algorithm>
#include <tuple>

#include "kernels/common/mla_params.h"
#include "loader/src/params.h"
#include "loader/src/words.h"

namespace mla::loader {
namespace {

constexpr int32_t kMaxPageSize = 1 << 20;
constexpr int32_t kMaxHeadDim = 0xffff;
constexpr uint32_t kUnknownRequirements =
    ~static_cast<uint32_t>(requirement::kROW_TILES | requirement::kPARTIALS);

// Words of four bits each.
constexpr uint64_t pack(std::initializer_list<uint32_t> words) {
  uint64_t packed = 0;
  for (const uint32_t word : words) packed = packed << 4 | (word & 0xf);
  return packed;
}

uint64_t pack_dims(uint32_t head_dim_k, uint32_t head_dim_v) {
  return uint64_t{head_dim_k} << 32 | head_dim_v;
}

// Minors of one major are one family, except 10.1 (renamed 11.0 since), which stands alone.
int family_of(int32_t cc_major, int32_t cc_minor) {
  return cc_major == 10 && cc_minor == 1 ? 101 : cc_major * 10;
}

std::string cc_name(int32_t major, int32_t minor) { return text(major, ".", minor); }

}  // namespace

int target_rank(uint32_t sm, const std::string& suffix, int32_t cc_major, int32_t cc_minor) {
  const int32_t major = static_cast<int32_t>(sm / 10);
  const int32_t minor = static_cast<int32_t>(sm % 10);
  const int32_t newer = cc_minor - minor;  // 0 ... 9: the device is that much newer
  if (major != cc_major || newer < 0) return kRunsNot;
  if (suffix == "a") return newer == 0 ? 0 : kRunsNot;
  if (suffix == "f") return family_of(major, minor) == family_of(cc_major, cc_minor) ? 10 + newer : kRunsNot;
  if (!suffix.empty()) return kRunsNot;
  return newer == 0 ? 1 : 20 + newer;
}

std::string target_reach(const manifest::Target& target) {
  const std::string cc = cc_name(static_cast<int32_t>(target.sm / 10), static_cast<int32_t>(target.sm % 10));
  const std::string name = text("sm_", target.sm, target.suffix);
  if (target.suffix == "a") return text(name, ", which runs on compute capability ", cc, " alone");
  if (target.suffix == "f") {
    return text(name, ", which runs on compute capability ", cc, " and later ones of its family");
  }
  return text(name, ", which runs on compute capability ", cc, " and later ones of the same major");
}

std::string unusable_reason(const manifest::Kernel& kernel) {
  if (!kernel.unknown.empty()) return kernel.unknown;
  const cubin::Facts& facts = kernel.facts;
  if ((facts.requires_bits & kUnknownRequirements) != 0) {
    return text("it requires ", Hex{facts.requires_bits & kUnknownRequirements}, ", which this library (",
                MLA_VERSION_STRING, ") does not know");
  }
  const ParamsFunction* params = find_params(facts.params_struct, facts.params_version);
  if (params == nullptr) {
    return text("it takes version ", facts.params_version, " of the parameter struct ",
                word_name(kParamsStructs, facts.params_struct), ", which this library (", MLA_VERSION_STRING,
                ") does not fill");
  }
  if (facts.params_bytes != params->bytes) {
    return text("its parameter struct has ", facts.params_bytes, " bytes; this library passes ",
                params->bytes);
  }
  if ((facts.kind == kind::kDECODE) != (params->decode != nullptr)) {
    return text("it is of kind ", word_name(kKinds, facts.kind), " and takes the parameter struct ",
                word_name(kParamsStructs, facts.params_struct));
  }
  return {};
}

namespace {

Error check_word(const char* name, int32_t value, std::span<const Word> list, const char* zero) {
  if (value == 0 || is_word(list, value)) return {};
  return invalid_argument("problem.", name, " is ", value, "; allowed: 0 (", zero, "), ",
                          allowed_words(list));
}

Error check_between(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return invalid_argument("problem.", name, " is ", value, "; allowed: ", least, " ... ", most);
}

void set_default(int32_t* field, int32_t value) {
  if (*field == 0) *field = value;
}

}  // namespace

Error check_problem(mla_problem* problem) {
  mla_problem& p = *problem;
#define MLA_CHECK(call) \
  if (Error error = call; !error.ok()) return error
  MLA_CHECK(check_word("kind", p.kind, kKinds, "MLA_KIND_DECODE"));
  set_default(&p.kind, MLA_KIND_DECODE);
  const bool decode = p.kind == MLA_KIND_DECODE;
  if ((p.features & ~all_bits(kFeatures)) != 0) {
    return invalid_argument("problem.features is ", Hex{p.features}, "; this library knows the bits ",
                            Hex{all_bits(kFeatures)}, ": ", feature_names(all_bits(kFeatures)));
  }
  MLA_CHECK(check_between("cc_major", p.cc_major, 0, 99));
  MLA_CHECK(check_between("cc_minor", p.cc_minor, 0, 9));
  MLA_CHECK(check_word("q_dtype", p.q_dtype, kDTypes, "e4m3"));
  MLA_CHECK(check_word("kv_dtype", p.kv_dtype, kDTypes, "e4m3"));
  MLA_CHECK(check_word("partial_dtype", p.partial_dtype, kDTypes, "bf16"));
  MLA_CHECK(check_word("out_dtype", p.out_dtype, kDTypes, "bf16"));
  MLA_CHECK(check_between("head_dim_k", p.head_dim_k, 0, kMaxHeadDim));
  MLA_CHECK(check_between("head_dim_v", p.head_dim_v, 0, kMaxHeadDim));
  if (decode && p.heads == 0) {
    return invalid_argument(
        "problem.heads is 0; must be given, there is no default: the query heads on this "
        "device, 1 ... ",
        kMaxHeads);
  }
  MLA_CHECK(check_between("heads", p.heads, decode ? 1 : 0, kMaxHeads));
  MLA_CHECK(check_between("q_len", p.q_len, 0, kMaxQLen));
  MLA_CHECK(check_between("page_size", p.page_size, 0, kMaxPageSize));
  MLA_CHECK(check_word("family", p.family, kFamilies, "any"));
  MLA_CHECK(check_word("mma", p.mma, kMmas, "any"));
  MLA_CHECK(check_word("arithmetic", p.arithmetic, kArithmetics, "any"));
  MLA_CHECK(check_word("cache_layout", p.cache_layout, kCacheLayouts, "MLA_CACHE_LAYOUT_DENSE"));
  MLA_CHECK(check_between("batch", p.batch, 0, 0x7fffffff));
  MLA_CHECK(check_between("device_class", p.device_class, 0, 0));
  MLA_CHECK(check_between("seq_len", p.seq_len, 0, 0x7fffffff));
  MLA_CHECK(check_between("sm_count", p.sm_count, 0, 0xffff));
  MLA_CHECK(check_between("reserved", p.reserved, 0, 0));
#undef MLA_CHECK
  set_default(&p.out_dtype, MLA_DTYPE_BF16);
  set_default(&p.head_dim_v, 512);
  if (decode) {
    set_default(&p.q_dtype, MLA_DTYPE_E4M3);
    set_default(&p.kv_dtype, MLA_DTYPE_E4M3);
    set_default(&p.head_dim_k, 576);
    set_default(&p.q_len, 1);
    set_default(&p.page_size, 64);
    set_default(&p.cache_layout, MLA_CACHE_LAYOUT_DENSE);
    p.partial_dtype = 0;
  } else {
    set_default(&p.partial_dtype, MLA_DTYPE_BF16);
    p.q_dtype = p.kv_dtype = p.head_dim_k = p.page_size = p.mma = p.arithmetic = p.cache_layout = 0;
    p.heads = p.q_len = 1;
  }
  return {};
}

Error check_compute_capability(const mla_problem& problem) {
  if (problem.cc_major != 0) return {};
  return invalid_argument(
      "problem.cc_major is 0; selection needs the compute capability of the device, for "
      "instance cc_major 12 and cc_minor 0");
}

Selector::Selector(const std::vector<manifest::Kernel>& kernels, const std::vector<std::string>& unusable)
    : kernels_(&kernels), unusable_(&unusable) {
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < kernels.size(); ++i) {
    if (unusable[i].empty()) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const manifest::Kernel& x = kernels[a];
    const manifest::Kernel& y = kernels[b];
    return std::tie(y.facts.priority, x.id) < std::tie(x.facts.priority, y.id);
  });
  std::vector<Entry> entries(kernels.size());
  for (uint32_t i = 0; i < order.size(); ++i) {
    Entry& entry = entries[order[i]];
    entry = make_entry(kernels[order[i]]);
    entry.order = i;
    entry.index = order[i];
  }
  const auto likeness = [](const manifest::Kernel& kernel, const Entry& entry) {
    return std::tie(kernel.target.sm, kernel.target.suffix, entry.words, entry.dims, entry.features,
                    entry.page_size_multiple, entry.page_size_max, entry.rows, entry.folds);
  };
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const auto x = likeness(kernels[a], entries[a]), y = likeness(kernels[b], entries[b]);
    return x != y ? x < y
                  : std::tie(entries[a].tile_cost, entries[a].order) <
                        std::tie(entries[b].tile_cost, entries[b].order);
  });
  entries_.reserve(order.size());
  for (const uint32_t index : order) {
    const manifest::Kernel& kernel = kernels[index];
    if (groups_.empty() || groups_.back().sm != kernel.target.sm ||
        groups_.back().suffix != kernel.target.suffix) {
      const uint32_t at = static_cast<uint32_t>(entries_.size());
      groups_.push_back({kernel.target.sm, kernel.target.suffix, at, at});
    }
    entries_.push_back(entries[index]);
    groups_.back().end = static_cast<uint32_t>(entries_.size());
  }
  for (size_t i = order.size(); i-- > 1;) {
    if (likeness(kernels[order[i - 1]], entries_[i - 1]) == likeness(kernels[order[i]], entries_[i])) {
      entries_[i - 1].alike = entries_[i].alike + 1;
    }
  }
}

Selector::Entry Selector::make_entry(const manifest::Kernel& kernel) {
  const auto i32 = [](uint32_t value) { return static_cast<int32_t>(value); };
  const cubin::Facts& f = kernel.facts;
  Entry entry{};
  entry.words = pack({f.kind, f.q_dtype, f.kv_dtype, f.partial_dtype, f.out_dtype, f.cache_layout, f.family,
                      f.mma, f.arithmetic});
  entry.dims = pack_dims(f.head_dim_k, f.head_dim_v);
  entry.features = f.features;
  // A kernel without pages serves the page size 0 that its problems have.
  entry.page_size_multiple = std::max(f.page_size_multiple, 1u);
  entry.page_size_max = f.page_size_max;
  entry.rows = f.kind == kind::kDECODE ? f.rows : 1;
  entry.tile_cost = f.tile_cost;
  entry.folds = f.requires_bits & requirement::kROW_TILES;
  entry.rule = {i32(f.rows), i32(f.tile_tokens), i32(f.item_overhead), i32(f.min_share),
                i32(f.max_flat_merge)};
  entry.cluster_size = std::max(f.cluster_size, 1u);
  entry.max_workers = std::max(f.max_workers, 1u);
  return entry;
}

Selector::Wanted Selector::wanted(const mla_problem& p) {
  const auto u = [](int32_t value) { return static_cast<uint32_t>(value); };
  const auto any = [](int32_t value) { return value == 0 ? 0u : 0xfu; };
  return {pack({u(p.kind), u(p.q_dtype), u(p.kv_dtype), u(p.partial_dtype), u(p.out_dtype), u(p.cache_layout),
                u(p.family), u(p.mma), u(p.arithmetic)}),
          pack({0xf, 0xf, 0xf, 0xf, 0xf, 0xf, any(p.family), any(p.mma), any(p.arithmetic)}),
          pack_dims(u(p.head_dim_k), u(p.head_dim_v)),
          p.features,
          u(p.page_size),
          u(p.heads),
          u(p.q_len),
          u(p.batch),
          p.kind == MLA_KIND_DECODE && p.batch > 0 && p.seq_len > 0 ? u(p.sm_count) : 0,
          p.seq_len};
}

bool Selector::serves(const Entry& entry, const Wanted& w) {
  return ((entry.words ^ w.words) & w.mask) == 0 && entry.dims == w.dims &&
         (entry.features & w.features) == w.features && w.page_size <= entry.page_size_max &&
         (entry.folds != 0 || entry.rows >= w.heads) && w.page_size % entry.page_size_multiple == 0;
}

uint64_t Selector::row_tiles(const Entry& entry, const Wanted& w) {
  return entry.folds != 0 ? (w.q_len * w.heads + entry.rows - 1) / entry.rows : w.q_len;
}

uint64_t Selector::cost(const Entry& entry, const Wanted& w) {
  const uint64_t tiles = row_tiles(entry, w);
  if (w.sm_count == 0) return tiles * entry.tile_cost;
  // As mla_schedule.h divides a batch of equal requests.
  const ScheduleRule& rule = entry.rule;
  const uint64_t workers = std::clamp(w.sm_count / entry.cluster_size, 1u, entry.max_workers);
  const uint64_t kv_tiles = static_cast<uint64_t>((w.seq_len - 1) / rule.tile_tokens + 1);
  const uint64_t each = kv_tiles + static_cast<uint64_t>(rule.item_overhead);
  const uint64_t items = w.batch * tiles;  // less than 2^31 * 2^13
  constexpr uint64_t kMostUnits = 0x7fffffff;
  uint64_t units = 0;  // of the worker that has most of them
  bool split = true;
  if (items <= kMostUnits / each) {
    const Line line = cut_line(rule, static_cast<int32_t>(items * each), static_cast<int32_t>(each),
                               static_cast<int32_t>(workers));
    units = static_cast<uint64_t>(share_begin(1, line.length, line.workers));
    split = units % each != 0;
  } else {  // more than a launch can have: what matters is the order
    units = (items / workers + 1) * each;
  }
  const uint64_t merge = split ? static_cast<uint64_t>(kSplitCost * rule.item_overhead) : 0;
  return (units + merge) * entry.tile_cost / entry.cluster_size;
}

bool Selector::best(const mla_problem& problem, uint32_t* index) const {
  const Wanted w = wanted(problem);
  int best_rank = 0;
  uint64_t best_cost = 0;
  const Entry* best_entry = nullptr;
  for (const Group& group : groups_) {
    const int rank = target_rank(group.sm, group.suffix, problem.cc_major, problem.cc_minor);
    if (rank == kRunsNot || (best_entry != nullptr && rank >= best_rank)) continue;
    const Entry* best_here = nullptr;
    for (uint32_t i = group.begin; i < group.end; i += 1 + entries_[i].alike) {
      const Entry& entry = entries_[i];
      if (!serves(entry, w)) continue;
      const uint64_t cost = Selector::cost(entry, w);
      if (best_here != nullptr &&
          (cost > best_cost || (cost == best_cost && entry.order > best_here->order))) {
        continue;
      }
      best_cost = cost;
      best_here = &entry;
    }
    if (best_here == nullptr) continue;
    best_rank = rank;
    best_entry = best_here;
  }
  if (best_entry == nullptr) return false;
  *index = best_entry->index;
  return true;
}

std::vector<uint32_t> Selector::ranked(const mla_problem& problem) const {
  const Wanted w = wanted(problem);
  // Rank of the target, cost, priority and id, place in entries_.
  std::vector<std::tuple<int, uint64_t, uint32_t, uint32_t>> order;
  for (const Group& group : groups_) {
    const int rank = target_rank(group.sm, group.suffix, problem.cc_major, problem.cc_minor);
    for (uint32_t i = group.begin; rank != kRunsNot && i < group.end; ++i) {
      const Entry& entry = entries_[i];
      if (serves(entry, w)) order.emplace_back(rank, cost(entry, w), entry.order, i);
    }
  }
  std::sort(order.begin(), order.end());
  std::vector<uint32_t> out;
  for (const auto& [rank, cost, place, position] : order) out.push_back(entries_[position].index);
  return out;
}

std::string Selector::reasons_against(uint32_t index, const mla_problem& p) const {
  const manifest::Kernel& kernel = (*kernels_)[index];
  const cubin::Facts& f = kernel.facts;
  if (!(*unusable_)[index].empty()) return (*unusable_)[index];
  std::string out;
  const auto add = [&out](const std::string& reason) { out += (out.empty() ? "" : "; ") + reason; };
  const auto u = [](int32_t value) { return static_cast<uint32_t>(value); };
  if (target_rank(kernel.target.sm, kernel.target.suffix, p.cc_major, p.cc_minor) == kRunsNot) {
    add(text("built for ", target_reach(kernel.target), ", not on ", cc_name(p.cc_major, p.cc_minor)));
  }
  if (f.kind != u(p.kind)) {
    add(text("kind is ", word_name(kKinds, f.kind), ", wanted ", word_name(kKinds, u(p.kind))));
    return out;
  }
  const std::tuple<const char*, std::span<const Word>, uint32_t, int32_t, bool> words[] = {
      {"q", kDTypes, f.q_dtype, p.q_dtype, false},
      {"kv", kDTypes, f.kv_dtype, p.kv_dtype, false},
      {"partial out", kDTypes, f.partial_dtype, p.partial_dtype, false},
      {"out", kDTypes, f.out_dtype, p.out_dtype, false},
      {"cache layout", kCacheLayouts, f.cache_layout, p.cache_layout, false},
      {"family", kFamilies, f.family, p.family, true},
      {"mma", kMmas, f.mma, p.mma, true},
      {"arithmetic", kArithmetics, f.arithmetic, p.arithmetic, true}};
  for (const auto& [name, list, has, wants, zero_is_any] : words) {
    if (has == u(wants) || (zero_is_any && wants == 0)) continue;
    add(text(name, " is ", word_name(list, has), ", wanted ", word_name(list, u(wants))));
  }
  if (f.head_dim_k != u(p.head_dim_k)) add(text("head_dim_k is ", f.head_dim_k, ", wanted ", p.head_dim_k));
  if (f.head_dim_v != u(p.head_dim_v)) add(text("head_dim_v is ", f.head_dim_v, ", wanted ", p.head_dim_v));
  if (f.kind == kind::kDECODE) {
    if ((f.requires_bits & requirement::kROW_TILES) == 0 && f.rows < u(p.heads)) {
      add(text("serves up to ", f.rows, " heads, wanted ", p.heads));
    }
    if (u(p.page_size) > f.page_size_max || u(p.page_size) % f.page_size_multiple != 0) {
      add(text("serves page sizes that are multiples of ", f.page_size_multiple, " up to ", f.page_size_max,
               ", wanted ", p.page_size));
    }
  }
  if ((f.features & p.features) != p.features) {
    add(text("lacks ", feature_names(p.features & ~f.features)));
  }
  return out;
}

std::string Selector::explain(const mla_problem& problem) const {
  if (kernels_->empty()) return "the bundle has no kernels\n";
  std::string out;
  const std::vector<uint32_t> order = ranked(problem);
  const Wanted w = wanted(problem);
  std::vector<bool> serves(kernels_->size(), false);
  std::vector<uint64_t> tiles(kernels_->size(), 0), costs(kernels_->size(), 0);
  for (const Entry& entry : entries_) {
    tiles[entry.index] = row_tiles(entry, w);
    costs[entry.index] = cost(entry, w);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const manifest::Kernel& kernel = (*kernels_)[order[i]];
    const cubin::Facts& f = kernel.facts;
    const uint64_t count = tiles[order[i]];
    serves[order[i]] = true;
    out +=
        text("rank ", i + 1, ": ", kernel.id, " (sm_", kernel.target.sm, kernel.target.suffix, ", cost ",
             costs[order[i]], w.sm_count == 0 ? " = " : " ns with ", count,
             count == 1 ? " row tile of " : " row tiles of ", f.tile_cost, ", priority ", f.priority, ")\n");
  }
  for (uint32_t i = 0; i < kernels_->size(); ++i) {
    if (!serves[i]) out += text("passed over: ", (*kernels_)[i].id, ": ", reasons_against(i, problem), "\n");
  }
  return out;
}

}  // namespace mla::loader
