// SPDX-License-Identifier: Apache-2.0
#include "tests/regression/loader_api.h"

#include <dlfcn.h>

#include <filesystem>

namespace mla::test {

std::string LoaderApi::open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return std::string("cannot load the library: ") + dlerror();
#define MLA_TEST_BIND(name)                                          \
  name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name)); \
  if (!name) return path + " has no symbol " #name;
  MLA_TEST_LOADER_CALLS(MLA_TEST_BIND)
#undef MLA_TEST_BIND
  return "";
}

void LoaderApi::check(mla_status status, const char* call) const {
  if (status == MLA_SUCCESS) return;
  throw LoaderError(status, std::string(call) + ": " + mla_status_name(status) + ": " + mla_last_error());
}

std::string program_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

std::string default_loader_path() { return program_folder() + "/../lib/libmla_loader.so"; }
std::string default_bundle_path() { return program_folder() + "/../bundle"; }

}  // namespace mla::test
