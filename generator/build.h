// SPDX-License-Identifier: Apache-2.0
//
// `mla-gen build`: from the matrix to a bundle.
#pragma once

#include <string>

#include "generator/matrix.h"
#include "manifest/status.h"

namespace mla::generator {

struct BuildOptions {
  std::string matrix = "manifest/matrix.json";
  std::string out;
  std::string source_dir = ".";
  std::string build_dir;  // "": <out>.build
  std::string ptx_out;    // "": none
  std::string nvcc = "nvcc";
  std::string ninja = "ninja";
  std::string name, version;  // of the bundle; "": those of the matrix
  int jobs = 0;               // 0: Ninja's own choice
  Selection selection;
};

// Reads and parses the matrix file.
Status read_matrix_file(const std::string& path, Matrix* out);

enum class BuildResult {
  kDone,
  kFailed,   // a compilation failed or a cubin is not what was asked for
  kRefused,  // the matrix or an option is invalid, or a file or tool is missing
};

// Builds and tells on stdout and stderr what happens. The bundle is replaced only after everything
// was compiled and checked.
BuildResult build(const BuildOptions& options);

}  // namespace mla::generator
