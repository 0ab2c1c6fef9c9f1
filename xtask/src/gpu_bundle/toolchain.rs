//! The compilers of the bundle: clang and lld as zig packages them, which link against any glibc, and what lets C++
//! exceptions cross from one of the bundle's libraries into another. In: PyPI's pinned packages. Out: a cargo command
//! that builds with them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::{Workspace, output, run};
use crate::{python, source};

/// RHEL 8's. Ubuntu 20.04 and Debian 11 have 2.31.
pub(crate) const GLIBC: (u32, u32) = (2, 28);

pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";

/// zig lists for clang every feature that a plain x86-64 lacks, one by one, among them the long registers of
/// AVX-512. ggml's flags turn on `avx512f`, which in clang 20 does not bring those back. Alone this one lets the
/// compiler use nothing.
const ZMM: &str = "-mevex512";

const REQUIREMENTS: &str = "gpu-check/zig/requirements.txt";

/// A line of libc++'s header `typeinfo`: on Linux, two types are the same if their names are at the same address.
const BY_ADDRESS: &str = "#          define _LIBCPP_TYPEINFO_COMPARISON_IMPLEMENTATION 1\n";
/// The line in its place: if their names are equal.
const BY_NAME: &str = "#          define _LIBCPP_TYPEINFO_COMPARISON_IMPLEMENTATION 2\n";

/// Everything lies below one folder, and nothing of it is shared with other builds.
pub(crate) struct Toolchain {
    /// `target/gpu-bundle`.
    pub(crate) folder: PathBuf,
    /// The pinned packages, as the file of requirements names them.
    pub(crate) packages: Vec<String>,
    python: PathBuf,
    unwinder: PathBuf,
}

impl Toolchain {
    /// Makes the environment, once, and changes what has to be changed in it.
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

    /// zig links libc++ into every library, so that each has a `std::exception` of its own at an address of its own.
    /// Compared by address, no `catch` would know what another library has thrown, and the words in it would be lost.
    fn compare_types_by_name(&self) -> Result<()> {
        let mut ask = Command::new(&self.python);
        let zig = output(ask.args(["-c", "import os, ziglang; print(os.path.dirname(ziglang.__file__), end='')"]))?;
        let header = Path::new(&zig).join("lib/libcxx/include/typeinfo");
        let text = fs::read_to_string(&header).with_context(|| format!("cannot read {}", header.display()))?;
        let changed = text.replace(BY_ADDRESS, BY_NAME);
        // Windows has the one such line that is there from the first.
        ensure!(
            changed.matches(BY_NAME).count() == 2,
            "{} compares types otherwise than xtask/src/gpu_bundle/toolchain.rs knows",
            header.display()
        );
        if changed != text {
            fs::write(&header, changed).with_context(|| format!("cannot write {}", header.display()))?;
        }
        Ok(())
    }

    /// zig would link an unwinder into every library as well. The CUDA backend comes from the other machine's own
    /// compiler and is unwound by its libgcc_s.so.1, and one unwinder cannot go on with another's stack: the process
    /// would end. So all use that one, and what is linked against here has its names only.
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

    /// The C++ compiler as the libraries and programs are made with it: the unwinder first, so that zig's
    /// own is not taken.
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

    /// `cargo zigbuild` for the target. It prints what `--message-format` says to stdout.
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
        // What messages name of the source is the same wherever it lies.
        let llama_cpp = source::find(workspace)?;
        let flags = format!("{ZMM} -ffile-prefix-map={}=llama.cpp", llama_cpp.display());
        command
            .env("AUTOPLACE_LLAMA_BUILD_DIR", self.folder.join("llama"))
            .env("AUTOPLACE_RUNTIME_LIBRARIES", "")
            .env(format!("CFLAGS_{target}"), &flags)
            .env(format!("CXXFLAGS_{target}"), &flags)
            // cmake's: first on the line, before zig's own unwinder; and without symbols.
            .env("LDFLAGS", format!("\"{unwinder}\" -s"))
            .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
            .env(
                "CARGO_ENCODED_RUSTFLAGS",
                // The programs find their libraries beside themselves.
                format!("-Clink-arg={unwinder}\x1f-Clink-arg=-Wl,-rpath,$ORIGIN"),
            );
        Ok(command)
    }

    /// A libc++ that was compiled before the header was changed must not be found again.
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
