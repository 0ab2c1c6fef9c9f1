//! Simulated GPUs: ggml backends that count the memory of a card, and compute on the CPU.
//!
//! A simulated GPU is made from a size, allocation rules, and faults that it is to have. The result is a [`Device`]
//! that looks like a GPU to llama.cpp. It reports free memory, refuses buffers that do not fit, and computes the same
//! tokens as the CPU. So code that places models can be tested on any machine, with the real llama.cpp and without a
//! mock. A card of 400 GB costs no host memory until it is written to.
//!
//! ```
//! use llama_sys::sim::{Rules, SimGpu};
//! use llama_sys::{Context, ContextParams, Model, ModelParams};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");
//! let gpu = SimGpu::builder("SIM RTX 4090")
//!     .total(24 << 30)
//!     .taken(3 << 30) // by other processes
//!     .rules(Rules::Cuda)
//!     .register()?;
//!
//! let params = ModelParams { devices: Some(vec![gpu.device()]), ..ModelParams::default() };
//! let model = Model::load(path, params)?;
//! assert!(gpu.used() > 0);
//!
//! gpu.set_taken(24 << 30); // another process takes the rest
//! let error = Context::new(&model, ContextParams::default()).unwrap_err();
//! assert_eq!(error.out_of_memory().unwrap().buffer_type, gpu.device().name());
//!
//! drop(model);
//! assert_eq!(gpu.used(), 0);
//! # Ok::<(), llama_sys::Error>(())
//! ```
//!
//! The simulation covers sizes: free and total bytes, alignment, padding of rows, the scratch memory of fused
//! attention, the largest buffer, and pinned host buffers (see [`Rules`]). It also covers which operations with weights
//! on the host run on the GPU for large batches. If asked for, it covers events with several copies of a graph, and
//! memory pools that grow at the first computation by a [fixed number of bytes](SimGpuBuilder::growth). It does not
//! cover the driver's own memory, nor speed.
//!
//! A card enters ggml's registry with [`SimGpuBuilder::register`] and leaves it when its [`SimGpu`] is dropped.
//! Meanwhile it is a GPU like any other for the whole process: [`Backend::devices`](crate::Backend::devices) lists it,
//! and a load with [`devices: None`](crate::ModelParams::devices) puts layers on it.
//!
//! There are [`MAX_CARDS`] slots for cards, named `SIM0` to `SIM14`, which live until the process ends. So a
//! [`Device`], a model or a context may outlive its [`SimGpu`], and keeps working. A slot is used again once its
//! [`SimGpu`] is dropped and nothing is allocated or computing on it. From then on, the old [`Device`] refers to the
//! new card.

mod backend;
mod buffer;
mod buffer_type;
mod builder;
mod callback;
mod card;
mod device;
mod memory;
mod registry;
mod rules;
mod shared;
mod slot;

use std::fmt;
use std::sync::Arc;

use crate::safe::device::Device;
use card::Card;
use slot::Slot;

pub use builder::SimGpuBuilder;
pub use rules::Rules;
pub use slot::MAX_CARDS;

/// A registered simulated GPU; dropping it removes it from ggml's registry.
///
/// It does not matter whether models and contexts on the GPU are dropped before or after it.
pub struct SimGpu {
    slot: &'static Slot,
    card: Arc<Card>,
}

impl SimGpu {
    /// A card with this name, which must still be [registered](SimGpuBuilder::register). By default it has 8 GiB, all
    /// of them free, and [`Rules::Plain`].
    pub fn builder(name: impl Into<String>) -> SimGpuBuilder {
        SimGpuBuilder::new(name.into())
    }

    /// The device, for [`ModelParams::devices`](crate::ModelParams::devices).
    pub fn device(&self) -> Device {
        Device::from_raw(self.slot.device).expect("a slot's device is no null pointer")
    }

    /// All memory of the card, in bytes.
    pub fn total(&self) -> u64 {
        self.card.settings.total
    }

    /// Bytes that llama.cpp may still allocate: total - taken - grown - used, never below 0. For a
    /// [shared](SimGpuBuilder::shared) card, `grown` and `used` are those of all processes.
    pub fn free(&self) -> u64 {
        self.card.free()
    }

    /// Bytes of the buffers that are on the card now, as in
    /// [`Context::memory_breakdown`](crate::Context::memory_breakdown).
    pub fn used(&self) -> u64 {
        self.card.used.get()
    }

    /// The maximum of [`used`](Self::used) so far.
    pub fn peak(&self) -> u64 {
        self.card.peak.get()
    }

    /// Bytes of a [shared](SimGpuBuilder::shared) card that all processes together have taken now, including the
    /// additional bytes of computations; `None` for a card that is not shared.
    pub fn shared_used(&self) -> Option<u64> {
        self.card.shared_used()
    }

    /// The maximum of the bytes that all processes together had taken at the same time on a
    /// [shared](SimGpuBuilder::shared) card, since its file was made and including the additional bytes of
    /// computations; `None` for a card that is not shared.
    pub fn shared_peak(&self) -> Option<u64> {
        self.card.shared_peak()
    }

    /// Bytes that count as taken by other processes.
    pub fn taken(&self) -> u64 {
        self.card.taken.get()
    }

    /// Changes the bytes that count as taken by other processes (ballast). The number may exceed the free bytes; memory
    /// in use stays in use.
    pub fn set_taken(&self, bytes: u64) {
        self.card.taken.set(bytes);
    }

    /// Bytes that computations have taken in addition to the buffers: 0 before the first computation, and then the
    /// card's [growth](SimGpuBuilder::growth).
    pub fn grown(&self) -> u64 {
        self.card.grown.get()
    }

    /// Number of buffers on the card now.
    pub fn buffers(&self) -> u64 {
        self.card.buffers.get()
    }

    /// Number of allocations so far, including refused ones.
    pub fn allocations(&self) -> u64 {
        self.card.allocations.get()
    }

    /// Number of computations so far, including failed ones. Each computes a graph or a part of a graph.
    pub fn graphs(&self) -> u64 {
        self.card.graphs.get()
    }

    /// From now on, refuses only the `n`-th allocation, where 1 is the next one; 0 refuses none.
    pub fn fail_allocation(&self, n: u64) {
        self.card.failing_allocation.set(n);
    }

    /// From now on, fails only the `n`-th computation, where 1 is the next one; 0 fails none. llama.cpp computes a
    /// graph in parts: a new part begins at each change of device.
    pub fn fail_graph(&self, n: u64) {
        self.card.failing_graph.set(n);
    }
}

impl Drop for SimGpu {
    fn drop(&mut self) {
        registry::unregister(self.slot);
    }
}

impl fmt::Debug for SimGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimGpu")
            .field("device", &self.device().name())
            .field("description", &self.card.settings.description)
            .field("total", &self.total())
            .field("taken", &self.taken())
            .field("used", &self.used())
            .finish_non_exhaustive()
    }
}
