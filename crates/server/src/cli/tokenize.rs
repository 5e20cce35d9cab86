//! `vllm-apple tokenize`: the ids and pieces of a text. Needs a tokenizer, and no weights.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::CliError;
use super::load::resolve_without_weights;
use crate::text::Tokenizer;

#[derive(Debug, Args)]
pub struct TokenizeArgs {
    /// A checkpoint directory, a GGUF file, or the id of a model on the Hugging Face Hub [default: the bundled model]
    model: Option<String>,
    /// The text [default: what comes by standard input]
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// A directory with the tokenizer's files [default: the checkpoint's]
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Branch, tag or commit of a model on the hub [default: main]
    #[arg(long, value_name = "REV")]
    revision: Option<String>,
    /// Add no tokens that the tokenizer begins or ends texts with
    #[arg(long)]
    no_special_tokens: bool,
    /// Print a line of JSON: {"ids": …, "pieces": …}
    #[arg(long)]
    json: bool,
}

pub fn run(args: TokenizeArgs) -> Result<(), CliError> {
    let directory = match args.tokenizer {
        Some(directory) => directory,
        None => resolve_without_weights(args.model.as_deref(), args.revision.as_deref())?,
    };
    let tokenizer = Tokenizer::from_dir(&directory)?;
    let text = match args.prompt {
        Some(text) => text,
        None => {
            let mut bytes = Vec::new();
            let unreadable = |source| CliError::Input { path: "standard input".to_owned(), source };
            io::stdin().read_to_end(&mut bytes).map_err(unreadable)?;
            String::from_utf8(bytes).map_err(|error| unreadable(io::Error::other(error)))?
        }
    };
    let ids = tokenizer.encode(&text, !args.no_special_tokens)?;
    let pieces: Vec<String> = ids.iter().map(|&id| tokenizer.token_text(id)).collect();
    let mut out = io::BufWriter::new(io::stdout().lock());
    let written = match args.json {
        true => writeln!(out, "{}", json!({ "ids": ids, "pieces": pieces })),
        false => ids.iter().zip(&pieces).try_for_each(|(id, piece)| writeln!(out, "{id:>7}  {piece:?}")),
    };
    written.and_then(|()| out.flush()).map_err(CliError::Stdout)
}
