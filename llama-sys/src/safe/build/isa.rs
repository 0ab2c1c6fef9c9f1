//! Whether this CPU has the instructions that native code was compiled for. The features have the same names as in
//! `std::arch::is_*_feature_detected!`.

// The build script reads the same table.
#[macro_use]
#[path = "../../../build/cpu_features.rs"]
#[allow(unused_macros, reason = "one for each processor")]
mod cpu_features;

/// The required features for which `has` returns false.
pub(crate) fn missing<'a>(required: impl Iterator<Item = &'a str>, has: impl Fn(&str) -> bool) -> Vec<String> {
    required.filter(|name| !has(name)).map(str::to_owned).collect()
}

/// Whether this CPU has a feature. Features with unknown names count as present, because it would be worse to refuse to
/// run on a guess.
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

/// Whether this CPU has a feature. Features with unknown names count as present, because it would be worse to refuse to
/// run on a guess.
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

/// For other architectures, only the features of the plain target are used.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn cpu_has(_name: &str) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cpu_without_avx512_lacks_is_named() {
        let compiled = ["avx2", "fma", "avx512f"].into_iter();
        assert_eq!(missing(compiled, |name| !name.starts_with("avx512")), ["avx512f"]);
    }
}
