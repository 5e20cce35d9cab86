//! One template worker as its parent sees it: a process that is asked with a time limit, and is killed and reaped whatever
//! happens. Knows frames, but not what they ask.

use std::io::{self, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::template_limits::TemplateLimit;
use super::template_protocol::{Answer, read_frame, write_frame};

/// The hidden command that makes the program a template worker.
pub(super) const COMMAND: &str = "template-worker";

/// A running worker. Dropped, it is killed and reaped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    stderr: ChildStderr,
    /// To the thread that talks to the worker, because pipes know no time limits.
    frames: Sender<Arc<Vec<u8>>>,
    replies: Receiver<io::Result<Vec<u8>>>,
}

/// Why a worker gave no answer.
#[derive(Debug)]
pub(super) enum Lost {
    /// It was gone before it had read the question, or something else ended it: another one may answer.
    Killed,
    /// The question ended it.
    Ended(TemplateLimit),
}

impl Process {
    /// Starts a worker.
    pub fn start(program: &Path) -> io::Result<Self> {
        // One at a time: on macOS a pipe is for a moment inherited by whatever else is started, and a worker whose standard
        // input is open elsewhere does not see its end.
        static STARTING: Mutex<()> = Mutex::new(());
        let starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut child = Command::new(program)
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        drop(starting);
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            unreachable!("all three are pipes");
        };
        let (frames, to_send) = mpsc::channel();
        let (received, replies) = mpsc::channel();
        let process = Self { child, stderr, frames, replies };
        std::thread::Builder::new().name("template-pipe".to_owned()).spawn(move || {
            talk(stdin, stdout, &to_send, &received);
        })?;
        Ok(process)
    }

    /// The worker's answer to a question. After an error the worker is dead.
    pub fn ask(&mut self, frame: Arc<Vec<u8>>, time: Duration) -> Result<Answer, Lost> {
        let deadline = Instant::now() + time;
        // Fails only if the thread has ended, which shows below.
        let _ = self.frames.send(frame);
        match self.next_frame(deadline) {
            Ok(_read) => {}
            Err(Lost::Ended(TemplateLimit::Time)) => return Err(Lost::Ended(TemplateLimit::Time)),
            _ => return Err(Lost::Killed),
        }
        let answer = self.next_frame(deadline)?;
        serde_json::from_slice(&answer).map_err(|error| {
            self.end();
            Lost::Ended(TemplateLimit::Crash(error.to_string()))
        })
    }

    fn next_frame(&mut self, deadline: Instant) -> Result<Vec<u8>, Lost> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.replies.recv_timeout(left) {
            Ok(Ok(frame)) => Ok(frame),
            Err(RecvTimeoutError::Timeout) => {
                self.end();
                Err(Lost::Ended(TemplateLimit::Time))
            }
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {
                let status = self.end();
                let mut words = String::new();
                // What it said last explains its end; without it, the status does.
                let _ = self.stderr.by_ref().take(4096).read_to_string(&mut words);
                Err(cause(status, &words))
            }
        }
    }

    /// Kills the worker, unless it has ended by itself, and reaps it.
    fn end(&mut self) -> Option<ExitStatus> {
        // Fails where there is nothing left to kill.
        let _ = self.child.kill();
        self.child.wait().ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Why a worker died, by the words with which Rust's runtime ends a process.
fn cause(status: Option<ExitStatus>, words: &str) -> Lost {
    if words.contains("memory allocation of") {
        return Lost::Ended(TemplateLimit::Memory);
    }
    if words.contains("has overflowed its stack") {
        return Lost::Ended(TemplateLimit::Stack);
    }
    // As a system does that is short of memory: the worker ends itself by another signal.
    if status.and_then(|status| status.signal()) == Some(libc::SIGKILL) {
        return Lost::Killed;
    }
    let status = status.map_or_else(|| "unknown status".to_owned(), |status| status.to_string());
    Lost::Ended(TemplateLimit::Crash(match words.trim() {
        "" => status,
        words => format!("{status}: {words}"),
    }))
}

/// Sends frames and brings back two for each, until a pipe or a channel breaks.
fn talk(
    mut stdin: ChildStdin,
    stdout: ChildStdout,
    frames: &Receiver<Arc<Vec<u8>>>,
    replies: &Sender<io::Result<Vec<u8>>>,
) {
    let mut stdout = BufReader::new(stdout);
    let mut next = || read_frame(&mut stdout)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into());
    for frame in frames {
        let sent = write_frame(&mut stdin, &frame);
        drop(frame);
        let both = [sent.and_then(|()| next()), next()];
        for reply in both {
            if replies.send(reply).is_err() {
                return;
            }
        }
    }
}
