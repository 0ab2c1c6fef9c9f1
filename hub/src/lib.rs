//! From a name to a file: which models this machine has already, which quantisation of one fits it best, and how it is
//! fetched.

#![forbid(unsafe_code)]

mod error;
mod name;

pub use error::Error;
pub use name::{Name, NameError};
