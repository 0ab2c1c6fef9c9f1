#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cache;
mod choice;
mod error;
mod fetch;
mod group;
mod header;
mod http;
mod hub;
mod local;
mod name;
mod null;
mod pick;
mod projector;
mod remote;
mod repository;

pub use choice::{
    Choice, Outcome, Placed, PlannedFile, Preference, PreferenceError, Row, choose, choose_measured, unmeasured,
};
pub use error::Error;
pub use hub::Hub;
pub use local::{Environment, LocalModel, Models, Place, SkipReason, Skipped, Store};
pub use name::{Name, NameError};
pub use pick::{Pick, ProjectorPick};
pub use projector::{ProjectorChoice, choose_projector};
pub use repository::{Candidate, Repository};
