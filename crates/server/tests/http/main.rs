//! The HTTP API against the fake executor: every endpoint, every error, streams, and the life of the server. Knows no model.

mod admission;
mod chat;
mod chat_template;
mod completions;
mod embeddings;
mod errors;
mod fuzz;
mod life;
mod message_fields;
mod messages;
mod openapi;
mod probes;
mod process;
mod responses;
mod responses_tools;
mod structural_tags;
mod structured;
mod support;
mod tools;
