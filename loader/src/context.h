// SPDX-License-Identifier: Apache-2.0
//
// The context that a call works in, and what its device can do.
#pragma once

#include <string>

#include "loader/include/mla_loader.h"
#include "loader/src/cuda_abi.h"
#include "loader/src/driver.h"
#include "loader/src/error.h"

namespace mla::loader {

struct Place {
  cuda::Context context = nullptr;
  unsigned long long context_id = 0;  // 0: not known
  cuda::Device device = 0;
  int cc_major = 0;
  int cc_minor = 0;
  int sm_count = 0;
  int max_smem = 0;  // bytes of shared memory of a CTA, at most
  int max_threads = 0;
  int smem_per_sm = 0;  // bytes
  int threads_per_sm = 0;
  int registers_per_sm = 0;
  int ctas_per_sm = 0;  // at most, whatever they need
  int cluster_launch = 0;
  int tensor_maps = 0;

  // "device 0 (compute capability 9.0)"
  std::string name() const;
  // Fills in the compute capability of a problem that gives none. Errors: WRONG_DEVICE.
  Error claim(mla_problem* problem) const;
};

// Finds the context, makes it current in `scope`, and reads its device. `context` may be null: the
// current one; `field` is its name in messages.
Error enter_context(const Driver& driver, const char* field, void* context, ScopedContext* scope,
                    Place* place);

}  // namespace mla::loader
