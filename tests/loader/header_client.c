/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled as every C and C++ that the header promises: every macro is used, nothing else. */
#include "mla_loader.h"

struct mla_all {
  mla_open_options open;
  mla_bundle_info bundle;
  mla_kernel_info kernel;
  mla_problem problem;
  mla_prepare_options prepare;
  mla_prepared_info prepared;
  mla_workspace_query workspace;
  mla_launch_args launch;
  mla_merge_args merge;
};

int mla_header_client(void);
int mla_header_client(void) {
  mla_open_options open = MLA_OPEN_OPTIONS_INIT;
  mla_bundle_info bundle = MLA_BUNDLE_INFO_INIT;
  mla_kernel_info kernel = MLA_KERNEL_INFO_INIT;
  mla_problem problem = MLA_PROBLEM_INIT;
  mla_prepare_options prepare = MLA_PREPARE_OPTIONS_INIT;
  mla_prepared_info prepared = MLA_PREPARED_INFO_INIT;
  mla_workspace_query workspace = MLA_WORKSPACE_QUERY_INIT;
  mla_launch_args launch = MLA_LAUNCH_ARGS_INIT;
  mla_merge_args merge = MLA_MERGE_ARGS_INIT;
  return (int)(open.flags + bundle.format_minor + kernel.sm + problem.features + prepare.flags +
               launch.flags + workspace.flags + merge.flags) +
         prepared.device + MLA_SUCCESS + MLA_ERROR_INTERNAL + MLA_VERSION;
}
