#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# loader/abi.json and the bindings against the header, the compiler and the library.
# usage: check_abi.sh PYTHON CC SOURCE_DIR LOADER
set -eu
python=$1 cc=$2 source=$3 loader=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" "$source/loader/tools/make_abi.py" --check
"$python" "$source/loader/tools/make_abi.py" --probe >"$work/probe.c"
"$cc" -std=c99 -pedantic-errors -Wall -Wextra -Werror -I"$source/loader/include" -c "$work/probe.c" -o "$work/probe.o"
"$python" "$source/tests/clients/check_abi.py" "$source" "$loader"
