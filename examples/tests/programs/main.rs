//! The examples from outside.

#[path = "../program/mod.rs"]
mod program;
#[path = "../server/mod.rs"]
mod server;

mod chat;
mod embed;
mod generate;
mod json;
mod many;
mod serve;
mod serve_client;
