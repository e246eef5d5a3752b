#!/bin/sh
# clang-format by .clang-format. Other major versions than 14 format a little differently: then this check is skipped, loudly.
cd "$(dirname "$0")/../.." || exit 1
if ! command -v clang-format >/dev/null 2>&1; then echo "SKIPPED: format: no clang-format here"; exit 77; fi
case $(clang-format --version) in *'version 14.'*) ;; *) echo "SKIPPED: format: $(clang-format --version), the check wants 14"; exit 77 ;; esac
bad=$(git ls-files 'src/*.[ch]' 'include/*.h' 'tests/*.[ch]' 'examples/*.c' 'bench/*.[ch]' | xargs clang-format --dry-run -Werror 2>&1 | sed -n 's/^\([^:]*\):.*code should be clang-formatted.*/\1/p' | sort -u)
if [ -n "$bad" ]; then echo "not formatted (run clang-format -i on them):"; echo "$bad"; exit 1; fi
echo "format: ok"
