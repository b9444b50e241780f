// SPDX-License-Identifier: Apache-2.0
#include "loader/src/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <new>

namespace mla::loader {
namespace {

using ProcAddress = cuda::Result (*)(const char*, void**, int, uint64_t);
using ProcAddressV2 = cuda::Result (*)(const char*, void**, int, uint64_t, int*);

// Marks an optional function that was looked for and is not there.
char g_absent;

constexpr const char* kForked =
    "this process was made by fork() from one that used CUDA, and cannot use it: start it anew (exec; in "
    "Python the start method \"spawn\"), or fork before the first call that needs the driver";

std::mutex g_bind_mutex;
std::atomic<const Driver*> g_driver = nullptr;

}  // namespace

std::string cuda_version_name(int version) { return text(version / 1000, ".", version % 1000 / 10); }

Error Driver::get(const Driver** out) {
  if (const Driver* bound = g_driver.load(std::memory_order_acquire)) {
    if (bound->forked()) return {MLA_ERROR_DRIVER, kForked};
    *out = bound;
    return {};
  }
  const std::lock_guard lock(g_bind_mutex);
  if (const Driver* bound = g_driver.load(std::memory_order_acquire)) {
    *out = bound;
    return {};
  }
  // Never freed: see the top of driver.h. A failed attempt gives its memory back.
  Driver* driver = new Driver;
  Error error = driver->bind();
  if (error.ok()) error = driver->initialise();
  if (!error.ok()) {
    delete driver;
    return error;
  }
  g_driver.store(driver, std::memory_order_release);
  *out = driver;
  return {};
}

bool Driver::forked() const { return getpid() != process_; }

Error Driver::bind() {
  process_ = getpid();
  const char* variable = secure_getenv(kDriverPathVariable);
  const bool overridden = variable != nullptr && variable[0] != '\0';
  path_ = overridden ? variable : kDriverFile;
  // A handle that an earlier failed attempt left open is shared by this one. RTLD_LOCAL: the
  // driver's symbols are for this library alone.
  void* library = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return {MLA_ERROR_NO_DRIVER,
            text("the CUDA driver cannot be loaded: ", reason != nullptr ? reason : path_.c_str(),
                 overridden ? text(" (", kDriverPathVariable, " is set)")
                            : text(" (install the NVIDIA driver, or set ", kDriverPathVariable,
                                   " to the path of ", kDriverFile, ")"))};
  }
  proc_address_v2_ = dlsym(library, "cuGetProcAddress_v2");
  proc_address_ = dlsym(library, "cuGetProcAddress");
  if (proc_address_v2_ == nullptr && proc_address_ == nullptr) {
    return {MLA_ERROR_NO_DRIVER,
            text(path_, " has no cuGetProcAddress: the driver is older than CUDA 11.3; ", "CUDA ",
                 cuda_version_name(kMinimumCudaVersion), " (driver 525.60.13) or later is needed")};
  }
  cuDriverGetVersion =
      reinterpret_cast<cuda::cuDriverGetVersionFunction>(look_up("cuDriverGetVersion", 2020));
  if (cuDriverGetVersion != nullptr) cuDriverGetVersion(&cuda_version_);
  if (cuDriverGetVersion != nullptr && cuda_version_ < kMinimumCudaVersion) {
    return {MLA_ERROR_NO_DRIVER,
            text(path_, " supports CUDA ", cuda_version_name(cuda_version_), "; CUDA ",
                 cuda_version_name(kMinimumCudaVersion), " (driver 525.60.13) or later is needed")};
  }
#define MLA_LOOK_UP(name, version, ...)                                                               \
  name = reinterpret_cast<cuda::name##Function>(look_up(#name, version));                             \
  if (name == nullptr) {                                                                              \
    return {MLA_ERROR_NO_DRIVER,                                                                      \
            text(path_, " (CUDA ", cuda_version_name(cuda_version_), ") has no ", #name, " of CUDA ", \
                 cuda_version_name(version), ", which this library needs")};                          \
  }
  MLA_CUDA_REQUIRED(MLA_LOOK_UP)
#undef MLA_LOOK_UP
  return {};
}

Error Driver::initialise() {
  const cuda::Result result = cuInit(0);
  if (result == cuda::kSuccess) return {};
  if (result == cuda::kErrorNoDevice) {
    return {MLA_ERROR_NO_DRIVER, text(path_, " finds no device: ", describe("cuInit", result))};
  }
  return {MLA_ERROR_DRIVER, describe("cuInit", result)};
}

void* Driver::look_up(const char* name, int version) const {
  void* function = nullptr;
  cuda::Result result = cuda::kErrorInvalidValue;
  if (proc_address_v2_ != nullptr) {
    int query = 0;
    result = reinterpret_cast<ProcAddressV2>(proc_address_v2_)(name, &function, version,
                                                               cuda::kProcAddressLegacyStream, &query);
    if (query != 0) function = nullptr;
  } else {
    result = reinterpret_cast<ProcAddress>(proc_address_)(name, &function, version,
                                                          cuda::kProcAddressLegacyStream);
  }
  return result == cuda::kSuccess ? function : nullptr;
}

void* Driver::optional(std::atomic<void*>* slot, const char* name, int version) const {
  void* function = slot->load(std::memory_order_acquire);
  if (function == nullptr) {
    function = look_up(name, version);
    if (function == nullptr) function = &g_absent;
    slot->store(function, std::memory_order_release);
  }
  return function == &g_absent ? nullptr : function;
}

std::string Driver::describe(const char* call, cuda::Result result) const {
  const char* name = nullptr;
  const char* sentence = nullptr;
  if (const auto get_name = cuGetErrorName()) get_name(result, &name);
  if (const auto get_sentence = cuGetErrorString()) get_sentence(result, &sentence);
  std::string out = text(call, " failed: ", result);
  if (name != nullptr) out += text(" ", name);
  if (sentence != nullptr) out += text(", ", sentence);
  if (forked()) out += text(": ", kForked);
  return out;
}

}  // namespace mla::loader
