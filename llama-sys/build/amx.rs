//! Whether the compiler handles AMX correctly.
//!
//! GCC before 11.5, 12.4, 13.3 and 14 assumes that only the first bytes of a tile configuration are used, and leaves
//! out the stores to the rest (gcc.gnu.org/PR114098). ggml's AMX kernels then end in an illegal instruction on CPUs
//! that have AMX. With such a compiler ggml is built without them, and uses AVX-512 instead.

use std::fs;
use std::path::Path;

use crate::target::Target;

/// The flag that hides AMX from ggml, by undefining the macro that it checks (ggml-cpu/amx/amx.cpp).
pub(crate) const WITHOUT: &str = "-U__AMX_INT8__";

/// Code that stores one byte at the end of a configuration. A correct compiler emits the value 77.
const SNIPPET: &str = "\
#include <immintrin.h>
void configure(void) {
    unsigned char config[64];
    config[63] = 77;
    _tile_loadconfig(config);
}
";

/// Whether the C++ compiler loses a part of a tile configuration. A compiler without AMX loses nothing.
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
    // The assembly is written to a file, because not every compiler accepts `-` for its standard output.
    let assembly = source.with_extension("s");
    let arguments = ["-O2", "-mamx-tile", "-S", "-o"];
    let status = compiler.to_command().args(arguments).args([&assembly, &source]).output();
    let text = fs::read_to_string(&assembly).unwrap_or_default();
    status.is_ok_and(|output| output.status.success()) && text.contains("ldtilecfg") && !text.contains("$77")
}
