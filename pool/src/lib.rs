#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod amounts;
mod anticipate;
mod demand;
mod error;
mod file;
mod held;
mod ladder;
mod plan;
mod report;
mod runtime;
mod search;
mod spec;
mod state;
mod succession;

pub use demand::{DEMAND_WINDOW, Demand};
pub use error::Error;
pub use file::PoolFile;
pub use held::HeldBytes;
pub use ladder::{Ladder, Rung};
pub use plan::{DeviceLeft, PlannedModel, PoolPlan, Step};
pub use runtime::{Activity, ModelHandle, ModelRequest, ModelStatus, Pool, PoolBuilder, Residence};
pub use spec::{ModelSpec, check};
pub use state::{Limits, ModelState, PoolState};
pub use succession::Succession;
