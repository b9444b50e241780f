/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepares and launches, then ends without closing anything. The fake driver's log shows whether
 * anything is called while the process ends.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "mla_loader.h"

static void check(mla_status status, const char* what) {
  if (status == MLA_SUCCESS) return;
  fprintf(stderr, "%s: %s: %s\n", what, mla_status_name(status), mla_last_error());
  exit(1);
}

int main(int argc, char** argv) {
  mla_problem problem = MLA_PROBLEM_INIT;
  mla_launch_args args = MLA_LAUNCH_ARGS_INIT;
  mla_bundle* bundle = NULL;
  mla_kernel* kernel = NULL;
  void* driver;
  void (*mark)(const char*);
  if (argc != 2) return 2;
  check(mla_bundle_open(argv[1], NULL, &bundle), "open");
  problem.heads = 128;
  check(mla_prepare(bundle, &problem, NULL, &kernel), "prepare");
  args.q = args.kv = args.page_table = args.seq_lens = args.out = 4096;
  args.workspace = 8192;
  args.workspace_bytes = (uint64_t)1 << 40;
  args.pages = args.batch = args.q_len = args.max_pages_per_seq = 1;
  args.heads = 128;
  args.page_size = 64;
  args.softmax_scale = 1.0f;
  check(mla_launch(kernel, &args, NULL), "launch");
  driver = dlopen(getenv("MLA_CUDA_DRIVER_PATH"), RTLD_NOW | RTLD_NOLOAD);
  if (driver == NULL) return 3;
  *(void**)&mark = dlsym(driver, "fake_mark");
  if (mark == NULL) return 4;
  mark("end of main");
  return 0;
}
