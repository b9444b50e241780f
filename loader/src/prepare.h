// SPDX-License-Identifier: Apache-2.0
//
// Loading a kernel on a device: everything that a launch must not do.
#pragma once

#include <cstdint>
#include <string>

#include "loader/include/mla_loader.h"
#include "loader/src/bundle.h"
#include "loader/src/cuda_abi.h"
#include "loader/src/driver.h"
#include "loader/src/error.h"
#include "loader/src/params.h"
#include "manifest/manifest.h"

// A kernel prepared in one context. Immutable once a caller has it, so launches need no lock.
struct mla_kernel {
  mla_kernel() = default;
  mla_kernel(const mla_kernel&) = delete;
  mla_kernel& operator=(const mla_kernel&) = delete;
  ~mla_kernel() { *const_cast<volatile uint64_t*>(&magic) = 0; }

  uint64_t magic = mla::loader::kKernelMagic;
  const mla::loader::Driver* driver = nullptr;
  const mla::manifest::Kernel* entry = nullptr;
  const mla::loader::ParamsFunction* params = nullptr;
  uint32_t index = 0;
  mla::cuda::Kernel kernel = nullptr;
  mla::cuda::Context context = nullptr;
  unsigned long long context_id = 0;  // tells a context from a later one at the same address; 0: unknown
  mla::cuda::Device device = 0;
  int cc_major = 0;
  int cc_minor = 0;
  int sm_count = 0;
  int max_workers = 0;  // clusters (or CTAs) of a launch
  // The cluster is not fixed in the code, so each launch must ask for it.
  bool cluster_attribute = false;
  uint64_t partials_offset = 0;
  uint64_t workspace_bytes = 0;
};

namespace mla::loader {

// As mla_prepare and mla_prepare_index document. The problem is checked here.
Error prepare(mla_bundle* bundle, const mla_problem& problem, const mla_prepare_options& options,
              mla_kernel** out);
Error prepare_index(mla_bundle* bundle, uint32_t index, const mla_prepare_options& options, mla_kernel** out);

// Unloads everything that was prepared from the bundle. Its kernels are gone afterwards, whatever
// the driver answers.
Error unload(mla_bundle* bundle);

}  // namespace mla::loader
