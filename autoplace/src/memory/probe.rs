//! The probe: llama.cpp's own answer to "how many bytes", from a load that allocates nothing (`no_alloc`).
//!
//! In: a header, the devices, the parameters of the load. Out: [`Footprints`] as a real load would have them. Exact for every
//! architecture of llama.cpp. What is loaded is the model's [skeleton](crate::gguf::Header::skeleton), which costs milliseconds
//! where the model itself would cost the reading of its vocabulary.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use llama_sys::{Context, Device, LoadMode, MemoryBreakdown, Model, ModelParams};

use super::{ContextParams, Footprint, Footprints, Split};
use crate::gguf::{self, Header};

/// A model's skeleton in a file that holds no data and takes no space: in memory on Linux, else a sparse temporary file.
#[derive(Debug)]
pub(crate) struct Skeleton {
    file: Backing,
}

#[derive(Debug)]
enum Backing {
    /// An anonymous file in memory, reached through its descriptor.
    #[cfg(target_os = "linux")]
    Memory { path: PathBuf, _file: File },
    /// Removed when dropped.
    Temporary(tempfile::NamedTempFile),
}

/// Why a probe gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// The skeleton could not be made or written.
    #[error(transparent)]
    Skeleton(#[from] gguf::Error),
    /// llama.cpp refused it.
    #[error(transparent)]
    Native(#[from] llama_sys::Error),
}

/// Recurrent state and the buffer of logits are really allocated while a probe lives (llama-memory-recurrent.cpp,
/// llama-context.cpp, output_reserve): never several times at once.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl Skeleton {
    /// Writes the skeleton of a model.
    pub(crate) fn of(header: &Header) -> Result<Self, gguf::Error> {
        let skeleton = header.skeleton()?;
        let bytes = skeleton.file_bytes()?;
        writable(bytes).map_err(|source| gguf::Error::Write {
            path: header.path().to_owned(),
            source,
        })?;
        #[cfg(target_os = "linux")]
        if let Some((path, file)) = in_memory()
            && skeleton.write_sparse_into(&file, &path).is_ok()
        {
            return Ok(Self {
                file: Backing::Memory { path, _file: file },
            });
        }
        let file = tempfile::Builder::new()
            .prefix("autoplace-skeleton-")
            .suffix(".gguf")
            .tempfile()
            .map_err(|source| gguf::Error::Write {
                path: std::env::temp_dir(),
                source,
            })?;
        let path = file.path().to_owned();
        skeleton.write_sparse_into(file.as_file(), &path)?;
        Ok(Self {
            file: Backing::Temporary(file),
        })
    }

    fn path(&self) -> &Path {
        match &self.file {
            #[cfg(target_os = "linux")]
            Backing::Memory { path, .. } => path,
            Backing::Temporary(file) => file.path(),
        }
    }

    /// Asks llama.cpp what it would allocate with the model split so over `devices`.
    ///
    /// The buffer of logits is not in its answer ([`Footprints::output`] is 0), nor is what a driver takes for itself.
    pub(crate) fn probe(
        &self,
        devices: &[Device],
        params: &ContextParams,
        split: &Split,
    ) -> Result<Footprints, ProbeError> {
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let model = Model::load(
            self.path(),
            ModelParams {
                n_gpu_layers: split.n_gpu_layers.try_into().unwrap_or(i32::MAX),
                devices: Some(devices.to_vec()),
                tensor_split: split.tensor_split.clone(),
                overrides: split.to_native(devices)?,
                // A mapped file cannot be simulated (llama-model.cpp:1857 asserts it); the sizes of tensors are the same.
                load_mode: LoadMode::None,
                no_alloc: true,
                use_extra_bufts: params.repack,
                ..ModelParams::default()
            },
        )?;
        let context = Context::new(&model, params.to_native())?;
        Ok(footprints(&context.memory_breakdown()?, devices))
    }
}

/// A file as long as the model, though it holds nothing, may be longer than this process is allowed to write; the kernel would
/// answer with a signal.
#[cfg(target_os = "linux")]
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

#[cfg(not(target_os = "linux"))]
fn writable(_bytes: u64) -> std::io::Result<()> {
    Ok(())
}

/// An empty file in memory and the path by which this process can open it again; `None` where the system has no such thing.
#[cfg(target_os = "linux")]
fn in_memory() -> Option<(PathBuf, File)> {
    use std::os::fd::AsRawFd;

    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = File::from(rustix::fs::memfd_create("autoplace-skeleton", flags).ok()?);
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    path.exists().then_some((path, file))
}

/// Sums a breakdown by device: what lies in no device's own memory lies on the host, pinned and repacked buffers included.
pub(crate) fn footprints(breakdown: &MemoryBreakdown, devices: &[Device]) -> Footprints {
    let sum = |rows: &mut dyn Iterator<Item = &llama_sys::BufferUse>| {
        rows.fold(Footprint::default(), |mut sum, row| {
            sum += Footprint::new(row.model, row.context, row.compute);
            sum
        })
    };
    let gpus = devices
        .iter()
        .map(|device| sum(&mut breakdown.on(device)))
        .collect();
    Footprints::new(gpus, sum(&mut breakdown.on_host()))
}
