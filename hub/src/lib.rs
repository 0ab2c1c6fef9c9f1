//! From a name to a file: which models this machine has already, which quantisation of one fits it best, and how it is
//! fetched.

#![forbid(unsafe_code)]

mod cache;
mod error;
mod fetch;
// Next: the models of this machine.
#[allow(dead_code)]
mod group;
mod header;
mod http;
mod hub;
mod name;
mod remote;
mod repository;

pub use error::Error;
pub use hub::Hub;
pub use name::{Name, NameError};
pub use repository::{Candidate, Repository};
