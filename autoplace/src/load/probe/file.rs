//! The file that a skeleton is written to: in memory on Linux, else a sparse temporary one. Neither holds
//! data or takes space.

use std::path::Path;
#[cfg(target_os = "linux")]
use std::{fs::File, path::PathBuf};

use crate::gguf::{self, Builder};

/// A skeleton's file, gone when dropped.
#[derive(Debug)]
pub(super) enum SkeletonFile {
    /// An anonymous one in memory, reached through its descriptor.
    #[cfg(target_os = "linux")]
    Memory(PathBuf, #[expect(dead_code, reason = "held open")] File),
    Temporary(tempfile::NamedTempFile),
}

impl SkeletonFile {
    /// Writes `skeleton`. `model` is the model's path, for errors.
    pub(super) fn write(skeleton: &Builder, model: &Path) -> Result<Self, gguf::Error> {
        let (_, bytes) = skeleton.encoded()?;
        writable(bytes).map_err(|source| gguf::Error::Write { path: model.to_owned(), source })?;
        #[cfg(target_os = "linux")]
        if let Some((path, file)) = in_memory()
            && skeleton.write_sparse_into(&file, &path).is_ok()
        {
            return Ok(Self::Memory(path, file));
        }
        let file = tempfile::Builder::new()
            .prefix("autoplace-skeleton-")
            .suffix(".gguf")
            .tempfile()
            .map_err(|source| gguf::Error::Write { path: std::env::temp_dir(), source })?;
        // Else it takes as much of the disk as the model.
        #[cfg(windows)]
        if let Err(error) = llama_sys::make_sparse(file.as_file()) {
            tracing::debug!(%error, file = %file.path().display(), "the skeleton is not sparse");
        }
        let path = file.path().to_owned();
        skeleton.write_sparse_into(file.as_file(), &path)?;
        Ok(Self::Temporary(file))
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            #[cfg(target_os = "linux")]
            Self::Memory(path, _) => path,
            Self::Temporary(file) => file.path(),
        }
    }
}

/// A file as long as the model, though it holds nothing, may be longer than this process is allowed to write; the
/// kernel would answer with a signal.
#[cfg(unix)]
fn writable(bytes: u64) -> std::io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if limit.is_some_and(|limit| bytes > limit) {
        return Err(std::io::Error::other(format!(
            "the model's skeleton is a file of {bytes} bytes (none of them used), and RLIMIT_FSIZE allows {}",
            limit.unwrap_or_default()
        )));
    }
    Ok(())
}

#[cfg(not(unix))]
fn writable(_bytes: u64) -> std::io::Result<()> {
    Ok(())
}

/// An empty file in memory and the path by which this process can open it again; `None` where the system
/// has no such thing.
#[cfg(target_os = "linux")]
fn in_memory() -> Option<(PathBuf, File)> {
    use std::os::fd::AsRawFd;

    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = File::from(rustix::fs::memfd_create("autoplace-skeleton", flags).ok()?);
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    path.exists().then_some((path, file))
}
