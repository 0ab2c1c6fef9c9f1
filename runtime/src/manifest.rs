//! What a set says of itself: `runtime.json`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, io};

/// The manifest's name in the folder of its set.
pub const MANIFEST: &str = "runtime.json";

/// What a set is, what it needs, and every file of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    /// The folder's name where it is installed: version, target and backends.
    pub name: String,
    /// What it was built from, as [`Set::check`](crate::Set::check) compares it.
    pub build: String,
    /// Processor, system and C library: `x86_64-linux-gnu`.
    pub target: String,
    /// The compiler and the oldest C library, for people.
    pub compiler: String,
    /// ggml's names of the backends: `CPU`, `CUDA`, `Vulkan`, `RPC`.
    pub backends: Vec<String>,
    /// Backends are libraries of their own, among them one of the CPU for each instruction set.
    pub loadable: bool,
    /// CPU code is threaded by OpenMP, else by ggml's own threads.
    pub openmp: bool,
    /// Threads that wait for others of their graph sleep after some microseconds.
    #[serde(default)]
    pub threads_sleep: bool,
    /// CPU features without which it does not run, by Rust's names; none where backends are loadable.
    pub instructions: Vec<String>,
    /// The libraries that are opened, those first which others need. (Backends are opened by ggml.)
    pub libraries: Vec<String>,
    /// Libraries that are not in the set and that not every system has.
    pub requires: Vec<Requirement>,
    /// Every file of the set but this one, by its path in the folder, with `/`.
    #[serde(default)]
    pub files: BTreeMap<String, Entry>,
}

/// A library that a backend needs of the system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// The backend that needs it.
    pub backend: String,
    /// The name by which it is opened: `libcublas.so.12`.
    pub library: String,
    /// Where it comes from: `nvidia-cublas-cu12==12.8.4.1 (PyPI), or CUDA 12.8's own`.
    pub source: String,
    /// Of NVIDIA's driver, the oldest version of CUDA that it must have, in its own form: 13000 for 13.0.
    #[serde(default)]
    pub cuda: Option<u32>,
}

/// A file of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its length.
    pub bytes: u64,
    /// XXH3 with 128 bits, in 32 hexadecimal digits.
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

    /// Reads the one in a folder.
    ///
    /// # Errors
    ///
    /// [`Error::NoManifest`] where there is none, or it names files outside its folder.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let wrong = |reason: String| Error::NoManifest { folder: folder.to_owned(), reason };
        let text = fs::read_to_string(folder.join(MANIFEST)).map_err(|error| wrong(format!("{MANIFEST}: {error}")))?;
        let manifest: Self = serde_json::from_str(&text).map_err(|error| wrong(format!("{MANIFEST}: {error}")))?;
        let own = Some(&manifest.name).filter(|name| !is_inside(name) || name.contains('/'));
        if let Some(outside) = own.or_else(|| manifest.files.keys().find(|name| !is_inside(name))) {
            return Err(wrong(format!("{MANIFEST} names `{outside}`, which is no path below it")));
        }
        if let Some(absent) = manifest.libraries.iter().find(|name| !manifest.files.contains_key(*name)) {
            return Err(wrong(format!("{MANIFEST} opens {absent}, which is none of its files")));
        }
        Ok(manifest)
    }

    /// Lists the files that a folder has, and writes the manifest beside them.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] for what cannot be read or written; [`Error::NoManifest`] as [`Self::read`].
    pub fn write(mut self, folder: &Path) -> Result<Self, Error> {
        self.files.clear();
        for name in files(folder)? {
            if name != MANIFEST {
                self.files.insert(name.clone(), Entry::of(&folder.join(&name))?);
            }
        }
        let path = folder.join(MANIFEST);
        let text = serde_json::to_string_pretty(&self).map_err(io(&path, "write"))?;
        fs::write(&path, text + "\n").map_err(io(&path, "write"))?;
        Self::read(folder)
    }
}

impl Entry {
    /// Reads a file.
    pub(crate) fn of(path: &Path) -> Result<Self, Error> {
        let read = || -> io::Result<Self> {
            let mut hash = Xxh3::new();
            let bytes = io::copy(&mut BufReader::with_capacity(1 << 20, File::open(path)?), &mut hash)?;
            Ok(Self { bytes, xxh3: format!("{:032x}", hash.digest128()) })
        };
        read().map_err(io(path, "read"))
    }
}

/// Every file below a folder, by its path in it, with `/`. A link is what it leads to.
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

/// A relative path that does not leave its folder, in words that every system takes.
pub(crate) fn is_inside(name: &str) -> bool {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    !name.is_empty() && !name.contains(['\\', ':', '\0']) && Path::new(name).components().all(plain)
}
