#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles examples/decode.cc against a libcuda.so.1, without the loader, and runs it.
# usage: run_cxx_example.sh CXX SOURCE_DIR LOADER DRIVER_DIR BUNDLE
set -eu
cxx=$1 source=$2 loader=$3 driver=$4 bundle=$5
nvcc=$(readlink -f "$(command -v nvcc)") || { echo "nvcc is not on PATH: no cuda.h"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cxx" -std=c++17 -Wall -Wextra -Werror -I"$source/loader/include" -isystem "$(dirname "$nvcc")/../include" \
  "$source/examples/decode.cc" -L"$driver" -l:libcuda.so.1 -ldl -o "$work/decode"
LD_LIBRARY_PATH=$driver "$work/decode" "$loader" "$bundle"
# A library that is not there: the exception's status and sentence.
if LD_LIBRARY_PATH=$driver "$work/decode" "$work/none.so" "$bundle" 2>"$work/error"; then exit 1; fi
grep -q "^status 3: $work/none.so: cannot open shared object file" "$work/error" || { cat "$work/error"; exit 1; }
if LD_LIBRARY_PATH=$driver "$work/decode" "$driver/libcuda.so.1" "$bundle" 2>"$work/error"; then exit 1; fi
grep -qx "status 3: library $driver/libcuda.so.1 has no function mla_status_name" "$work/error" ||
  { cat "$work/error"; exit 1; }
