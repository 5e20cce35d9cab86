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
mod tests;
