// SPDX-License-Identifier: Apache-2.0
//
// mla_loader.h for C++17: handles that close themselves, failures as exceptions. Header only.
//
//   mla::Library library("libmla_loader.so.0");       // dlopen; mla::Library::linked() if it is linked
//   mla::Bundle bundle(library, "path/to/bundle");
//   mla::Kernel kernel = bundle.prepare(problem);
//   kernel.launch(args, stream);
//
// Structs, conventions and thread-safety are those of mla_loader.h, whose structs are passed through.
#ifndef MLA_LOADER_HPP
#define MLA_LOADER_HPP

#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "mla_loader.h"

namespace mla {

// A call failed: its status, and in what() the loader's sentence.
class Error : public std::runtime_error {
 public:
  Error(mla_status status, const std::string& sentence) : std::runtime_error(sentence), status_(status) {}
  mla_status status() const noexcept { return status_; }

 private:
  mla_status status_;
};

// clang-format off
#define MLA_LOADER_FUNCTIONS(X) \
  X(mla_status_name)            \
  X(mla_last_error)             \
  X(mla_last_error_copy)        \
  X(mla_version)                \
  X(mla_version_string)         \
  X(mla_bundle_open)            \
  X(mla_bundle_close)           \
  X(mla_bundle_get_info)        \
  X(mla_bundle_get_kernel)      \
  X(mla_select)                 \
  X(mla_select_explain)         \
  X(mla_prepare)                \
  X(mla_prepare_index)          \
  X(mla_kernel_get_info)        \
  X(mla_workspace_bytes)        \
  X(mla_workspace_init)         \
  X(mla_launch)                 \
  X(mla_merge_launch)
// clang-format on

// Every function of the library, for calls that the classes below do not make.
struct Functions {
#define MLA_LOADER_DECLARE(name) decltype(&::name) name = nullptr;
  MLA_LOADER_FUNCTIONS(MLA_LOADER_DECLARE)
#undef MLA_LOADER_DECLARE

  // Throws Error unless `status` is MLA_SUCCESS. On the thread that made the call, before its next.
  void check(mla_status status) const {
    if (status != MLA_SUCCESS) throw Error(status, mla_last_error());
  }
};

// The loaded library. Copies are cheap and share the functions; handles need no Library to stay.
class Library {
 public:
  // Loads the library with dlopen; it stays in the process. Error: MLA_ERROR_IO if it cannot be loaded
  // or lacks a function.
  explicit Library(const std::string& path) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw Error(MLA_ERROR_IO, dlerror());
    Functions functions;
#define MLA_LOADER_LOAD(name)                                                        \
  functions.name = reinterpret_cast<decltype(functions.name)>(dlsym(handle, #name)); \
  if (functions.name == nullptr) {                                                   \
    dlclose(handle);                                                                 \
    throw Error(MLA_ERROR_IO, "library " + path + " has no function " #name);        \
  }
    MLA_LOADER_FUNCTIONS(MLA_LOADER_LOAD)
#undef MLA_LOADER_LOAD
    functions_ = std::make_shared<const Functions>(functions);
  }

  // The library that the program is linked with. A program that does not call this needs no link.
  static Library linked() {
    Functions functions;
#define MLA_LOADER_LINK(name) functions.name = &::name;
    MLA_LOADER_FUNCTIONS(MLA_LOADER_LINK)
#undef MLA_LOADER_LINK
    return Library(std::make_shared<const Functions>(functions));
  }

  const std::shared_ptr<const Functions>& functions() const noexcept { return functions_; }
  std::uint32_t version() const { return functions_->mla_version(); }
  std::string version_string() const { return functions_->mla_version_string(); }
  std::string status_name(mla_status status) const { return functions_->mla_status_name(status); }

 private:
  explicit Library(std::shared_ptr<const Functions> functions) : functions_(std::move(functions)) {}

  std::shared_ptr<const Functions> functions_;
};

// A kernel prepared in one context. The bundle owns it: not to be used after the bundle is closed.
class Kernel {
 public:
  mla_prepared_info info() const {
    mla_prepared_info info = MLA_PREPARED_INFO_INIT;
    functions_->check(functions_->mla_kernel_get_info(kernel_, &info));
    return info;
  }
  // `stream` is a CUstream, as in mla_launch.
  void launch(const mla_launch_args& args, void* stream = nullptr) const {
    functions_->check(functions_->mla_launch(kernel_, &args, stream));
  }
  // For kernels of kind MLA_KIND_MERGE.
  void merge_launch(const mla_merge_args& args, void* stream = nullptr) const {
    functions_->check(functions_->mla_merge_launch(kernel_, &args, stream));
  }
  mla_kernel* get() const noexcept { return kernel_; }

 private:
  friend class Bundle;
  Kernel(const Functions* functions, mla_kernel* kernel) : functions_(functions), kernel_(kernel) {}

  const Functions* functions_;
  mla_kernel* kernel_;
};

// An open bundle; move-only. One that was moved from may only be assigned to or destroyed.
class Bundle {
 public:
  // Null `path`: as in mla_bundle_open.
  explicit Bundle(const Library& library, const char* path = nullptr,
                  const mla_open_options* options = nullptr)
      : functions_(library.functions()) {
    functions_->check(functions_->mla_bundle_open(path, options, &bundle_));
  }
  Bundle(Bundle&& other) noexcept
      : functions_(std::move(other.functions_)), bundle_(std::exchange(other.bundle_, nullptr)) {}
  Bundle& operator=(Bundle&& other) noexcept {
    Bundle taken(std::move(other));
    std::swap(functions_, taken.functions_);
    std::swap(bundle_, taken.bundle_);
    return *this;
  }
  // A module that cannot be unloaded goes unnoticed here; close() reports it.
  ~Bundle() {
    if (bundle_ != nullptr) functions_->mla_bundle_close(bundle_);
  }

  // The bundle is closed even if this throws. Its kernels must not be used after it.
  void close() {
    if (bundle_ != nullptr) functions_->check(functions_->mla_bundle_close(std::exchange(bundle_, nullptr)));
  }

  mla_bundle_info info() const {
    mla_bundle_info info = MLA_BUNDLE_INFO_INIT;
    functions_->check(functions_->mla_bundle_get_info(bundle_, &info));
    return info;
  }
  mla_kernel_info kernel_info(std::uint32_t index) const {
    mla_kernel_info info = MLA_KERNEL_INFO_INIT;
    functions_->check(functions_->mla_bundle_get_kernel(bundle_, index, &info));
    return info;
  }

  // Index of the best kernel; cc_major must be given.
  std::uint32_t select(const mla_problem& problem) const {
    std::uint32_t index = 0;
    functions_->check(functions_->mla_select(bundle_, &problem, &index));
    return index;
  }
  std::string select_explain(const mla_problem& problem) const {
    std::uint64_t bytes = 0;
    functions_->check(functions_->mla_select_explain(bundle_, &problem, nullptr, 0, &bytes));
    std::string text(bytes, '\0');
    functions_->check(functions_->mla_select_explain(bundle_, &problem, &text[0], bytes, nullptr));
    text.pop_back();  // the final NUL
    return text;
  }

  Kernel prepare(const mla_problem& problem, const mla_prepare_options* options = nullptr) {
    mla_kernel* kernel = nullptr;
    functions_->check(functions_->mla_prepare(bundle_, &problem, options, &kernel));
    return Kernel(functions_.get(), kernel);
  }
  Kernel prepare_index(std::uint32_t index, const mla_prepare_options* options = nullptr) {
    mla_kernel* kernel = nullptr;
    functions_->check(functions_->mla_prepare_index(bundle_, index, options, &kernel));
    return Kernel(functions_.get(), kernel);
  }

  std::uint64_t workspace_bytes(const mla_workspace_query* query = nullptr) const {
    std::uint64_t bytes = 0;
    functions_->check(functions_->mla_workspace_bytes(bundle_, query, &bytes));
    return bytes;
  }
  void workspace_init(std::uint64_t workspace, std::uint64_t bytes, void* stream = nullptr) const {
    functions_->check(functions_->mla_workspace_init(bundle_, workspace, bytes, stream));
  }

  mla_bundle* get() const noexcept { return bundle_; }

 private:
  std::shared_ptr<const Functions> functions_;
  mla_bundle* bundle_ = nullptr;
};

}  // namespace mla

#undef MLA_LOADER_FUNCTIONS

#endif  // MLA_LOADER_HPP
