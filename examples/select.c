/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kernel of a bundle serves a GPU: host only, no driver or GPU needed.
 *
 *   ./mla-select path/to/bundle 12.0 12.1 9.0
 *
 * Exit code 1 if a compute capability has no kernel; every candidate's reason is then printed.
 */
#include <mla_loader.h>
#include <stdio.h>
#include <stdlib.h>

static void fail(const char* call) {
  fprintf(stderr, "%s: %s\n", call, mla_last_error());
  exit(2);
}

int main(int argc, char** argv) {
  mla_bundle* bundle;
  mla_bundle_info info = MLA_BUNDLE_INFO_INIT;
  int i, misses = 0;
  if (argc < 3) {
    fprintf(stderr, "usage: %s BUNDLE CC...   (compute capabilities such as 12.0)\n", argv[0]);
    return 2;
  }
  if (mla_bundle_open(argv[1], NULL, &bundle) != MLA_SUCCESS) fail("mla_bundle_open");
  if (mla_bundle_get_info(bundle, &info) != MLA_SUCCESS) fail("mla_bundle_get_info");
  printf("bundle %s %s: %u kernels, manifest sha256 %s\n", info.name, info.version, info.kernel_count,
         info.manifest_sha256);
  for (i = 2; i < argc; ++i) {
    mla_problem problem = MLA_PROBLEM_INIT;
    uint32_t index;
    int major, minor;
    char rest;
    if (sscanf(argv[i], "%d.%d%c", &major, &minor, &rest) != 2) {
      fprintf(stderr, "\"%s\" is not a compute capability such as 12.0\n", argv[i]);
      return 2;
    }
    problem.heads = 128;
    problem.cc_major = major;
    problem.cc_minor = minor;
    if (mla_select(bundle, &problem, &index) == MLA_SUCCESS) {
      mla_kernel_info kernel = MLA_KERNEL_INFO_INIT;
      if (mla_bundle_get_kernel(bundle, index, &kernel) != MLA_SUCCESS) fail("mla_bundle_get_kernel");
      printf("compute capability %s: %s (%s, %d registers, %d B shared memory, driver %s or later)\n",
             argv[i], kernel.id, kernel.target, kernel.registers, kernel.dynamic_smem, kernel.min_driver);
    } else {
      printf("compute capability %s: %s\n", argv[i], mla_last_error());
      ++misses;
    }
  }
  if (mla_bundle_close(bundle) != MLA_SUCCESS) fail("mla_bundle_close");
  return misses ? 1 : 0;
}
