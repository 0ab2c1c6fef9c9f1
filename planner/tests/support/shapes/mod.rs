//! Shapes of models, and strategies for requests about them, for tests that have `proptest`.
#![allow(dead_code, reason = "each test uses some of it")]

pub(crate) mod any;
#[path = "../synthetic/mod.rs"]
pub(crate) mod synthetic;

pub(crate) use synthetic::dims;
pub(crate) use synthetic::shapes::*;
