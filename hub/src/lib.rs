//! From a name to a file: which models this machine has already, which quantisation of one fits it best, and how it is
//! fetched.

#![forbid(unsafe_code)]

mod choice;
mod group;
mod local;
mod name;

pub use choice::{Choice, Contender, Outcome, Placed, Row, Wish, WishError, choose};
pub use local::{Environment, LocalModel, Models, Place, Skipped, Store, Why};
pub use name::{Name, NameError};
