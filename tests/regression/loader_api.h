// SPDX-License-Identifier: Apache-2.0
//
// libmla_loader.so bound at run time, as a user in another language would.
#pragma once

#include <stdexcept>
#include <string>

#include "loader/include/mla_loader.h"

namespace mla::test {

// A loader call failed; the message holds the call, the status and the loader's sentence.
class LoaderError : public std::runtime_error {
 public:
  LoaderError(mla_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  mla_status status;
};

// Every function of the header; tests/clients compares the list with loader/abi.json.
// clang-format off
#define MLA_TEST_LOADER_CALLS(X) \
  X(mla_status_name)             \
  X(mla_last_error)              \
  X(mla_last_error_copy)         \
  X(mla_version)                 \
  X(mla_version_string)          \
  X(mla_bundle_open)             \
  X(mla_bundle_close)            \
  X(mla_bundle_get_info)         \
  X(mla_bundle_get_kernel)       \
  X(mla_select)                  \
  X(mla_select_explain)          \
  X(mla_prepare)                 \
  X(mla_prepare_index)           \
  X(mla_kernel_get_info)         \
  X(mla_workspace_bytes)         \
  X(mla_workspace_init)          \
  X(mla_launch)                  \
  X(mla_merge_launch)
// clang-format on

struct LoaderApi {
#define MLA_TEST_DECLARE(name) decltype(&::name) name = nullptr;
  MLA_TEST_LOADER_CALLS(MLA_TEST_DECLARE)
#undef MLA_TEST_DECLARE

  // Empty string on success, else the reason. The library stays open until the process ends.
  std::string open(const std::string& path);

  // Throws LoaderError unless `status` is MLA_SUCCESS.
  void check(mla_status status, const char* call) const;
};

#define MLA_API_CALL(api, call, ...) (api).check((api).call(__VA_ARGS__), #call)

// Folder of the running program, without a final slash.
std::string program_folder();

// Defaults for a program in <build>/bin: <build>/lib/libmla_loader.so and <build>/bundle.
std::string default_loader_path();
std::string default_bundle_path();

}  // namespace mla::test
