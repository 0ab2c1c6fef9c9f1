//! The probe: llama.cpp's own answer to "how many bytes", from a load that allocates nothing (`no_alloc`).
//!
//! In: a header, the devices, the parameters of the load. Out: a [`Breakdown`] as a real load would have it, exact for
//! every architecture of llama.cpp. What is loaded is the model's [skeleton](crate::gguf::Header::skeleton), in
//! milliseconds. Backends are really started; what a driver takes for itself is in no breakdown.
//!
//! Corrected, and compared with real loads on simulated GPUs (`tests/load/real_loads.rs`):
//!
//! - **A mapped file.** Without data none can be mapped (`load_tensors` in llama-model.cpp asserts it), and the host's
//!   weights go into the first GPU's pinned memory where it has some. A real load maps one span per file and pins none:
//!   it is computed from where each tensor was put (`mapped.rs`), unless a GPU shares its memory with the host.
//! - **Assigned nodes.** A reservation for sizes forgets which nodes a graph assigned to a backend (ggml-backend.cpp,
//!   `ggml_backend_sched_reserve_size`). They are assigned again, and counted as in a real load (llama-sys,
//!   `native/no_alloc.cpp`).
//! - **The buffer of logits** is in no account of llama.cpp's, and grows from `n_seq_max` to `n_outputs_max` rows. It
//!   is added at its largest ([`BufferBytes::output`]).
//! - **Hidden states**, which blocks that predict further tokens go on from, change the graphs, and llama.cpp does not
//!   reserve them again (llama-context.cpp, `set_embeddings_nextn`). This crate does, for a real context as well. The
//!   second context is made after the first is freed, and added.
//!
//! Not corrected:
//!
//! - **Four graphs in flight** (pipeline parallelism over several GPUs) are assumed to fit. A real load whose GPUs
//!   refuse them falls back to one. [`Breakdown::copies`] says which was counted.
//! - **Embeddings of more than 4 GiB per layer** (gemma 4) are mapped even where `mmap` is off (llama-model-loader.cpp,
//!   `lazy_read::add`). They are counted as host weights all the same.

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
use crate::lock;
use crate::machine::{Gpu, Host, mib};
use crate::memory::{ContextParams, FileFacts, Footprints, Place, Split};
use crate::plan::{NoRoom, Probe};

pub use self::breakdown::{Breakdown, BufferBytes};

/// llama.cpp's own arithmetic, for [`Planner::plan_probed`](crate::plan::Planner::plan_probed): its `no_alloc` load of
/// the model's skeleton. The GPUs of the machine must be devices of this process.
///
/// The buffer of logits, and the state of recurrent models (llama-memory-recurrent.cpp, the constructor), are really
/// allocated while a question is answered; nothing else is. Questions may come from any thread and are answered one
/// after the other; llama.cpp's log of them goes nowhere.
#[derive(Debug)]
#[must_use]
pub struct NativeProbe {
    file: SkeletonFile,
    /// The model's own header: where its tensors lie in its files.
    header: Header,
    /// LoRA adapters beside the model. A text may be computed with any of them.
    lora: Vec<PathBuf>,
    control_vector: bool,
}

/// Recurrent state and the buffer of logits are really allocated while a probe lives: never several times at once.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl NativeProbe {
    /// A probe of the model of this header, whose skeleton it writes into memory (without it, into a temporary file).
    ///
    /// # Errors
    ///
    /// [`Error::Gguf`] when the skeleton cannot be made or written.
    pub fn new(header: &Header) -> Result<Self, Error> {
        let file = SkeletonFile::write(&header.skeleton()?, header.path())?;
        Ok(Self { file, header: header.clone(), lora: Vec::new(), control_vector: false })
    }

    setters! {
        /// The same with a LoRA adapter beside the model: its bytes count with the weights, and the buffers are as
        /// large as without adapters, with each one alone or with all of them. The file is read when the skeleton is
        /// placed.
        lora(path: impl Into<PathBuf>) lora.push(path.into());
        /// The same with a control vector in the context. Its `n_embd` floats per layer are really allocated while a
        /// question is answered.
        control_vector() control_vector = true;
    }

    /// What a load split so over these GPUs, or on the host alone where there are none, would hold in each of
    /// ggml's buffer types.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceGone`] for a GPU that this process does not have; [`Error::Native`] when llama.cpp refuses the
    /// model or the parameters, or a GPU has no room for the state of a recurrent model.
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
            // Before the context, whose graphs leave room for the nodes of all adapters.
            let lora = self.lora.iter().map(|path| Ok((LoraAdapter::load(&model, path)?, 1.0)));
            let lora = lora.collect::<Result<Vec<_>, llama_sys::Error>>()?;
            let mut context = Context::new(&model, native::context(params))?;
            let mut breakdown = self.most(&lora, &mut context)?;
            let copies = context.copies();
            // What it really allocates need not be there twice.
            drop(context);
            if params.mtp {
                breakdown.add_context(&Context::new(&model, native::heads(params))?.memory_breakdown()?);
            }
            Ok::<_, llama_sys::Error>((model, breakdown, copies))
        })
        .map_err(|error| of_model(error, &self.header))?;
        let file = FileFacts::of_header(&self.header);
        let mapped = maps(&params.clone().mapped_for(file, gpus), &self.header, &devices)
            .then(|| mapped(&self.header, &model.tensor_places()));
        let mut rows = rows(&breakdown, &devices);
        if let Some((_, span)) = mapped {
            for (row, native) in rows.iter_mut().zip(&breakdown.rows) {
                // Plain and pinned memory, but not the CPU's own arrangement, which stays beside the file, as adapters
                // do.
                if native.is_host_buffer {
                    row.model = native.adapters;
                }
            }
            let (buffer_type, place) = (MAPPED.to_owned(), Place::Host);
            rows.push(BufferBytes { buffer_type, place, model: span, context: 0, compute: 0, output: 0 });
        }
        Ok(Breakdown::new(rows, copies, devices.len(), mapped.map(|(resident, _)| resident)))
    }

    /// What a context holds at most: of the graphs without adapters, with each one alone and with all. Adapters that
    /// change the same weights by the same ranks have the same graphs, of which one is asked for.
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

    /// The first adapter of each kind: those of one kind have the same tensors by name, type and shape. One whose
    /// header cannot be read is of a kind of its own.
    fn one_of_each_kind(&self) -> Vec<usize> {
        let mut kinds = Vec::new();
        let mut is_new = |path: &PathBuf| {
            let Ok(header) = Header::open(path) else { return true };
            let tensors = header.tensors().map(|it| (it.name().to_owned(), it.ty().to_string(), it.shape()));
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

/// The error of a file that stands for the model of this header, with the model's own path.
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

fn maps(params: &ContextParams, header: &Header, devices: &[Device]) -> bool {
    let backends: Vec<String> = devices.iter().map(Device::backend).collect();
    let mode = native::load_mode(params, header, backends.iter().map(String::as_str));
    mode == LoadMode::Auto && devices.iter().all(Device::lets_files_be_mapped)
}

/// A breakdown of llama.cpp's, row by row. What lies in no listed device's own memory lies on the host.
fn rows(breakdown: &MemoryBreakdown, devices: &[Device]) -> Vec<BufferBytes> {
    let row = |native: &llama_sys::BufferUse| {
        let device = native.device.as_ref().filter(|_| !native.on_host);
        let gpu = device.and_then(|device| devices.iter().position(|known| known == device));
        BufferBytes {
            buffer_type: native.buffer_type.clone(),
            place: gpu.map_or(Place::Host, Place::Gpu),
            model: native.model.saturating_add(native.adapters),
            context: native.context,
            compute: native.compute,
            output: native.output,
        }
    };
    breakdown.rows.iter().map(row).collect()
}

/// Sums the breakdown of a real load by device, with that of the context that predicts further tokens where there is
/// one. The buffer of logits is not in it, and a mapped file counts with its span.
pub(super) fn footprints(breakdown: &MemoryBreakdown, devices: &[Device]) -> Footprints {
    breakdown::sums(&rows(breakdown, devices), devices.len())
}

/// Without shares llama.cpp divides by what is free, and a lone device on which nothing is, gets a share that is no
/// number (llama-model.cpp, `load_tensors`): the load fails, though it allocates nothing.
fn shares(devices: &[Device], split: &Split) -> Vec<f32> {
    match devices {
        [_] if split.tensor_split.is_empty() => vec![1.0],
        _ => split.tensor_split.clone(),
    }
}
