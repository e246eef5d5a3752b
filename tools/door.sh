# tools/door.sh - sourced by ./run and ./test: finds what is missing, says so, installs it, builds. POSIX sh.
#
# door_install WANT...  WANT is "c" (compiler, cmake, ninja, pkg-config and the libraries), "test" (besides: cmocka, clang and sanitizers,
#                        python venv), "slow" (besides: an arm64 compiler and qemu, on Linux a browser)
# door_build PRESET [TARGET...]   configures once, then builds incrementally

say() { printf '%s\n' "calla: $*" >&2; }
die() { say "$*"; exit 1; }

# Words in $1 that name neither a command on PATH (plain) nor a pkg-config module (pc:NAME) nor a header clang finds (fuzzer).
door_missing() {
    missing=
    for need in $1; do
        case $need in
        pc:*) command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "${need#pc:}" 2>/dev/null || missing="$missing $need" ;;
        objc) [ -e "$(clang -print-file-name=libobjc.so 2>/dev/null)" ] || missing="$missing $need" ;;
        libfuzzer) door_has_fuzzer || missing="$missing $need" ;;
        venv) python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing="$missing $need" ;;
        cc) command -v cc >/dev/null 2>&1 && echo '#include <stdio.h>' | cc -E - >/dev/null 2>&1 || missing="$missing $need" ;;
        *) command -v "$need" >/dev/null 2>&1 || missing="$missing $need" ;;
        esac
    done
    printf '%s' "$missing"
}

# Homebrew keeps its clang (the one with libFuzzer) off the PATH.
if command -v brew >/dev/null 2>&1 && [ -d "$(brew --prefix llvm 2>/dev/null)/bin" ]; then PATH=$(brew --prefix llvm)/bin:$PATH; fi

door_has_fuzzer() {
    command -v clang >/dev/null 2>&1 || return 1
    [ -n "$(find "$(clang --print-resource-dir)/lib" -name '*clang_rt.fuzzer*' 2>/dev/null | head -n 1)" ]
}

door_apt_name() {
    case $1 in
    cc) echo gcc libc6-dev ;;
    cmake) echo cmake ;;
    ninja) echo ninja-build ;;
    pkg-config) echo pkg-config ;;
    pc:libmicrohttpd) echo libmicrohttpd-dev ;;
    pc:libpcre2-8) echo libpcre2-dev ;;
    pc:libutf8proc) echo libutf8proc-dev ;;
    pc:libzstd) echo libzstd-dev ;;
    pc:libcurl) echo libcurl4-openssl-dev ;;
    pc:libedit) echo libedit-dev ;;
    pc:libcrypto) echo libssl-dev ;;
    pc:cmocka) echo libcmocka-dev ;;
    c++) echo g++ ;;
    clang) echo clang ;;
    libfuzzer) echo "clang $(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/libclang-rt-\1-dev/p' | head -n 1)" ;;
    objc) echo gobjc ;; # with the runtime's own files, of the compiler's version
    clang-format) echo clang-format ;;
    valgrind) echo valgrind ;;
    python3) echo python3 ;;
    venv) echo python3-venv ;;
    git) echo git ;;
    curl) echo curl ;;
    chromium) echo chromium fonts-dejavu-core ;;
    chromedriver) echo chromium-driver ;;
    qemu-aarch64) echo qemu-user ;;
    aarch64-linux-gnu-gcc) echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross ;;
    *) die "no package known for $1" ;;
    esac
}

door_brew_name() {
    case $1 in
    pkg-config) echo pkg-config ;;
    pc:libmicrohttpd) echo libmicrohttpd ;;
    pc:libpcre2-8) echo pcre2 ;;
    pc:libutf8proc) echo utf8proc ;;
    pc:libzstd) echo zstd ;;
    pc:libcurl) echo curl ;;
    pc:cmocka) echo cmocka ;;
    cmake | ninja | git | curl | clang-format) echo "$1" ;;
    python3 | venv) echo python ;;
    clang | libfuzzer) echo llvm ;;
    *) die "'$1' is missing; install Xcode's command line tools (xcode-select --install) and try again" ;;
    esac
}

door_install() {
    needs="cc cmake ninja pkg-config pc:libmicrohttpd pc:libpcre2-8 pc:libutf8proc pc:libzstd pc:libcurl"
    [ "$(uname)" = Darwin ] || needs="$needs pc:libedit pc:libcrypto"
    case ${1:-c} in test | slow) needs="$needs c++ clang libfuzzer pc:cmocka python3 venv git curl" ;; esac
    case ${1:-c}/$(uname -sm) in "test/Linux x86_64" | "slow/Linux x86_64") needs="$needs valgrind" ;; esac
    case ${1:-c}/$(uname) in test/Linux | slow/Linux) needs="$needs objc" ;; esac # the Metal host in the emulator
    [ "${1:-c}" = slow ] && [ "$(uname -sm)" = "Linux x86_64" ] && needs="$needs qemu-aarch64 aarch64-linux-gnu-gcc"
    [ "${1:-c}" = slow ] && [ "$(uname)" = Linux ] && needs="$needs chromium chromedriver"
    missing=$(door_missing "$needs")
    [ -z "$missing" ] && return 0
    say "missing:$missing"
    if command -v apt-get >/dev/null 2>&1; then
        sudo=
        if [ "$(id -u)" != 0 ]; then
            command -v sudo >/dev/null 2>&1 || die "run as root, or install sudo: packages are needed"
            sudo=sudo
        fi
        say "asking apt for its package lists"
        $sudo apt-get update -qq >/dev/null || die "apt-get update failed"
        packages=
        for need in $missing; do packages="$packages $(door_apt_name "$need")"; done
        say "installing:$packages"
        # shellcheck disable=SC2086
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null ||
            die "apt-get could not install:$packages"
    elif command -v brew >/dev/null 2>&1; then
        packages=
        for need in $missing; do packages="$packages $(door_brew_name "$need")"; done
        say "installing with Homebrew:$packages"
        # shellcheck disable=SC2086
        brew install $packages >&2 || die "brew could not install:$packages"
    else
        die "neither apt nor Homebrew is here; install these yourself:$missing"
    fi
    missing=$(door_missing "$needs")
    [ -z "$missing" ] || die "still missing after installing:$missing"
}

door_build() {
    preset=$1
    shift
    case $preset in release) dir=build ;; asan-ubsan) dir=build-asan ;; *) dir=build-$preset ;; esac
    log=$dir/door.log
    mkdir -p "$dir"
    # configured again whenever the flags differ from those of the last time
    flags="$preset ${DOOR_CMAKE_FLAGS:-}"
    if [ ! -f "$dir/build.ninja" ] || [ "$flags" != "$(cat "$dir/.door-flags" 2>/dev/null)" ]; then
        say "configuring $dir"
        # shellcheck disable=SC2086
        cmake --preset "$preset" ${DOOR_CMAKE_FLAGS:-} >"$log" 2>&1 || { cat "$log" >&2; die "cmake failed"; }
        printf '%s\n' "$flags" >"$dir/.door-flags"
    fi
    [ -f "$dir/.door-built" ] || say "building in $dir (the first time takes a minute or two)"
    cmake --build "$dir" ${1:+--target "$@"} >"$log" 2>&1 || { tail -n 60 "$log" >&2; die "the build failed; the whole log is $log"; }
    : >"$dir/.door-built"
}
