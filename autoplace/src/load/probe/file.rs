//! The file of a skeleton. On Linux it is in memory, on other systems it is a sparse temporary file. The file has no
//! tensor data, so it takes hardly any space.

use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use crate::gguf::{self, Builder};

/// A skeleton's file, removed when dropped.
#[derive(Debug)]
pub(in crate::load) enum SkeletonFile {
    /// An anonymous file in memory, reached through its descriptor.
    Memory(PathBuf, #[expect(dead_code, reason = "held open")] File),
    Temporary(PathBuf),
}

impl Drop for SkeletonFile {
    fn drop(&mut self) {
        if let Self::Temporary(path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

impl SkeletonFile {
    /// Writes `skeleton`. `model` is the model's path for error messages.
    pub(in crate::load) fn write(skeleton: &Builder, model: &Path) -> Result<Self, gguf::Error> {
        let (_, bytes) = skeleton.encoded()?;
        // The file is as long as the model's file, although it has no data. If it were longer than the limit, the
        // kernel would send a signal.
        if let Some(limit) = llama_sys::longest_file().filter(|&limit| bytes > limit) {
            let problem =
                format!("the model's skeleton is a sparse file of {bytes} bytes, but RLIMIT_FSIZE allows only {limit}");
            return Err(gguf::Error::Write { path: model.to_owned(), source: io::Error::other(problem) });
        }
        if let Ok((path, file)) = llama_sys::file_in_memory()
            && skeleton.write_sparse_into(&file, &path).is_ok()
        {
            return Ok(Self::Memory(path, file));
        }
        // A unique name, from the standard library's only random number.
        let number = RandomState::new().build_hasher().finish();
        let path = std::env::temp_dir().join(format!("autoplace-skeleton-{number:016x}.gguf"));
        let mut options = File::options();
        // Only this user may read the file, because the model may be private.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let created = options.write(true).create_new(true).open(&path);
        let created = created.map_err(|source| gguf::Error::Write { path: path.clone(), source })?;
        let file = Self::Temporary(path);
        // A file that is not sparse would take as much disk space as the model.
        #[cfg(windows)]
        if let Err(error) = llama_sys::make_sparse(&created) {
            tracing::debug!(%error, file = %file.path().display(), "the skeleton is not sparse");
        }
        skeleton.write_sparse_into(&created, file.path())?;
        Ok(file)
    }

    pub(in crate::load) fn path(&self) -> &Path {
        match self {
            Self::Memory(path, _) | Self::Temporary(path) => path,
        }
    }
}
