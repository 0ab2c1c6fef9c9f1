//! The description of a set: `runtime.json`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, io};

/// The manifest's name in the folder of its set.
pub const MANIFEST: &str = "runtime.json";

/// The description, the requirements and the files of a set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    /// The name of the installed folder: version, target and backends.
    pub name: String,
    /// The sources of the build, which [`Set::fits`](crate::Set::fits) compares.
    pub build: String,
    /// Processor, system and C library: `x86_64-linux-gnu`.
    pub target: String,
    /// The compiler and the oldest supported C library, for display.
    pub compiler: String,
    /// ggml's names of the backends: `CPU`, `CUDA`, `Vulkan`, `RPC`.
    pub backends: Vec<String>,
    /// Whether backends are separate libraries, with one CPU library for each instruction set.
    pub loadable: bool,
    /// Whether OpenMP runs the CPU code's threads; otherwise ggml's own threads do.
    pub openmp: bool,
    /// Whether a thread that waits for other threads of its graph sleeps after some microseconds.
    #[serde(default)]
    pub threads_sleep: bool,
    /// The CPU features that the set requires, by Rust's names; empty if backends are loadable.
    pub instructions: Vec<String>,
    /// The libraries to open, in the order of their dependencies. ggml opens the backends.
    pub libraries: Vec<String>,
    /// Libraries that the set requires, does not contain, and that some systems lack.
    pub requires: Vec<Requirement>,
    /// Every file of the set except the manifest, by its path in the folder with `/` as separator.
    #[serde(default)]
    pub files: BTreeMap<String, Entry>,
}

/// A system library that a backend requires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// The backend that needs it.
    pub backend: String,
    /// The name with which the library is opened: `libcublas.so.12`.
    pub library: String,
    /// A source of the library: `nvidia-cublas-cu12==12.8.4.1 (PyPI), or CUDA 12.8's own`.
    pub source: String,
    /// For NVIDIA's driver: the oldest CUDA version that the driver must support, in CUDA's own form: 13000 for 13.0.
    #[serde(default)]
    pub cuda: Option<u32>,
}

/// A file of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The length in bytes.
    pub bytes: u64,
    /// XXH3 with 128 bits, as 32 hexadecimal digits.
    pub xxh3: String,
}

impl Manifest {
    /// A manifest without files.
    pub fn new(name: &str, build: &str, target: &str) -> Self {
        Self {
            name: name.to_owned(),
            build: build.to_owned(),
            target: target.to_owned(),
            backends: vec!["CPU".to_owned()],
            ..Self::default()
        }
    }

    /// Reads the manifest of a folder.
    ///
    /// # Errors
    ///
    /// [`Error::NoManifest`] if there is no manifest, or if it is invalid; for example, if it names files outside of
    /// its folder.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let wrong = |reason: String| Error::NoManifest { folder: folder.to_owned(), reason };
        let text = fs::read_to_string(folder.join(MANIFEST)).map_err(|error| wrong(format!("{MANIFEST}: {error}")))?;
        let manifest: Self = serde_json::from_str(&text).map_err(|error| wrong(format!("{MANIFEST}: {error}")))?;
        let own = Some(&manifest.name).filter(|name| !is_inside(name) || name.contains('/'));
        if let Some(outside) = own.or_else(|| manifest.files.keys().find(|name| !is_inside(name))) {
            return Err(wrong(format!("{MANIFEST} names `{outside}`, which is not a path inside its folder")));
        }
        if let Some(absent) = manifest.libraries.iter().find(|name| !manifest.files.contains_key(*name)) {
            return Err(wrong(format!("{MANIFEST} opens {absent}, which is not one of its files")));
        }
        Ok(manifest)
    }

    /// Lists the files of a folder, and writes the manifest into the same folder.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] for a file that cannot be read or written; [`Error::NoManifest`] as for [`Self::read`].
    pub fn write(mut self, folder: &Path) -> Result<Self, Error> {
        self.files.clear();
        for name in files(folder)? {
            if name != MANIFEST {
                self.files.insert(name.clone(), Entry::read(&folder.join(&name))?);
            }
        }
        let path = folder.join(MANIFEST);
        let text = serde_json::to_string_pretty(&self).map_err(io(&path, "write"))?;
        fs::write(&path, text + "\n").map_err(io(&path, "write"))?;
        Self::read(folder)
    }
}

impl Entry {
    /// Reads and hashes a file.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let read = || -> io::Result<Self> {
            let mut hash = Xxh3::new();
            let bytes = io::copy(&mut BufReader::with_capacity(1 << 20, File::open(path)?), &mut hash)?;
            Ok(Self { bytes, xxh3: format!("{:032x}", hash.digest128()) })
        };
        read().map_err(io(path, "read"))
    }
}

/// Every file below a folder, by its path in the folder with `/` as separator. A link counts as its target.
pub(crate) fn files(folder: &Path) -> Result<Vec<String>, Error> {
    let mut all = Vec::new();
    let mut left = vec![String::new()];
    while let Some(parent) = left.pop() {
        let path = folder.join(&parent);
        for entry in fs::read_dir(&path).map_err(io(&path, "read"))? {
            let entry = entry.map_err(io(&path, "read"))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let name = if parent.is_empty() { name } else { format!("{parent}/{name}") };
            if folder.join(&name).is_dir() {
                left.push(name);
            } else {
                all.push(name);
            }
        }
    }
    all.sort();
    Ok(all)
}

/// Whether a relative path stays in its folder, and is valid on every system.
pub(crate) fn is_inside(name: &str) -> bool {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    !name.is_empty() && !name.contains(['\\', ':', '\0']) && Path::new(name).components().all(plain)
}
