// SPDX-License-Identifier: Apache-2.0
//
// printf into a string, for messages.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

namespace mla::emu {

using ull = unsigned long long;

std::string text_of(const char* format, ...) __attribute__((format(printf, 1, 2)));
inline std::string text_of(const char* format, ...) {
  char buffer[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

}  // namespace mla::emu
