//! Chat templates and the parsing of answers.

#[path = "../support/chat_reply_support/mod.rs"]
mod chat_reply_support;
#[path = "../../../planner/tests/support/table/mod.rs"]
mod table;

mod chat_reply;
mod chat_reply_formats;
mod chat_reply_pieces;
mod chat_template;
mod chat_template_constructs;
mod chat_template_hostile;
mod chat_templates;
