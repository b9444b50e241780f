#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# lib_test.sh REPOSITORY: the environment variables that scripts/lib.sh looks at.
set -euo pipefail
repository=$1
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
failures=0

# expect NAME WANTED FOUND
expect() {
  if [ "$2" != "$3" ]; then
    printf 'FAILED %s: got "%s"; expected "%s"\n' "$1" "$3" "$2"
    failures=$((failures + 1))
  fi
}

# Runs a script, called from another folder, that sources lib.sh and then does "$1".
sourced() {
  printf '. "%s/scripts/lib.sh"\n%s\n' "$repository" "$1" > "$temporary/script"
  (cd "$temporary" && bash script 2>&1) || true
}

expect 'the default build folder' "$repository/build" "$(unset MLA_BUILD_DIR; sourced 'echo "$build"')"
expect 'a relative build folder' "$temporary/b c" "$(MLA_BUILD_DIR='b c' sourced 'echo "$build"')"
expect 'an absolute build folder' /b "$(MLA_BUILD_DIR=/b sourced 'echo "$build"')"
expect 'the current folder' "$repository" "$(sourced pwd)"

# A machine without nvcc, whose pip leaves a mark instead of installing.
mkdir "$temporary/bin"
printf '#!/bin/sh\necho called >> "%s/pip"\nexit 1\n' "$temporary" > "$temporary/bin/python3"
printf '#!/bin/sh\nexit 1\n' > "$temporary/bin/nvcc"
chmod +x "$temporary/bin/"*
export MLA_CUDA_DIR=$temporary/none MLA_BUILD_DIR=$temporary/build
without_nvcc() { PATH=$temporary/bin:$PATH sourced need_nvcc; }
expect 'MLA_NVCC_FROM_PYPI=0 without nvcc' \
  "script: there is no nvcc of CUDA 13.0 or later on PATH or in /usr/local/cuda, and MLA_NVCC_FROM_PYPI=0 forbids to install one" \
  "$(MLA_NVCC_FROM_PYPI=0 without_nvcc)"
expect 'pip is not called' no "$([ -e "$temporary/pip" ] && echo yes || echo no)"
expect 'another value' \
  'script: MLA_NVCC_FROM_PYPI is "yes"; expected 0 (never), 1 (always) or nothing (when there is none)' \
  "$(MLA_NVCC_FROM_PYPI=yes without_nvcc)"
printf '#!/bin/sh\necho "Cuda compilation tools, release 13.0, V13.0.88"\n' > "$temporary/bin/nvcc"
expect 'MLA_NVCC_FROM_PYPI=0 with nvcc' "nvcc: $temporary/bin/nvcc, V13.0.88" "$(MLA_NVCC_FROM_PYPI=0 without_nvcc)"

[ "$failures" -eq 0 ] && echo 'all as expected'
exit "$failures"
