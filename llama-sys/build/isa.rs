//! Step 7: which instruction set the CPU code was compiled for. The compiler is asked, not guessed: its predefined
//! macros under ggml's own flag say what it may emit. The program compares the list with its CPU before it runs
//! any of that code.

use std::process::Command;

use crate::{Target, feature, native_cpu};

/// Names as `std::arch::is_x86_feature_detected!` (or the aarch64 twin) knows them.
pub(crate) struct InstructionSet(Vec<&'static str>);

impl InstructionSet {
    /// Nothing beyond what the Rust target itself requires.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }
}

/// x86-64 without the feature `native`: the defaults of ggml's CMake under GGML_NATIVE=OFF
/// (ggml/CMakeLists.txt, INS_ENB).
const PORTABLE_X86: &[&str] = &["sse4.2", "avx", "avx2", "fma", "f16c", "bmi2"];

/// Predefined macro of gcc and clang -> Rust's name for the feature.
const X86_MACROS: &[(&str, &str)] = &[
    ("__SSE3__", "sse3"),
    ("__SSSE3__", "ssse3"),
    ("__SSE4_1__", "sse4.1"),
    ("__SSE4_2__", "sse4.2"),
    ("__POPCNT__", "popcnt"),
    ("__LZCNT__", "lzcnt"),
    ("__MOVBE__", "movbe"),
    ("__AVX__", "avx"),
    ("__AVX2__", "avx2"),
    ("__FMA__", "fma"),
    ("__F16C__", "f16c"),
    ("__BMI__", "bmi1"),
    ("__BMI2__", "bmi2"),
    ("__AVXVNNI__", "avxvnni"),
    ("__AVX512F__", "avx512f"),
    ("__AVX512BW__", "avx512bw"),
    ("__AVX512CD__", "avx512cd"),
    ("__AVX512DQ__", "avx512dq"),
    ("__AVX512VL__", "avx512vl"),
    ("__AVX512IFMA__", "avx512ifma"),
    ("__AVX512VBMI__", "avx512vbmi"),
    ("__AVX512VBMI2__", "avx512vbmi2"),
    ("__AVX512VNNI__", "avx512vnni"),
    ("__AVX512BITALG__", "avx512bitalg"),
    ("__AVX512VPOPCNTDQ__", "avx512vpopcntdq"),
    ("__AVX512BF16__", "avx512bf16"),
    ("__AVX512FP16__", "avx512fp16"),
    ("__GFNI__", "gfni"),
    ("__VAES__", "vaes"),
    ("__VPCLMULQDQ__", "vpclmulqdq"),
    ("__AMX_TILE__", "amx-tile"),
    ("__AMX_INT8__", "amx-int8"),
    ("__AMX_BF16__", "amx-bf16"),
];

const ARM_MACROS: &[(&str, &str)] = &[
    ("__ARM_FEATURE_DOTPROD", "dotprod"),
    ("__ARM_FEATURE_FP16_VECTOR_ARITHMETIC", "fp16"),
    ("__ARM_FEATURE_MATMUL_INT8", "i8mm"),
    ("__ARM_FEATURE_BF16_VECTOR_ARITHMETIC", "bf16"),
    ("__ARM_FEATURE_SVE", "sve"),
    ("__ARM_FEATURE_SVE2", "sve2"),
];

/// What ggml's CPU code requires under the chosen features.
pub(crate) fn compiled_for(target: &Target, flags: &[&str]) -> InstructionSet {
    if feature("dynamic-backends") {
        // The variant that fits is chosen at run time; what remains is built for the plain target.
        return InstructionSet::none();
    }
    match (target.arch.as_str(), native_cpu(target)) {
        ("x86_64", false) => InstructionSet(PORTABLE_X86.to_vec()),
        ("x86_64", true) => InstructionSet(native("-march=native", flags, X86_MACROS)),
        ("aarch64", true) => InstructionSet(native("-mcpu=native", flags, ARM_MACROS)),
        _ => InstructionSet::none(),
    }
}

fn native(flag: &str, flags: &[&str], macros: &[(&str, &'static str)]) -> Vec<&'static str> {
    let Ok(compiler) = cc::Build::new().cargo_metadata(false).try_get_compiler() else {
        return Vec::new();
    };
    if compiler.is_like_msvc() {
        // ggml's FindSIMD stops at what the build machine has of these; cl.exe has no way to print its choice.
        return ["avx", "avx2", "fma", "avx512f"].into_iter().filter(|name| host_has(name)).collect();
    }
    let null = if cfg!(windows) { "NUL" } else { "/dev/null" };
    let output = Command::new(compiler.path()).arg(flag).args(flags).args(["-dM", "-E", "-x", "c", null]).output();
    // An empty answer would mean "runs anywhere", which is the one wrong thing to record.
    let output = output.unwrap_or_else(|e| panic!("cannot run {}: {e}", compiler.path().display()));
    assert!(
        output.status.success(),
        "`{} {flag} -dM -E` failed, so that the instruction set of the native build is not known (build without the `native` \
         feature): {}",
        compiler.path().display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let defined: std::collections::HashSet<&str> =
        text.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    macros.iter().filter(|(name, _)| defined.contains(name)).map(|&(_, feature)| feature).collect()
}

/// Only reached for cl.exe, whose builds are made on the CPU they are made for.
#[cfg(target_arch = "x86_64")]
fn host_has(name: &str) -> bool {
    match name {
        "avx" => is_x86_feature_detected!("avx"),
        "avx2" => is_x86_feature_detected!("avx2"),
        "fma" => is_x86_feature_detected!("fma"),
        "avx512f" => is_x86_feature_detected!("avx512f"),
        _ => false,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn host_has(_name: &str) -> bool {
    false
}

/// Hands the list to the crate (`llama_sys::build_info`).
pub(crate) fn report(set: &InstructionSet, backends: &[&str]) {
    println!("cargo:rustc-env=LLAMA_SYS_INSTRUCTION_SET={}", set.0.join(","));
    println!("cargo:rustc-env=LLAMA_SYS_BACKENDS={}", backends.join(","));
}
