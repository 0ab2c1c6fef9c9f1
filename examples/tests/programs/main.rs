//! The examples from outside.

#[path = "../program/mod.rs"]
mod program;

mod chat;
mod embed;
mod generate;
mod json;
mod many;
