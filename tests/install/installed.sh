#!/bin/sh
# installed.sh SOURCE BUILD: install into a scratch prefix, build an example against it by pkg-config alone, run it and the installed program.
set -eu
source=$1 build=$2
prefix=$build/installed
rm -rf "$prefix"
cmake --install "$build" --prefix "$prefix" >/dev/null
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name calla.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046
"${CC:-cc}" -std=c17 "$source/examples/stream.c" -o "$prefix/stream" $(pkg-config --cflags --libs calla)
answer=$("$prefix/stream" "$prefix/share/calla/mini" "What is the capital of France?")
printf '%s\n' "$answer"
case $answer in *Paris*) ;; *) echo "the example did not say Paris"; exit 1 ;; esac
answer=$("$prefix/bin/calla" run --quiet "What is the capital of France?")
case $answer in *Paris*) ;; *) echo "the installed program did not say Paris: $answer"; exit 1 ;; esac
echo "installed: ok"
