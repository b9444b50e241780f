# SPDX-License-Identifier: Apache-2.0
#
# What the scripts share; sourced, not run. Needs bash. Sets $root (the repository) and $build (the
# build folder; the environment's MLA_BUILD_DIR, relative to where the script was called, else
# build/), and changes into $root.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${MLA_BUILD_DIR:-$root/build}
case $build in
  /*) ;;
  *) build=$PWD/$build ;;
esac
cd "$root"

step() { printf '\n== %s\n' "$*"; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

have() { command -v "$1" > /dev/null 2>&1; }
have_header() { have g++ && printf '#include <%s>\n' "$1" | g++ -E -x c++ - > /dev/null 2>&1; }

# Installs the given Debian packages.
install_packages() {
  have apt-get || die "these Debian packages (or what they hold) are needed: $*"
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    have sudo || die "run as root, or install sudo or these packages: $*"
    sudo=(sudo)
  fi
  printf 'installing %s\n' "$*"
  if ! "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; then
    "${sudo[@]}" apt-get update
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
  fi
}

# Installs what is missing to build and test; nothing when all of it is there.
need_build_tools() {
  local missing=()
  have g++ || missing+=(g++)
  have gcc || missing+=(gcc)
  have cmake || missing+=(cmake)
  have ninja || missing+=(ninja-build)
  have python3 || missing+=(python3)
  have pkg-config || missing+=(pkg-config)
  have_header gtest/gtest.h || missing+=(libgtest-dev)
  have_header gmock/gmock.h || missing+=(libgmock-dev)
  have_header nlohmann/json.hpp || missing+=(nlohmann-json3-dev)
  have_header CLI/CLI.hpp || missing+=(libcli11-dev)
  have_header openssl/evp.h || missing+=(libssl-dev)
  have_header benchmark/benchmark.h || missing+=(libbenchmark-dev)
  python3 -c 'import jsonschema' > /dev/null 2>&1 || /usr/bin/python3 -c 'import jsonschema' > /dev/null 2>&1 ||
    missing+=(python3-jsonschema)
  [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
  local cmake_version
  cmake_version=$(cmake --version | sed -n '1s/[^0-9]*//p')
  [ "$(printf '%s\n3.25\n' "$cmake_version" | sort -V | head -n 1)" = 3.25 ] ||
    die "cmake is $cmake_version; 3.25 or later is needed"
}

# What only tests need: a second compiler for the public header, and the languages of examples/.
need_test_tools() {
  local missing=()
  have clang++ || missing+=(clang)
  have rustc || missing+=(rustc)
  have javac || missing+=(openjdk-17-jdk-headless)
  [ -e /usr/share/java/jna.jar ] || missing+=(libjna-java)
  have luajit || missing+=(luajit)
  have ruby || missing+=(ruby)
  [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
}

# True if $1 is an nvcc of CUDA 13.0 or later.
is_recent_nvcc() {
  local version
  version=$("$1" --version 2> /dev/null | sed -n 's/.*, V\([0-9]*\.[0-9]*\).*/\1/p') || return 1
  [ -n "$version" ] && [ "$(printf '%s\n13.0\n' "$version" | sort -V | head -n 1)" = 13.0 ]
}

# Puts an nvcc of CUDA 13.0 or later on PATH: the one that is there, else that of /usr/local/cuda,
# else the compiler of PyPI (about 270 MB), installed into $build/cuda. MLA_NVCC_FROM_PYPI=1 asks for
# the last at once, MLA_NVCC_FROM_PYPI=0 never.
need_nvcc() {
  local from_pypi=${MLA_NVCC_FROM_PYPI:-}
  case $from_pypi in
    '' | 0 | 1) ;;
    *) die "MLA_NVCC_FROM_PYPI is \"$from_pypi\"; expected 0 (never), 1 (always) or nothing (when there is none)" ;;
  esac
  if [ "$from_pypi" != 1 ] && is_recent_nvcc nvcc; then
    :
  elif [ "$from_pypi" != 1 ] && is_recent_nvcc "${MLA_CUDA_DIR:-/usr/local/cuda}/bin/nvcc"; then
    PATH=${MLA_CUDA_DIR:-/usr/local/cuda}/bin:$PATH
  elif [ "$from_pypi" = 0 ]; then
    die "there is no nvcc of CUDA 13.0 or later on PATH or in /usr/local/cuda, and MLA_NVCC_FROM_PYPI=0 forbids to install one"
  else
    local target=$build/cuda
    if ! is_recent_nvcc "$target/nvidia/cu13/bin/nvcc"; then
      printf 'no nvcc of CUDA 13.0 or later: installing it from PyPI into %s\n' "$target"
      python3 -m pip --version > /dev/null 2>&1 || install_packages python3-pip
      mkdir -p "$build"
      rm -rf "$target" "$target.new"
      python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --require-hashes \
        --target "$target.new" -r scripts/cuda-requirements.txt
      ln -s lib "$target.new/nvidia/cu13/lib64"  # where nvcc looks for libraries
      mv "$target.new" "$target"
    fi
    is_recent_nvcc "$target/nvidia/cu13/bin/nvcc" || die "the CUDA compiler from PyPI does not run"
    PATH=$target/nvidia/cu13/bin:$PATH
  fi
  # Where CMake finds cuda.h.
  CUDA_HOME=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
  CMAKE_INCLUDE_PATH=$CUDA_HOME/include
  export PATH CUDA_HOME CMAKE_INCLUDE_PATH
  printf 'nvcc: %s, %s\n' "$(command -v nvcc)" "$(nvcc --version | sed -n 's/.*, V/V/p')"
}

# Configures $build unless that was done. Projects that tests configure use Ninja too.
configure() {
  export CMAKE_GENERATOR=Ninja
  if [ ! -f "$build/build.ninja" ]; then
    cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release
  fi
}

# Builds what users get with Clang too, without optimisation, in $build/clang: most of what one
# compiler takes and the other does not shows in these. The preset `clang` builds everything.
build_with_clang() {
  if [ ! -f "$build/clang/build.ninja" ]; then
    CC=clang CXX=clang++ cmake -S "$root" -B "$build/clang" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DBUILD_TESTING=OFF
  fi
  ninja -C "$build/clang"
}

# The number of GPUs that the real CUDA driver has; 0 without a driver.
count_gpus() {
  python3 - << 'PY'
import ctypes
count = ctypes.c_int(0)
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        count.value = 0
except OSError:
    pass
print(count.value)
PY
}
