/* SPDX-License-Identifier: Apache-2.0 */
/* The same with nothing but the path of the library and its header. dlopen LIBRARY */
#include <dlfcn.h>
#include <mla_loader.h>
#include <stdio.h>

#define LOAD(name)                                                     \
  do {                                                                 \
    *(void**)&name##_ = dlsym(library, #name);                         \
    if (name##_ == NULL) return fprintf(stderr, "%s\n", dlerror()), 3; \
  } while (0)

int main(int argc, char** argv) {
  mla_status (*mla_bundle_open_)(const char*, const mla_open_options*, mla_bundle**);
  mla_status (*mla_bundle_close_)(mla_bundle*);
  mla_status (*mla_bundle_get_info_)(const mla_bundle*, mla_bundle_info*);
  const char* (*mla_last_error_)(void);
  mla_bundle* bundle = NULL;
  mla_bundle_info info = MLA_BUNDLE_INFO_INIT;
  void* library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) return fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: dlopen LIBRARY"), 2;
  LOAD(mla_bundle_open);
  LOAD(mla_bundle_close);
  LOAD(mla_bundle_get_info);
  LOAD(mla_last_error);
  if (mla_bundle_open_(NULL, NULL, &bundle) != 0 || mla_bundle_get_info_(bundle, &info) != 0) {
    printf("error: %s\n", mla_last_error_());
    return 1;
  }
  printf("dlopen finds bundle %s with %u kernels\n", info.name, (unsigned)info.kernel_count);
  return mla_bundle_close_(bundle);
}
