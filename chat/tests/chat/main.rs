//! Tests of chat templates, and of the parser for answers.

mod chat_reply;
mod chat_reply_formats;
mod chat_reply_pieces;
mod chat_template;
mod chat_template_constructs;
mod chat_template_hostile;
mod chat_templates;
mod media;
