// SPDX-License-Identifier: Apache-2.0
#include "loader/src/workspace.h"

#include <algorithm>

#include "kernels/common/mla_params.h"
#include "loader/src/bundle.h"
#include "loader/src/context.h"
#include "loader/src/driver.h"
#include "loader/src/select.h"

namespace mla::loader {
namespace {

// CTAs of a kernel that an SM can hold at once, at most: what registers, threads and shared memory
// allow, without the granularity in which they are given out.
uint64_t ctas_per_sm(const manifest::Kernel& kernel, const Place& place) {
  const cubin::Facts& facts = kernel.facts;
  const auto fit = [](int available, uint64_t wanted) {
    return wanted == 0 || available <= 0 ? UINT64_MAX : static_cast<uint64_t>(available) / wanted;
  };
  uint64_t most = static_cast<uint64_t>(std::max(place.ctas_per_sm, 1));
  most = std::min(most, fit(place.threads_per_sm, facts.threads));
  most = std::min(
      most, fit(place.registers_per_sm, static_cast<uint64_t>(kernel.resources.registers) * facts.threads));
  most = std::min(
      most, fit(place.smem_per_sm, static_cast<uint64_t>(facts.dynamic_smem) + kernel.resources.static_smem));
  return std::max<uint64_t>(most, 1);
}

}  // namespace

WorkspaceLayout workspace_layout(const std::vector<manifest::Kernel>& kernels,
                                 const std::vector<std::string>& unusable) {
  WorkspaceLayout layout;
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (unusable[i].empty())
      layout.zeroed_bytes = std::max<uint64_t>(layout.zeroed_bytes, kernels[i].facts.zeroed_bytes);
  }
  // The header is there even if a kernel should count less.
  if (layout.zeroed_bytes > 0)
    layout.zeroed_bytes = std::max<uint64_t>(layout.zeroed_bytes, sizeof(WorkspaceHeader));
  layout.partials_offset = align_up(layout.zeroed_bytes, kWorkspaceAlign);
  return layout;
}

uint64_t workspace_bytes(const cubin::Facts& facts, const WorkspaceLayout& layout, uint64_t workers) {
  if (facts.zeroed_bytes == 0) return 0;
  return layout.partials_offset + facts.fixed_bytes + facts.bytes_per_worker * workers;
}

Error query_workspace(const mla_bundle& bundle, const mla_workspace_query& query,
                      const std::vector<mla_problem>& problems, uint64_t* bytes) {
  if (query.flags != 0) return invalid_argument("query.flags is ", Hex{query.flags}, "; allowed: 0");
  if (query.split_tokens != 0) {
    return invalid_argument("query.split_tokens is ", query.split_tokens,
                            "; allowed: 0 (this library launches no fixed splits whose workspace grows)");
  }
  const Driver* driver = nullptr;
  if (Error error = Driver::get(&driver); !error.ok()) return error;
  ScopedContext scope(*driver);
  Place place;
  if (Error error = enter_context(*driver, "query.context", query.context, &scope, &place); !error.ok()) {
    return error;
  }
  const std::vector<manifest::Kernel>& kernels = bundle.manifest.kernels;
  std::vector<bool> counts(kernels.size(), false);
  if (query.problems == nullptr) {
    for (size_t i = 0; i < kernels.size(); ++i) {
      counts[i] = bundle.unusable[i].empty() && target_rank(kernels[i].target.sm, kernels[i].target.suffix,
                                                            place.cc_major, place.cc_minor) != kRunsNot;
    }
  }
  for (size_t i = 0; i < problems.size(); ++i) {
    mla_problem problem = problems[i];
    if (Error error = check_problem(&problem); !error.ok()) {
      error.message() = text("query.problems[", i, "]: ", error.message());
      return error;
    }
    if (Error error = place.claim(&problem); !error.ok()) {
      error.message() = text("query.problems[", i, "]: ", error.message());
      return error;
    }
    const std::vector<uint32_t> ranked = bundle.selector.ranked(problem);
    if (ranked.empty()) {
      return {MLA_ERROR_NO_KERNEL, text("query.problems[", i, "]: no kernel for ", place.name(),
                                        " and this problem:\n", bundle.selector.explain(problem))};
    }
    // mla_prepare takes a later one when the device refuses the first.
    for (const uint32_t index : ranked) counts[index] = true;
  }
  uint64_t most = 0;
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (!counts[i]) continue;
    const cubin::Facts& facts = kernels[i].facts;
    const uint64_t ctas = ctas_per_sm(kernels[i], place) * static_cast<uint64_t>(std::max(place.sm_count, 1));
    const uint64_t workers = std::clamp<uint64_t>(ctas / facts.cluster_size, 1, facts.max_workers);
    most = std::max(most, workspace_bytes(facts, bundle.workspace, workers));
  }
  *bytes = most;
  return {};
}

Error init_workspace(const mla_bundle& bundle, uint64_t workspace, uint64_t bytes, void* stream_handle) {
  const WorkspaceLayout& layout = bundle.workspace;
  if (layout.zeroed_bytes == 0) return {};
  if (workspace == 0 || workspace % kWorkspaceAlign != 0) {
    return {MLA_ERROR_WORKSPACE, text("workspace is ", Hex{workspace},
                                      "; must be a device address aligned to ", kWorkspaceAlign, " bytes")};
  }
  if (bytes < layout.zeroed_bytes) {
    return {MLA_ERROR_WORKSPACE,
            text("workspace_bytes is ", bytes, "; the counters of this bundle alone take ",
                 layout.zeroed_bytes, " bytes: ask mla_workspace_bytes")};
  }
  if (bytes - 1 > UINT64_MAX - workspace) {
    return {MLA_ERROR_WORKSPACE, text("workspace is ", Hex{workspace}, "; its ", bytes,
                                      " bytes reach past the end of the address space")};
  }
  const Driver* driver = nullptr;
  if (Error error = Driver::get(&driver); !error.ok()) return error;
  const cuda::Stream stream = static_cast<cuda::Stream>(stream_handle);
  cuda::Context context = nullptr;
  if (const cuda::Result result = driver->cuStreamGetCtx(stream, &context); result != cuda::kSuccess) {
    if (result == cuda::kErrorInvalidContext && stream == nullptr) {
      return {MLA_ERROR_WRONG_DEVICE,
              "stream is null (the default stream) and no context is current on this thread"};
    }
    return driver->error("cuStreamGetCtx", result);
  }
  ScopedContext scope(*driver);
  if (Error error = scope.enter(context); !error.ok()) return error;
  cuda::Result result = driver->cuMemsetD8Async(workspace, 0, layout.zeroed_bytes, stream);
  if (result != cuda::kSuccess) return driver->error("cuMemsetD8Async", result);
  // WorkspaceHeader::magic, a half at a time: a memory set writes 32 bits at most.
  static_assert(offsetof(WorkspaceHeader, magic) == 0);
  for (int half = 0; half < 2; ++half) {
    result = driver->cuMemsetD32Async(workspace + 4 * half,
                                      static_cast<uint32_t>(kWorkspaceMagic >> 32 * half), 1, stream);
    if (result != cuda::kSuccess) return driver->error("cuMemsetD32Async", result);
  }
  return {};
}

}  // namespace mla::loader
