//! From a command line to a command, with what vLLM's, llama.cpp's and MLX-LM's users write: flags of theirs that ask for what is so anyway are left out
//! with a warning, and all others are refused at once, each with what takes its place. What these are is in `advice` and `unneeded`.

mod advice;
mod unneeded;

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};

use super::Cli;
use super::foreign_commands;
use crate::http::nearest;

/// A flag in the place of one that was left out: else a list of values, or a flag that waits for its own, would take in what stands behind it.
const LEFT_OUT: &str = "left-out";

/// What is asked for, and warnings.
pub fn parse(arguments: &[OsString]) -> Result<(Cli, Vec<String>), clap::Error> {
    let mut program = Cli::command();
    program.build();
    let text = |at: usize| arguments.get(at).and_then(|argument| argument.to_str()).unwrap_or_default();
    if let Some(message) = no_command(&program, text(1)) {
        return Err(program.error(ErrorKind::InvalidSubcommand, message));
    }
    let Some(command) = program.find_subcommand(text(1)) else {
        return Ok((parsed(arguments.iter())?, Vec::new()));
    };
    if let Some(instead) = foreign_commands::instead_of_benchmark(text(2)).filter(|_| command.get_name() == "bench") {
        let message = format!("there is no 'bench {}': {instead}", text(2));
        return Err(command.clone().error(ErrorKind::InvalidSubcommand, message));
    }
    let Sifted { kept, warnings, refused } = sift(&program, command, &arguments[2..]);
    let message = match &refused[..] {
        [] => {
            let parsed = parsed(arguments[..2].iter().chain(&kept));
            return Ok((parsed.map_err(|error| of_environment(error, command, &kept))?, warnings));
        }
        [one] => format!("unexpected argument {one}"),
        several => format!("unexpected arguments\n  {}", several.join("\n  ")),
    };
    Err(command.clone().error(ErrorKind::UnknownArgument, message))
}

/// What clap makes of arguments, of which some may be [`LEFT_OUT`].
fn parsed<'a>(arguments: impl Iterator<Item = &'a OsString>) -> Result<Cli, clap::Error> {
    let left_out = || Arg::new(LEFT_OUT).long(LEFT_OUT).action(ArgAction::Count).hide(true);
    let mut program = Cli::command().mut_subcommands(|command| command.arg(left_out()));
    let mut matches = program.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut program))
}

/// Why the first argument is no command, if there is more to say than that.
fn no_command(program: &Command, first: &str) -> Option<String> {
    if program.find_subcommand(first).is_some() || ["-h", "--help", "-V", "--version"].contains(&first) {
        return None;
    }
    // A value may be a key.
    let first = first.split('=').next().unwrap_or_default();
    match is_flag(first) {
        true => Some(format!("'{first}' comes behind a command, such as `vllm-apple serve {first}`")),
        false => Some(format!("unrecognized subcommand '{first}': {}", foreign_commands::instead(first)?)),
    }
}

/// The arguments of a command without what is not its own.
#[derive(Default)]
struct Sifted {
    kept: Vec<OsString>,
    warnings: Vec<String>,
    /// Flags in quotes, with what to do instead.
    refused: Vec<String>,
}

fn sift(program: &Command, command: &Command, arguments: &[OsString]) -> Sifted {
    let mut sifted = Sifted::default();
    let has_model = command.get_positionals().any(|argument| argument.get_id() == "model");
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.next() {
        let text = argument.to_str().unwrap_or_default();
        let (flag, own) = text.split_once('=').map_or((text, None), |(flag, value)| (flag, Some(value)));
        if text == "--" {
            sifted.kept.push(argument.clone());
            sifted.kept.extend(rest.cloned());
            break;
        }
        if !is_flag(text) || knows(command, flag) {
            sifted.kept.push(argument.clone());
            continue;
        }
        let next = rest.peek().filter(|next| !next.to_str().is_some_and(is_flag)).copied();
        if let Some(positive) =
            negated(command, flag).filter(|positive| arguments.iter().any(|other| other.to_str() == Some(positive)))
        {
            sifted.refused.push(format!("'{flag}': it contradicts '{positive}', leave one of them out"));
            continue;
        }
        if let Some((why, takes_next)) = unneeded::why(flag, own, next.and_then(|next| next.to_str())) {
            sifted.kept.push(format!("--{LEFT_OUT}").into());
            sifted.warnings.push(format!("warning: {text} changes nothing: {why}"));
            rest.next_if(|_| takes_next);
            continue;
        }
        if ["-m", "--model"].contains(&flag) && has_model {
            // Before flags of several values, which would take it for one of theirs.
            if let Some(model) = own.map(OsString::from).or_else(|| next.cloned()) {
                sifted.kept.insert(0, model);
                sifted.kept.push(format!("--{LEFT_OUT}").into());
                rest.next_if(|_| own.is_none());
                continue;
            }
        }
        let refusal = format!("'{flag}': {}", instead(program, command, flag));
        if !sifted.refused.contains(&refusal) {
            sifted.refused.push(refusal);
        }
    }
    sifted
}

/// The flag of the command that another one switches off.
fn negated(command: &Command, flag: &str) -> Option<String> {
    let (rest, prefix) = flag
        .strip_prefix("--no-")
        .map(|rest| (rest, ""))
        .or(flag.strip_prefix("--disable-").map(|rest| (rest, "enable-")))?;
    let name = format!("{prefix}{rest}");
    find(command, &name).map(|_| format!("--{name}"))
}

/// Whether clap takes it for a flag: numbers below 0 are values.
fn is_flag(text: &str) -> bool {
    text.len() > 1 && text.starts_with('-') && text.parse::<f64>().is_err()
}

/// Whether the command has this flag. One letter may have its value behind it, unless others have a flag of these letters.
fn knows(command: &Command, flag: &str) -> bool {
    if let Some(name) = flag.strip_prefix("--") {
        return find(command, name).is_some();
    }
    let mut letters = flag.chars().skip(1);
    let (first, is_alone) = (letters.next(), letters.next().is_none());
    let of_letter = |argument: &&Arg| {
        let short = argument.get_short().into_iter().chain(argument.get_all_short_aliases().unwrap_or_default());
        short.into_iter().any(|short| Some(short) == first)
    };
    let known = command.get_arguments().find(of_letter);
    known.is_some_and(|argument| is_alone || argument.get_action().takes_values() && advice::instead(flag).is_none())
}

fn find<'c>(command: &'c Command, name: &str) -> Option<&'c Arg> {
    command.get_arguments().find(|argument| {
        argument.get_long() == Some(name) || argument.get_all_aliases().is_some_and(|names| names.contains(&name))
    })
}

/// What to do instead of a flag that the command does not have.
fn instead(program: &Command, command: &Command, flag: &str) -> String {
    if let Some(advice) = advice::instead(flag) {
        return advice.to_owned();
    }
    let name = flag.trim_start_matches('-');
    let others: Vec<&Command> = program.get_subcommands().filter(|other| find(other, name).is_some()).collect();
    let this = command.get_name();
    if let Some(other) = others.first() {
        if this == "serve" && find(other, name).and_then(Arg::get_help_heading) == Some("Sampling") {
            let field = name.replace('-', "_").replace("keep_special_tokens", "skip_special_tokens");
            return format!("say it in a request: `{field}`");
        }
        let others: Vec<&str> = others.iter().map(|other| other.get_name()).collect();
        return format!("`vllm-apple {this}` does not read it, but {}", others.join(", "));
    }
    let own = command.get_arguments().filter(|argument| !argument.is_hide_set()).filter_map(Arg::get_long);
    match nearest(name, own).filter(|_| flag.starts_with("--")) {
        Some(meant) => format!("did you mean '--{meant}'?"),
        None => format!("there is no such flag, see `vllm-apple {this} --help`"),
    }
}

/// An error with the name of the variable whose value it is about, where no flag was written.
fn of_environment(mut error: clap::Error, command: &Command, written: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(about)) = error.get(ContextKind::InvalidArg) else { return error };
    let flag = about.split(' ').next().unwrap_or_default().to_owned();
    let Some(about) = find(command, flag.trim_start_matches('-')) else { return error };
    let names: Vec<&str> = about.get_long().into_iter().chain(about.get_all_aliases().unwrap_or_default()).collect();
    let is_it = |argument: &OsString| {
        let text = argument.to_string_lossy();
        let of_letter = |letter: char| text.starts_with(&format!("-{letter}"));
        let name = text.split('=').next().and_then(|flag| flag.strip_prefix("--"));
        name.is_some_and(|name| names.contains(&name)) || about.get_short().is_some_and(of_letter)
    };
    let is_of_variable = |name: &&std::ffi::OsStr| std::env::var_os(name).is_some() && !written.iter().any(is_it);
    if let Some(variable) = about.get_env().filter(is_of_variable) {
        let name = variable.to_string_lossy().into_owned();
        error.insert(ContextKind::InvalidArg, ContextValue::String(name));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of vLLM 0.33's `serve`, of llama-server and of mlx_lm.server.
    const OTHERS: [&str; 3] = [
        include_str!("../../tests/flags/vllm-0.33.0.txt"),
        include_str!("../../tests/flags/llama-server.txt"),
        include_str!("../../tests/flags/mlx_lm.server.txt"),
    ];

    fn of_others() -> impl Iterator<Item = &'static str> {
        OTHERS.iter().flat_map(|list| list.lines()).filter(|line| line.starts_with('-'))
    }

    fn parsed(arguments: &[&str]) -> Result<(Cli, Vec<String>), clap::Error> {
        parse(&["vllm-apple"].iter().chain(arguments).map(OsString::from).collect::<Vec<_>>())
    }

    fn refused(arguments: &[&str]) -> String {
        parsed(arguments).unwrap_err().to_string()
    }

    #[test]
    fn every_flag_of_others_is_known_or_advised() {
        let mut program = Cli::command();
        program.build();
        let serve = program.find_subcommand("serve").unwrap();
        let flags: Vec<_> = of_others().collect();
        assert!(flags.len() > 800, "{} flags", flags.len());
        let is_told = |flag: &str| {
            let told = instead(&program, serve, flag);
            !told.contains("no such flag") && !told.contains("did you mean")
        };
        let is_known = |flag: &str| knows(serve, flag) || unneeded::why(flag, None, None).is_some();
        let silent: Vec<_> = flags.into_iter().filter(|flag| !is_known(flag) && !is_told(flag)).collect();
        assert!(silent.is_empty(), "{silent:?}");
    }

    #[test]
    fn every_advice_names_flags_that_there_are() {
        let mut program = Cli::command();
        program.build();
        for flag in of_others() {
            let advice = advice::instead(flag).unwrap_or_default();
            for word in advice
                .split(|c: char| c.is_whitespace() || "`,;:.'\"".contains(c))
                .filter(|word| word.starts_with("--"))
            {
                let is_known = program.get_subcommands().any(|command| knows(command, word)) || word == "--version";
                assert!(is_known, "{flag}: {advice}");
            }
        }
    }

    #[test]
    fn all_flags_of_others_are_told_at_once() {
        let line =
            ["serve", "-c", "4096", "--uds=/tmp/s", "--jinja", "-hf", "a/b:Q4_0", "--max-model-lne", "5", "-c", "1"];
        let told = refused(&line);
        for (flag, instead) in [
            ("'-c'", "--max-model-len"),
            ("'--uds'", "--host and --port"),
            ("'-hf'", "without a flag"),
            ("'--max-model-lne'", "did you mean '--max-model-len'?"),
        ] {
            assert!(told.lines().any(|line| line.contains(flag) && line.contains(instead)), "{flag}: {told}");
        }
        assert_eq!((told.matches("'-c'").count(), told.contains("jinja")), (1, false), "{told}");
        assert!(told.contains("Usage: vllm-apple serve [OPTIONS] [MODEL]"), "{told}");
    }

    #[test]
    fn what_is_so_anyway_is_left_out_with_a_warning() {
        let line = "serve --jinja -ngl 99 -tp 1 --tensor-parallel-size=1 -fa on -fa --trust-remote-code a/b";
        let (cli, warnings) = parsed(&line.split(' ').collect::<Vec<_>>()).unwrap();
        assert!(format!("{cli:?}").contains(r#"model: Some("a/b")"#), "{cli:?}");
        assert_eq!(warnings.len(), 7, "{warnings:?}");
        assert_eq!(warnings[1], "warning: -ngl changes nothing: --device has all layers");
        // What stands around it stays apart.
        let swallowed = "serve --served-model-name foo --trust-remote-code a/b";
        let (cli, _) = parsed(&swallowed.split(' ').collect::<Vec<_>>()).unwrap();
        assert!(format!("{cli:?}").contains(r#"model: Some("a/b")"#), "{cli:?}");
        assert!(refused(&["serve", "--api-key", "--jinja", "a/b"]).contains("a value is required for '--api-key"));
        assert!(refused(&["tokenize", "--prompt", "-fa", "hello"]).contains("a value is required for '--prompt"));
        assert!(refused(&["serve", "--allow-credentials", "--no-allow-credentials"]).contains("contradicts"));
        for asks in ["-ngl 0", "-tp 2", "--flash-attn off", "--jinja=1"] {
            refused(&["serve"].into_iter().chain(asks.split(' ')).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_model_may_have_a_flag() {
        for line in ["serve --served-model-name a b -m x.gguf", "serve --model=x.gguf", "chat -m x.gguf"] {
            let (cli, warnings) = parsed(&line.split(' ').collect::<Vec<_>>()).unwrap();
            assert!(format!("{cli:?}").contains(r#"model: Some("x.gguf")"#) && warnings.is_empty(), "{cli:?}");
        }
        assert!(refused(&["serve", "-m"]).contains("without a flag"));
        assert!(refused(&["doctor", "-m", "x"]).contains("'-m'"));
    }

    #[test]
    fn all_else_is_answered_as_ever() {
        assert!(refused(&["serve", "--max-model-length", "1"]).contains("'--max-model-len'"));
        assert!(refused(&["serve", "--gpu-memory-utilization=0.9"]).contains("--kv-cache-memory 4GiB"));
        assert!(refused(&["serve", "-h"]).contains("--max-model-len"));
        assert!(refused(&["serve", "-t", "0"]).contains("'--threads"), "{}", refused(&["serve", "-t", "0"]));
        assert!(!refused(&["--api-key=secret", "serve"]).contains("secret"));
        assert!(refused(&["serve", "-z"]).contains("'-z': there is no such flag"));
        assert!(refused(&["serve", "a", "b"]).contains("'b'"));
        assert!(refused(&["serve", "--temperature", "1"]).contains("in a request: `temperature`"));
        assert!(refused(&["tokenize", "--max-model-len", "1"]).contains("but serve, generate"));
        assert!(parsed(&["serve", "-t", "2", "-qint8"]).is_ok());
        assert!(parsed(&["serve", "--", "--jinja"]).is_ok());
    }

    #[test]
    fn commands_of_others_are_told_what_to_use() {
        for (line, instead) in [
            (&["complete"][..], "generate"),
            (&["run", "x"], "`vllm-apple chat MODEL`"),
            (&["version"], "--version"),
            (&["owner/name"], "`vllm-apple serve owner/name`"),
            (&["--port", "8000"], "`vllm-apple serve --port`"),
            (&["bench", "serve"], "without a server"),
            (&["srve"], "'serve'"),
        ] {
            assert!(refused(line).contains(instead), "{}", refused(line));
        }
        assert!(refused(&[]).contains("Usage") && refused(&["-V"]).starts_with("vllm-apple "));
    }
}
