// SPDX-License-Identifier: Apache-2.0
#include "loader/src/context.h"

#include <tuple>

namespace mla::loader {

std::string Place::name() const {
  return text("device ", device, " (compute capability ", cc_major, ".", cc_minor, ")");
}

Error Place::claim(mla_problem* problem) const {
  if (problem->sm_count == 0) problem->sm_count = sm_count;
  if (problem->cc_major == 0) {
    problem->cc_major = cc_major;
    problem->cc_minor = cc_minor;
    return {};
  }
  if (problem->cc_major == cc_major && problem->cc_minor == cc_minor) return {};
  return {MLA_ERROR_WRONG_DEVICE, text("problem asks for compute capability ", problem->cc_major, ".",
                                       problem->cc_minor, "; the context belongs to ", name())};
}

Error enter_context(const Driver& driver, const char* field, void* context, ScopedContext* scope,
                    Place* place) {
  place->context = static_cast<cuda::Context>(context);
  if (place->context == nullptr) {
    if (const cuda::Result result = driver.cuCtxGetCurrent(&place->context); result != cuda::kSuccess) {
      return driver.error("cuCtxGetCurrent", result);
    }
    if (place->context == nullptr) {
      return invalid_argument(field,
                              " is null and no CUDA context is current on this thread; give a context, or "
                              "make one current first (cuCtxSetCurrent; with the runtime API cudaSetDevice)");
    }
  } else if (Error error = scope->enter(place->context); !error.ok()) {
    return error;
  }
  if (const auto context_id = driver.cuCtxGetId()) {
    if (const cuda::Result result = context_id(place->context, &place->context_id);
        result != cuda::kSuccess) {
      return driver.error("cuCtxGetId", result);
    }
  }
  if (const cuda::Result result = driver.cuCtxGetDevice(&place->device); result != cuda::kSuccess) {
    return driver.error("cuCtxGetDevice", result);
  }
  const std::tuple<const char*, int, int*> attributes[] = {
      {"COMPUTE_CAPABILITY_MAJOR", cuda::kDeviceComputeCapabilityMajor, &place->cc_major},
      {"COMPUTE_CAPABILITY_MINOR", cuda::kDeviceComputeCapabilityMinor, &place->cc_minor},
      {"MULTIPROCESSOR_COUNT", cuda::kDeviceMultiprocessorCount, &place->sm_count},
      {"MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", cuda::kDeviceMaxSharedMemoryPerBlockOptin, &place->max_smem},
      {"MAX_THREADS_PER_BLOCK", cuda::kDeviceMaxThreadsPerBlock, &place->max_threads},
      {"MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", cuda::kDeviceMaxSharedMemoryPerMultiprocessor,
       &place->smem_per_sm},
      {"MAX_THREADS_PER_MULTIPROCESSOR", cuda::kDeviceMaxThreadsPerMultiprocessor, &place->threads_per_sm},
      {"MAX_REGISTERS_PER_MULTIPROCESSOR", cuda::kDeviceMaxRegistersPerMultiprocessor,
       &place->registers_per_sm},
      {"MAX_BLOCKS_PER_MULTIPROCESSOR", cuda::kDeviceMaxBlocksPerMultiprocessor, &place->ctas_per_sm},
      {"CLUSTER_LAUNCH", cuda::kDeviceClusterLaunch, &place->cluster_launch},
      {"TENSOR_MAP_ACCESS_SUPPORTED", cuda::kDeviceTensorMapAccessSupported, &place->tensor_maps}};
  for (const auto& [name, attribute, value] : attributes) {
    const cuda::Result result = driver.cuDeviceGetAttribute(value, attribute, place->device);
    if (result != cuda::kSuccess)
      return driver.error(text("cuDeviceGetAttribute(", name, ")").c_str(), result);
  }
  return {};
}

}  // namespace mla::loader
