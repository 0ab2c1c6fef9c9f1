//! Step 6, feature `media`: builds llama.cpp's tools/mtmd. It is separate from llama.cpp, so that llama.cpp is compiled
//! only once, for builds with and without the feature.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::configure::Options;
use crate::source::folder;
use crate::target::feature;

/// The archive of mtmd, if it is built.
pub(crate) fn build(source: &Path, options: &Options) -> Option<PathBuf> {
    if !feature("media") {
        return None;
    }
    let triple = std::env::var("TARGET").expect("cargo sets it");
    let mut hash = DefaultHasher::new();
    let ours = [
        include_str!("../native/mtmd/CMakeLists.txt"),
        include_str!("../native/mtmd/measured_clip.h"),
        include_str!("../native/mtmd/measured_clip.cpp"),
    ];
    // CMake empties the folder of a build whose source has another path, so each checkout has a folder of its own.
    let checkout = env!("CARGO_MANIFEST_DIR");
    (source, &options.flags, &triple, ours, checkout).hash(&mut hash);
    let key = format!("mtmd-{triple}-{:016x}", hash.finish());
    let base = folder("AUTOPLACE_LLAMA_BUILD_DIR")
        .unwrap_or_else(|| PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")));
    let dir = base.join(key);
    std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("cannot create {}: {e}", dir.display()));
    let lock = dir.join("lock");
    let lock = std::fs::File::create(&lock).unwrap_or_else(|e| panic!("cannot create {}: {e}", lock.display()));
    // The lock is released when the file is dropped, even after a crash.
    lock.lock().expect("a lock on a fresh file");
    let mut cmake = cmake::Config::new("native/mtmd");
    cmake.define("LLAMA_CPP", source).out_dir(&dir).profile("Release").build_target("mtmd");
    for flag in &options.flags {
        cmake.cxxflag(flag);
    }
    let built = cmake.build().join("build");
    println!("cargo:rustc-link-search=native={}", built.display());
    println!("cargo:rustc-link-lib=static=mtmd");
    ["libmtmd.a", "mtmd.lib"].map(|name| built.join(name)).into_iter().find(|path| path.is_file())
}
