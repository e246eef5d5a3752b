# bench/lib/setup.sh - sourced by bench/peers, bench/throughput, bench/coldstart and bench/server: their options, llama.cpp and the models.
#
# Sets: calla (the program), llama (folder of llama.cpp's programs), models, out, layers, quants, rounds, threads, python; rest (other words).

bench_say() { printf '%s\n' "${0##*/}: $*" >&2; }
bench_die() { bench_say "$*"; exit 1; }

# llama.cpp comes from the source archive of a Python package, pinned, so that figures of two days compare.
LLAMA_PACKAGE=llama-cpp-python==0.3.36

bench_help() {
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    cat <<EOF
options:
  --calla PROGRAM   calla (default: build/calla, built first)
  --llama DIR       a build of llama.cpp, with bin/ in it (default: \$LLAMA_BUILD, else fetched and built in .cache/peers)
  --models DIR      where the synthetic models are, or are made: 4.4 GB each with 8 layers (default: .cache/peers/models)
  --layers N        of the synthetic model (default 8; the published model has 40)
  --quants "A B"    llama.cpp's formats, of q4_0 q4_K q4_1 (default: "$quants")
  --rounds N        each round is calla and every format once, in turn (default $rounds)
  --threads N       for both (default: all processors)
  --out FILE        where the figures go as JSON (default: .cache/peers/${0##*/}.json)
  --python PROGRAM  with numpy, to make the models (default: python3, or an environment made in .cache/peers)
EOF
}

bench_options() {
    here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
    cache=$here/.cache/peers
    calla= llama=${LLAMA_BUILD-} models=$cache/models layers=8 out=$cache/${0##*/}.json python=
    : "${quants:=q4_0 q4_K q4_1}" "${rounds:=3}"
    threads=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
    rest=
    while [ $# -gt 0 ]; do
        case $1 in
        --help | -h) bench_help; exit 0 ;;
        --calla | --llama | --models | --layers | --quants | --rounds | --threads | --out | --python)
            [ $# -gt 1 ] || bench_die "$1 needs a value"
            case $1 in
            --calla) calla=$2 ;; --llama) llama=$2 ;; --models) models=$2 ;; --layers) layers=$2 ;; --quants) quants=$2 ;;
            --rounds) rounds=$2 ;; --threads) threads=$2 ;; --out) out=$2 ;; --python) python=$2 ;;
            esac
            shift 2 ;;
        --*)
            [ $# -gt 1 ] || bench_die "unknown option $1, or its value is missing; --help lists them"
            rest="$rest $1 $2"
            shift 2 ;;
        *) bench_die "$1: options only; --help lists them" ;;
        esac
    done
    mkdir -p "$cache" "$models" "$(dirname -- "$out")"
}

bench_calla() {
    if [ -z "$calla" ]; then
        "$here/run" --version >/dev/null || bench_die "calla could not be built"
        calla=$here/build/calla
    fi
    "$calla" --version >/dev/null 2>&1 || bench_die "$calla does not run"
}

# numpy makes the gguf files
bench_python() {
    [ -n "$python" ] || for python in python3 "$cache/venv/bin/python"; do "$python" -c 'import numpy' 2>/dev/null && break; done
    "$python" -c 'import numpy' 2>/dev/null && return
    bench_say "making a Python environment with numpy in $cache/venv"
    python3 -m venv "$cache/venv" && "$cache/venv/bin/pip" install -q --disable-pip-version-check numpy || bench_die "pip could not install numpy"
    python=$cache/venv/bin/python
}

# bench_llama PROGRAM...: those programs of llama.cpp are in $llama
bench_llama() {
    if [ -n "$llama" ]; then
        [ -d "$llama/bin" ] && llama=$llama/bin
        for program; do [ -x "$llama/$program" ] || bench_die "$llama has no $program"; done
        return
    fi
    source=$cache/llama.cpp
    if [ ! -f "$source/CMakeLists.txt" ]; then
        bench_say "fetching the source of llama.cpp ($LLAMA_PACKAGE)"
        rm -rf "$cache/archive" "$source"
        python3 -m venv "$cache/fetch" && "$cache/fetch/bin/pip" download -q --disable-pip-version-check --no-binary :all: --no-deps \
            -d "$cache/archive" "$LLAMA_PACKAGE" || bench_die "pip could not fetch $LLAMA_PACKAGE"
        tar -xzf "$cache"/archive/*.tar.gz -C "$cache/archive" && mv "$cache"/archive/*/vendor/llama.cpp "$source" && rm -rf "$cache/archive" ||
            bench_die "the archive of $LLAMA_PACKAGE has no vendor/llama.cpp"
    fi
    llama=$cache/llama-build/bin
    missing=
    for program; do [ -x "$llama/$program" ] || missing="$missing $program"; done
    [ -n "$missing" ] || return 0
    bench_say "building$missing (some fifteen minutes on two processors; log: $cache/llama-build.log)"
    generator=
    command -v ninja >/dev/null 2>&1 && generator="-G Ninja"
    # shellcheck disable=SC2086
    cmake $generator -S "$source" -B "$cache/llama-build" -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_MTMD=OFF >"$cache/llama-build.log" 2>&1 &&
        cmake --build "$cache/llama-build" --parallel "$threads" --target $missing >>"$cache/llama-build.log" 2>&1 ||
        { tail -n 20 "$cache/llama-build.log" >&2; bench_die "llama.cpp could not be built"; }
}

# The synthetic models: synth (a folder) and ggufs (words NAME=FILE). Written beside and renamed, so that one cut short is made anew.
bench_models() {
    synth=$models/synth$layers
    if [ ! -f "$synth/config.json" ]; then
        bench_say "writing $synth"
        rm -rf "$synth.part"
        "$calla" synth --quiet --layers "$layers" "$synth.part" >/dev/null && mv "$synth.part" "$synth" || bench_die "calla synth failed"
    fi
    ggufs=
    for quant in $quants; do
        file=$models/$quant-${layers}l${gguf_vocab:+-$gguf_vocab}.gguf
        case $quant in
        q4_0 | q4_1) more= ;;
        q4_K) more="--output-quant q6_K" ;; # what llama-quantize makes of it
        *) bench_die "--quants: $quant is none of q4_0 q4_K q4_1" ;;
        esac
        if [ ! -f "$file" ]; then
            bench_python
            bench_say "writing $file"
            # shellcheck disable=SC2086
            "$python" "$here/tools/synth_gguf.py" --layers "$layers" --quant "$quant" $more ${gguf_vocab:+--vocab $gguf_vocab} --out "$file.part" >/dev/null 2>&1 &&
                mv "$file.part" "$file" || bench_die "tools/synth_gguf.py failed"
        fi
        ggufs="$ggufs --gguf $quant=$file"
    done
}
