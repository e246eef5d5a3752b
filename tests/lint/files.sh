#!/bin/sh
# Sizes (files stop at 800 lines), no path of a developer's machine, no unfinished marks, the licence in place.
cd "$(dirname "$0")/../.." || exit 1
bad=0
[ -n "$(git ls-files src)" ] || { echo "git lists no files here"; exit 1; }
for file in $(git ls-files 'src/*' 'include/*' 'tests/*.c' 'tests/*.h' 'tests/*.py' 'tools/*' 'examples/*' | grep -Ev '(tables|unicode)'); do
    [ -f "$file" ] || continue
    lines=$(wc -l <"$file")
    [ "$lines" -le 800 ] || { echo "$file: $lines lines; split it by purpose (800 at most)"; bad=1; }
done
machine_paths='/(work|farm|root)''/|/home/[a-z]'
git grep -nIE "$machine_paths" -- . ':!*.safetensors' ':!tests/lint/files.sh' && { echo "paths of a machine in tracked files"; bad=1; }
git grep -nIwE 'TODO|FIXME|XXX' -- src include tests examples ':!tests/lint/files.sh' && { echo "unfinished marks"; bad=1; }
grep -q 'Apache License' LICENSE || { echo "LICENSE is not Apache-2.0"; bad=1; }
[ $bad = 0 ] && echo "files: ok"
exit $bad
