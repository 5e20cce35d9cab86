//! Whether the server's answers depend on what else it does.

use vllm_apple_verify::sections::{Progress, examined};
use vllm_apple_verify::{Line, Section, Subject};

use super::VerifyArgs;
use crate::cli::CliError;

pub const NAME: &str = "concurrency";
pub const TITLE: &str = "Concurrency";

/// The section's findings.
pub fn examine(_args: &VerifyArgs, _subject: &Subject, _progress: &mut dyn Progress) -> Section {
    examined(NAME, TITLE, || {
        Ok::<_, CliError>(Section { lines: vec![Line::skipped("all", "not written")], ..Section::default() })
    })
}
