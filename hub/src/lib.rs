//! From a name to a file: which models this machine has already, which quantisation of one fits it best, and how it is
//! fetched.

#![forbid(unsafe_code)]

mod choice;
#[allow(dead_code)] // Until both of its users are there.
mod group;
mod local;
mod name;

pub use choice::{Candidate, Choice, Outcome, Placed, Row, Wish, WishError, choose};
pub use local::{Environment, LocalModel, Models, Place, Skipped, Store, Why};
pub use name::{Name, NameError};
