#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and runs an example in another language; exit code 77 if the language is not installed.
# usage: run_language.sh LANGUAGE SOURCE_DIR LOADER BUNDLE
set -eu
language=$1 examples=$2/examples loader=$3 bundle=$4
need() { command -v "$1" >/dev/null || { echo "$1 is not installed"; exit 77; }; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case $language in
  rust)
    need rustc
    rustc --edition 2021 -O -D warnings "$examples/rust/decode.rs" -o "$work/decode"
    "$work/decode" "$loader" "$bundle" ;;
  java)
    need javac
    jar=${MLA_JNA_JAR:-/usr/share/java/jna.jar}
    [ -e "$jar" ] || { echo "$jar is not there"; exit 77; }
    javac -Xlint:all -Werror -cp "$jar" -d "$work" "$examples"/java/*.java
    java -cp "$jar:$work" Decode "$loader" "$bundle" ;;
  lua)
    need luajit
    luajit "$examples/lua/decode.lua" "$loader" "$bundle" ;;
  ruby)
    need ruby
    ruby -w "$examples/ruby/decode.rb" "$loader" "$bundle" ;;
  go) # structs and constants: what is not laid out as in the header does not compile
    need gccgo-12
    gccgo-12 -c "$examples/go/mla_abi.go" -o "$work/mla_abi.o" ;;
  *) echo "no example in $language"; exit 1 ;;
esac
