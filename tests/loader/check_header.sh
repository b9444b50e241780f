#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Compiles the public headers as every C and C++ that they promise, with gcc and clang.
# check_header.sh INCLUDE_FOLDER CLIENT.c CLIENT.cc; exit 77: a compiler is missing.
set -u
include=$1
client=$2
cxx_client=$3
failed=0
missing=
count=0
compile() { # compiler language standard client
  count=$((count + 1))
  if ! "$1" -x "$2" "-std=$3" -pedantic -pedantic-errors -Wall -Wextra -Werror -Wshadow -fsyntax-only \
    -I "$include" "$4"; then
    echo "FAILED: $1 -x $2 -std=$3 $4"
    failed=1
  fi
}
for pair in "gcc g++" "clang clang++"; do
  c=${pair% *}
  cxx=${pair#* }
  if ! command -v "$c" >/dev/null || ! command -v "$cxx" >/dev/null; then
    missing="$missing $pair"
    continue
  fi
  # <stdint.h> is part of C99; gcc and clang have it in C89 too.
  for standard in c89 c99 c11 c17; do compile "$c" c $standard "$client"; done
  for standard in c++11 c++14 c++17 c++20; do compile "$cxx" c++ $standard "$client"; done
  for standard in c++17 c++20; do compile "$cxx" c++ $standard "$cxx_client"; done
done
echo "$count compilations"
[ $failed -eq 0 ] || exit 1
if [ -n "$missing" ]; then
  echo "not tried, for they are not installed:$missing"
  exit 77
fi
