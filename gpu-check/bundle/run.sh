#!/usr/bin/env bash
# Checks autoplace on this machine's cards. Builds the CUDA backend for NVIDIA's cards, unless that was done before, or
# takes the archive's Vulkan backend, and runs bin/gpu-check with it. In: the arguments below. Out: a folder below
# results/, and the exit code of gpu-check.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    cat <<'TEXT'
usage: run.sh [OPTION...] [CHECK...]

Builds ggml's CUDA backend for the cards of this machine, unless an earlier run has, and runs the checks: all of
them, or those named (bytes, ballast, cliff, peers, identical).

  --cpu          no card and no build: the CPU backend and simulated GPUs
  --vulkan       any cards with a Vulkan driver, and no build, if the archive has the Vulkan backend
  --small        fewer and smaller cases
  --build-only   builds the CUDA backend and ends
  --cases N      begins no further case of a check after so many [default: gpu-check's]
  --out DIR      where the results go [default: results/DATE-CARD]
  --jobs N       compiles N files at once [default: as many as there are cores]
  --minutes N    begins no further case after so many minutes of checks [default: gpu-check's]
  --scratch DIR  where models are written while they are needed [default: the system's]
  --threads N    threads of the CPU to compute with [default: gpu-check's]
  --help         this text

Wanted, but for --cpu and --vulkan: an NVIDIA driver, nvcc, cmake 3.18 or newer, a C++ compiler, and ninja or make. An nvcc outside
of PATH and /usr/local/cuda is named by CUDACXX or CUDA_HOME, a C++ compiler by CXX.

Exit codes: 2 for a wrong argument, 3 where this machine lacks something, 4 where the build fails, else gpu-check's.
TEXT
}

wrong() {
    printf 'error: %s; run.sh --help has the arguments\n' "$1" >&2
    exit 2
}

lacking=0
lacks() {
    printf 'error: %s\n' "$1" >&2
    lacking=1
}

stop_if_lacking() {
    if [ "$lacking" -ne 0 ]; then
        printf 'run.sh --cpu runs without a card and without a build.\n' >&2
        exit 3
    fi
}

# ---- arguments ----

cpu=false vulkan=false build_only=false out='' jobs=''
handed_on=()
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --cpu) cpu=true; handed_on+=("$1") ;;
        --vulkan) vulkan=true ;;
        --small) handed_on+=("$1") ;;
        --build-only) build_only=true ;;
        --out | --jobs | --cases | --minutes | --scratch | --threads)
            [ $# -ge 2 ] || wrong "$1 wants a value"
            case $1 in
                --out) out=$2 ;;
                --jobs) jobs=$2 ;;
                *) handed_on+=("$1" "$2") ;;
            esac
            shift ;;
        -*) wrong "there is no option $1" ;;
        bytes | ballast | cliff | peers | identical) handed_on+=("$1") ;;
        # gpu-check would report this too, but only after the build.
        *) wrong "there is no check $1" ;;
    esac
    shift
done
jobs=${jobs:-$(nproc)}
[[ $jobs =~ ^[1-9][0-9]*$ ]] || wrong "--jobs wants a number of compilers, not $jobs"
! { $cpu && $vulkan; } || wrong '--cpu uses no card, so --vulkan has nothing to do'
! { $cpu && $build_only; } || wrong '--cpu builds nothing, so --build-only has nothing to do'
! { $vulkan && $build_only; } || wrong '--vulkan builds nothing, so --build-only has nothing to do'

# ---- what this machine has ----

# Prints the path of nvcc, or nothing. An nvcc that the user has named takes precedence over an nvcc in the usual
# places.
find_nvcc() {
    local one
    for one in "${CUDACXX:-}" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "${CUDA_PATH:+$CUDA_PATH/bin/nvcc}" nvcc /usr/local/cuda/bin/nvcc; do
        if [ -n "$one" ] && command -v "$one"; then
            return
        fi
    done
}

# Sets `capabilities` (such as 90, or 80 and 90) and `slug` (such as nvidia-h200) from the driver's list of cards.
ask_cards() {
    local cards said first
    if ! command -v nvidia-smi >/dev/null; then
        lacks "no NVIDIA driver: there is no nvidia-smi in PATH; install NVIDIA's driver"
        return
    fi
    if ! cards=$(nvidia-smi --query-gpu=compute_cap,name --format=csv,noheader 2>&1); then
        said=${cards%%$'\n'*}
        lacks "no card: nvidia-smi says \"$said\"; look whether the driver runs, and is of 2021 (470) or newer"
        return
    fi
    mapfile -t capabilities < <(sed -n 's/^ *\([0-9]*\)\.\([0-9]*\),.*/\1\2/p' <<<"$cards" | sort -nu)
    if [ ${#capabilities[@]} -eq 0 ]; then
        lacks 'no card: nvidia-smi lists none with a compute capability; look whether the driver runs'
        return
    fi
    first=$(sed -n '1s/^[^,]*, *//p' <<<"$cards")
    slug=$(tr '[:upper:]' '[:lower:]' <<<"$first" | sed 's/[^a-z0-9]\{1,\}/-/g; s/^-//; s/-$//')
}

# Sets `nvcc` and `release` (such as 12.4), and checks that this nvcc suits the cards and the driver.
ask_nvcc() {
    local known capability driver
    nvcc=$(find_nvcc)
    if [ -z "$nvcc" ]; then
        lacks "no nvcc: neither CUDACXX, CUDA_HOME, CUDA_PATH, PATH nor /usr/local/cuda leads to one; install NVIDIA's CUDA toolkit"
        return
    fi
    release=$("$nvcc" --version 2>&1 | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    if [ -z "$release" ]; then
        lacks "$nvcc does not say its version; reinstall NVIDIA's CUDA toolkit, or name another nvcc by CUDACXX"
        return
    fi
    # The nvcc of CUDA 10 and older does not print this list, and is too old for ggml anyway.
    known=$("$nvcc" --list-gpu-arch 2>/dev/null || true)
    for capability in "${capabilities[@]}"; do
        if ! grep -qx "compute_$capability" <<<"$known"; then
            lacks "nvcc $release ($nvcc) does not compile for a card of compute capability ${capability%?}.${capability: -1}, only for \
$(paste -sd' ' <<<"${known//compute_/}"); install a CUDA toolkit that does"
        fi
    done
    driver=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p' | head -n1 || true)
    if [ -n "$driver" ] && [ "${driver%%.*}" -lt "${release%%.*}" ]; then
        # This is only a note, because programs may still run with NVIDIA's compatibility package.
        printf 'note: the driver runs programs of CUDA %s and older, and %s is of %s; should no card be found, install a newer driver or a CUDA toolkit %s\n' \
            "$driver" "$nvcc" "$release" "${driver%%.*}.x" >&2
    fi
}

# Sets `generator`, the arguments that select cmake's generator; it may stay empty.
ask_build_tools() {
    local version
    if ! command -v cmake >/dev/null; then
        lacks 'no cmake in PATH; install cmake 3.18 or newer'
    else
        version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9]*\.[0-9]*\).*/\1/p')
        # `sort` puts the older version first.
        if [ "$(printf '%s\n' 3.18 "$version" | sort -V | head -n1)" != 3.18 ]; then
            lacks "cmake is $version; install 3.18 or newer"
        fi
    fi
    if [ -n "${CXX:-}" ]; then
        command -v "${CXX%% *}" >/dev/null || lacks "the variable CXX is \"$CXX\", which is not there; correct or unset it"
    elif ! { command -v c++ || command -v g++ || command -v clang++; } >/dev/null; then
        lacks 'no C++ compiler in PATH; install g++, or name one by CXX'
    fi
    if command -v ninja >/dev/null; then
        generator=(-G Ninja)
    elif ! command -v make >/dev/null; then
        lacks 'neither ninja nor make in PATH; install one of them'
    fi
}

# ---- the CUDA backend ----

# Builds the backend in the folder `build`, unless this was done before, and puts the library into the folder of the
# programs.
build_backend() {
    local architectures log seconds user system
    architectures=$(printf '%s-real;' "${capabilities[@]}")
    build=$here/build/$(IFS=+; printf '%s' "${capabilities[*]}")-nvcc$release
    log=$build/build.log
    if cmp -s "$here/BUILD.json" "$build/BUILD.json" && [ -f "$build/bin/libggml-cuda.so" ]; then
        printf 'The CUDA backend is there: %s\n' "$build"
    else
        mkdir -p "$build"
        rm -f "$build/BUILD.json"
        printf 'Building the CUDA backend for %s with nvcc %s, %s files at once. That takes some minutes; %s has the log.\n' \
            "${architectures%;}" "$release" "$jobs" "$log"
        export CUDACXX=$nvcc
        TIMEFORMAT='%R %U %S'
        if ! { time compile "${architectures%;}" >"$log" 2>&1; } 2>"$build/time"; then
            tail -n 30 "$log" >&2
            printf 'error: the CUDA backend could not be built; the whole log is %s\n' "$log" >&2
            exit 4
        fi
        read -r seconds user system < <(tail -n1 "$build/time")
        cat >"$build/cuda-build.json" <<JSON
{
  "cuda_architectures": "${architectures%;}",
  "nvcc": "$release",
  "cuda_build_jobs": $jobs,
  "cuda_build_seconds": $seconds,
  "cuda_build_cpu_seconds": $(awk "BEGIN { print $user + $system }")
}
JSON
        # This file is written last, so that an interrupted build is repeated.
        cp "$here/BUILD.json" "$build/BUILD.json"
        printf 'Built in %s s (%s s of CPU time).\n' "$seconds" "$(awk "BEGIN { print $user + $system }")"
    fi
    # The copy is renamed at the end, so that a half-written library never has the name that is loaded.
    cp "$build/bin/libggml-cuda.so" "$here/bin/.libggml-cuda.so.$$"
    mv -f "$here/bin/.libggml-cuda.so.$$" "$here/bin/libggml-cuda.so"
}

compile() {
    cmake -S "$here/cuda" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CUDA_ARCHITECTURES=$1" &&
        cmake --build "$build" --target ggml-cuda --parallel "$jobs"
}

# Adds the toolkit's libraries to the search path, because the loader does not find the libraries of a toolkit that was
# only unpacked.
add_toolkit_libraries() {
    local root dir
    root=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    for dir in "$root/lib64" "$root/targets/x86_64-linux/lib" "$root/lib"; do
        if compgen -G "$dir/libcudart.so*" >/dev/null; then
            export LD_LIBRARY_PATH=$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
            return
        fi
    done
}

# ---- the run ----

slug=cpu capabilities=() generator=() nvcc='' release='' build=''
if $cpu; then
    # With this setting, a backend that an earlier run has built is not used.
    export CUDA_VISIBLE_DEVICES=
elif $vulkan; then
    slug=vulkan
    [ -f "$here/vulkan/libggml-vulkan.so" ] ||
        lacks "this archive has no Vulkan backend; cargo xtask gpu-bundle --vulkan makes one that has it"
    stop_if_lacking
    # ggml loads this backend in addition to those in bin.
    export GGML_BACKEND_PATH=$here/vulkan/libggml-vulkan.so CUDA_VISIBLE_DEVICES=
else
    ask_cards
    ask_nvcc
    ask_build_tools
    stop_if_lacking
    build_backend
    if $build_only; then
        exit 0
    fi
    add_toolkit_libraries
fi

if [ -z "$out" ]; then
    out=$here/results/$(date +%Y-%m-%d)-$slug
    # A second run on the same day gets its own folder.
    number=2
    while [ -e "$out" ]; do
        out=$here/results/$(date +%Y-%m-%d)-$slug-$number
        number=$((number + 1))
    done
fi
mkdir -p "$out"
# Joins both descriptions into one JSON object.
if $cpu || $vulkan; then
    cp "$here/BUILD.json" "$out/build.json"
else
    { sed '$s/} *$//' "$here/BUILD.json"; sed '1s/^{/,/' "$build/cuda-build.json"; } >"$out/build.json"
fi

set +e
"$here/bin/gpu-check" --model "$here/model/autoplace-demo-q8_0.gguf" --build "$out/build.json" --out "$out" \
    "${handed_on[@]}" 2>&1 | tee "$out/log.txt"
code=${PIPESTATUS[0]}
set -e
printf 'The results are in %s\n' "$out"
exit "$code"
