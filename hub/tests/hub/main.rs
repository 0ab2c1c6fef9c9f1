//! Models found on a machine and chosen for it.

#[path = "../../../planner/tests/support/synthetic/mod.rs"]
mod synthetic;

mod choice;
mod local;
