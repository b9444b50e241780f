/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads the library, opens and closes a bundle, and unloads it, again and again: the process must not
 * grow. dlclose_client LIBRARY BUNDLE
 */
#include <dlfcn.h>
#include <stdio.h>

#include "mla_loader.h"

static long resident_kb(void) {
  long pages = 0, resident = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%ld %ld", &pages, &resident) != 2) return -1;
  fclose(file);
  return resident * 4;
}

static int cycle(const char* path, const char* folder) {
  mla_status (*open)(const char*, const mla_open_options*, mla_bundle**);
  mla_status (*close)(mla_bundle*);
  mla_bundle* bundle = NULL;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return 2;
  *(void**)&open = dlsym(library, "mla_bundle_open");
  *(void**)&close = dlsym(library, "mla_bundle_close");
  if (open == NULL || close == NULL) return 3;
  if (open("/no/such/bundle", NULL, &bundle) == MLA_SUCCESS) return 4; /* leaves a last error */
  if (open(folder, NULL, &bundle) != MLA_SUCCESS) return 5;
  if (close(bundle) != MLA_SUCCESS) return 6;
  return dlclose(library);
}

int main(int argc, char** argv) {
  long before = 0, after;
  int i, result;
  if (argc != 3) return 2;
  for (i = 0; i < 1000; ++i) {
    if (i == 100) before = resident_kb();
    if ((result = cycle(argv[1], argv[2])) != 0) return result;
  }
  after = resident_kb();
  printf("%ld KB after 100 cycles, %ld KB after 1000\n", before, after);
  return before < 0 || after > before + 1024 ? 1 : 0;
}
