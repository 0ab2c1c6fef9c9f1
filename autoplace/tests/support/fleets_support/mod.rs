//! The cases, what is to hold of each, and how many there were of which kind.
#![allow(dead_code, unused_imports, reason = "each test uses some of it")]

mod case;
mod checks;
mod dice;
mod models;
mod tally;

pub(crate) use case::{Card, Case};
pub(crate) use checks::run;
pub(crate) use dice::Dice;
pub(crate) use models::Models;
pub(crate) use tally::Tally;
