// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver, bound at run time. It is bound once per process, on the first call that needs
// it, and stays loaded until the process ends: libcuda must not be unloaded, nor called while the
// process exits, so nothing here has a destructor that runs then.
#pragma once

#include <atomic>
#include <string>

#include "loader/src/cuda_abi.h"
#include "loader/src/error.h"

namespace mla::loader {

// The path given to dlopen instead of "libcuda.so.1".
inline constexpr const char* kDriverPathVariable = "MLA_CUDA_DRIVER_PATH";
inline constexpr const char* kDriverFile = "libcuda.so.1";
inline constexpr int kMinimumCudaVersion = 12000;

class Driver {
 public:
  // The process's driver, bound and initialised (cuInit). Thread-safe; a failure may be retried.
  // Errors: NO_DRIVER, DRIVER (a child of fork after the binding, too).
  static Error get(const Driver** out);

#define MLA_MEMBER(name, version, ...) cuda::name##Function name = nullptr;
  MLA_CUDA_REQUIRED(MLA_MEMBER)
#undef MLA_MEMBER

  // Null where the driver lacks the function.
#define MLA_MEMBER(name, version, ...)                                                 \
  cuda::name##Function name() const {                                                  \
    return reinterpret_cast<cuda::name##Function>(optional(&name##_, #name, version)); \
  }
  MLA_CUDA_OPTIONAL(MLA_MEMBER)
#undef MLA_MEMBER

  // CUDA version that the driver supports, as cuDriverGetVersion gives it (13000).
  int cuda_version() const { return cuda_version_; }

  // Whether this process is a child, made by fork, of the one that bound the driver.
  bool forked() const;

  // "cuLibraryLoadData failed: 209 CUDA_ERROR_NO_BINARY_FOR_GPU, no kernel image is available ..."
  std::string describe(const char* call, cuda::Result result) const;
  Error error(const char* call, cuda::Result result) const {
    return {MLA_ERROR_DRIVER, describe(call, result)};
  }

 private:
  Error bind();
  Error initialise();
  // Null when the driver has no such function.
  void* look_up(const char* name, int version) const;
  void* optional(std::atomic<void*>* slot, const char* name, int version) const;

  std::string path_;
  int process_ = 0;                  // that bound it
  void* proc_address_ = nullptr;     // cuGetProcAddress
  void* proc_address_v2_ = nullptr;  // cuGetProcAddress_v2
  int cuda_version_ = 0;
#define MLA_MEMBER(name, version, ...) mutable std::atomic<void*> name##_ = nullptr;
  MLA_CUDA_OPTIONAL(MLA_MEMBER)
#undef MLA_MEMBER
};

// "13.0" for 13000.
std::string cuda_version_name(int version);

// Makes a context current for a scope, where it is not current already.
class ScopedContext {
 public:
  explicit ScopedContext(const Driver& driver) : driver_(driver) {}
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;
  ~ScopedContext() {
    cuda::Context popped = nullptr;
    if (pushed_) driver_.cuCtxPopCurrent(&popped);
  }

  Error enter(cuda::Context context) {
    cuda::Context current = nullptr;
    if (const cuda::Result result = driver_.cuCtxGetCurrent(&current); result != cuda::kSuccess) {
      return driver_.error("cuCtxGetCurrent", result);
    }
    if (current == context) return {};
    if (const cuda::Result result = driver_.cuCtxPushCurrent(context); result != cuda::kSuccess) {
      return driver_.error("cuCtxPushCurrent", result);
    }
    pushed_ = true;
    return {};
  }

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

}  // namespace mla::loader
