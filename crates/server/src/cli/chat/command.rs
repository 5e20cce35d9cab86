//! Lines of a conversation that are meant for this program, not for the model.

/// What a user of the terminal may write besides messages.
pub const HELP: &str = "\
/clear   begins the conversation anew; a --system-prompt stays
/exit    ends the conversation, as /quit, /bye and Ctrl-D do
/help    shows this
Ctrl-C stops a reply, or gives up a line. Lines that are pasted together are one message.";

/// A line that is a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Command<'a> {
    Exit,
    Clear,
    Help,
    /// It looks like one.
    Unknown(&'a str),
}

impl<'a> Command<'a> {
    /// `None`: a message. Commands are a word alone: whatever has more, such as a path, is the model's.
    pub fn of(line: &'a str) -> Option<Self> {
        let line = line.trim();
        let name = line.strip_prefix('/')?;
        let is_word = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        match name {
            "exit" | "quit" | "bye" => Some(Self::Exit),
            "clear" => Some(Self::Clear),
            "help" => Some(Self::Help),
            _ => is_word.then_some(Self::Unknown(line)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_after_a_slash_is_a_command_and_the_rest_is_the_models() {
        for line in ["/exit", "/quit", " /bye "] {
            assert_eq!(Command::of(line), Some(Command::Exit), "{line}");
        }
        assert_eq!([Command::of("/clear"), Command::of("/help")], [Some(Command::Clear), Some(Command::Help)]);
        assert_eq!(Command::of("/save\n"), Some(Command::Unknown("/save")));
        for line in ["exit", "/exit now", "/etc/hosts", "/", "/1", "//", "/clear\nHi", "What does /clear do?"] {
            assert_eq!(Command::of(line), None, "{line}");
        }
    }
}
