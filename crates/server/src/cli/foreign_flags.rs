//! Flags of vLLM, llama.cpp and MLX-LM that this program does not have, and what takes their place. It parses no command line.

use clap::CommandFactory;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::Cli;

/// Flags, and what to do instead.
const INSTEAD: &[(&[&str], &str)] = &[
    (
        &["--model", "-m", "--hf-repo", "-hf", "-hfr"],
        "name the model without a flag, such as `serve ORG/NAME` or `serve ORG/NAME:Q4_K_M`",
    ),
    (&["--alias", "-a"], "use --served-model-name"),
    (&["--ctx-size", "-c", "--max-seq-len", "--context-length", "--max-kv-size"], "use --max-model-len"),
    (&["--predict", "--n-predict", "-n"], "use --max-tokens, or `max_tokens` in a request"),
    (&["--temp"], "use --temperature, or `temperature` in a request"),
    (&["--repeat-penalty"], "use --repetition-penalty, or `repetition_penalty` in a request"),
    (&["--batch-size", "-b", "--ubatch-size", "-ub", "--prefill-step-size"], "use --max-num-batched-tokens"),
    (&["--parallel", "-np", "--max-concurrency"], "use --max-num-seqs"),
    (
        &["--gpu-memory-utilization", "--num-gpu-blocks-override", "--max-total-tokens", "--mem-fraction-static"],
        "use --kv-cache-memory, such as --kv-cache-memory 4GiB; without it the free memory decides",
    ),
    (&["--cache-type-k", "-ctk", "--cache-type-v", "-ctv"], "use --kv-cache-dtype, which is of keys and values"),
    (
        &[
            "--gpu-layers",
            "--n-gpu-layers",
            "-ngl",
            "--swap-space",
            "--cpu-offload-gb",
            "--mlock",
            "--no-mmap",
            "--kv-offload",
        ],
        "leave it out: weights and cache are in the memory of --device, all of them",
    ),
    (&["--flash-attn", "-fa", "--attention-backend"], "leave it out: there is one kernel of attention for a device"),
    (
        &["--enforce-eager", "--compilation-config", "--cudagraph-capture-sizes", "--max-seq-len-to-capture", "-O"],
        "leave it out: nothing is captured or compiled while a model runs",
    ),
    (
        &["--enable-chunked-prefill", "--no-enable-chunked-prefill", "--cont-batching", "-cb", "--async-scheduling"],
        "leave it out: prompts come in chunks of --max-num-batched-tokens, beside all others' tokens, with the same results",
    ),
    (
        &[
            "--disable-log-requests",
            "--no-enable-log-requests",
            "--enable-log-requests",
            "--disable-log-stats",
            "--uvicorn-log-level",
            "--disable-uvicorn-access-log",
            "--verbose",
            "-v",
            "--log-level",
        ],
        "set VLLM_LOGGING_LEVEL, or RUST_LOG; requests are not logged, and /metrics counts them",
    ),
    (&["--trust-remote-code"], "leave it out: no code of a checkpoint is run"),
    (&["--jinja"], "leave it out: chat templates are always rendered so"),
    (
        &[
            "--tensor-parallel-size",
            "-tp",
            "--pipeline-parallel-size",
            "-pp",
            "--data-parallel-size",
            "-dp",
            "--enable-expert-parallel",
        ],
        "leave it out: a server is one machine; docs/SCALING.md says how several work together",
    ),
    (&["--hf-token"], "set HF_TOKEN"),
    (&["--download-dir"], "set HF_HUB_CACHE"),
    (&["--load-format"], "leave it out: what the files are is seen from them"),
    (&["--tokenizer-mode", "--tokenizer-revision"], "leave it out: --tokenizer names a directory with tokenizer.json"),
    (
        &["--guided-decoding-backend", "--structured-outputs-config"],
        "leave it out: there is one implementation, and every request may ask for it",
    ),
    (
        &["--enable-reasoning", "--reasoning-format"],
        "use --reasoning-parser, where the chat template does not show the format",
    ),
    (&["--task"], "use --runner pooling or --runner generate"),
    (
        &["--enable-lora", "--lora-modules", "--lora", "--adapter-path"],
        "merge the adapter into the checkpoint: adapters are not loaded",
    ),
    (
        &["--model-draft", "-md", "--draft-model"],
        "leave it out: there are no models for drafts, but `--speculative-config` makes some of what was said before",
    ),
    (&["--limit-mm-per-prompt", "--mmproj", "-mm", "--language-model-only"], "leave it out: only text is read"),
    (&["--hf-overrides", "--rope-scaling", "--rope-theta"], "change the checkpoint's config.json"),
    (
        &["--ssl-keyfile", "--ssl-certfile", "--ssl-key-file", "--ssl-cert-file", "--root-path", "--middleware"],
        "put a proxy before the server: docs/SECURITY.md says what it must do",
    ),
];

/// An error of a command line, with what to use instead of a flag that others have, in place of a flag that is merely spelled alike.
pub fn advise(error: clap::Error, arguments: &[String]) -> clap::Error {
    // Of what others write as `-ngl` the parser knows the first letter only, which may be help's.
    let unknown = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) => flag.as_str(),
        (ErrorKind::DisplayHelp, _) => "-h",
        _ => return error,
    };
    let is_it = |flag: &str| flag == unknown || unknown.len() == 2 && flag.starts_with(unknown);
    let written = arguments.iter().filter_map(|argument| argument.split('=').next()).find(|&flag| is_it(flag));
    let Some(flag) = written else { return error };
    let Some((_, instead)) = INSTEAD.iter().find(|(flags, _)| flags.contains(&flag)) else { return error };
    let mut advice = clap::Error::new(ErrorKind::UnknownArgument).with_cmd(&Cli::command());
    advice.insert(ContextKind::InvalidArg, ContextValue::String(flag.to_owned()));
    advice.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(*instead)]));
    advice
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn refused(arguments: &[&str]) -> String {
        let arguments: Vec<String> = ["vllm-apple"].iter().chain(arguments).map(ToString::to_string).collect();
        advise(Cli::try_parse_from(&arguments).unwrap_err(), &arguments).to_string()
    }

    #[test]
    fn every_flag_of_others_is_refused_with_what_to_use() {
        for (flags, instead) in INSTEAD {
            for flag in *flags {
                let text = refused(&["serve", flag, "1"]);
                assert!(text.contains(&format!("'{flag}'")) && text.contains(instead), "{flag}: {text}");
                assert!(!text.contains("similar"), "{flag}: {text}");
            }
        }
    }

    #[test]
    fn all_else_is_answered_as_ever() {
        assert!(refused(&["serve", "--max-model-length", "1"]).contains("'--max-model-len'"));
        assert!(refused(&["serve", "--gpu-memory-utilization=0.9"]).contains("--kv-cache-memory 4GiB"));
        assert!(refused(&["serve", "-h"]).contains("--max-model-len"));
        assert!(refused(&["serve", "-z"]).contains("'-z'"));
    }
}
