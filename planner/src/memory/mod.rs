//! Room 4: the memory of a placement. A [`ModelProfile`](crate::profile::ModelProfile), the GPUs and the
//! [`ContextParams`] flow in; a [`Footprint`] per device flows out, with the [`HeadroomParts`] to keep free on the
//! device.
//!
//! The bytes come from three sources, each more accurate than the one before: the [`estimate`] (arithmetic over the
//! header), the probe (llama.cpp's own `no_alloc` load) and the measurement. All three return [`Footprints`].

pub mod backend;
pub mod companion;
mod context;
mod error;
pub mod estimate;
mod footprint;
pub mod headroom;
mod kv_type;
mod mapping;
mod pattern;
mod pooling;
mod rope;
mod split;

pub use companion::{Companion, CompanionBytes};
pub(crate) use context::{CONTEXT_PADDING, MAX_ROLLBACK_TOKENS};
pub use context::{ContextParams, ContextSizes, FlashAttention};
pub use error::Error;
pub(crate) use estimate::full_windows;
pub use estimate::{Estimate, Place, Uncertainty};
pub use footprint::{Footprint, Footprints};
pub use headroom::{Headroom, HeadroomParts, PeakSizes, WSL_HEADROOM};
pub use kv_type::KvType;
pub use mapping::{FileFacts, NotMapped};
pub(crate) use pattern::{NOTHING, OverrideRules};
pub use pooling::Pooling;
pub use rope::{Rope, RopeScaling};
pub use split::{Split, TensorOverride};
