//! The bundle's compilers: clang and lld from zig's package. They link against any glibc, and are patched so that C++
//! exceptions can cross the bundle's libraries. In: PyPI's pinned packages. Out: a cargo command that builds with these
//! compilers.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::{Workspace, output, run};
use crate::{python, source};

/// The glibc of RHEL 8. Ubuntu 20.04 and Debian 11 have glibc 2.31.
pub(crate) const GLIBC: (u32, u32) = (2, 28);

pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A flag that is needed because zig disables every feature that plain x86-64 lacks, including the long registers of
/// AVX-512. ggml's flags enable `avx512f`, which does not restore these registers in clang 20. The flag alone does not
/// make the compiler use any feature.
const ZMM: &str = "-mevex512";

const REQUIREMENTS: &str = "gpu-check/zig/requirements.txt";

/// A line of libc++'s header `typeinfo`. It makes types equal if their names have the same address, as usual on Linux.
const BY_ADDRESS: &str = "#          define _LIBCPP_TYPEINFO_COMPARISON_IMPLEMENTATION 1\n";
/// The line that replaces it. It makes types equal if their names are equal.
const BY_NAME: &str = "#          define _LIBCPP_TYPEINFO_COMPARISON_IMPLEMENTATION 2\n";

/// The toolchain. All of its files are below one folder, which no other build uses.
pub(crate) struct Toolchain {
    /// `target/gpu-bundle`.
    pub(crate) folder: PathBuf,
    /// The pinned packages, as in the requirements file.
    pub(crate) packages: Vec<String>,
    python: PathBuf,
    unwinder: PathBuf,
}

impl Toolchain {
    /// Creates the environment and patches it, unless this was done before.
    pub(crate) fn prepare(workspace: &Workspace) -> Result<Self> {
        let python = python::environment(workspace, REQUIREMENTS)?;
        let folder = workspace.target.join("gpu-bundle");
        let toolchain = Self {
            unwinder: folder.join("gcc_s/libgcc_s.so.1"),
            packages: fs::read_to_string(workspace.root.join(REQUIREMENTS))?.lines().map(str::to_owned).collect(),
            folder,
            python,
        };
        toolchain.compare_types_by_name()?;
        toolchain.link_unwinder(workspace)?;
        Ok(toolchain)
    }

    /// Patches libc++. zig links it statically into every library, so each library has its own `std::exception` at its
    /// own address. If types were compared by address, no `catch` would recognise another library's exception, and its
    /// message would be lost.
    fn compare_types_by_name(&self) -> Result<()> {
        let header = self.package()?.join("lib/libcxx/include/typeinfo");
        let text = fs::read_to_string(&header).with_context(|| format!("cannot read {}", header.display()))?;
        let changed = text.replace(BY_ADDRESS, BY_NAME);
        // The unpatched file also has such a line, which is for Windows.
        ensure!(
            changed.matches(BY_NAME).count() == 2,
            "{} compares types in a way that xtask/src/gpu_bundle/toolchain.rs does not know",
            header.display()
        );
        if changed != text {
            fs::write(&header, changed).with_context(|| format!("cannot write {}", header.display()))?;
        }
        Ok(())
    }

    /// The licences of what zig links into every library and program: its compiler runtime, and LLVM's libc++.
    pub(crate) fn licences(&self) -> Result<String> {
        let package = self.package()?;
        let texts = ["LICENSE", "lib/libcxx/LICENSE.TXT"].map(|file| {
            let path = package.join(file);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        });
        Ok(texts.into_iter().collect::<Result<Vec<_>>>()?.join("\n\n"))
    }

    /// The folder of zig's Python package.
    fn package(&self) -> Result<PathBuf> {
        let mut ask = Command::new(&self.python);
        let folder = output(ask.args(["-c", "import os, ziglang; print(os.path.dirname(ziglang.__file__), end='')"]))?;
        Ok(folder.into())
    }

    /// Makes a stub of libgcc's unwinder for linking. Without it, zig would link an unwinder of its own into every
    /// library. The CUDA backend is built by the other machine's compiler and unwound by that machine's libgcc_s.so.1.
    /// One unwinder cannot continue the stack of another, so an exception would end the process. So all libraries use
    /// libgcc_s.so.1, and the stub has only its symbols.
    fn link_unwinder(&self, workspace: &Workspace) -> Result<()> {
        let source = workspace.root.join("gpu-check/zig");
        fs::create_dir_all(self.unwinder.parent().context("it lies in a folder")?)?;
        let mut map = OsString::from("-Wl,--version-script,");
        map.push(source.join("gcc_s.map"));
        run(self
            .zig("cc")
            .args(["-O1", "-fPIC", "-shared", "-nostdlib"])
            .arg(source.join("gcc_s.c"))
            .arg("-Wl,-soname,libgcc_s.so.1")
            .arg(map)
            .arg("-o")
            .arg(&self.unwinder))
    }

    /// The C++ compiler of the libraries and programs. The stub comes first on its command line, so that zig's own
    /// unwinder is not used.
    pub(crate) fn cxx(&self) -> Command {
        let mut command = self.zig("c++");
        command.arg(&self.unwinder);
        command
    }

    fn zig(&self, language: &str) -> Command {
        let (major, minor) = GLIBC;
        let mut command = Command::new(&self.python);
        command.args(["-m", "ziglang", language, "-target"]).arg(format!("x86_64-linux-gnu.{major}.{minor}"));
        self.surround(&mut command);
        command
    }

    /// `cargo zigbuild` for the target. It prints the messages of `--message-format` to stdout.
    pub(crate) fn cargo(&self, workspace: &Workspace) -> Result<Command> {
        let (major, minor) = GLIBC;
        let mut command = Command::new(self.python.with_file_name("cargo-zigbuild"));
        command
            .current_dir(&workspace.root)
            .arg("zigbuild")
            .arg(format!("--target={TARGET}.{major}.{minor}"))
            .arg("--target-dir")
            .arg(self.folder.join("cargo"));
        self.surround(&mut command);
        let unwinder = self.unwinder.display();
        let target = TARGET.replace('-', "_");
        // Source paths in messages must not depend on the source's location.
        let llama_cpp = source::find(workspace)?;
        let flags = format!("{ZMM} -ffile-prefix-map={}=llama.cpp", llama_cpp.display());
        command
            .env("AUTOPLACE_LLAMA_BUILD_DIR", self.folder.join("llama"))
            .env("AUTOPLACE_RUNTIME_LIBRARY", "")
            .env(format!("CFLAGS_{target}"), &flags)
            .env(format!("CXXFLAGS_{target}"), &flags)
            // These flags are for cmake. The stub comes before zig's own unwinder, and symbols are stripped.
            .env("LDFLAGS", format!("\"{unwinder}\" -s"))
            .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
            .env(
                "CARGO_ENCODED_RUSTFLAGS",
                // The programs find their libraries in their own folder.
                format!("-Clink-arg={unwinder}\x1f-Clink-arg=-Wl,-rpath,$ORIGIN"),
            );
        Ok(command)
    }

    /// Sets a cache of our own, so that zig does not reuse a libc++ that was compiled with the unpatched header.
    fn surround(&self, command: &mut Command) {
        let cache = self.folder.join("zig-cache");
        let mut path = self.python.parent().unwrap_or(Path::new("")).as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        command
            .env("PATH", path)
            .env("ZIG_GLOBAL_CACHE_DIR", &cache)
            .env("ZIG_LOCAL_CACHE_DIR", &cache)
            .env("CARGO_ZIGBUILD_CACHE_DIR", self.folder.join("zigbuild"));
    }
}
