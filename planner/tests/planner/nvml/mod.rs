//! An NVIDIA driver library for tests: `nvml.c`, which is compiled, and copied for each test into a folder with a
//! script.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use tempfile::TempDir;

/// A scripted driver library in its own folder. The folder is deleted on drop.
pub(crate) struct ScriptedNvml {
    folder: TempDir,
}

impl ScriptedNvml {
    /// A complete library that follows a script (see `nvml.c`).
    pub(crate) fn new(script: &str) -> Self {
        Self::without(&[], script)
    }

    /// A library without the functions that the compiler flags leave out (`-DNVML_NO_MEMORY_V2`).
    pub(crate) fn without(flags: &[&str], script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let nvml = Self { folder };
        compile(flags, &nvml.library());
        fs::write(nvml.beside("script"), script).unwrap();
        nvml
    }

    pub(crate) fn library(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    /// How often the library was initialised and shut down.
    pub(crate) fn inits_and_shutdowns(&self) -> (usize, usize) {
        let log = fs::read_to_string(self.beside("log")).unwrap_or_default();
        let count = |word: &str| log.lines().filter(|line| *line == word).count();
        (count("init"), count("shutdown"))
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        self.folder.path().join(format!("libnvidia-ml.so.1.{suffix}"))
    }
}

/// A card's lines in a script. The arguments are its name without the maker, its bus, and its bytes: all bytes, free
/// bytes, and bytes that the driver keeps.
pub(crate) fn card(name: &str, bus: &str, [total, free, reserved]: [u64; 3]) -> String {
    format!("gpu NVIDIA {name}\nuuid GPU-{bus}\npci 00000000:{bus}:00.0\nmemory {total} {free} {reserved}\n")
}

/// A card on bus 1 with 24 GiB: 22 GiB are free, and the driver keeps 500 MiB.
pub(crate) fn rtx_4090() -> String {
    card("GeForce RTX 4090", "01", [24 << 30, 22 << 30, 500 << 20])
}

/// Puts the library at this path. It is compiled once, but each test has its own copy of the file, because the loader
/// would otherwise share the library.
fn compile(flags: &[&str], library: &Path) {
    static COMPILED: Mutex<BTreeMap<Vec<String>, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/planner/nvml/nvml.c");
    let mut compiled = COMPILED.lock().unwrap();
    let bytes = compiled.entry(flags.iter().copied().map(str::to_owned).collect()).or_insert_with(|| {
        let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(library).args(flags).arg(&source).arg("-ldl");
        let status = cc.status().unwrap_or_else(|error| panic!("the C compiler does not run: {cc:?}: {error}"));
        assert!(status.success(), "{cc:?}");
        fs::read(library).unwrap()
    });
    fs::write(library, bytes).unwrap();
}
