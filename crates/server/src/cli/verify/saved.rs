//! The directory that the report is written to: its three forms, each of which is always whole, and one run at a time. It knows no section.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::PathBuf;

use serde_json::json;
use vllm_apple_verify::Report;

use super::{html, markdown};
use crate::cli::CliError;

/// A directory of this run's own.
pub struct Saved {
    directory: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
}

impl Saved {
    /// The directory, which is made if there is none.
    ///
    /// # Errors
    /// It cannot be made, or another run writes to it.
    pub fn open(directory: PathBuf) -> Result<Self, CliError> {
        let failed = |source| CliError::Output { path: directory.display().to_string(), source };
        fs::create_dir_all(&directory).map_err(failed)?;
        let lock = File::open(&directory).map_err(failed)?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let busy = io::Error::new(io::ErrorKind::ResourceBusy, "another run writes its report there");
                Err(failed(busy))
            }
            // A file system without locks keeps nobody from writing.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Self { directory, _lock: lock }),
        }
    }

    /// Writes the report in its forms, in the place of those that are there.
    ///
    /// # Errors
    /// A form cannot be written; those before it are.
    pub fn write(&self, report: &Report) -> Result<(), CliError> {
        let facts: serde_json::Map<_, _> =
            report.facts.iter().map(|(name, fact)| (name.clone(), json!(fact))).collect();
        let (failures, judged) = (report.failures().count(), report.judged());
        let pass = failures == 0 && report.says_anything();
        let whole = json!({
            "pass": pass,
            "judged": judged,
            "failures": failures,
            "facts": facts,
            "sections": report.sections,
        });
        let json = format!("{whole:#}");
        self.form("report.md", &markdown::of(report))?;
        self.form("report.html", &html::of(report))?;
        // The last: what programs read says nothing that the others do not.
        self.form("report.json", &json)
    }

    /// A reader finds the whole old form or the whole new one.
    fn form(&self, name: &str, text: &str) -> Result<(), CliError> {
        let (path, part) = (self.directory.join(name), self.directory.join(format!("{name}.part")));
        let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &path));
        written.map_err(|source| {
            // Nothing is left of what could not be written; the error is said in any case.
            let _ = fs::remove_file(&part);
            CliError::Output { path: path.display().to_string(), source }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_apple_verify::{Line, Section};

    fn report(line: Line) -> Report {
        let section = Section { name: "a".into(), title: "A".into(), lines: vec![line], ..Section::default() };
        Report { facts: vec![("model".into(), "demo".into())], sections: vec![section] }
    }

    #[test]
    fn a_report_has_three_forms() {
        let directory = tempfile::tempdir().unwrap();
        let saved = Saved::open(directory.path().join("new")).unwrap();
        saved.write(&report(Line::figure("before", "1"))).unwrap();
        saved.write(&report(Line::judged("what <is>", "a | b", "c", false))).unwrap();
        let read = |name: &str| fs::read_to_string(directory.path().join("new").join(name)).unwrap();
        let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
        assert_eq!((&json["pass"], &json["judged"]), (&json!(false), &json!(1)));
        assert_eq!(json["facts"]["model"], "demo");
        assert_eq!(json["sections"][0]["lines"][0]["outcome"], "fail");
        assert!(read("report.md").contains("a \\| b"), "{}", read("report.md"));
        assert!(read("report.html").contains("what &lt;is&gt;"), "{}", read("report.html"));
        assert_eq!(fs::read_dir(directory.path().join("new")).unwrap().count(), 3);
    }

    #[test]
    fn two_runs_do_not_write_to_one_directory() {
        let directory = tempfile::tempdir().unwrap();
        let first = Saved::open(directory.path().to_owned()).unwrap();
        let error = Saved::open(directory.path().to_owned()).err().unwrap().to_string();
        assert!(error.contains("another run"), "{error}");
        drop(first);
        Saved::open(directory.path().to_owned()).unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_an_error_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let saved = Saved::open(directory.path().to_owned()).unwrap();
        fs::create_dir(directory.path().join("report.html")).unwrap();
        let error = saved.write(&report(Line::figure("a", "b"))).unwrap_err().to_string();
        assert!(error.contains("report.html"), "{error}");
        assert!(!directory.path().join("report.html.part").exists());
    }
}
