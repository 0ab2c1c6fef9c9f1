//! Loads a [`Model`] according to its plan, with the single context for which the plan has room.
//!
//! ```no_run
//! use autoplace::Model;
//! let builder = Model::builder("model.gguf").n_ctx(8192);
//! println!("{}", builder.plan()?); // where it would go, and why; nothing is loaded
//! let model = builder.load()?;
//! println!("{}", model.report()); // what it took, beside what was planned
//! # Ok::<(), autoplace::Error>(())
//! ```
//!
//! In: a path and a [`Request`](crate::plan::Request). Out: a [`Model`]. Each attempt in between (`load_loop.rs`) reads
//! the machine, plans, lets llama.cpp confirm the plan without allocating, loads, warms up, and compares the memory
//! that the load took with the plan.

mod abort;
mod adapters;
mod builder;
mod cached;
mod carry_out;
mod ceilings;
mod check;
mod counters;
mod depth;
mod depth_move;
mod devices;
mod disk;
mod draft;
mod error;
mod expert_meter;
mod headroom;
#[cfg(feature = "hub")]
mod hub;
mod in_use;
pub(crate) mod ipc_error;
mod known_rates;
mod lease;
mod leases;
mod lent;
mod load_loop;
mod loaded;
mod media;
mod mmproj;
mod model;
mod move_rates;
mod moves;
pub(crate) mod native;
mod notice;
mod options;
mod placed;
mod present;
mod probe;
mod progress;
mod rates;
pub(crate) mod remote;
mod replace;
mod replay;
mod report;
mod requested;
mod rpc;
mod slot;
mod stored;
mod threads;
#[cfg(feature = "constraints")]
pub(crate) mod vocabulary;
mod warm_up;

pub use abort::AbortHandle;
pub use adapters::Adapter;
pub(crate) use adapters::Scales;
pub use builder::ModelBuilder;
pub use check::{check, check_vocabulary};
pub(crate) use counters::GenerationCounters;
pub use counters::{ExpertUses, Generated};
pub use depth::DepthMove;
pub(crate) use depth::PromptAhead;
pub use devices::{build_name, detect};
pub(crate) use devices::{gpu_of, memory, named, worker_build};
pub use disk::measure_disk;
pub use error::{Attempt, AttemptFailure, Error, Stage};
pub use in_use::speed_model;
pub use leases::Leases;
pub(crate) use lent::LentWorker;
pub(crate) use loaded::{Draft, Drafts, Followed, Heads};
pub(crate) use media::{Marks, NO_MARKS, PreparedMedia, PreparedPart, Rows, number};
pub use mmproj::{Modalities, mmproj_beside};
pub use model::Model;
pub(crate) use model::WeakModel;
pub use move_rates::move_rates;
pub(crate) use moves::StateCopy;
pub(crate) use options::LoadOptions;
pub use options::{OnDifference, Verify};
pub(crate) use placed::Placed;
pub(crate) use present::is_worker_from_now_on;
pub use present::{DeviceBytes, LackNotice, LoadedModel, MemoryLack, loaded_models, memory_lacks};
pub use probe::{Breakdown, BufferBytes, NativeProbe};
pub use progress::LoadProgress;
pub(crate) use progress::Progress;
pub use rates::{RateCase, RatesProgress, RatesRequest, measure_rates, with_rates_for_advice, with_rates_of};
pub use replace::BetterPlan;
pub use report::{GpuReport, HostReport, LoadReport, NotLearnedReason, ProjectorReport, WarmUp};
pub use requested::Replacement;
pub(crate) use slot::{Checkpoint, Contents, Purpose, Remembered};
pub(crate) use stored::{ModelStore, host_margin};
pub(crate) use threads::Pacer;
pub use threads::{GeneratingThreads, ThreadBasis, Threads};

/// Plans for tests, written by hand.
#[cfg(test)]
pub(crate) mod test_plan {
    use crate::plan::Plan;

    pub(crate) fn plan() -> Plan {
        test_support::plans::plan()
    }

    pub(crate) fn host_plan() -> Plan {
        test_support::plans::host_plan()
    }
}
