/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the bundle beside the library (no path is given) and prints what would run on 12.0. */
#include <mla_loader.h>
#include <stdio.h>

int main(void) {
  mla_bundle* bundle = 0;
  mla_problem problem = MLA_PROBLEM_INIT;
  mla_kernel_info info = MLA_KERNEL_INFO_INIT;
  uint32_t index = 0;
  if (mla_version() != MLA_VERSION) return 2;
  problem.cc_major = 12;
  problem.heads = 128;
  if (mla_bundle_open(0, 0, &bundle) != MLA_SUCCESS || mla_select(bundle, &problem, &index) != MLA_SUCCESS ||
      mla_bundle_get_kernel(bundle, index, &info) != MLA_SUCCESS) {
    printf("error: %s\n", mla_last_error());
    return 1;
  }
  printf("mla_loader %s selects %s\n", mla_version_string(), info.id);
  return mla_bundle_close(bundle);
}
