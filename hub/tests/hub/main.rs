//! Finding, choosing and fetching models.

#[path = "../http/mod.rs"]
mod http;
#[path = "../../../planner/tests/support/synthetic/mod.rs"]
mod synthetic;

mod choice;
mod client;
mod fetch;
mod headers;
mod local;
mod pick;
mod server;
mod world;
