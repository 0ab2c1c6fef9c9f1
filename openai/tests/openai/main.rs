//! Tests of OpenAI's API: without HTTP, over HTTP, and through an endpoint.

mod access;
mod adapters;
mod api;
mod called;
mod ended;
mod endpoint;
mod infill;
mod media;
mod messages;
mod page;
mod parameters;
mod pooled;
mod responses;
mod responses_client;
mod server;
mod stop;
mod surfaces;
mod tool_choice;
mod tools;
mod vocabulary;
