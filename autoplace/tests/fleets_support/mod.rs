//! The cases, what is to hold of each, and how many there were of which kind.

mod case;
mod checks;
mod dice;
mod models;
mod tally;

pub(crate) use case::Case;
pub(crate) use checks::run;
pub(crate) use models::Models;
pub(crate) use tally::Tally;
