#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# check_library.sh finds what it looks for: a copy of the library that holds a build path.
# check_library_test.sh LIBRARY EXPORTS.map
set -eu
here=$(dirname "$0")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

echo /planted/folder/file.cc >"$scratch/text"
objcopy --add-section .planted="$scratch/text" --set-section-flags .planted=contents,alloc,readonly "$1" \
  "$scratch/library.so" 2>/dev/null
"$here/check_library.sh" "$1" "$2" /planted/folder
if "$here/check_library.sh" "$scratch/library.so" "$2" /planted/folder >"$scratch/output" 2>/dev/null; then
  echo "FAILED: a library with a build path passes"
  exit 1
fi
printf 'FAILED: holds the build path /planted/folder/\n' | diff - "$scratch/output"
