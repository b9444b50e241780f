// SPDX-License-Identifier: Apache-2.0
//
// write_bundle FOLDER: a bundle with one kernel for sm_120f, for the test of the installed tree.
#include <cstdio>
#include <filesystem>

#include "tests/loader/test_bundle.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  mla::test::TestBundle files;
  files.add("installed_kernel");
  files.write();
  std::filesystem::copy(files.path(), argv[1], std::filesystem::copy_options::recursive);
  std::printf("%s\n", argv[1]);
  return 0;
}
