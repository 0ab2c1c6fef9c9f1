//! Cargo's request: the target and the features.

/// Cargo's request, read once.
pub(crate) struct Target {
    pub(crate) os: String,
    pub(crate) arch: String,
    pub(crate) env: String,
}

impl Target {
    pub(crate) fn from_cargo() -> Self {
        let var = |name: &str| std::env::var(name).unwrap_or_default();
        Self { os: var("CARGO_CFG_TARGET_OS"), arch: var("CARGO_CFG_TARGET_ARCH"), env: var("CARGO_CFG_TARGET_ENV") }
    }

    /// Whether the result runs on the machine that builds it.
    pub(crate) fn is_host(&self) -> bool {
        std::env::var_os("HOST") == std::env::var_os("TARGET")
    }

    pub(crate) fn is_msvc(&self) -> bool {
        self.env == "msvc"
    }

    pub(crate) fn is_apple(&self) -> bool {
        matches!(self.os.as_str(), "macos" | "ios" | "tvos" | "visionos")
    }
}

/// Whether CPU code is compiled for this machine only, which must be requested and possible.
pub(crate) fn native_cpu(target: &Target) -> bool {
    // With loadable backends the variant is chosen at run time, and the CPU of another machine cannot be queried.
    feature("native") && !feature("dynamic-backends") && target.is_host()
}

/// Whether the cargo feature is on.
pub(crate) fn feature(name: &str) -> bool {
    let var = format!("CARGO_FEATURE_{}", name.to_uppercase().replace('-', "_"));
    std::env::var_os(var).is_some()
}
