//! The pool: its file, its decisions, and whole traces in virtual time.

mod file;
mod models;
mod picture;
mod plan;
mod projector;
mod traces;
