//! The probe: llama.cpp's own count of bytes, from a load that allocates nothing (`no_alloc`).
//!
//! In: a header, the devices, the parameters of the load. Out: a [`Breakdown`] that equals the breakdown of a real
//! load, for every architecture of llama.cpp. The probe loads the model's [skeleton](crate::gguf::Header::skeleton),
//! which takes milliseconds. Backends are started for real, but no breakdown includes the memory of a driver.
//!
//! The probe corrects the following parts of llama.cpp's count. Tests compare them with real loads on simulated GPUs
//! (`tests/load/real_loads.rs`):
//!
//! - **A mapped file.** A load without data cannot map (`load_tensors` in llama-model.cpp asserts this), and puts the
//!   host's weights into pinned memory of the first GPU, if there is a GPU. A real load maps the data of these weights,
//!   and pins none of it. The probe computes these bytes from the place of each tensor (`mapped.rs`), unless a GPU
//!   shares its memory with the host.
//! - **Assigned nodes.** When llama.cpp only computes the sizes of a reservation, it forgets which nodes of the graph
//!   were assigned to a backend (ggml-backend.cpp, `ggml_backend_sched_reserve_size`). The probe assigns the nodes
//!   again, so that they are counted as in a real load (llama-sys, `native/no_alloc.cpp`).
//! - **Rows** of pictures and sounds have graphs that llama.cpp does not reserve. This crate reserves them, for real
//!   contexts too, if the model has a projector (llama-sys, `native/rows.cpp`).
//! - **The buffer of logits** is missing in llama.cpp's count. This buffer grows from `n_seq_max` to `n_outputs_max`
//!   rows. The probe adds it at its largest size ([`BufferBytes::output`]).
//! - **A cache of experts** is counted without the padding after its last rows. The probe adds the padding, computed
//!   from the header.
//! - **Hidden states** for multi-token prediction change the graphs. llama.cpp reserves the changed graphs only at the
//!   next computation (llama-context.cpp, `set_embeddings_nextn`). This crate reserves them at once, for real contexts
//!   too. The probe creates the second context after it has freed the first, and adds the bytes of the second.
//!
//! The following parts are not corrected:
//!
//! - **Four graphs in flight** (pipeline parallelism over several GPUs) are assumed to fit. If the GPUs of a real load
//!   have no room for them, the load falls back to one graph. [`Breakdown::copies`] is the number that was counted.
//! - **Per-layer embeddings of more than 4 GiB** (gemma 4) are mapped even if `mmap` is off (llama-model-loader.cpp,
//!   `lazy_read::add`). The probe counts them as weights on the host nevertheless.

mod breakdown;
mod file;
mod mapped;

use std::path::PathBuf;
use std::sync::Mutex;

use llama_sys::{Context, Device, LoadMode, LoraAdapter, MemoryBreakdown, Model, ModelParams};

use self::breakdown::MAPPED;
pub(super) use self::file::SkeletonFile;
use self::mapped::mapped;
use super::devices::by_name;
use super::{Error, native};
use crate::gguf::Header;
use crate::machine::{Gpu, Host, mib};
use crate::memory::{self, ContextParams, Estimate, FileFacts, Footprints, Place, Split};
use crate::plan::{self, NoRoom, Probe};
use crate::profile::ModelProfile;
use crate::sync::lock;

pub use self::breakdown::{Breakdown, BufferBytes};

/// llama.cpp's own arithmetic for [`Planner::plan_probed`](crate::plan::Planner::plan_probed): a `no_alloc` load of the
/// model's skeleton. The GPUs of the machine must be devices of this process.
///
/// While a probe runs, it really allocates the buffer of logits in host memory, and a control vector if there is one,
/// but nothing else. Threads may share a probe; their calls run one after the other. llama.cpp's log of these calls is
/// discarded.
#[derive(Debug)]
#[must_use]
pub struct NativeProbe {
    file: SkeletonFile,
    /// The header of the model itself, with the offsets of the tensors.
    header: Header,
    /// LoRA adapters of the model. A text may use any of them.
    lora: Vec<PathBuf>,
    control_vector: bool,
    /// Whether the context computes rows of pictures and sounds too.
    rows: bool,
}

/// A running probe really allocates the buffer of logits, so only one runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl NativeProbe {
    /// A probe of this header's model. Writes the skeleton into memory, or into a temporary file.
    ///
    /// # Errors
    ///
    /// [`Error::Gguf`] if the skeleton cannot be made or written.
    pub fn new(header: &Header) -> Result<Self, Error> {
        let file = SkeletonFile::write(&header.skeleton()?, header.path())?;
        Ok(Self { file, header: header.clone(), lora: Vec::new(), control_vector: false, rows: false })
    }

    /// Adds a LoRA adapter. The bytes of the adapter count with the weights. The counted buffers are large enough for
    /// texts without an adapter, with any single adapter, and with all of them. The file is read by
    /// [`breakdown`](Self::breakdown).
    pub fn lora(mut self, path: impl Into<PathBuf>) -> Self {
        self.lora.push(path.into());
        self
    }

    /// Adds a control vector to the context. While the probe runs, the vector is really allocated: `n_embd` floats per
    /// layer.
    pub fn control_vector(mut self) -> Self {
        self.control_vector = true;
        self
    }

    /// Counts a model with a projector (mmproj), whose context also computes rows of pictures and sounds. Their graphs
    /// may need larger buffers than those of tokens: with Qwen3-VL, many times larger ones. The projector's own bytes
    /// do not count here.
    pub fn projector(mut self) -> Self {
        self.rows = true;
        self
    }

    /// The memory, for each buffer type, of a load with this split over these GPUs. Without GPUs, it is a load on the
    /// host alone.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceGone`] for a GPU that this process lacks; [`Error::Native`] if llama.cpp refuses the model or the
    /// parameters, or if a GPU has no room for a control vector.
    pub fn breakdown(&self, gpus: &[&Gpu], params: &ContextParams, split: &Split) -> Result<Breakdown, Error> {
        let devices = by_name(gpus.iter().map(|gpu| (gpu.device.as_deref(), gpu.name.as_str())))?;
        let load = ModelParams {
            n_gpu_layers: split.n_gpu_layers.try_into().unwrap_or(i32::MAX),
            devices: Some(devices.clone()),
            tensor_split: shares(&devices, split),
            overrides: native::overrides(split, &self.header, &devices)?,
            load_mode: LoadMode::None,
            no_alloc: true,
            load_mtp: params.mtp,
            use_extra_bufts: params.repack,
            ..ModelParams::default()
        };
        let _one = lock(&ONE_AT_A_TIME);
        let (model, breakdown, copies) = llama_sys::quietly(|| {
            let model = Model::load(self.file.path(), load)?;
            // Adapters are loaded before the context is created, because the graphs of the context reserve nodes for
            // all adapters.
            let lora = self.lora.iter().map(|path| Ok((LoraAdapter::load(&model, path)?, 1.0)));
            let lora = lora.collect::<Result<Vec<_>, llama_sys::Error>>()?;
            let context = llama_sys::ContextParams { rows: self.rows, ..native::context(params) };
            let mut context = Context::new(&model, context)?;
            let mut breakdown = self.most(&lora, &mut context)?;
            let copies = context.copies();
            // Frees the context's real allocations, because there may be no room for the allocations of two contexts.
            drop(context);
            if params.mtp {
                breakdown.add_context(&Context::new(&model, native::heads(params))?.memory_breakdown()?);
            }
            Ok::<_, llama_sys::Error>((model, breakdown, copies))
        })
        .map_err(|error| of_model(error, &self.header))?;
        let file = FileFacts::from_header(&self.header);
        let mapped = maps(&params.clone().mapped_for(file, gpus), &self.header, &devices)
            .then(|| mapped(&self.header, &model.tensor_places()));
        let mut rows = rows(&breakdown, &devices);
        if params.moe_cache_size > 0 {
            self.pad_experts(&mut rows, gpus, params, split)?;
        }
        if let Some((_, data)) = mapped {
            for (row, native) in rows.iter_mut().zip(&breakdown.rows) {
                // Weights in plain and pinned memory move to the mapped file. The CPU's repacked weights, transforms
                // and adapters stay.
                if native.is_host_buffer {
                    row.model = native.transforms.saturating_add(native.adapters);
                }
            }
            let (buffer_type, place) = (MAPPED.to_owned(), Place::Host);
            rows.push(BufferBytes { buffer_type, place, model: data, context: 0, experts: 0, compute: 0, output: 0 });
        }
        Ok(Breakdown::new(rows, copies, devices.len(), mapped.map(|(resident, _)| resident)))
    }

    /// Adds the padding of a cache of experts, which a load without data does not count (llama-moe-cache.cpp, the
    /// constructor: `alloc_size`).
    fn pad_experts(
        &self,
        rows: &mut [BufferBytes],
        gpus: &[&Gpu],
        params: &ContextParams,
        split: &Split,
    ) -> Result<(), Error> {
        let mut profile = ModelProfile::from_header(&self.header)?;
        if params.mtp {
            profile = profile.with_mtp()?;
        }
        let cache = || {
            let estimate = Estimate::new(&profile, gpus, params)?;
            let estimate = estimate.tensor_split(&split.tensor_split)?.overrides(&split.overrides)?;
            Ok(estimate.expert_cache(&estimate.assignment(split.n_gpu_layers)))
        };
        let cache = cache().map_err(|error: memory::Error| plan::Error::from(error))?;
        for (gpu, &padding) in cache.padding.iter().enumerate() {
            let mut of_gpu = rows.iter_mut().filter(|row| row.place == Place::Gpu(gpu) && row.experts > 0);
            if let Some(row) = of_gpu.next() {
                row.experts = row.experts.saturating_add(padding);
            }
        }
        Ok(())
    }

    /// The memory that a context needs at most: without adapters, with each adapter alone, or with all adapters.
    /// Adapters that change the same weights by the same ranks have the same graphs, so one of them is enough.
    fn most(&self, all: &[(LoraAdapter, f32)], context: &mut Context) -> Result<MemoryBreakdown, llama_sys::Error> {
        if self.control_vector {
            let model = context.model();
            let layers = model.n_layer().saturating_sub(1);
            let numbers = usize::try_from(u64::from(layers).saturating_mul(model.n_embd().into()));
            context.set_control_vector(&vec![0.0; numbers.unwrap_or(usize::MAX)], 1..=layers.max(1))?;
        }
        let mut most = context.memory_breakdown()?;
        let alone = if all.len() > 1 { self.one_of_each_kind() } else { Vec::new() };
        let alone = alone.into_iter().map(|index| &all[index..=index]);
        let sets = alone.chain((!all.is_empty()).then_some(all));
        for set in sets {
            context.set_lora(set)?;
            for row in context.memory_breakdown()?.rows {
                let same = |known: &&mut llama_sys::BufferUse| known.buffer_type == row.buffer_type;
                match most.rows.iter_mut().find(same) {
                    Some(known) => known.compute = known.compute.max(row.compute),
                    None => most.rows.push(row),
                }
            }
        }
        Ok(most)
    }

    /// The first adapter of each kind. Adapters of one kind have tensors of the same names, types and shapes. An
    /// adapter whose header cannot be read is a kind of its own.
    fn one_of_each_kind(&self) -> Vec<usize> {
        let mut kinds = Vec::new();
        let mut is_new = |path: &PathBuf| {
            let Ok(header) = Header::open(path) else { return true };
            let tensors =
                header.tensors().map(|tensor| (tensor.name().to_owned(), tensor.ty().to_string(), tensor.shape()));
            let mut kind: Vec<_> = tensors.collect();
            kind.sort();
            let is_new = !kinds.contains(&kind);
            if is_new {
                kinds.push(kind);
            }
            is_new
        };
        (0..self.lora.len()).filter(|&index| is_new(&self.lora[index])).collect()
    }
}

/// Replaces the path of the skeleton in an error by the path of the model's file.
pub(super) fn of_model(error: llama_sys::Error, header: &Header) -> llama_sys::Error {
    match error {
        llama_sys::Error::ModelLoad { failure, .. } => {
            llama_sys::Error::ModelLoad { path: header.path().to_owned(), failure }
        }
        error => error,
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
            if let Error::Native(native) = &error
                && let Some(failed) = native.out_of_memory()
            {
                return NoRoom::new(failed.buffer_type.clone(), failed.bytes).into();
            }
            Box::<dyn std::error::Error + Send + Sync>::from(error)
        })?;
        Ok(breakdown.footprints)
    }
}

/// Bytes that llama.cpp records per cell of a cache, even if the cache is not allocated: the cell's position, its
/// shift, its place in a picture, and one bit for each of 256 sequences (llama-kv-cells.h, `resize`).
const CELL: u64 = 4 + 4 + 8 + 32;

/// If the records take at most this number of bytes, the free memory is not checked. The records of a context of a
/// million cells take fewer.
const FEW: u64 = mib(64);

/// Refuses a context if its records alone, which a probe needs too, would take more memory than the host has.
fn room_for_cells(params: &ContextParams) -> Result<(), NoRoom> {
    let bytes = u64::from(params.n_ctx).saturating_mul(CELL);
    if bytes > FEW && bytes > Host::detect().0.available {
        return Err(NoRoom::new("the host", bytes));
    }
    Ok(())
}

fn maps(params: &ContextParams, header: &Header, devices: &[Device]) -> bool {
    let backends: Vec<String> = devices.iter().map(Device::backend).collect();
    let mode = native::load_mode(params, header, backends.iter().map(String::as_str));
    mode == LoadMode::Auto && devices.iter().all(Device::lets_files_be_mapped)
}

/// Translates llama.cpp's breakdown row by row. Memory outside of the listed devices belongs to the host.
fn rows(breakdown: &MemoryBreakdown, devices: &[Device]) -> Vec<BufferBytes> {
    let row = |native: &llama_sys::BufferUse| {
        let device = native.device.as_ref().filter(|_| !native.on_host);
        let gpu = device.and_then(|device| devices.iter().position(|known| known == device));
        BufferBytes {
            buffer_type: native.buffer_type.clone(),
            place: gpu.map_or(Place::Host, Place::Gpu),
            model: native.model.saturating_add(native.transforms).saturating_add(native.adapters),
            context: native.context,
            experts: native.experts,
            compute: native.compute,
            output: native.output,
        }
    };
    breakdown.rows.iter().map(row).collect()
}

/// The sums of a real load's breakdown for each device. They include the context for multi-token prediction, and
/// exclude the buffer of logits. Of a mapped file, the data of the weights is counted.
pub(super) fn footprints(breakdown: &MemoryBreakdown, devices: &[Device]) -> Footprints {
    breakdown::sums(&rows(breakdown, devices), devices.len())
}

/// The shares of the devices. Without shares, llama.cpp asks each device for its free memory (llama-model.cpp,
/// `load_tensors`), which a single device need not be asked for.
fn shares(devices: &[Device], split: &Split) -> Vec<f32> {
    match devices {
        [_] if split.tensor_split.is_empty() => vec![1.0],
        _ => split.tensor_split.clone(),
    }
}
