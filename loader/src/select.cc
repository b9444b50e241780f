// SPDX-License-Identifier: Apache-2.0
#include "loader/src/select.h"

#include <algorithm>
#include <bit>
#include <tuple>

#include "kernels/common/mla_cubin_info.h"
#include "kernels/common/mla_params.h"

namespace mla::loader {
namespace {

constexpr uint32_t kKnownFeatures = MLA_FEATURE_LSE | MLA_FEATURE_PDL | MLA_FEATURE_SEPARATE_VALUES;
constexpr uint32_t kMaxPageSize = 1u << 20;
constexpr uint32_t kMaxHeadDim = 0xffff;

static_assert(MLA_DTYPE_E4M3 == cubin::kE4M3 && MLA_DTYPE_BF16 == cubin::kBF16);
static_assert(MLA_FAMILY_CLUSTER == cubin::kFamilyCluster && MLA_FAMILY_HOPPER == cubin::kFamilyHopper);
static_assert(MLA_MMA_PLAIN == cubin::kMmaPlain && MLA_MMA_BLOCK_SCALED == cubin::kMmaBlockScaled);
static_assert(MLA_FEATURE_LSE == cubin::kFeatureLse && MLA_FEATURE_PDL == cubin::kFeaturePdl &&
              MLA_FEATURE_SEPARATE_VALUES == cubin::kFeatureSeparateValues);

// Fields of a packed configuration; dtypes, family and mma are small numbers.
constexpr uint64_t pack(uint64_t q_dtype, uint64_t kv_dtype, uint64_t out_dtype, uint64_t family,
                        uint64_t mma, uint64_t head_dim_k, uint64_t head_dim_v) {
  return q_dtype | kv_dtype << 4 | out_dtype << 8 | family << 12 | mma << 16 | head_dim_k << 20 |
         head_dim_v << 36;
}

bool known_dtype(int32_t dtype) { return dtype == MLA_DTYPE_E4M3 || dtype == MLA_DTYPE_BF16; }

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
  const manifest::Config& c = kernel.config;
  const manifest::Launch& l = kernel.launch;
  if (!kernel.unknown_words.empty()) {
    return text("its ", kernel.unknown_words, ", which this library (", MLA_VERSION_STRING,
                ") does not know");
  }
  if (kernel.params.version != kParamsVersion) {
    return text("its parameter struct has version ", kernel.params.version, "; this library passes version ",
                kParamsVersion);
  }
  if (kernel.params.bytes != sizeof(DecodeParams)) {
    return text("its parameter struct has ", kernel.params.bytes, " bytes; this library passes ",
                sizeof(DecodeParams));
  }
  if (c.head_dim_k != kHeadDimK || c.head_dim_v != kHeadDimV) {
    return text("its head dimensions are ", c.head_dim_k, " and ", c.head_dim_v, "; this library launches ",
                kHeadDimK, " and ", kHeadDimV);
  }
  if (c.out_dtype != cubin::kBF16) return "it writes another type than bf16";
  if (c.page_size_max > kMaxPageSize) {
    return text("its page_size_max is ", c.page_size_max, "; this library launches up to ", kMaxPageSize);
  }
  // The rules of tensor maps, so that an encoding cannot fail for a reason the caller has no part in.
  const uint32_t element = c.kv_dtype == cubin::kE4M3 ? 1 : 2;
  for (const auto& [name, box, swizzle] :
       {std::tuple("k_box", c.k_box, c.k_swizzle), std::tuple("v_box", c.v_box, c.v_swizzle)}) {
    if (box == 0 || box > 256 || box * element % 16 != 0) {
      return text("its ", name, " is ", box,
                  " elements; a tensor map takes 1 ... 256, in multiples of 16 bytes");
    }
    if (swizzle != 0 && swizzle != 32 && swizzle != 64 && swizzle != 128) {
      return text("the swizzle of its ", name, " is ", swizzle, "; a tensor map takes 0, 32, 64 or 128");
    }
    if (swizzle != 0 && box * element > swizzle) {
      return text("its ", name, " is ", box * element, " bytes; a tensor map with swizzle ", swizzle,
                  " takes at most ", swizzle);
    }
  }
  if (l.threads == 0 || l.threads > 1024 || l.cluster_size == 0 || l.cluster_size > 16) {
    return text("it wants clusters of ", l.cluster_size, " CTAs of ", l.threads, " threads");
  }
  return {};
}

Error check_problem(const mla_problem& p) {
  if ((p.features & ~kKnownFeatures) != 0) {
    return invalid_argument("problem.features is ", Hex{p.features},
                            "; known bits: MLA_FEATURE_LSE (0x1), MLA_FEATURE_PDL (0x2), "
                            "MLA_FEATURE_SEPARATE_VALUES (0x4)");
  }
  if (p.cc_major < 0 || p.cc_major > 99) {
    return invalid_argument("problem.cc_major is ", p.cc_major, "; allowed: 0 ... 99");
  }
  if (p.cc_minor < 0 || p.cc_minor > 9) {
    return invalid_argument("problem.cc_minor is ", p.cc_minor, "; allowed: 0 ... 9");
  }
  const std::tuple<const char*, int32_t> dtypes[] = {
      {"q_dtype", p.q_dtype}, {"kv_dtype", p.kv_dtype}, {"out_dtype", p.out_dtype}};
  for (const auto& [name, dtype] : dtypes) {
    if (!known_dtype(dtype)) {
      return invalid_argument("problem.", name, " is ", dtype,
                              "; allowed: MLA_DTYPE_E4M3 (1), MLA_DTYPE_BF16 (2)");
    }
  }
  const std::tuple<const char*, int32_t, int32_t> ranges[] = {{"head_dim_k", p.head_dim_k, kMaxHeadDim},
                                                              {"head_dim_v", p.head_dim_v, kMaxHeadDim},
                                                              {"heads", p.heads, kMaxHeads},
                                                              {"q_len", p.q_len, kMaxQLen}};
  for (const auto& [name, value, most] : ranges) {
    if (value < 1 || value > most) {
      return invalid_argument("problem.", name, " is ", value, "; allowed: 1 ... ", most);
    }
  }
  if (p.page_size < 1 || p.page_size > static_cast<int32_t>(kMaxPageSize) ||
      !std::has_single_bit(static_cast<uint32_t>(p.page_size))) {
    return invalid_argument("problem.page_size is ", p.page_size, "; allowed: powers of two from 1 to ",
                            kMaxPageSize);
  }
  if (p.family < MLA_FAMILY_ANY || p.family > MLA_FAMILY_HOPPER) {
    return invalid_argument("problem.family is ", p.family,
                            "; allowed: MLA_FAMILY_ANY (0), MLA_FAMILY_CLUSTER (1), MLA_FAMILY_HOPPER (2)");
  }
  if (p.mma < MLA_MMA_ANY || p.mma > MLA_MMA_BLOCK_SCALED) {
    return invalid_argument("problem.mma is ", p.mma,
                            "; allowed: MLA_MMA_ANY (0), MLA_MMA_PLAIN (1), MLA_MMA_BLOCK_SCALED (2)");
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
    return std::tie(x.target.sm, x.target.suffix, x.config.rows, y.priority, x.id) <
           std::tie(y.target.sm, y.target.suffix, y.config.rows, x.priority, y.id);
  });
  entries_.reserve(order.size());
  for (const uint32_t index : order) {
    const manifest::Kernel& kernel = kernels[index];
    const manifest::Config& c = kernel.config;
    if (groups_.empty() || groups_.back().sm != kernel.target.sm ||
        groups_.back().suffix != kernel.target.suffix) {
      const uint32_t at = static_cast<uint32_t>(entries_.size());
      groups_.push_back({kernel.target.sm, kernel.target.suffix, at, at});
    }
    Entry entry{};
    entry.config = pack(c.q_dtype, c.kv_dtype, c.out_dtype, c.family, c.mma, c.head_dim_k, c.head_dim_v);
    entry.features = c.features;
    for (uint32_t log2 = 0; log2 < 32; ++log2) {
      const uint64_t size = uint64_t{1} << log2;
      if (size >= c.page_size_min && size <= c.page_size_max) entry.page_sizes |= 1u << log2;
    }
    entry.rows = static_cast<int32_t>(c.rows);
    entry.index = index;
    entries_.push_back(entry);
    groups_.back().end = static_cast<uint32_t>(entries_.size());
  }
}

Selector::Wanted Selector::wanted(const mla_problem& p) {
  const auto u = [](int32_t value) { return static_cast<uint64_t>(value); };
  return {pack(u(p.q_dtype), u(p.kv_dtype), u(p.out_dtype), u(p.family), u(p.mma), u(p.head_dim_k),
               u(p.head_dim_v)),
          pack(0xf, 0xf, 0xf, p.family == MLA_FAMILY_ANY ? 0 : 0xf, p.mma == MLA_MMA_ANY ? 0 : 0xf, 0xffff,
               0xffff),
          p.features, static_cast<uint32_t>(p.page_size), p.heads};
}

bool Selector::serves(const Entry& entry, const Wanted& w) {
  // A page size is a power of two, so it is its own bit of page_sizes.
  return ((entry.config ^ w.config) & w.mask) == 0 && (entry.features & w.features) == w.features &&
         (entry.page_sizes & w.page_size) != 0 && entry.rows >= w.heads;
}

bool Selector::best(const mla_problem& problem, uint32_t* index) const {
  const Wanted w = wanted(problem);
  int best_rank = 0;
  const Entry* best_entry = nullptr;
  for (const Group& group : groups_) {
    const int rank = target_rank(group.sm, group.suffix, problem.cc_major, problem.cc_minor);
    if (rank == kRunsNot || (best_entry != nullptr && rank >= best_rank)) continue;
    for (uint32_t i = group.begin; i < group.end; ++i) {
      if (!serves(entries_[i], w)) continue;
      best_rank = rank;
      best_entry = &entries_[i];
      break;
    }
  }
  if (best_entry == nullptr) return false;
  *index = best_entry->index;
  return true;
}

std::vector<uint32_t> Selector::ranked(const mla_problem& problem) const {
  const Wanted w = wanted(problem);
  std::vector<std::tuple<int, uint32_t>> order;  // rank of the target, position in entries_
  for (const Group& group : groups_) {
    const int rank = target_rank(group.sm, group.suffix, problem.cc_major, problem.cc_minor);
    for (uint32_t i = group.begin; rank != kRunsNot && i < group.end; ++i) {
      if (serves(entries_[i], w)) order.emplace_back(rank, i);
    }
  }
  std::sort(order.begin(), order.end());
  std::vector<uint32_t> out;
  for (const auto& [rank, position] : order) out.push_back(entries_[position].index);
  return out;
}

std::string Selector::reasons_against(uint32_t index, const mla_problem& p) const {
  const manifest::Kernel& kernel = (*kernels_)[index];
  const manifest::Config& c = kernel.config;
  if (!(*unusable_)[index].empty()) return (*unusable_)[index];
  std::string out;
  const auto add = [&out](const std::string& reason) { out += (out.empty() ? "" : "; ") + reason; };
  if (target_rank(kernel.target.sm, kernel.target.suffix, p.cc_major, p.cc_minor) == kRunsNot) {
    add(text("built for ", target_reach(kernel.target), ", not on ", cc_name(p.cc_major, p.cc_minor)));
  }
  const std::tuple<const char*, uint32_t, int32_t> dtypes[] = {
      {"q", c.q_dtype, p.q_dtype}, {"kv", c.kv_dtype, p.kv_dtype}, {"out", c.out_dtype, p.out_dtype}};
  for (const auto& [name, has, wants] : dtypes) {
    if (static_cast<int32_t>(has) != wants) {
      add(text(name, " is ", dtype_name(static_cast<int32_t>(has)), ", wanted ", dtype_name(wants)));
    }
  }
  if (static_cast<int32_t>(c.head_dim_k) != p.head_dim_k) {
    add(text("head_dim_k is ", c.head_dim_k, ", wanted ", p.head_dim_k));
  }
  if (static_cast<int32_t>(c.head_dim_v) != p.head_dim_v) {
    add(text("head_dim_v is ", c.head_dim_v, ", wanted ", p.head_dim_v));
  }
  if (static_cast<int32_t>(c.rows) < p.heads) {
    add(text("serves up to ", c.rows, " heads, wanted ", p.heads));
  }
  if (static_cast<uint32_t>(p.page_size) < c.page_size_min ||
      static_cast<uint32_t>(p.page_size) > c.page_size_max) {
    add(text("serves page sizes ", c.page_size_min, " ... ", c.page_size_max, ", wanted ", p.page_size));
  }
  if (p.family != MLA_FAMILY_ANY && static_cast<int32_t>(c.family) != p.family) {
    add(text("family is ", family_name(static_cast<int32_t>(c.family)), ", wanted ", family_name(p.family)));
  }
  if (p.mma != MLA_MMA_ANY && static_cast<int32_t>(c.mma) != p.mma) {
    add(text("mma is ", mma_name(static_cast<int32_t>(c.mma)), ", wanted ", mma_name(p.mma)));
  }
  if ((c.features & p.features) != p.features) {
    add(text("lacks feature ", features_name(p.features & ~c.features)));
  }
  return out;
}

std::string Selector::explain(const mla_problem& problem) const {
  if (kernels_->empty()) return "the bundle has no kernels\n";
  std::string out;
  const std::vector<uint32_t> order = ranked(problem);
  std::vector<bool> serves(kernels_->size(), false);
  for (size_t i = 0; i < order.size(); ++i) {
    const manifest::Kernel& kernel = (*kernels_)[order[i]];
    serves[order[i]] = true;
    out += text("rank ", i + 1, ": ", kernel.id, " (sm_", kernel.target.sm, kernel.target.suffix, ", ",
                kernel.config.rows, " rows, priority ", kernel.priority, ")\n");
  }
  for (uint32_t i = 0; i < kernels_->size(); ++i) {
    if (!serves[i]) out += text("passed over: ", (*kernels_)[i].id, ": ", reasons_against(i, problem), "\n");
  }
  return out;
}

std::string dtype_name(int32_t dtype) {
  return dtype == MLA_DTYPE_E4M3 ? "e4m3" : dtype == MLA_DTYPE_BF16 ? "bf16" : text("type ", dtype);
}

std::string family_name(int32_t family) {
  return family == MLA_FAMILY_CLUSTER  ? "cluster"
         : family == MLA_FAMILY_HOPPER ? "hopper"
                                       : text("family ", family);
}

std::string mma_name(int32_t mma) {
  return mma == MLA_MMA_PLAIN ? "plain" : mma == MLA_MMA_BLOCK_SCALED ? "block_scaled" : text("mma ", mma);
}

std::string features_name(uint32_t features) {
  std::string out;
  const std::tuple<uint32_t, const char*> names[] = {
      {MLA_FEATURE_LSE, "LSE"}, {MLA_FEATURE_PDL, "PDL"}, {MLA_FEATURE_SEPARATE_VALUES, "SEPARATE_VALUES"}};
  for (const auto& [bit, name] : names) {
    if ((features & bit) != 0) out += (out.empty() ? "" : ", ") + std::string(name);
  }
  return out;
}

}  // namespace mla::loader
