// SPDX-License-Identifier: Apache-2.0
#include "loader/src/prepare.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "kernels/common/mla_params.h"
#include "loader/src/context.h"
#include "loader/src/workspace.h"

namespace mla::loader {
namespace {

// Of every CTA's static shared memory the system takes this much on compute capability 9.0 and
// later; drivers differ in whether they count it.
constexpr uint32_t kReservedSmem = 1024;

// How an attempt to prepare one kernel ended.
enum class Outcome {
  kPrepared,
  kPassOver,  // this kernel cannot run here; another may
  kFailed,
};

struct Attempt {
  Outcome outcome = Outcome::kPrepared;
  Error error;
};

Attempt failed(Error error) { return {Outcome::kFailed, std::move(error)}; }
Attempt pass_over(Error error) { return {Outcome::kPassOver, std::move(error)}; }

// What a driver says of an image that is not for its device or too new for it.
bool is_refusal(cuda::Result result) {
  return result == cuda::kErrorInvalidImage || result == cuda::kErrorNoBinaryForGpu ||
         result == cuda::kErrorInvalidPtx || result == cuda::kErrorUnsupportedPtxVersion;
}

bool is_capture_error(cuda::Result result) {
  return result >= cuda::kErrorStreamCaptureUnsupported && result <= cuda::kErrorStreamCaptureWrongThread;
}

Error capture_error(const std::string& why) {
  return {MLA_ERROR_NOT_PREPARED, text("a kernel cannot be loaded while a stream is captured (", why,
                                       "): call mla_prepare before the capture begins")};
}

// Sets the calling thread's capture mode for a scope.
class RelaxedCaptureMode {
 public:
  explicit RelaxedCaptureMode(const Driver& driver) : driver_(driver) {}
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;
  ~RelaxedCaptureMode() {
    if (entered_) driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }

  Error enter() {
    const cuda::Result result = driver_.cuThreadExchangeStreamCaptureMode(&mode_);
    if (result != cuda::kSuccess) return driver_.error("cuThreadExchangeStreamCaptureMode", result);
    entered_ = true;
    return {};
  }

 private:
  const Driver& driver_;
  int mode_ = cuda::kCaptureModeRelaxed;
  bool entered_ = false;
};

class Preparer {
 public:
  Preparer(mla_bundle* bundle, const Driver& driver, const Place& place)
      : bundle_(*bundle), driver_(driver), place_(place) {}

  mla_kernel* find(uint32_t index) {
    LoadedKernel& loaded = bundle_.loaded[index];
    const std::lock_guard lock(loaded.mutex);
    return find_locked(loaded);
  }

  bool refused(uint32_t index) {
    LoadedKernel& loaded = bundle_.loaded[index];
    const std::lock_guard lock(loaded.mutex);
    return contains(loaded.refused, place_.device);
  }

  // Prepares kernel `index`, or finds it prepared.
  Attempt prepare(uint32_t index, mla_kernel** out) {
    LoadedKernel& loaded = bundle_.loaded[index];
    const std::lock_guard lock(loaded.mutex);
    if (mla_kernel* found = find_locked(loaded)) {
      *out = found;
      return {};
    }
    if (Error error = check_no_capture(); !error.ok()) return failed(std::move(error));
    // Loading counts as unsafe while any thread captures a stream that cannot be seen from here;
    // the relaxed mode keeps such a capture whole.
    RelaxedCaptureMode mode(driver_);
    if (Error error = mode.enter(); !error.ok()) return failed(std::move(error));
    Attempt attempt = load(index, loaded, out);
    if (attempt.outcome != Outcome::kPrepared) {
      if (loaded.prepared.empty()) drop_library(loaded);
      if (attempt.outcome == Outcome::kPassOver && !contains(loaded.refused, place_.device)) {
        loaded.refused.push_back(place_.device);
      }
    }
    return attempt;
  }

 private:
  static bool contains(const std::vector<cuda::Device>& devices, cuda::Device device) {
    return std::find(devices.begin(), devices.end(), device) != devices.end();
  }

  mla_kernel* find_locked(const LoadedKernel& loaded) const {
    for (const auto& kernel : loaded.prepared) {
      if (kernel->context == place_.context && kernel->context_id == place_.context_id) return kernel.get();
    }
    return nullptr;
  }

  void drop_library(LoadedKernel& loaded) {
    if (loaded.library != nullptr) driver_.cuLibraryUnload(loaded.library);
    loaded.library = nullptr;
    loaded.kernel = nullptr;
    loaded.devices.clear();
  }

  // The legacy stream answers "implicit" while another stream of the context captures; asking does
  // no harm to that capture.
  Error check_no_capture() const {
    for (const cuda::Stream stream : {cuda::Stream{nullptr}, cuda::kStreamPerThread}) {
      int status = cuda::kCaptureNone;
      const cuda::Result result = driver_.cuStreamIsCapturing(stream, &status);
      if (is_capture_error(result)) return capture_error(driver_.describe("cuStreamIsCapturing", result));
      // A green context has no per-thread stream.
      if (result != cuda::kSuccess) {
        if (stream == cuda::kStreamPerThread) continue;
        return driver_.error("cuStreamIsCapturing", result);
      }
      if (status != cuda::kCaptureNone) return capture_error("the default stream of this thread");
    }
    return {};
  }

  Attempt driver_failure(const manifest::Kernel& kernel, const char* call, cuda::Result result) const {
    if (is_capture_error(result)) return failed(capture_error(driver_.describe(call, result)));
    std::string message = text(kernel.id, ": ", driver_.describe(call, result), " on ", place_.name());
    if (!is_refusal(result)) return failed({MLA_ERROR_DRIVER, std::move(message)});
    message += text("; built by toolkit ", bundle_.manifest.toolkit, " for drivers from ", kernel.min_driver,
                    " on, this driver supports CUDA ", cuda_version_name(driver_.cuda_version()));
    return pass_over({MLA_ERROR_DRIVER, std::move(message)});
  }

  Attempt limit(const manifest::Kernel& kernel, const std::string& what) const {
    return pass_over({MLA_ERROR_DEVICE_LIMIT, text(kernel.id, ": ", what, " on ", place_.name())});
  }

  Attempt untrue(const manifest::Kernel& kernel, const char* what, int64_t manifest, int64_t driver) const {
    return failed({MLA_ERROR_INVALID_BUNDLE,
                   text(bundle_.folder.path_of(kernel.file), ": ", manifest::kManifestFile, " says ",
                        manifest, " ", what, " of ", kernel.id, ", the driver says ", driver)});
  }

  Attempt check_limits(const manifest::Kernel& kernel) const {
    const uint64_t smem = uint64_t{kernel.facts.dynamic_smem} + kernel.resources.static_smem;
    if (smem > static_cast<uint64_t>(place_.max_smem)) {
      return limit(kernel, text("needs ", smem, " bytes of shared memory per CTA, at most ", place_.max_smem,
                                " can be had"));
    }
    if (kernel.facts.threads > static_cast<uint32_t>(place_.max_threads)) {
      return limit(kernel, text("needs ", kernel.facts.threads, " threads per CTA, at most ",
                                place_.max_threads, " can be had"));
    }
    if (kernel.facts.cluster_size > 1 && place_.cluster_launch == 0) {
      return limit(kernel, "needs thread block clusters, which cannot be had");
    }
    if (kernel.facts.tensor_maps != 0 && place_.tensor_maps == 0)
      return limit(kernel, "needs tensor maps (TMA), which cannot be had");
    return {};
  }

  Attempt load(uint32_t index, LoadedKernel& loaded, mla_kernel** out) {
    const manifest::Kernel& entry = bundle_.manifest.kernels[index];
    if (Attempt attempt = check_limits(entry); attempt.outcome != Outcome::kPrepared) return attempt;
    if (loaded.library == nullptr) {
      std::vector<std::byte> image;
      if (Error error = read_cubin(bundle_, index, &image); !error.ok()) return failed(std::move(error));
      cuda::Result result =
          driver_.cuLibraryLoadData(&loaded.library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
      if (result != cuda::kSuccess) {
        loaded.library = nullptr;
        return driver_failure(entry, "cuLibraryLoadData", result);
      }
      result = driver_.cuLibraryGetKernel(&loaded.kernel, loaded.library, entry.symbol.c_str());
      if (result != cuda::kSuccess) return driver_failure(entry, "cuLibraryGetKernel", result);
    }

    auto kernel = std::make_unique<mla_kernel>();
    kernel->driver = &driver_;
    kernel->entry = &entry;
    kernel->params = find_params(entry.facts.params_struct, entry.facts.params_version);
    kernel->index = index;
    kernel->kernel = loaded.kernel;
    kernel->context = place_.context;
    kernel->context_id = place_.context_id;
    kernel->device = place_.device;
    kernel->cc_major = place_.cc_major;
    kernel->cc_minor = place_.cc_minor;
    kernel->sm_count = place_.sm_count;
    if (Attempt attempt = set_attributes(entry, loaded); attempt.outcome != Outcome::kPrepared)
      return attempt;
    if (Attempt attempt = check_truth(entry, kernel.get()); attempt.outcome != Outcome::kPrepared)
      return attempt;
    if (Attempt attempt = force_load(entry, loaded); attempt.outcome != Outcome::kPrepared) return attempt;
    if (Attempt attempt = count_workers(kernel.get()); attempt.outcome != Outcome::kPrepared) return attempt;
    kernel->partials_offset = bundle_.workspace.partials_offset;
    kernel->workspace_bytes =
        workspace_bytes(entry.facts, bundle_.workspace, static_cast<uint64_t>(kernel->max_workers));

    // Nothing below fails: first all room is made, then the parts are put in place.
    loaded.prepared.reserve(loaded.prepared.size() + 1);
    if (!contains(loaded.devices, place_.device)) loaded.devices.push_back(place_.device);
    loaded.refused.erase(std::remove(loaded.refused.begin(), loaded.refused.end(), place_.device),
                         loaded.refused.end());
    *out = kernel.get();
    loaded.prepared.push_back(std::move(kernel));
    return {};
  }

  // Attributes belong to a device, not to a context.
  Attempt set_attributes(const manifest::Kernel& entry, const LoadedKernel& loaded) const {
    if (contains(loaded.devices, place_.device)) return {};
    cuda::Result result = driver_.cuKernelSetAttribute(cuda::kFunctionMaxDynamicSharedSizeBytes,
                                                       static_cast<int>(entry.facts.dynamic_smem),
                                                       loaded.kernel, place_.device);
    if (result != cuda::kSuccess) {
      return driver_failure(entry, "cuKernelSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES)", result);
    }
    result = driver_.cuKernelSetAttribute(cuda::kFunctionPreferredSharedMemoryCarveout, entry.facts.carveout,
                                          loaded.kernel, place_.device);
    if (result != cuda::kSuccess) {
      return driver_failure(entry, "cuKernelSetAttribute(PREFERRED_SHARED_MEMORY_CARVEOUT)", result);
    }
    return {};
  }

  // Compares what the manifest says with what the driver read in the cubin.
  Attempt check_truth(const manifest::Kernel& entry, mla_kernel* kernel) const {
    int registers = 0, smem = 0, threads = 0, width = 0, height = 0, depth = 0;
    const std::tuple<const char*, int, int*> attributes[] = {
        {"cuKernelGetAttribute(NUM_REGS)", cuda::kFunctionNumRegs, &registers},
        {"cuKernelGetAttribute(SHARED_SIZE_BYTES)", cuda::kFunctionSharedSizeBytes, &smem},
        {"cuKernelGetAttribute(MAX_THREADS_PER_BLOCK)", cuda::kFunctionMaxThreadsPerBlock, &threads},
        {"cuKernelGetAttribute(REQUIRED_CLUSTER_WIDTH)", cuda::kFunctionRequiredClusterWidth, &width},
        {"cuKernelGetAttribute(REQUIRED_CLUSTER_HEIGHT)", cuda::kFunctionRequiredClusterHeight, &height},
        {"cuKernelGetAttribute(REQUIRED_CLUSTER_DEPTH)", cuda::kFunctionRequiredClusterDepth, &depth}};
    for (const auto& [call, attribute, value] : attributes) {
      const cuda::Result result =
          driver_.cuKernelGetAttribute(value, attribute, kernel->kernel, place_.device);
      if (result != cuda::kSuccess) return driver_failure(entry, call, result);
    }
    if (static_cast<uint32_t>(registers) != entry.resources.registers) {
      return untrue(entry, "registers per thread", entry.resources.registers, registers);
    }
    const int64_t extra = int64_t{smem} - entry.resources.static_smem;
    if (extra != 0 && extra != kReservedSmem) {
      return untrue(entry, "bytes of static shared memory", entry.resources.static_smem, smem);
    }
    if (static_cast<uint32_t>(threads) < entry.facts.threads) {
      return untrue(entry, "threads per CTA", entry.facts.threads, threads);
    }
    const int required = width * height * depth;
    if (required != 0 && static_cast<uint32_t>(required) != entry.facts.cluster_size) {
      return untrue(entry, "CTAs per cluster", entry.facts.cluster_size, required);
    }
    kernel->cluster_attribute = required == 0 && entry.facts.cluster_size > 1;

    if (const auto param_info = driver_.cuKernelGetParamInfo()) {
      size_t offset = 0, bytes = 0;
      const cuda::Result result = param_info(kernel->kernel, 0, &offset, &bytes);
      if (result != cuda::kSuccess) return driver_failure(entry, "cuKernelGetParamInfo", result);
      // Only the size: the offset counts from the parameter bank and is 48, not 0, on sm_90, where the
      // bank begins at 0x210 and the struct is aligned to 64 bytes.
      if (bytes != entry.facts.params_bytes) {
        return untrue(entry, "bytes of parameters", entry.facts.params_bytes, static_cast<int64_t>(bytes));
      }
    }
    return {};
  }

  // With lazy loading the code would reach the device with the first launch, which may be a captured
  // one, or wait for a kernel that runs already.
  Attempt force_load(const manifest::Kernel& entry, const LoadedKernel& loaded) const {
    cuda::Function function = nullptr;
    cuda::Result result = driver_.cuKernelGetFunction(&function, loaded.kernel);
    if (result != cuda::kSuccess) return driver_failure(entry, "cuKernelGetFunction", result);
    if (const auto load = driver_.cuFuncLoad()) {
      result = load(function);
      if (result != cuda::kSuccess) return driver_failure(entry, "cuFuncLoad", result);
    }
    return {};
  }

  Attempt count_workers(mla_kernel* kernel) const {
    const cubin::Facts& launch = kernel->entry->facts;
    cuda::LaunchAttribute attribute{};
    attribute.id = cuda::kLaunchClusterDimension;
    attribute.value.cluster_dim = {launch.cluster_size, 1, 1};
    cuda::LaunchConfig config{};
    config.grid_x = launch.cluster_size * static_cast<unsigned>(place_.sm_count);
    config.grid_y = config.grid_z = 1;
    config.block_x = launch.threads;
    config.block_y = config.block_z = 1;
    config.shared_bytes = launch.dynamic_smem;
    // The attribute must be there unless the code fixes the cluster, and then must not differ.
    config.attributes = &attribute;
    config.attribute_count = 1;
    const cuda::Result result = driver_.cuOccupancyMaxActiveClusters(
        &kernel->max_workers, reinterpret_cast<cuda::Function>(kernel->kernel), &config);
    if (result != cuda::kSuccess)
      return driver_failure(*kernel->entry, "cuOccupancyMaxActiveClusters", result);
    if (kernel->max_workers < 1) {
      return limit(*kernel->entry,
                   text("no cluster of ", launch.cluster_size, " CTAs of ", launch.threads, " threads and ",
                        launch.dynamic_smem, " bytes of dynamic shared memory fits"));
    }
    kernel->max_workers = std::min(kernel->max_workers, static_cast<int>(launch.max_workers));
    return {};
  }

  mla_bundle& bundle_;
  const Driver& driver_;
  const Place& place_;
};

Error check_options(const mla_prepare_options& options) {
  if (options.flags == 0) return {};
  return invalid_argument("options.flags is ", Hex{options.flags}, "; allowed: 0");
}

}  // namespace

Error prepare_index(mla_bundle* bundle, uint32_t index, const mla_prepare_options& options,
                    mla_kernel** out) {
  const std::vector<manifest::Kernel>& kernels = bundle->manifest.kernels;
  if (index >= kernels.size()) {
    return invalid_argument("index is ", index, "; the bundle has ", kernels.size(), " kernels");
  }
  if (Error error = check_options(options); !error.ok()) return error;
  const manifest::Kernel& kernel = kernels[index];
  if (!bundle->unusable[index].empty()) {
    return {MLA_ERROR_NO_KERNEL, text(kernel.id, ": ", bundle->unusable[index])};
  }
  const Driver* driver = nullptr;
  if (Error error = Driver::get(&driver); !error.ok()) return error;
  ScopedContext scope(*driver);
  Place place;
  if (Error error = enter_context(*driver, "options.context", options.context, &scope, &place); !error.ok()) {
    return error;
  }
  if (target_rank(kernel.target.sm, kernel.target.suffix, place.cc_major, place.cc_minor) == kRunsNot) {
    return {MLA_ERROR_NO_KERNEL,
            text(kernel.id, ": built for ", target_reach(kernel.target), ", not on ", place.name())};
  }
  return Preparer(bundle, *driver, place).prepare(index, out).error;
}

Error prepare(mla_bundle* bundle, const mla_problem& problem, const mla_prepare_options& options,
              mla_kernel** out) {
  mla_problem here = problem;
  if (Error error = check_problem(&here); !error.ok()) return error;
  if (Error error = check_options(options); !error.ok()) return error;
  const Driver* driver = nullptr;
  if (Error error = Driver::get(&driver); !error.ok()) return error;
  ScopedContext scope(*driver);
  Place place;
  if (Error error = enter_context(*driver, "options.context", options.context, &scope, &place); !error.ok()) {
    return error;
  }

  if (Error error = place.claim(&here); !error.ok()) return error;
  const std::vector<uint32_t> candidates = bundle->selector.ranked(here);
  if (candidates.empty()) {
    return {MLA_ERROR_NO_KERNEL,
            text("no kernel for ", place.name(), " and this problem:\n", bundle->selector.explain(here))};
  }
  Preparer preparer(bundle, *driver, place);
  // What was settled by an earlier call is not tried again.
  for (const uint32_t index : candidates) {
    if (mla_kernel* found = preparer.find(index)) {
      *out = found;
      return {};
    }
    if (!preparer.refused(index)) break;
  }
  std::string refusals;
  mla_status code = MLA_ERROR_DEVICE_LIMIT;
  for (const uint32_t index : candidates) {
    Attempt attempt = preparer.prepare(index, out);
    if (attempt.outcome != Outcome::kPassOver) return std::move(attempt.error);
    if (attempt.error.code() != MLA_ERROR_DEVICE_LIMIT) code = MLA_ERROR_NO_KERNEL;
    refusals += attempt.error.message() + "\n";
  }
  return {code, text("no kernel for this problem can be prepared on ", place.name(), ":\n", refusals)};
}

Error unload(mla_bundle* bundle) {
  Error first;
  const Driver* driver = nullptr;
  const size_t count = bundle->loaded != nullptr ? bundle->manifest.kernels.size() : 0;
  for (size_t i = 0; i < count; ++i) {
    LoadedKernel& loaded = bundle->loaded[i];
    const std::lock_guard lock(loaded.mutex);
    loaded.prepared.clear();
    if (loaded.library == nullptr) continue;
    if (driver == nullptr) {
      if (Error error = Driver::get(&driver); !error.ok()) return error;
    }
    const cuda::Result result = driver->cuLibraryUnload(loaded.library);
    loaded.library = nullptr;
    // While the process ends the driver may have gone before the caller closes the bundle.
    if (result != cuda::kSuccess && result != cuda::kErrorDeinitialized && first.ok()) {
      first = driver->error("cuLibraryUnload", result);
    }
  }
  return first;
}

}  // namespace mla::loader
