//! What a load took beside the buffers that llama.cpp counts. Free bytes before the load, after it and after the largest batch flow
//! in; what driver and pools took flows out, and into the user's cache for the next plan.

mod readings;

use llama_sys::{Batch, Context, Device};

use super::devices::{build_name, is_simulated};
use super::{Error, Model};
use crate::machine::{HeadroomCache, LearnedHeadroom, nvidia};
use crate::memory::Footprint;

pub(super) use readings::{LoadReadings, Work};
use readings::{Seen, doubt, free};

/// Free bytes of each device after each of two runs.
type TwoRuns = [Vec<Option<u64>>; 2];

/// What one GPU of a loaded model took, in bytes, and what there is to learn from it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MeasuredHeadroom {
    /// ggml's name of the device.
    pub device: String,
    /// The GPU's name for people.
    pub name: String,
    /// Free before the load, where the device tells.
    pub before: Option<u64>,
    /// Free when the model was loaded and nothing computed.
    pub loaded: Option<u64>,
    /// Free after the largest batch and a token after it, run twice: the smaller of both times.
    pub used: Option<u64>,
    /// What llama.cpp says it has allocated on the device, where it says so.
    pub allocated: Option<u64>,
    /// What the driver and its pools took beside that; or why that cannot be told.
    pub learned: Result<LearnedHeadroom, Doubt>,
}

/// Why nothing is learned of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Doubt {
    /// Its backend does not tell its free memory, or llama.cpp not what it has allocated there.
    #[error("nothing tells how much of it is free, or allocated")]
    NotTold,
    /// A model of this process was on it before: what that made the driver load is there already, and would be missing from the
    /// measurement.
    #[error("an earlier model of this process has used it")]
    NotFirst,
    /// It has one layer, which may be the output layer alone: the work of a whole block was not seen.
    #[error("it has a single layer, whose work says nothing of others")]
    OneLayer,
    /// It uses the host's memory, which everything else on the machine changes too.
    #[error("its memory is the host's, which others change meanwhile")]
    SharedMemory,
    /// It is on another machine, whose driver is not known here.
    #[error("it is on another machine, whose driver is not known")]
    Remote,
    /// NVIDIA's driver lists other programs, or other bytes of theirs, than before the load. In a container the list may name this
    /// process as another.
    #[error("other programs took or gave back memory meanwhile")]
    OtherPrograms,
    /// Its free memory changed by what this model cannot have done: more became free, it changed between load and measurement, or by
    /// doing the same again. Another program, or another model of this process.
    #[error("its free memory changed meanwhile by what this model did not do")]
    Disturbed,
    /// The model encodes or embeds: no batch of it was computed.
    #[error("the model does not generate, and nothing was computed")]
    NotGenerative,
}

impl Model {
    /// Measures what the drivers of the model's GPUs take beside the buffers that llama.cpp counts, and keeps it in the user's cache
    /// folder ([`HeadroomCache`]): from then on plans for these GPUs leave that free instead of a table's number
    /// ([`Gpu::learned`](crate::machine::Gpu::learned)). One entry for each GPU of the plan, in its order.
    ///
    /// Computes the largest batch and one token after it, twice, on the model's own context, and leaves that empty. To be called on
    /// the first model of a process and right after its load: of a later one a part is there already ([`Doubt::NotFirst`]), and
    /// what other models take meanwhile cannot be told apart ([`Doubt::Disturbed`]). Of several measurements of a GPU the most that was
    /// seen is kept; of [simulated](llama_sys::sim) ones nothing is.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] while a stream of this model lives; [`Error::Native`] when llama.cpp fails to compute. A GPU of which nothing
    /// is learned is no error: its entry says why. A cache that cannot be written is none either.
    pub fn measure_headroom(&self) -> Result<Vec<MeasuredHeadroom>, Error> {
        self.measure(&HeadroomCache::user(), |device| !is_simulated(device))
    }

    /// As [`measure_headroom`](Self::measure_headroom), and keeps it in this cache, of simulated GPUs too.
    ///
    /// # Errors
    ///
    /// As [`measure_headroom`](Self::measure_headroom).
    pub fn measure_headroom_into(
        &self,
        cache: &HeadroomCache,
    ) -> Result<Vec<MeasuredHeadroom>, Error> {
        self.measure(cache, |_| true)
    }

    fn measure(
        &self,
        cache: &HeadroomCache,
        is_kept: impl Fn(&str) -> bool,
    ) -> Result<Vec<MeasuredHeadroom>, Error> {
        let placed = self.placed();
        let readings = &placed.readings;
        if readings.devices.is_empty() {
            return Ok(Vec::new());
        }
        let start = free(&readings.devices);
        let runs = self.run_twice(&readings.devices)?;
        let machine = self.machine();
        let has_nvidia = machine.gpus.iter().any(|gpu| gpu.nvml.is_some());
        let cards = if has_nvidia {
            nvidia::detect().gpus
        } else {
            Vec::new()
        };
        let at = |values: &[Option<u64>], index| values.get(index).copied().flatten();
        let (plan, allocated) = (self.placement(), self.allocated());
        let mut measured = Vec::new();
        for (index, placement) in plan.gpus().enumerate() {
            let seen = Seen {
                before: at(&readings.before, index),
                loaded: at(&readings.loaded, index),
                start: at(&start, index),
                runs: runs
                    .as_ref()
                    .map(|runs| [at(&runs[0], index), at(&runs[1], index)]),
                allocated: allocated.gpus.get(index).map(Footprint::total),
            };
            let device = placement.device.clone().unwrap_or_default();
            let gpu = machine
                .gpus
                .iter()
                .find(|gpu| gpu.device.as_ref() == Some(&device));
            let doubt = gpu.and_then(|gpu| {
                let card = cards.iter().find(|card| card.pci_id == gpu.pci_id);
                doubt(gpu, card.and_then(|card| card.processes.as_deref()))
            });
            // The last GPU has the output layer (llama-model.cpp, load_tensors).
            let work = if index + 1 == readings.devices.len() {
                &readings.work.with_output
            } else {
                &readings.work.blocks
            };
            let learned = match doubt {
                Some(doubt) => Err(doubt),
                None if readings.is_first.get(index) != Some(&true) => Err(Doubt::NotFirst),
                None if placement.layers < 2 => Err(Doubt::OneLayer),
                None => seen.learned(work),
            };
            if let (Some(gpu), Ok(learned), true) = (gpu, learned, is_kept(&device)) {
                cache.put(gpu, &build_name(), learned);
            }
            measured.push(MeasuredHeadroom {
                device,
                name: placement.name.clone(),
                before: seen.before,
                loaded: seen.loaded,
                used: seen.used(),
                allocated: seen.allocated,
                learned,
            });
        }
        Ok(measured)
    }

    /// Free bytes after each of two runs of the largest batch; `None` for a model that does not generate.
    fn run_twice(&self, devices: &[Device]) -> Result<Option<TwoRuns>, Error> {
        let native = self.native()?;
        if !native.has_decoder() || native.has_encoder() || native.is_diffusion() {
            return Ok(None);
        }
        let mut context = self.slot().take()?.ok_or(Error::Busy)?;
        let runs = if context.has_memory() {
            two_runs(&mut context, devices).map(Some)
        } else {
            Ok(None)
        };
        self.slot().give_back(context);
        Ok(runs?)
    }
}

/// Free bytes after each of two runs of the largest batch. The context is empty afterwards.
fn two_runs(context: &mut Context, devices: &[Device]) -> Result<TwoRuns, llama_sys::Error> {
    largest_batch(context)?;
    let first = free(devices);
    largest_batch(context)?;
    let second = free(devices);
    context.kv_clear()?;
    Ok([first, second])
}

/// Computes as many tokens as one computation takes, over all sequences, and one token after them.
fn largest_batch(context: &mut Context) -> Result<(), llama_sys::Error> {
    context.kv_clear()?;
    let n_vocab = context.model().vocab().n_tokens().max(1);
    let n_tokens = context
        .n_ubatch()
        .min(context.n_batch())
        .min(context.n_ctx());
    let per_sequence = n_tokens.div_ceil(context.n_seq_max().max(1)).max(1);
    let first_output = n_tokens.saturating_sub(context.n_outputs_max().max(1));
    let mut batch = Batch::with_capacity(n_tokens as usize);
    for n in 0..n_tokens {
        // Tokens that differ, so that a router of experts has something to choose.
        let token = signed(n.wrapping_mul(31) % n_vocab);
        let (sequence, position) = (signed(n / per_sequence), signed(n % per_sequence));
        batch.add(token, position, sequence, n >= first_output);
    }
    context.decode(&batch)?;
    context.synchronize()?;
    if per_sequence >= context.n_ctx_seq() {
        context.kv_clear()?;
    }
    let position = context.kv_seq_end(0)?.unwrap_or(0);
    batch.clear();
    batch.add(0, position, 0, true);
    context.decode(&batch)?;
    context.synchronize()
}

/// llama.cpp's numbers are signed; none of these is above 2^31.
fn signed(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
