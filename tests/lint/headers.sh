#!/bin/sh
# The public headers compile alone, each as C17 and as C++, with every warning. headers.sh [C compiler [C++ compiler]]; a compiler that is not there is skipped, loudly.
cd "$(dirname "$0")/../.." || exit 1
cc=${1:-${CC:-cc}}
cxx=${2:-${CXX:-c++}}
bad=0
check() { # compiler, language, standard
    if ! command -v "$1" >/dev/null 2>&1; then echo "SKIPPED: headers as $2: no $1 here"; return; fi
    for file in include/*.h; do
        # twice, so that a missing guard shows too
        printf '#include "%s"\n#include "%s"\n' "${file#include/}" "${file#include/}" |
            "$1" -x "$2" -std="$3" -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude - || { echo "$file does not compile alone as $3"; bad=1; }
    done
}
check "$cc" c c17
check "$cxx" c++ c++11
[ $bad = 0 ] && echo "headers: ok"
exit $bad
