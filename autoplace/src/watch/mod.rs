//! Watching a loaded model: [`Event`]s say what has changed for it since, when it began and when it ended.
//!
//! ```no_run
//! # let model = autoplace::Model::load("model.gguf")?;
//! use autoplace::watch::Sentinel;
//! let _sentinel = Sentinel::builder().on_event(|event| eprintln!("{event}")).watch(&model)?;
//! # Ok::<(), autoplace::Error>(())
//! ```
//!
//! A model that is well placed can be ill placed an hour later, and nothing fails then; it is only slow. A [`Sentinel`]
//! looks once a second, at the cost of less than a hundredth of a core.
//!
//! | condition | begins | ends |
//! |---|---|---|
//! | a GPU has too little free | [`Event::MemoryPressure`] | [`Event::MemoryRelieved`] |
//! | a GPU has room for more of the model | [`Event::RoomGained`] | [`Event::RoomLost`] |
//! | its clocks are held down by heat or power supply | [`Event::Throttled`] | [`Event::Unthrottled`] |
//! | another program came to a GPU, or took more of it | [`Event::OtherProcess`] | [`Event::OtherProcessGone`] |
//! | the model is slower than it was | [`Event::Slowdown`] | [`Event::SpeedRecovered`] |
//!
//! `docs/sentinel.md` has the sources on each system, and the thresholds with their reasons.
mod depth;
mod event;
mod latch;
mod model;
mod rules;
mod sample;
mod sentinel;

pub use depth::DepthCost;
pub use event::{Cause, Event};
pub use model::ModelSource;
pub use sample::{DeviceSample, Sample, Source, Watched, WatchedDevice};
pub use sentinel::{Error, Sentinel, SentinelBuilder};

pub use crate::load::{Generated, speed_model};
pub use crate::machine::HostSample;
