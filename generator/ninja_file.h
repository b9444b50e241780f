// SPDX-License-Identifier: Apache-2.0
//
// The Ninja file that compiles the configurations. Ninja runs in the source folder, so that every
// path that could reach the output is relative.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "generator/matrix.h"

namespace mla::generator {

struct NinjaFile {
  std::string build_dir;  // absolute
  std::string nvcc;
  std::string toolkit;  // "13.0.88": part of the commands, so that another toolkit rebuilds all
};

// Files of a configuration in the build folder.
std::string ptx_path(const NinjaFile& file, const Configuration& one);
std::string cubin_path(const NinjaFile& file, const Configuration& one);
// Beside each: ".log", the compiler's output; ".failed", there if the step failed; ".record", there if
// it did not: size and time of the step's files, as `stat -c '%s %.9Y'` gives them. Beside the PTX:
// ".d", the files that it was made from.

// Whether an output and what lies beside it are as the step that made them left them.
bool is_intact(const std::string& output);

// What a Ninja file of ours begins with.
inline constexpr std::string_view kNinjaFileMark = "# Written by mla-gen";

// The flags of a configuration that decide what is compiled, in the order of the command line.
std::vector<std::string> compile_flags(const Configuration& one);

std::string ninja_text(const NinjaFile& file, const std::vector<Configuration>& configurations);

// The files named by a depfile, its target left out.
std::vector<std::string> parse_depfile(std::string_view text);

}  // namespace mla::generator
