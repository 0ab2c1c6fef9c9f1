//! Tests for finding, choosing and fetching models.

mod choice;
mod client;
mod fetch;
mod headers;
mod local;
mod pick;
mod projector;
mod world;
