//! A runtime's folder, with checks that the runtime is complete and fits this program.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::manifest::{Entry, Manifest, files};

/// A runtime in its folder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Set {
    /// The folder.
    pub folder: PathBuf,
    /// The description of the runtime.
    pub manifest: Manifest,
}

impl Set {
    /// Reads the manifest of a folder, but no other file.
    ///
    /// # Errors
    ///
    /// [`Error::NoManifest`].
    pub fn read(folder: &Path) -> Result<Self, Error> {
        Ok(Self { folder: folder.to_owned(), manifest: Manifest::read(folder)? })
    }

    /// Checks that the set was built for this program: from the same sources, for the same kind of machine.
    ///
    /// # Errors
    ///
    /// [`Error::OtherTarget`], [`Error::OtherBuild`].
    pub fn fits(&self, build: &str, target: &str) -> Result<(), Error> {
        let Manifest { build: theirs, target: their_target, .. } = &self.manifest;
        let folder = self.folder.clone();
        if their_target != target {
            return Err(Error::OtherTarget { folder, theirs: their_target.clone(), ours: target.to_owned() });
        }
        if theirs != build {
            return Err(Error::OtherBuild { folder, theirs: theirs.clone(), ours: build.to_owned() });
        }
        Ok(())
    }

    /// Checks that every file is complete and that no other library is in the folder.
    ///
    /// Reads all files. The check detects damage and partial copies. It does not protect against somebody who can write
    /// to the folder, and who can thus also change the manifest.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`], [`Error::Unlisted`], [`Error::Io`].
    pub fn check(&self) -> Result<(), Error> {
        for (name, entry) in &self.manifest.files {
            let file = self.folder.join(name);
            let damaged = |problem| Err(Error::Damaged { file: file.clone(), problem });
            let bytes = match file.metadata() {
                Ok(metadata) => metadata.len(),
                Err(error) => return damaged(format!("{error}; the manifest lists it with {} bytes", entry.bytes)),
            };
            if bytes != entry.bytes {
                return damaged(format!("it has {bytes} bytes, but {} in the manifest", entry.bytes));
            }
            let found = Entry::read(&file)?;
            if found != *entry {
                return damaged(format!("its hash is {}, but {} in the manifest", found.xxh3, entry.xxh3));
            }
        }
        let unlisted =
            files(&self.folder)?.into_iter().find(|name| is_library(name) && !self.manifest.files.contains_key(name));
        match unlisted {
            Some(name) => Err(Error::Unlisted { file: self.folder.join(name) }),
            None => Ok(()),
        }
    }

    /// The total bytes of the files.
    pub fn bytes(&self) -> u64 {
        self.manifest.files.values().map(|entry| entry.bytes).sum()
    }

    /// The rank of the best backend. The backends of NVIDIA, AMD and Apple rank before Vulkan, and Vulkan ranks before
    /// the CPU alone.
    pub(crate) fn rank(&self) -> usize {
        let ranks = [("CUDA", 3), ("ROCm", 3), ("Metal", 3), ("Vulkan", 2)];
        let has = |name: &str| self.manifest.backends.iter().any(|backend| backend == name);
        ranks.iter().filter(|(name, _)| has(name)).map(|(_, rank)| *rank).max().unwrap_or(1)
    }
}

/// Matches `libggml-cpu.so`, `libllama.so.0`, `ggml.dll`, `libggml.dylib`.
fn is_library(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name);
    name.contains(".so.") || [".so", ".dll", ".dylib"].iter().any(|end| name.ends_with(end))
}
