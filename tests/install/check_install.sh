#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs the loader into an empty prefix and uses it as strangers do: with find_package, with
# pkg-config, and by dlopen; then moves the tree and does it again.
# check_install.sh BUILD_FOLDER WRITE_BUNDLE CONSUMER_SOURCES
set -eu
build=$1
write_bundle=$2
sources=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset MLA_BUNDLE_PATH LD_LIBRARY_PATH PKG_CONFIG_PATH || true

die() {
  echo "FAILED: $*"
  exit 1
}
expect() { # what command...
  what=$1
  shift
  got=$("$@" 2>&1) || die "'$*' ended with $?: $got"
  [ "$got" = "$what" ] || die "'$*' printed '$got', expected '$what'"
}

use() { # prefix work-folder
  prefix=$1
  work=$2
  libdir=$(dirname "$(find "$prefix/" -name libmla_loader.so)")
  cmake -S "$sources" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DWANTED_VERSION=0.1 >"$work.log" 2>&1 &&
    cmake --build "$work/cmake" >>"$work.log" 2>&1 || die "find_package: $(cat "$work.log")"
  grep -q "mla_loader_DIR:PATH=$libdir/cmake/mla_loader" "$work/cmake/CMakeCache.txt" ||
    die "find_package found another mla_loader"
  expect "mla_loader 0.1.0 selects installed_kernel" "$work/cmake/consumer"

  flags=$(PKG_CONFIG_PATH="$libdir/pkgconfig" pkg-config --cflags --libs mla_loader)
  # shellcheck disable=SC2086
  cc -std=c89 -Wall -Wextra -Werror "$sources/consumer.c" -o "$work/consumer" $flags "-Wl,-rpath,$libdir"
  expect "mla_loader 0.1.0 selects installed_kernel" "$work/consumer"
  expect "0.1.0" env PKG_CONFIG_PATH="$libdir/pkgconfig" pkg-config --modversion mla_loader

  [ -f "$prefix/include/mla_loader.hpp" ] || die "mla_loader.hpp is not installed"
  # shellcheck disable=SC2086
  c++ -std=c++17 -Wall -Wextra -Werror "$sources/consumer.cc" -o "$work/consumer_cxx" $flags -ldl "-Wl,-rpath,$libdir"
  expect "linked and loaded: bundle test with 1 kernels" "$work/consumer_cxx" "$libdir/libmla_loader.so.0"

  cc -I"$prefix/include" "$sources/dlopen.c" -o "$work/dlopen" -ldl
  expect "dlopen finds bundle test with 1 kernels" "$work/dlopen" "$libdir/libmla_loader.so.0"
}

cmake --install "$build" --component mla_loader --prefix "$scratch/first" >/dev/null
libdir=$(dirname "$(find "$scratch/first" -name libmla_loader.so)")
"$write_bundle" "$libdir/mla_bundle" >/dev/null
(cd "$scratch/first" && find . -path '*/mla_bundle' -prune -o ! -type d -print | sort)
use "$scratch/first" "$scratch/work"

# A later version is not satisfied by this one, nor is another major, nor, before 1.0, an earlier minor.
for wanted in 0.0 0.2 1.0; do
  if cmake -S "$sources" -B "$scratch/later" -DCMAKE_PREFIX_PATH="$scratch/first" -DWANTED_VERSION=$wanted \
    >"$scratch/later.log" 2>&1; then
    die "find_package(mla_loader $wanted) was satisfied"
  fi
  rm -rf "$scratch/later"
done

mv "$scratch/first" "$scratch/moved elsewhere"
ln -s "moved elsewhere" "$scratch/moved"
use "$scratch/moved" "$scratch/work2"
# Only the library and a bundle beside it, in a folder of any name.
mkdir "$scratch/alone"
cp -r "$scratch"/moved/lib*/mla_bundle "$scratch/alone/" 2>/dev/null || cp -r "$scratch"/moved/lib/*/mla_bundle "$scratch/alone/"
cp "$(find "$scratch/moved/" -name libmla_loader.so.0.1.0)" "$scratch/alone/renamed.so"
expect "dlopen finds bundle test with 1 kernels" "$scratch/work2/dlopen" "$scratch/alone/renamed.so"
echo "installed tree: find_package, pkg-config and dlopen, before and after a move"
