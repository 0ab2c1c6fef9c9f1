//! Whether the compiler can be trusted with AMX.
//!
//! GCC before 11.5, 12.4, 13.3 and 14 takes only the first bytes of a tile configuration for used and leaves out the
//! stores to the rest (gcc.gnu.org/PR114098): ggml's AMX kernels then end in an illegal instruction on CPUs that have
//! AMX. So ggml is built without them there, and uses AVX-512 instead.

use std::fs;
use std::path::Path;

use crate::Target;

/// What takes AMX out of ggml's sight: the macro that it asks for (ggml-cpu/amx/amx.cpp).
pub(crate) const WITHOUT: &str = "-U__AMX_INT8__";

/// One byte of a configuration is stored, at its end: 77 is in the code, or forgotten.
const SNIPPET: &str = "\
#include <immintrin.h>
void configure(void) {
    unsigned char config[64];
    config[63] = 77;
    _tile_loadconfig(config);
}
";

/// Whether the C++ compiler loses a part of a tile configuration. One that does not know AMX loses nothing.
pub(crate) fn is_miscompiled(target: &Target) -> bool {
    if target.arch != "x86_64" || target.is_msvc() {
        return false;
    }
    let mut build = cc::Build::new();
    let Ok(compiler) = build.cpp(true).cargo_metadata(false).try_get_compiler() else {
        return false;
    };
    let out = std::env::var_os("OUT_DIR").expect("cargo sets it");
    let source = Path::new(&out).join("amx.cpp");
    fs::write(&source, SNIPPET).unwrap_or_else(|e| panic!("cannot write {}: {e}", source.display()));
    // Into a file: not every compiler takes `-` for its standard output.
    let assembly = source.with_extension("s");
    let arguments = ["-O2", "-mamx-tile", "-S", "-o"];
    let status = compiler.to_command().args(arguments).args([&assembly, &source]).output();
    let text = fs::read_to_string(&assembly).unwrap_or_default();
    status.is_ok_and(|output| output.status.success()) && text.contains("ldtilecfg") && !text.contains("$77")
}
