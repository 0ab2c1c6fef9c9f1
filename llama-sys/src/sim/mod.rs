//! Simulated GPUs: ggml backends that only count their memory, and that compute on the CPU.
//!
//! A simulated GPU is made from a size, allocation rules and faults to inject. The result is a [`Device`] that
//! llama.cpp takes for a GPU. It reports free memory, refuses buffers that do not fit, and computes the same tokens as
//! the CPU. So code that places models can be tested on any machine, with llama.cpp itself and no mock. A card of 400
//! GB costs no host memory until it is written to.
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
//! attention, the largest buffer, and pinned host buffers (see [`Rules`]). It also covers the choice of operations that
//! run on the GPU for large batches. On request it covers events and several copies of a graph in flight, and pools
//! that grow at the first computation, as [one number of bytes](SimGpuBuilder::growth). It does not cover the driver's
//! own memory, nor speed.
//!
//! A card enters ggml's registry with [`SimGpuBuilder::register`] and leaves it when its [`SimGpu`] is dropped.
//! Meanwhile it is a GPU like any other for the whole process: [`Backend::devices`](crate::Backend::devices) lists it,
//! and a load with [`devices: None`](crate::ModelParams::devices) puts layers on it.
//!
//! Cards sit in [`MAX_CARDS`] slots, named `SIM0` to `SIM14`, that live until the process ends: a [`Device`], a model
//! or a context may outlive the [`SimGpu`] and keeps working. A slot is used again once its [`SimGpu`] is dropped and
//! nothing is allocated or computing on it; from then on the old [`Device`] refers to the new card.

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
/// Models and contexts on it may be dropped before it or after it.
pub struct SimGpu {
    slot: &'static Slot,
    card: Arc<Card>,
}

impl SimGpu {
    /// A card with this name, to be [registered](SimGpuBuilder::register). By default it has 8 GiB, all of them free,
    /// and [`Rules::Plain`].
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

    /// Bytes in buffers on the card now, the same as in
    /// [`Context::memory_breakdown`](crate::Context::memory_breakdown).
    pub fn used(&self) -> u64 {
        self.card.used.get()
    }

    /// The maximum of the bytes in use at once.
    pub fn peak(&self) -> u64 {
        self.card.peak.get()
    }

    /// Bytes of a [shared](SimGpuBuilder::shared) card that all processes have taken now, including those of
    /// computations; `None` for a card that is not shared.
    pub fn shared_used(&self) -> Option<u64> {
        self.card.shared_used()
    }

    /// The maximum of the bytes that all processes had taken at once on a [shared](SimGpuBuilder::shared) card since
    /// its file was made, including those of computations; `None` for a card that is not shared.
    pub fn shared_peak(&self) -> Option<u64> {
        self.card.shared_peak()
    }

    /// Bytes that count as taken by other processes.
    pub fn taken(&self) -> u64 {
        self.card.taken.get()
    }

    /// Changes the bytes that count as taken by other processes (ballast). They may exceed the free bytes; memory in
    /// use stays in use.
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

    /// Number of computations so far, each of a graph or a part of one, including failed computations.
    pub fn graphs(&self) -> u64 {
        self.card.graphs.get()
    }

    /// Refuses only the `n`-th allocation from now, where 1 is the next; 0 refuses none.
    pub fn fail_allocation(&self, n: u64) {
        self.card.failing_allocation.set(n);
    }

    /// Fails only the `n`-th computation from now, where 1 is the next; 0 fails none. llama.cpp computes a graph in
    /// parts, one for each change of device.
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
