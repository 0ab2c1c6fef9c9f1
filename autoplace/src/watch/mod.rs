//! Watches a loaded model: [`Event`]s report when a condition begins and when it ends.
//!
//! ```no_run
//! # let model = autoplace::Model::load("model.gguf")?;
//! use autoplace::watch::Sentinel;
//! let _sentinel = Sentinel::builder().on_event(|event| eprintln!("{event}")).watch(&model)?;
//! # Ok::<(), autoplace::Error>(())
//! ```
//!
//! A well-placed model can become slow an hour later, without any error. A [`Sentinel`] checks once a second, at the
//! cost of less than a hundredth of a core.
//!
//! | condition | begins | ends |
//! |---|---|---|
//! | a GPU has too little free memory | [`Event::MemoryPressure`] | [`Event::MemoryRelieved`] |
//! | a GPU has room for more of the model | [`Event::RoomGained`] | [`Event::RoomLost`] |
//! | heat or the power supply lowers its clocks | [`Event::Throttled`] | [`Event::Unthrottled`] |
//! | another program uses a GPU, or more of it | [`Event::OtherProcess`] | [`Event::OtherProcessGone`] |
//! | the model is slower than before | [`Event::Slowdown`] | [`Event::SpeedRecovered`] |
//! | the model generates with fewer threads of the CPU | [`Event::FewerThreads`] | [`Event::ThreadsRestored`] |
//!
//! `docs/sentinel.md` lists where the samples come from on each system, and the thresholds with the reasons for them.
mod depth;
mod event;
mod latch;
mod model;
mod rules;
mod sample;
mod sentinel;
mod settings;

pub use depth::DepthCost;
pub use event::{Cause, Event};
pub use model::ModelSource;
pub use sample::{DeviceSample, Sample, Source, Watched, WatchedDevice};
pub use sentinel::{Error, Sentinel, SentinelBuilder};

pub use crate::load::{Generated, GeneratingThreads, speed_model};
pub use crate::machine::HostSample;
