//! Commands of vLLM's, llama.cpp's and others' programs that this one has not, and what takes their place. It parses no command line.

use std::path::Path;

use vllm_apple_model::hub;

const INSTEAD: &[(&[&str], &str)] = &[
    (&["complete"], "`vllm-apple generate MODEL --prompt TEXT` continues a text"),
    (&["run-batch"], "`vllm-apple generate MODEL --input FILE --json` answers each line of a file"),
    (&["collect-env"], "`vllm-apple doctor --report FILE` writes down what this machine is and does"),
    (&["run"], "`vllm-apple chat MODEL` talks to a model, `vllm-apple serve MODEL` serves it"),
    (&["server", "launch", "start"], "`vllm-apple serve MODEL`"),
    (&["pull", "download"], "`vllm-apple serve ORG/NAME` downloads what is not there"),
    (&["convert"], "`vllm-apple quantize MODEL DIR` writes a checkpoint again; as it is, it needs no conversion"),
    (&["version"], "`vllm-apple --version`"),
    (&["completion", "completions"], "there are no completion scripts"),
];

/// What to do instead of a command that is not known.
pub fn instead(command: &str) -> Option<String> {
    let known = INSTEAD.iter().find(|(commands, _)| commands.contains(&command));
    match known {
        Some((_, instead)) => Some((*instead).to_owned()),
        None if hub::looks_like_model(command) => Some(format!("`vllm-apple serve {command}` serves it")),
        None => None,
    }
}

/// What to do instead of a command below vLLM's `bench`, unless a model has that name.
pub fn instead_of_benchmark(name: &str) -> Option<&'static str> {
    let instead = match name {
        "serve" => {
            "`vllm-apple bench MODEL` measures a model without a server; vLLM's own `vllm bench serve` can measure this one's"
        }
        "latency" | "throughput" | "sweep" => {
            "`vllm-apple bench MODEL` measures both at once, for each number of requests in --batch"
        }
        "startup" | "mm-processor" => "it is not measured here; `vllm-apple bench MODEL` measures how fast a model is",
        _ => return None,
    };
    (!Path::new(name).exists()).then_some(instead)
}
