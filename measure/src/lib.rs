#![doc = include_str!("../README.md")]
//!
//! Every placement is planned as any load is; one that does not fit is a [`Point`] with the reason. They take turns:
//! each round loads each of them again, every other round in the opposite order. Speeds are those of the library's own
//! [`generate`], prompt and generation apart as llama-bench has them (docs/measure.md).

#![forbid(unsafe_code)]

/// `name(argument: type) field = value;`: setters that are called so.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($argument:ident: $ty:ty) $field:ident = $value:expr;)*) => {
        $($(#[$doc])* pub fn $name(mut self, $argument: $ty) -> Self {
            self.$field = $value;
            self
        })*
    };
}

mod clock;
mod compare;
mod conditions;
mod doctor;
mod evidence;
mod measurement;
mod protocol;
mod ready;
mod run;
mod submission;
mod sweep;

pub use clock::{Clock, SystemClock};
pub use compare::Ratio;
pub use conditions::Conditions;
pub use doctor::{Cause, Finding};
pub use evidence::{Evidence, ModelEvidence, Running};
pub use measurement::{Measured, MeasuredDevice, MeasuredModel, Measurement, Point, Row, Sample, Speed};
pub use protocol::Protocol;
pub use ready::{Aspect, Check, Readiness, Ready, Trial};
pub use run::{Arm, Measure, Progress};
pub use submission::{
    Submission, SubmittedBytes, SubmittedConditions, SubmittedGpu, SubmittedMachine, SubmittedModel, SubmittedPoint,
    SubmittedRow,
};
pub use sweep::Steps;

use autoplace::{generate, load};

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The protocol measures nothing, or what it asks for has no room in the context.
    #[error("{0}")]
    Protocol(String),
    /// The model was not loaded, or not planned.
    #[error(transparent)]
    Load(#[from] load::Error),
    /// A text was not generated.
    #[error(transparent)]
    Generate(#[from] generate::Error),
    /// The model was loaded, and failed while it computed.
    #[error("the model was loaded and cannot be measured: {0}")]
    Failed(String),
    /// It was stopped before the first placement was loaded.
    #[error("stopped before anything was measured")]
    Stopped,
}
