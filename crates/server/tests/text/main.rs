//! Tests of text in and out of the model, in one program: tokenizers, streams, damaged files, stop strings, chat templates.

mod chat;
mod config;
mod damage;
mod gguf;
mod length;
mod limits;
mod mistral;
mod python;
mod stop;
mod stream;
mod support;
mod templates;
mod tokenizer;
mod truncation;
mod vocabularies;
