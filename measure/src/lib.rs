#![doc = include_str!("../README.md")]
//!
//! Every placement is planned like any load. A placement that does not fit becomes a [`Point`] with the reason. The
//! placements take turns: a round loads each of them once, and the next round loads them in the opposite order. The
//! measured speeds are the speeds of the library's own [`generate`]. Prompt and generation are measured separately, as
//! in llama-bench (docs/measure.md).

#![forbid(unsafe_code)]

mod clock;
mod compare;
mod conditions;
mod doctor;
mod evidence;
mod measurement;
#[cfg(feature = "pictures")]
pub mod picture;
mod protocol;
mod ready;
mod run;
mod stages;
mod submission;
mod sweep;

pub use clock::{Clock, SystemClock};
pub use compare::Ratio;
pub use conditions::Conditions;
pub use doctor::{Finding, FindingCause};
pub use evidence::{Evidence, ModelEvidence, Running};
pub use measurement::{Measured, MeasuredDevice, MeasuredModel, Measurement, Point, Row, Sample, Speed};
pub use protocol::Protocol;
pub use ready::{Aspect, Check, Readiness, Ready, Trial};
pub use run::{Measure, Progress, Variant};
pub use stages::{FreeBytes, Outcome, Reading, StagedGpu, Stages, Step};
pub use submission::{
    Submission, SubmittedBytes, SubmittedConditions, SubmittedGpu, SubmittedMachine, SubmittedModel, SubmittedPoint,
    SubmittedRow,
};
pub use sweep::Steps;

use autoplace::{generate, load};

/// The reason why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The protocol measures nothing, or does not fit in the context.
    #[error("{0}")]
    Protocol(String),
    /// The model could not be planned or loaded.
    #[error(transparent)]
    Load(#[from] load::Error),
    /// Generation failed.
    #[error(transparent)]
    Generate(#[from] generate::Error),
    /// The model was loaded and failed while computing.
    #[error("the model was loaded and cannot be measured: {0}")]
    Failed(String),
    /// The measurement was stopped before the first load.
    #[error("stopped before anything was measured")]
    Stopped,
}
