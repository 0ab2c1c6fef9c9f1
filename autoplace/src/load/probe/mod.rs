//! llama.cpp as the planner's witness: a header flows in, what llama.cpp would allocate flows out.

mod breakdown;
mod file;
mod mapped;
mod skeleton;

use super::Error;
use super::devices::by_name;
use crate::gguf::Header;
use crate::machine::{Gpu, Host, mib};
use crate::memory::{ContextParams, Footprints, Split};
use crate::plan::{NoRoom, Probe};
use skeleton::{Placed, ProbeError, Skeleton};

pub use breakdown::{Breakdown, BufferBytes};
pub(super) use skeleton::footprints;

/// llama.cpp's own arithmetic, for [`Planner::plan_probed`](crate::plan::Planner::plan_probed): its `no_alloc` load of
/// the model's skeleton. The GPUs of the machine must be devices of this process.
///
/// Weights, keys and values, and compute buffers are computed and not allocated. The buffer of logits, and the state of
/// recurrent models (Mamba, RWKV and their hybrids), are really allocated while a question is answered, and freed
/// before the answer is given. Questions may come from any thread and are answered one after the other; llama.cpp's log
/// of them goes nowhere.
///
/// [`ModelBuilder`](super::ModelBuilder) makes one by itself. This is for those who plan in steps.
#[derive(Debug)]
pub struct NativeProbe {
    skeleton: Skeleton,
}

/// A model's skeleton on its GPUs: most of a probe is done, and contexts of any parameters can be asked about
/// at half the price.
#[derive(Debug)]
pub struct PlacedProbe {
    placed: Placed,
}

impl NativeProbe {
    /// A probe of the model of this header, whose skeleton it writes into memory (without it, into a temporary file).
    ///
    /// # Errors
    ///
    /// [`Error::Gguf`] when the skeleton cannot be made or written.
    pub fn new(header: &Header) -> Result<Self, Error> {
        Ok(Self {
            skeleton: Skeleton::of(header)?,
        })
    }

    /// The same with a LoRA adapter beside the model: its bytes count with the weights, and the buffers are as large as
    /// with any or none of the adapters. The file is read when the skeleton is placed.
    #[must_use]
    pub fn lora(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        self.skeleton = self.skeleton.lora(path.into());
        self
    }

    /// The same with a control vector in each context, which is really allocated while a question is answered: `n_embd`
    /// floats per layer.
    #[must_use]
    pub fn control_vector(mut self) -> Self {
        self.skeleton = self.skeleton.control_vector();
        self
    }

    /// What a load split so over these GPUs, or on the host alone where there are none, would hold in each of
    /// ggml's buffer types.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceGone`] for a GPU that this process does not have; [`Error::Native`] when llama.cpp refuses the
    /// model or the parameters, or a GPU has no room for the state of a recurrent model.
    pub fn breakdown(
        &self,
        gpus: &[&Gpu],
        params: &ContextParams,
        split: &Split,
    ) -> Result<Breakdown, Error> {
        self.place(gpus, params, split)?.breakdown(params)
    }

    /// Puts the skeleton onto these GPUs. Of the parameters, only those of the load count here: `mmap`,
    /// `repack` and `mtp`.
    ///
    /// # Errors
    ///
    /// As [`breakdown`](Self::breakdown).
    pub fn place(
        &self,
        gpus: &[&Gpu],
        params: &ContextParams,
        split: &Split,
    ) -> Result<PlacedProbe, Error> {
        let devices = by_name(
            gpus.iter()
                .map(|gpu| (gpu.device.as_deref(), gpu.name.as_str())),
        )?;
        Ok(PlacedProbe {
            placed: self.skeleton.place(&devices, params, split)?,
        })
    }
}

impl PlacedProbe {
    /// What the load would hold with a context of these parameters. `mmap`, `repack` and `mtp` are those it
    /// was placed with.
    ///
    /// # Errors
    ///
    /// [`Error::Native`] when llama.cpp refuses the parameters, or a GPU has no room for the state of a
    /// recurrent model.
    pub fn breakdown(&self, params: &ContextParams) -> Result<Breakdown, Error> {
        Ok(self.placed.breakdown(params)?)
    }
}

impl Probe for NativeProbe {
    fn footprints(
        &self,
        gpus: &[&Gpu],
        params: &ContextParams,
        split: &Split,
    ) -> Result<Footprints, Box<dyn std::error::Error + Send + Sync>> {
        room_for_cells(params)?;
        let breakdown = self.breakdown(gpus, params, split).map_err(|error| {
            let failed = match &error {
                Error::Native(native) => native.out_of_memory(),
                _ => None,
            };
            match failed {
                Some(failed) => NoRoom::new(failed.buffer_type.clone(), failed.bytes).into(),
                None => Box::<dyn std::error::Error + Send + Sync>::from(error),
            }
        })?;
        Ok(breakdown.footprints)
    }
}

/// What llama.cpp notes of each cell of a cache, in bytes, also where it allocates nothing: its position and how far it
/// was shifted, where it is in a picture, and a bit for each of 256 sequences (llama-kv-cells.h, `resize`).
const CELL: u64 = 4 + 4 + 8 + 32;

/// A million cells take less than this: what is free is not asked for them.
const FEW: u64 = mib(64);

/// Refuses a context of which a question alone would take more memory than the host has.
fn room_for_cells(params: &ContextParams) -> Result<(), NoRoom> {
    let bytes = u64::from(params.n_ctx).saturating_mul(CELL);
    if bytes > FEW && bytes > Host::detect().0.available {
        return Err(NoRoom::new("the host", bytes));
    }
    Ok(())
}

impl From<ProbeError> for Error {
    fn from(error: ProbeError) -> Self {
        match error {
            ProbeError::Skeleton(error) => Self::Gguf(error),
            ProbeError::Native(error) => Self::Native(error),
        }
    }
}
