// SPDX-License-Identifier: Apache-2.0
#include "loader/src/launch.h"

#include <algorithm>

#include "loader/src/params.h"
#include "loader/src/prepare.h"
#include "loader/src/words.h"

namespace mla::loader {
namespace {

ParamsTarget target_of(const mla_kernel& kernel) {
  return {&kernel.entry->facts, kernel.entry->id,       kernel.driver,
          kernel.device,        kernel.partials_offset, kernel.workspace_bytes};
}

// CTAs or clusters of a launch.
Error count_workers(const mla_kernel& kernel, int32_t max_sms, int32_t* workers) {
  *workers = kernel.max_workers;
  if (max_sms == 0) return {};
  const int32_t cluster = static_cast<int32_t>(kernel.entry->facts.cluster_size);
  if (max_sms < cluster) {
    return invalid_argument("args.max_sms is ", max_sms, "; must be 0 (all) or at least ", cluster,
                            cluster > 1 ? " (a cluster of " : " (a CTA of ", kernel.entry->id, ")");
  }
  // Where several CTAs fit an SM, so many to each.
  const int64_t per_sm = std::max<int64_t>(1, int64_t{kernel.max_workers} * cluster / kernel.sm_count);
  *workers = static_cast<int32_t>(std::min<int64_t>(kernel.max_workers, max_sms * per_sm / cluster));
  return {};
}

// Checks that the stream belongs to the context the kernel was prepared in.
Error check_stream(const mla_kernel& kernel, cuda::Stream stream) {
  const Driver& driver = *kernel.driver;
  cuda::Context context = nullptr;
  if (const cuda::Result result = driver.cuStreamGetCtx(stream, &context); result != cuda::kSuccess) {
    if (result == cuda::kErrorInvalidContext && stream == nullptr) {
      return {MLA_ERROR_WRONG_DEVICE,
              text("stream is null (the default stream) and no context is current on this "
                   "thread; ",
                   kernel.entry->id, " was prepared on device ", kernel.device)};
    }
    return driver.error("cuStreamGetCtx", result);
  }
  if (context == kernel.context) return {};
  ScopedContext scope(driver);
  cuda::Device device = -1;
  if (scope.enter(context).ok() && driver.cuCtxGetDevice(&device) == cuda::kSuccess &&
      device != kernel.device) {
    return {MLA_ERROR_WRONG_DEVICE,
            text("stream belongs to device ", device, "; ", kernel.entry->id, " was prepared on device ",
                 kernel.device, ": prepare it there too")};
  }
  return {MLA_ERROR_WRONG_DEVICE,
          text("stream belongs to another context of device ", kernel.device, " than the one ",
               kernel.entry->id, " was prepared in: prepare it in that context too")};
}

Error wrong_kind(const mla_kernel& kernel, const char* function) {
  return invalid_argument("kernel is ", kernel.entry->id, ", of kind ",
                          word_name(kKinds, kernel.entry->facts.kind), ": launch it with ", function);
}

Error submit(const mla_kernel& kernel, void* params, int32_t workers, bool pdl, cuda::Stream stream) {
  const cubin::Facts& facts = kernel.entry->facts;
  cuda::LaunchAttribute attributes[2] = {};
  unsigned attribute_count = 0;
  if (kernel.cluster_attribute) {
    cuda::LaunchAttribute& attribute = attributes[attribute_count++];
    attribute.id = cuda::kLaunchClusterDimension;
    attribute.value.cluster_dim = {facts.cluster_size, 1, 1};
  }
  if (pdl) {
    cuda::LaunchAttribute& attribute = attributes[attribute_count++];
    attribute.id = cuda::kLaunchProgrammaticStreamSerialization;
    attribute.value.programmatic_stream_serialization_allowed = 1;
  }
  cuda::LaunchConfig launch{};
  launch.grid_x = static_cast<unsigned>(workers) * facts.cluster_size;
  launch.grid_y = launch.grid_z = 1;
  launch.block_x = facts.threads;
  launch.block_y = launch.block_z = 1;
  launch.shared_bytes = facts.dynamic_smem;
  launch.stream = stream;
  launch.attributes = attribute_count > 0 ? attributes : nullptr;
  launch.attribute_count = attribute_count;
  void* arguments[] = {params};
  const cuda::Result result = kernel.driver->cuLaunchKernelEx(
      &launch, reinterpret_cast<cuda::Function>(kernel.kernel), arguments, nullptr);
  if (result == cuda::kSuccess) return {};
  return {MLA_ERROR_DRIVER,
          text(kernel.driver->describe("cuLaunchKernelEx", result), ": ", kernel.entry->id, " on device ",
               kernel.device, ", grid ", launch.grid_x, ", block ", launch.block_x, ", ", launch.shared_bytes,
               " bytes of dynamic shared memory")};
}

template <typename Args, typename Fill>
Error launch_filled(const mla_kernel& kernel, const Args& args, Fill fill, void* stream_handle) {
  int32_t workers = 0;
  if (Error error = count_workers(kernel, args.max_sms, &workers); !error.ok()) return error;
  ParamsBuffer params;
  const ParamsTarget target = target_of(kernel);
  if (Error error = fill(target, args, params.bytes); !error.ok()) return error;
  const cuda::Stream stream = static_cast<cuda::Stream>(stream_handle);
  if (Error error = check_stream(kernel, stream); !error.ok()) return error;
  ScopedContext scope(*kernel.driver);
  if (Error error = scope.enter(kernel.context); !error.ok()) return error;
  if (kernel.params->encode != nullptr) {
    if (Error error = kernel.params->encode(target, params.bytes); !error.ok()) return error;
  }
  return submit(kernel, params.bytes, workers, (args.flags & MLA_LAUNCH_PDL) != 0, stream);
}

}  // namespace

Error launch(const mla_kernel& kernel, const mla_launch_args& args, void* stream) {
  if (kernel.params->decode == nullptr) return wrong_kind(kernel, "mla_merge_launch");
  return launch_filled(kernel, args, kernel.params->decode, stream);
}

Error launch(const mla_kernel& kernel, const mla_merge_args& args, void* stream) {
  if (kernel.params->merge == nullptr) return wrong_kind(kernel, "mla_launch");
  return launch_filled(kernel, args, kernel.params->merge, stream);
}

}  // namespace mla::loader
