#!/bin/sh
# test_xcrun.sh SOURCE CMAKE: shaders compiled when calla is built, with a stand-in for Apple's xcrun: when it is looked for, the command lines,
# and that what it refuses is left to its text.
source=$1 cmake=$2
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0
fail() { echo "FAILED: $*"; bad=1; }
printf 'include(%s/cmake/xcrun.cmake)\nmetal_find_tool(tool)\nmessage("tool=<${tool}>")\n' "$source" >"$dir/find.cmake"
find_tool() { PATH="$1" "$cmake" -D CMAKE_SYSTEM_NAME="$2" -P "$dir/find.cmake" 2>&1 | sed -n 's/^tool=//p'; }
with="$source/tests/metal-emulator:$PATH"
[ "$(find_tool "$with" Darwin)" = "<$source/tests/metal-emulator/xcrun>" ] || fail "xcrun on the path is not taken: $(find_tool "$with" Darwin)"
[ "$(find_tool "$with" Linux)" = "<>" ] || fail "xcrun is taken on Linux"
[ "$(XCRUN_REFUSES=all find_tool "$with" Darwin)" = "<>" ] || fail "xcrun without a compiler is taken"
[ "$(find_tool "$PATH" Darwin)" = "<>" ] || [ -n "$(command -v xcrun)" ] || fail "a missing xcrun is taken"

shaders="$source/src/backend/metal/norm.metal,$source/src/backend/metal/linear_tensor_bf16.metal"
flatten() { "$cmake" -D SHADERS="$shaders" -D INCLUDE="$source/src" -D OUT="$dir/out.c" -D FLAT="$dir/flat" "$@" -P "$source/cmake/flatten.cmake" 2>"$dir/errors"; }
tool="-DXCRUN=$source/tests/metal-emulator/xcrun"
flatten || fail "text alone"
grep -q 'norm.metal", text_norm, NULL, 0, 3}' "$dir/out.c" || fail "text alone: $(tail -5 "$dir/out.c")"
XCRUN_LOG=$dir/log flatten "$tool" || fail "with xcrun"
cat >"$dir/want" <<EOF
-sdk macosx metal -std=metal3.0 -mtargetos=macos13.0 -fno-fast-math -o $dir/flat/norm.metallib $dir/flat/norm.metal
-sdk macosx metal -std=metal4.0 -mtargetos=macos26.2 -fno-fast-math -o $dir/flat/linear_tensor_bf16.metallib $dir/flat/linear_tensor_bf16.metal
EOF
diff "$dir/want" "$dir/log" || fail "command lines"
grep -q 'norm.metal", text_norm, compiled_norm, sizeof compiled_norm - 1, 3}' "$dir/out.c" || fail "norm is not compiled"
grep -q 'text_linear_tensor_bf16, compiled_linear_tensor_bf16, .*, 4}' "$dir/out.c" || fail "the tensor kernels are not compiled"
XCRUN_REFUSES=_tensor_ flatten "$tool" || fail "a refused shader stops the build"
grep -q 'refused on purpose' "$dir/errors" || fail "no word of a refused shader"
grep -q 'compiled_norm, sizeof' "$dir/out.c" || fail "what compiled is lost with what did not"
grep -q 'text_linear_tensor_bf16, NULL, 0, 4}' "$dir/out.c" || fail "a refused shader is not left to its text"
XCRUN_REFUSES=all flatten "$tool" || fail "a failing tool stops the build"
grep -q 'text_norm, NULL, 0, 3}' "$dir/out.c" || fail "after a failing tool: $(tail -5 "$dir/out.c")"
[ $bad = 0 ] && echo "xcrun: ok"
exit $bad
