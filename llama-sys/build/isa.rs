//! Step 4: finds the instruction set that the CPU code is compiled for. The macros that the compiler predefines with
//! ggml's own flag show which instructions it may emit. The program compares the list with its CPU before it runs any
//! of that code.

use crate::target::{Target, feature, native_cpu};

/// Feature names of `std::arch::is_x86_feature_detected!` (or its aarch64 counterpart).
#[derive(Hash)]
pub(crate) struct InstructionSet(Vec<&'static str>);

impl InstructionSet {
    /// No features beyond those that the Rust target requires.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }
}

/// The features of x86-64 code without the feature `native`: ggml's options and Rust's names. These are ggml's defaults
/// if GGML_NATIVE is off, nothing is cross-compiled, and SOURCE_DATE_EPOCH is not set (ggml/CMakeLists.txt, INS_ENB).
pub(crate) const PORTABLE_X86: [(&str, &str); 6] = [
    ("GGML_SSE42", "sse4.2"),
    ("GGML_AVX", "avx"),
    ("GGML_AVX2", "avx2"),
    ("GGML_FMA", "fma"),
    ("GGML_F16C", "f16c"),
    ("GGML_BMI2", "bmi2"),
];

macro_rules! table {
    ($($macro_name:literal $feature:literal,)+) => { &[$(($macro_name, $feature)),+] };
}

/// Predefined macro of gcc and clang -> Rust's name for the feature.
const X86_MACROS: &[(&str, &str)] =
    x86_features!(table "__AMX_TILE__" "amx-tile", "__AMX_INT8__" "amx-int8", "__AMX_BF16__" "amx-bf16",);
const ARM_MACROS: &[(&str, &str)] = arm_features!(table);

/// The features that ggml's CPU code requires with the chosen cargo features.
pub(crate) fn compiled_for(target: &Target, flags: &[&str]) -> InstructionSet {
    if feature("dynamic-backends") {
        // The variant for the CPU is chosen at run time. All other code is built for the plain target.
        return InstructionSet::none();
    }
    match (target.arch.as_str(), native_cpu(target)) {
        ("x86_64", false) => InstructionSet(PORTABLE_X86.map(|(_, name)| name).to_vec()),
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
        // ggml's FindSIMD tests the build machine for these features only; cl.exe cannot print its choice.
        return ["avx", "avx2", "fma", "avx512f"].into_iter().filter(|name| host_has(name)).collect();
    }
    let null = if cfg!(windows) { "NUL" } else { "/dev/null" };
    let output = compiler.to_command().arg(flag).args(flags).args(["-dM", "-E", "-x", "c", null]).output();
    // If this failed silently, the empty list would wrongly mean that the code runs anywhere.
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

/// Whether the CPU has a feature. Called only for cl.exe, whose builds run on the machine that builds them.
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

/// Passes the list to the crate (`llama_sys::build_info`).
pub(crate) fn report(set: &InstructionSet, backends: &[&str]) {
    println!("cargo:rustc-env=LLAMA_SYS_INSTRUCTION_SET={}", set.0.join(","));
    println!("cargo:rustc-env=LLAMA_SYS_BACKENDS={}", backends.join(","));
}
