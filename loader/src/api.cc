// SPDX-License-Identifier: Apache-2.0
//
// The C boundary: checks handles and struct sizes, keeps exceptions in, sets the last error.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "kernels/common/mla_params.h"
#include "loader/include/mla_loader.h"
#include "loader/src/bundle.h"
#include "loader/src/error.h"
#include "loader/src/launch.h"
#include "loader/src/prepare.h"
#include "loader/src/words.h"
#include "loader/src/workspace.h"

namespace mla::loader {
namespace {

// No struct grows beyond this; a larger struct_size is garbage, not a newer header.
constexpr uint32_t kMaxStructSize = 4096;

// Size that each struct had in the first release: the least that a caller's struct_size can be.
template <typename T>
struct Abi;
#define MLA_ABI(type, first_bytes)                       \
  template <>                                            \
  struct Abi<type> {                                     \
    static constexpr const char* kName = #type;          \
    static constexpr uint32_t kFirstBytes = first_bytes; \
    static_assert(sizeof(type) >= first_bytes);          \
  }
MLA_ABI(mla_open_options, 32);
MLA_ABI(mla_bundle_info, 72);
MLA_ABI(mla_kernel_info, 176);
MLA_ABI(mla_problem, 104);
MLA_ABI(mla_prepare_options, 32);
MLA_ABI(mla_prepared_info, 48);
MLA_ABI(mla_workspace_query, 48);
MLA_ABI(mla_launch_args, 304);
MLA_ABI(mla_merge_args, 152);
#undef MLA_ABI

// `function` sets the buffer once it has read the caller's struct.
template <typename Function>
mla_status guarded(Function&& function) noexcept {
  ErrorBuffer buffer;
  try {
    const Error error = function(buffer);
    return error.ok() ? MLA_SUCCESS : set_last_error(error, buffer);
  } catch (const std::bad_alloc&) {
    return set_last_error(MLA_ERROR_OUT_OF_MEMORY, "out of host memory", buffer);
  } catch (...) {
    return set_last_error(MLA_ERROR_INTERNAL, "an unexpected exception within mla_loader", buffer);
  }
}

// The bundles that are open, so that closing one twice is found out. Never freed, for a program may
// close a bundle while it exits.
struct OpenBundles {
  std::mutex mutex;
  std::set<const mla_bundle*> set;
};
OpenBundles& open_bundles() {
  static OpenBundles* const bundles = new OpenBundles;
  return *bundles;
}

Error null_argument(const char* name) { return invalid_argument(name, " is null"); }

Error check_handle(const mla_bundle* bundle) {
  if (bundle == nullptr) return null_argument("bundle");
  if (bundle->magic == kBundleMagic) return {};
  return invalid_argument("bundle is not an open bundle (was it closed?)");
}

Error check_handle(const mla_kernel* kernel) {
  if (kernel == nullptr) return null_argument("kernel");
  if (kernel->magic == kKernelMagic) return {};
  return invalid_argument("kernel is not a prepared kernel (was its bundle closed?)");
}

template <typename T>
Error check_struct_size(const char* name, uint32_t size) {
  if (size >= Abi<T>::kFirstBytes && size <= kMaxStructSize) return {};
  return invalid_argument(name, ".struct_size is ", size, "; must be sizeof(", Abi<T>::kName, "), ",
                          sizeof(T), " in this library (", MLA_VERSION_STRING, ")");
}

// Reads a caller's struct of any size: what an older header lacks is zero, what a newer one has more
// must be zero.
template <typename T>
Error read_struct(const char* name, const T* in, T* out) {
  if (in == nullptr) return null_argument(name);
  const uint32_t size = in->struct_size;
  if (Error error = check_struct_size<T>(name, size); !error.ok()) return error;
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (uint32_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return invalid_argument(name, ".struct_size is ", size, " and byte ", i, " is not zero; this library (",
                              MLA_VERSION_STRING, ") knows the first ", sizeof(T), " bytes of ",
                              Abi<T>::kName, ": leave newer fields zero, or use a newer library");
    }
  }
  std::memset(out, 0, sizeof(T));
  std::memcpy(out, in, std::min<size_t>(size, sizeof(T)));
  return {};
}

// Fills a caller's struct of any size; fields that only a newer header has become zero.
template <typename T>
void write_struct(T filled, T* out) {
  const uint32_t size = out->struct_size;
  filled.struct_size = size;
  std::memcpy(out, &filled, std::min<size_t>(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(reinterpret_cast<unsigned char*>(out) + sizeof(T), 0, size - sizeof(T));
}

template <typename T>
Error check_output(const char* name, const T* out) {
  if (out == nullptr) return null_argument(name);
  return check_struct_size<T>(name, out->struct_size);
}

// The same, and where its caller wants the sentence of a failure.
template <typename T>
Error read_struct(const char* name, const T* in, T* out, ErrorBuffer* buffer) {
  Error error = read_struct(name, in, out);
  if (error.ok()) *buffer = {out->error, out->error_size};
  return error;
}

// Options that may be null.
template <typename T>
Error read_options(const char* name, const T* in, T* out, ErrorBuffer* buffer) {
  std::memset(out, 0, sizeof(T));
  return in == nullptr ? Error() : read_struct(name, in, out, buffer);
}

}  // namespace
}  // namespace mla::loader

using mla::loader::Error;
using mla::loader::ErrorBuffer;
using mla::loader::guarded;

extern "C" {

const char* mla_status_name(mla_status status) {
  switch (status) {
#define MLA_NAME(name) \
  case name:           \
    return #name
    MLA_NAME(MLA_SUCCESS);
    MLA_NAME(MLA_ERROR_INVALID_ARGUMENT);
    MLA_NAME(MLA_ERROR_INVALID_BUNDLE);
    MLA_NAME(MLA_ERROR_IO);
    MLA_NAME(MLA_ERROR_NO_KERNEL);
    MLA_NAME(MLA_ERROR_NO_DRIVER);
    MLA_NAME(MLA_ERROR_DRIVER);
    MLA_NAME(MLA_ERROR_NOT_PREPARED);
    MLA_NAME(MLA_ERROR_WRONG_DEVICE);
    MLA_NAME(MLA_ERROR_DEVICE_LIMIT);
    MLA_NAME(MLA_ERROR_WORKSPACE);
    MLA_NAME(MLA_ERROR_OUT_OF_MEMORY);
    MLA_NAME(MLA_ERROR_INTERNAL);
#undef MLA_NAME
    default:
      return "MLA_ERROR_UNKNOWN";
  }
}

const char* mla_last_error(void) { return mla::loader::last_error(); }

mla_status mla_last_error_copy(char* buffer, uint64_t size, uint64_t* needed) {
  return mla::loader::copy_out(mla::loader::last_error(), buffer, size, needed);
}

uint32_t mla_version(void) { return MLA_VERSION; }
const char* mla_version_string(void) { return MLA_VERSION_STRING; }

#define MLA_CHECK(call) \
  if (Error error = call; !error.ok()) return error

mla_status mla_bundle_open(const char* path, const mla_open_options* options, mla_bundle** bundle) {
  return guarded([&](ErrorBuffer& buffer) -> Error {
    if (bundle == nullptr) return mla::loader::null_argument("bundle");
    mla_open_options known;
    MLA_CHECK(mla::loader::read_options("options", options, &known, &buffer));
    std::unique_ptr<mla_bundle> opened;
    MLA_CHECK(mla::loader::open_bundle(path, known, &opened));
    mla::loader::OpenBundles& open = mla::loader::open_bundles();
    const std::lock_guard lock(open.mutex);
    open.set.insert(opened.get());
    *bundle = opened.release();
    return {};
  });
}

mla_status mla_bundle_close(mla_bundle* bundle) {
  return guarded([&](ErrorBuffer&) -> Error {
    if (bundle == nullptr) return {};
    {
      mla::loader::OpenBundles& open = mla::loader::open_bundles();
      const std::lock_guard lock(open.mutex);
      if (open.set.erase(bundle) == 0) {
        return mla::loader::invalid_argument("bundle is not an open bundle (was it closed already?)");
      }
    }
    const std::unique_ptr<mla_bundle> owned(bundle);
    return mla::loader::unload(bundle);
  });
}

mla_status mla_bundle_get_info(const mla_bundle* bundle, mla_bundle_info* info) {
  return guarded([&](ErrorBuffer&) -> Error {
    MLA_CHECK(mla::loader::check_handle(bundle));
    MLA_CHECK(mla::loader::check_output("info", info));
    mla_bundle_info filled = MLA_BUNDLE_INFO_INIT;
    filled.kernel_count = static_cast<uint32_t>(bundle->manifest.kernels.size());
    filled.format_major = bundle->manifest.format_major;
    filled.format_minor = bundle->manifest.format_minor;
    filled.workspace_zeroed_bytes = bundle->workspace.zeroed_bytes;
    filled.name = bundle->manifest.name.c_str();
    filled.version = bundle->manifest.version.c_str();
    filled.toolkit = bundle->manifest.toolkit.c_str();
    filled.source_hash = bundle->manifest.source_hash.c_str();
    filled.manifest_sha256 = bundle->manifest_sha256.c_str();
    filled.path = bundle->path.c_str();
    mla::loader::write_struct(filled, info);
    return {};
  });
}

mla_status mla_bundle_get_kernel(const mla_bundle* bundle, uint32_t index, mla_kernel_info* info) {
  return guarded([&](ErrorBuffer&) -> Error {
    MLA_CHECK(mla::loader::check_handle(bundle));
    MLA_CHECK(mla::loader::check_output("info", info));
    if (index >= bundle->manifest.kernels.size()) {
      return mla::loader::invalid_argument("index is ", index, "; the bundle has ",
                                           bundle->manifest.kernels.size(), " kernels");
    }
    const mla::manifest::Kernel& kernel = bundle->manifest.kernels[index];
    const mla::cubin::Facts& facts = kernel.facts;
    const auto i32 = [](uint32_t value) { return static_cast<int32_t>(value); };
    mla_kernel_info filled = MLA_KERNEL_INFO_INIT;
    filled.sm = kernel.target.sm;
    filled.id = kernel.id.c_str();
    filled.file = kernel.file.c_str();
    filled.symbol = kernel.symbol.c_str();
    filled.target = bundle->target_names[index].c_str();
    filled.min_driver = kernel.min_driver.c_str();
    filled.unusable = bundle->unusable[index].c_str();
    filled.params_struct = mla::loader::static_word_name(mla::loader::kParamsStructs, facts.params_struct);
    filled.params_version = facts.params_version;
    filled.features = facts.features;
    filled.kind = i32(facts.kind);
    filled.family = i32(facts.family);
    filled.mma = i32(facts.mma);
    filled.arithmetic = i32(facts.arithmetic);
    filled.cache_layout = i32(facts.cache_layout);
    filled.q_dtype = i32(facts.q_dtype);
    filled.kv_dtype = i32(facts.kv_dtype);
    filled.partial_dtype = i32(facts.partial_dtype);
    filled.out_dtype = i32(facts.out_dtype);
    filled.rows = i32(facts.rows);
    filled.head_dim_k = i32(facts.head_dim_k);
    filled.head_dim_v = i32(facts.head_dim_v);
    filled.tile_tokens = i32(facts.tile_tokens);
    filled.page_size_multiple = i32(facts.page_size_multiple);
    filled.page_size_max = i32(facts.page_size_max);
    filled.threads = i32(facts.threads);
    filled.cluster_size = i32(facts.cluster_size);
    filled.registers = i32(kernel.resources.registers);
    filled.dynamic_smem = i32(facts.dynamic_smem);
    filled.static_smem = i32(kernel.resources.static_smem);
    filled.spill_bytes = i32(kernel.resources.spill_bytes);  // kSpillUnknown becomes -1
    filled.stack_bytes = i32(kernel.resources.stack_bytes);
    filled.priority = facts.priority;
    filled.tile_cost = i32(facts.tile_cost);
    filled.max_workers = i32(facts.max_workers);
    mla::loader::write_struct(filled, info);
    return {};
  });
}

mla_status mla_select(const mla_bundle* bundle, const mla_problem* problem, uint32_t* kernel_index) {
  return guarded([&](ErrorBuffer& buffer) -> Error {
    MLA_CHECK(mla::loader::check_handle(bundle));
    if (kernel_index == nullptr) return mla::loader::null_argument("kernel_index");
    mla_problem known;
    MLA_CHECK(mla::loader::read_struct("problem", problem, &known, &buffer));
    MLA_CHECK(mla::loader::check_problem(&known));
    MLA_CHECK(mla::loader::check_compute_capability(known));
    if (bundle->selector.best(known, kernel_index)) return {};
    return {MLA_ERROR_NO_KERNEL,
            mla::loader::text("no kernel for compute capability ", known.cc_major, ".", known.cc_minor,
                              " and this problem:\n", bundle->selector.explain(known))};
  });
}

mla_status mla_select_explain(const mla_bundle* bundle, const mla_problem* problem, char* buffer,
                              uint64_t size, uint64_t* needed) {
  return guarded([&](ErrorBuffer& error_buffer) -> Error {
    MLA_CHECK(mla::loader::check_handle(bundle));
    mla_problem known;
    MLA_CHECK(mla::loader::read_struct("problem", problem, &known, &error_buffer));
    MLA_CHECK(mla::loader::check_problem(&known));
    MLA_CHECK(mla::loader::check_compute_capability(known));
    mla::loader::copy_out(bundle->selector.explain(known), buffer, size, needed);
    return {};
  });
}

mla_status mla_prepare(mla_bundle* bundle, const mla_problem* problem, const mla_prepare_options* options,
                       mla_kernel** kernel) {
  return guarded([&](ErrorBuffer& buffer) -> Error {
    MLA_CHECK(mla::loader::check_handle(bundle));
    if (kernel == nullptr) return mla::loader::null_argument("kernel");
    mla_problem known;
    mla_prepare_options known_options;
    MLA_CHECK(mla::loader::read_options("options", options, &known_options, &buffer));
    MLA_CHECK(mla::loader::read_struct("problem", problem, &known));
    if (buffer.text == nullptr) buffer = {known.error, known.error_size};
    return mla::loader::prepare(bundle, known, known_options, kernel);
  });
}

mla_status mla_prepare_index(mla_bundle* bundle, uint32_t index, const mla_prepare_options* options,
                             mla_kernel** kernel) {
  return guarded([&](ErrorBuffer& buffer) -> Error {
    MLA_CHECK(mla::loader::check_handle(bundle));
    if (kernel == nullptr) return mla::loader::null_argument("kernel");
    mla_prepare_options known_options;
    MLA_CHECK(mla::loader::read_options("options", options, &known_options, &buffer));
    return mla::loader::prepare_index(bundle, index, known_options, kernel);
  });
}

mla_status mla_kernel_get_info(const mla_kernel* kernel, mla_prepared_info* info) {
  return guarded([&](ErrorBuffer&) -> Error {
    MLA_CHECK(mla::loader::check_handle(kernel));
    MLA_CHECK(mla::loader::check_output("info", info));
    mla_prepared_info filled = MLA_PREPARED_INFO_INIT;
    filled.kernel_index = kernel->index;
    filled.device = kernel->device;
    filled.cc_major = kernel->cc_major;
    filled.cc_minor = kernel->cc_minor;
    filled.sm_count = kernel->sm_count;
    filled.max_workers = kernel->max_workers;
    filled.workspace_bytes = kernel->workspace_bytes;
    filled.workspace_alignment = mla::kWorkspaceAlign;
    mla::loader::write_struct(filled, info);
    return {};
  });
}

mla_status mla_workspace_bytes(const mla_bundle* bundle, const mla_workspace_query* query, uint64_t* bytes) {
  return guarded([&](ErrorBuffer& buffer) -> Error {
    MLA_CHECK(mla::loader::check_handle(bundle));
    if (bytes == nullptr) return mla::loader::null_argument("bytes");
    mla_workspace_query known;
    MLA_CHECK(mla::loader::read_options("query", query, &known, &buffer));
    if ((known.problems == nullptr) != (known.problem_count == 0)) {
      return mla::loader::invalid_argument("query.problem_count is ", known.problem_count,
                                           " and query.problems is ",
                                           known.problems == nullptr ? "null" : "not null");
    }
    std::vector<mla_problem> problems(known.problem_count);
    for (size_t i = 0; i < problems.size(); ++i) {
      const std::string name = mla::loader::text("query.problems[", i, "]");
      MLA_CHECK(mla::loader::read_struct(name.c_str(), known.problems[i], &problems[i]));
    }
    return mla::loader::query_workspace(*bundle, known, problems, bytes);
  });
}

mla_status mla_workspace_init(const mla_bundle* bundle, uint64_t workspace, uint64_t workspace_bytes,
                              void* stream) {
  return guarded([&](ErrorBuffer&) -> Error {
    MLA_CHECK(mla::loader::check_handle(bundle));
    return mla::loader::init_workspace(*bundle, workspace, workspace_bytes, stream);
  });
}

mla_status mla_launch(const mla_kernel* kernel, const mla_launch_args* args, void* stream) {
  return guarded([&](ErrorBuffer& buffer) -> Error {
    MLA_CHECK(mla::loader::check_handle(kernel));
    mla_launch_args known;
    MLA_CHECK(mla::loader::read_struct("args", args, &known, &buffer));
    return mla::loader::launch(*kernel, known, stream);
  });
}

mla_status mla_merge_launch(const mla_kernel* kernel, const mla_merge_args* args, void* stream) {
  return guarded([&](ErrorBuffer& buffer) -> Error {
    MLA_CHECK(mla::loader::check_handle(kernel));
    mla_merge_args known;
    MLA_CHECK(mla::loader::read_struct("args", args, &known, &buffer));
    return mla::loader::launch(*kernel, known, stream);
  });
}

}  // extern "C"
