//! Whether this CPU has the instructions that the native code was compiled for.

/// The required CPU features, as the build script recorded them for linked code, or as the manifest states them for an
/// opened runtime. The names are those of `std::arch::is_*_feature_detected!`.
pub(crate) fn required() -> impl Iterator<Item = &'static str> {
    let linked = env!("LLAMA_SYS_INSTRUCTION_SET").split(',').filter(|name| !name.is_empty());
    #[cfg(feature = "prebuilt-runtime")]
    let linked =
        linked.chain(crate::runtime::manifest().into_iter().flat_map(|it| it.instructions.iter().map(String::as_str)));
    linked
}

/// The required features that `has` denies.
pub(crate) fn missing<'a>(required: impl Iterator<Item = &'a str>, has: impl Fn(&str) -> bool) -> Vec<String> {
    required.filter(|name| !has(name)).map(str::to_owned).collect()
}

/// Features of this CPU that would speed up ggml most and that the native code does not use. Empty where the code is
/// chosen at run time.
pub(crate) fn unused() -> impl Iterator<Item = &'static str> {
    #[cfg(target_arch = "x86_64")]
    const FAST: [&str; 6] = ["avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512vnni"];
    #[cfg(target_arch = "aarch64")]
    const FAST: [&str; 3] = ["dotprod", "i8mm", "sve"];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    const FAST: [&str; 0] = [];
    let chosen_later = crate::build_info::backends_are_loadable();
    FAST.into_iter().filter(move |name| !chosen_later && cpu_has(name) && !required().any(|compiled| compiled == *name))
}

/// Asks the CPU. Unknown names count as present, because refusing to run on a guess would be worse.
#[cfg(target_arch = "x86_64")]
pub(crate) fn cpu_has(name: &str) -> bool {
    macro_rules! detect {
        ($($macro_name:tt $feature:tt,)+) => {
            match name {
                $($feature => std::arch::is_x86_feature_detected!($feature),)+
                // std has no stable name for these: CPUID leaf 7, EDX (Intel SDM volume 2A, CPUID).
                "amx-bf16" => cpuid_7_edx() & (1 << 22) != 0,
                "amx-tile" => cpuid_7_edx() & (1 << 24) != 0,
                "amx-int8" => cpuid_7_edx() & (1 << 25) != 0,
                _ => true,
            }
        };
    }
    x86_features!(detect)
}

#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe, reason = "__cpuid is a safe function in newer compilers")]
fn cpuid_7_edx() -> u32 {
    // SAFETY: every x86-64 CPU has CPUID; leaf 7 is read only when it exists.
    unsafe {
        if std::arch::x86_64::__cpuid(0).eax < 7 {
            return 0;
        }
        std::arch::x86_64::__cpuid_count(7, 0).edx
    }
}

/// Asks the CPU. Unknown names count as present, because refusing to run on a guess would be worse.
#[cfg(target_arch = "aarch64")]
pub(crate) fn cpu_has(name: &str) -> bool {
    macro_rules! detect {
        ($($macro_name:tt $feature:tt,)+) => {
            match name {
                $($feature => std::arch::is_aarch64_feature_detected!($feature),)+
                _ => true,
            }
        };
    }
    arm_features!(detect)
}

/// Other architectures are built for their plain target.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn cpu_has(_name: &str) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_what_the_native_code_was_compiled_for() {
        assert_eq!(missing(required(), cpu_has), Vec::<String>::new());
    }

    #[test]
    fn what_a_cpu_without_avx512_lacks_is_named() {
        let compiled = ["avx2", "fma", "avx512f"].into_iter();
        assert_eq!(missing(compiled, |name| !name.starts_with("avx512")), ["avx512f"]);
    }

    #[cfg(all(target_arch = "x86_64", feature = "native"))]
    #[test]
    fn a_native_build_records_more_than_nothing() {
        // For a native build on any CPU of this century, an x86-64 compiler defines at least SSE3.
        assert!(required().count() > 0);
    }
}
