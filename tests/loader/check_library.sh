#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The shared library from outside: what it needs, its name, its size, what it exports, and that it does not
# tell where it was built.
# check_library.sh LIBRARY EXPORTS.map FOLDER...    (FOLDER: of the sources, of the build)
set -eu
library=$1
map=$2
shift 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
fail() {
  echo "FAILED: $*"
  failed=1
}

readelf -dW "$library" >"$scratch/dynamic"
for needed in $(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' "$scratch/dynamic"); do
  case $needed in
    libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | ld-linux-x86-64.so.2 | ld-linux-aarch64.so.1) ;;
    *) fail "needs $needed" ;;
  esac
done
soname=$(sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p' "$scratch/dynamic")
[ "$soname" = libmla_loader.so.0 ] || fail "SONAME is '$soname', expected libmla_loader.so.0"
grep -qE 'RPATH|RUNPATH' "$scratch/dynamic" && fail "has an RPATH"
grep -qE 'TEXTREL' "$scratch/dynamic" && fail "has text relocations"

# Hardening: read-only relocations, bound at load; a stack that cannot be executed; canaries and checked
# memory functions. And dlclose leaves it in the process: threads hold its last error.
readelf -lW "$library" >"$scratch/segments"
grep -q GNU_RELRO "$scratch/segments" || fail "has no RELRO"
grep -qE '\((FLAGS|FLAGS_1)\).*(BIND_NOW|NOW)' "$scratch/dynamic" || fail "is not bound at load"
grep -q GNU_STACK "$scratch/segments" || fail "does not say that its stack is not executable"
grep -qE 'GNU_STACK.* RWE ' "$scratch/segments" && fail "has an executable stack"
grep -qE '\(FLAGS_1\).*NODELETE' "$scratch/dynamic" || fail "can be unloaded"
nm -D --undefined-only "$library" >"$scratch/undefined"
grep -q ' __stack_chk_fail' "$scratch/undefined" || fail "has no stack protector"
grep -qE ' __[a-z]+_chk(@|$)' "$scratch/undefined" || fail "has no fortified function"

strip -o "$scratch/stripped" "$library"
size=$(stat -c %s "$scratch/stripped")
[ "$size" -le 2097152 ] || fail "has $size bytes stripped, at most 2097152"

# As users get it, without debug information.
for folder in "$@"; do
  grep -qaF "$folder/" "$scratch/stripped" && fail "holds the build path $folder/"
done

# Every export is in the map and the header's own, and nothing else is exported.
nm -D --defined-only "$library" | sed -n 's/.* [TDBRVW] \([^@]*\).*/\1/p' | sort >"$scratch/exported"
sed -n 's/^ *\(mla_[a-z_]*\);.*/\1/p' "$map" | sort >"$scratch/promised"
diff "$scratch/promised" "$scratch/exported" || fail "exports (right) differ from $map (left)"
[ -s "$scratch/exported" ] || fail "exports nothing"
[ $failed -eq 0 ] || exit 1
echo "needs libc alone, $size bytes stripped, $(wc -l <"$scratch/exported") exports"
