#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles examples/decode.c against the loader and a libcuda.so.1, and runs it.
# usage: run_c_example.sh CC SOURCE_DIR LOADER DRIVER_DIR BUNDLE
set -eu
cc=$1 source=$2 loader=$3 driver=$4 bundle=$5
nvcc=$(readlink -f "$(command -v nvcc)") || { echo "nvcc is not on PATH: no cuda.h"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cc" -std=c99 -Wall -Wextra -Werror -I"$source/loader/include" -isystem "$(dirname "$nvcc")/../include" \
  "$source/examples/decode.c" -L"$(dirname "$loader")" -L"$driver" -lmla_loader -l:libcuda.so.1 -lm -o "$work/decode"
LD_LIBRARY_PATH="$(dirname "$loader"):$driver" "$work/decode" "$bundle"
