//! Step 5: runs cmake. The build is always optimised: a debug build of ggml is a hundred times slower, and no help for
//! debugging Rust.
//!
//! By default everything happens in OUT_DIR. `AUTOPLACE_LLAMA_BUILD_DIR` names a folder that shares one native build
//! between cargo profiles, packages and steps; a file lock keeps two build scripts apart. In both cases each
//! combination of source, options and instruction set has its own folder. So a build for another CPU, which a CI's
//! cache may hold, is not reused.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::configure::Options;
use crate::isa::InstructionSet;
use crate::source::folder;
use crate::target::{Target, feature};

/// The sources of the barrier in which ggml's threads wait for each other. Each build folder has a copy, so that equal
/// sources share a folder in whatever folder this crate is.
const WAIT: [(&str, &str); 2] =
    [("wait.cmake", include_str!("../native/wait.cmake")), ("wait.h", include_str!("../native/wait.h"))];

/// The location of the libraries.
pub(crate) struct Built {
    /// cmake's binary folder.
    pub(crate) dir: PathBuf,
    /// Shared libraries and loadable backends instead of static libraries.
    pub(crate) dynamic: bool,
}

/// Configures and builds the target `llama`, or finds it up to date.
pub(crate) fn run(target: &Target, source: &Path, options: &Options, instructions: &InstructionSet) -> Built {
    let triple = std::env::var("TARGET").expect("cargo sets it");
    let key = key(source, options, instructions, &triple);
    let dir = match folder("AUTOPLACE_LLAMA_BUILD_DIR") {
        Some(shared) => shared.join(format!("{triple}-{key}")),
        None => PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join(key),
    };
    fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("cannot create {}: {e}", dir.display()));
    let lock = dir.join("lock");
    let lock = File::create(&lock).unwrap_or_else(|e| panic!("cannot create {}: {e}", lock.display()));
    // The lock is released when the file is dropped, even after a crash.
    lock.lock().expect("a lock on a fresh file");

    for (name, text) in WAIT {
        let path = dir.join(name);
        // An unchanged file is not written and keeps its time, so that nothing is compiled again.
        if fs::read_to_string(&path).ok().as_deref() != Some(text) {
            fs::write(&path, text).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
        }
    }

    let mut cmake = cmake::Config::new(source);
    cmake.define("CMAKE_PROJECT_ggml_INCLUDE", dir.join(WAIT[0].0));
    cmake.out_dir(&dir).profile("Release").build_target("llama");
    for flag in &options.flags {
        cmake.cflag(flag).cxxflag(flag);
    }
    for (name, value) in &options.defines {
        cmake.define(name, value);
    }
    if feature("vulkan") && !target.is_msvc() {
        // ggml builds the generator of its shaders separately, and takes its flags only from the environment. The
        // generator runs only for a moment, but with inlining GCC takes as long to compile it as the whole backend.
        let flags = std::env::var("CXXFLAGS").unwrap_or_default();
        cmake.env("CXXFLAGS", format!("{flags} -fno-inline"));
    }
    let build = cmake.build().join("build");
    println!("cargo:root={}", build.display());
    Built { dir: build, dynamic: options.dynamic }
}

/// A hash of everything that changes cmake's output here. With `native` that includes the CPU.
fn key(source: &Path, options: &Options, instructions: &InstructionSet, target: &str) -> String {
    let mut hash = DefaultHasher::new();
    (source, &options.defines, &options.flags, instructions, target, WAIT).hash(&mut hash);
    for name in [
        "CC",
        "CXX",
        "CFLAGS",
        "CXXFLAGS",
        "CMAKE",
        "CMAKE_GENERATOR",
        "CMAKE_TOOLCHAIN_FILE",
        "CUDACXX",
        "CUDAHOSTCXX",
        "CUDA_HOME",
        "CUDA_PATH",
        "ROCM_PATH",
        "VULKAN_SDK",
        "SDKROOT",
    ] {
        for name in [name.to_owned(), format!("{name}_{}", target.replace('-', "_"))] {
            println!("cargo:rerun-if-env-changed={name}");
            std::env::var_os(name).hash(&mut hash);
        }
    }
    format!("{:016x}", hash.finish())
}
