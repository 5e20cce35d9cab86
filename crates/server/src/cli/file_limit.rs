//! The system's limits of files: of how many are open, which every connection counts towards, and of how large they are. Knows numbers, not what the
//! files are.

use std::mem::MaybeUninit;

/// Files that a server has open besides its connections and what it had open before it listened: pipes of the runtime and of the processes
/// that render templates, a library that is compiled, a question of the system. They are kept for it.
const SPARE: u64 = 32;
/// Even a server with next to no files answers somebody.
const MIN_CONNECTIONS: u64 = 4;

/// Most files that macOS lets a process have open without asking for more in another way (its `OPEN_MAX`); it refuses a soft limit above.
const MACOS_OPEN_MAX: libc::rlim_t = 10_240;

/// Makes an error of writing more to a file than the process may (`ulimit -f`), which else ends it.
pub fn let_large_files_fail() {
    // SAFETY: no handler runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Raises the soft limit to the hard one, as far as the system allows. Returns what results.
pub fn raise() -> u64 {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: fills `limit` if it returns 0.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()) } != 0 {
        return u64::MAX;
    }
    // SAFETY: it has been filled.
    let limit = unsafe { limit.assume_init() };
    let most = if cfg!(target_os = "macos") { limit.rlim_max.min(MACOS_OPEN_MAX) } else { limit.rlim_max };
    let raised = libc::rlimit { rlim_cur: most, ..limit };
    // SAFETY: only reads `raised`.
    let is_raised = most > limit.rlim_cur && unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } == 0;
    if is_raised { most } else { limit.rlim_cur }
}

/// How many connections may be open under this limit.
pub fn connections(limit: u64) -> usize {
    usize::try_from(limit.saturating_sub(num_open() + SPARE).max(MIN_CONNECTIONS)).unwrap_or(usize::MAX)
}

/// Files that this process has open.
fn num_open() -> u64 {
    // Each is an entry. One is the directory itself.
    std::fs::read_dir("/dev/fd").map_or(0, Iterator::count) as u64
}

/// What to say if under this limit there cannot be as many connections as requests.
pub fn warning(limit: u64, max_num_seqs: usize, max_waiting: usize) -> Option<String> {
    let open = num_open();
    let requests = max_num_seqs.saturating_add(max_waiting) as u64;
    let needed = requests.saturating_add(open + SPARE);
    (limit < needed).then(|| {
        let connections = limit.saturating_sub(open + SPARE);
        format!(
            "the limit of open files is {limit}: about {connections} connections can be open, but --max-num-seqs and --max-waiting \
             accept {requests} requests; clients beyond wait until others leave: start with a higher limit (ulimit -n {needed}) or \
             lower --max-waiting"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limit_that_is_too_low_is_told() {
        assert_eq!(warning(1 << 20, 64, 1024), None);
        assert_eq!(warning(u64::MAX, usize::MAX, 0), None);
        let message = warning(256, 64, 1024).unwrap();
        for word in ["256", "1088 requests", "(ulimit -n 11", "--max-waiting"] {
            assert!(message.contains(word), "{message}");
        }
        assert_eq!((connections(10), connections(u64::MAX) > 1 << 20), (MIN_CONNECTIONS as usize, true));
        assert!(connections(256) < 256 - SPARE as usize);
        assert!(warning(10, 1, 0).unwrap().contains("about 0 connections"));
        assert!(raise() > SPARE, "of this process, which is raised for good");
    }
}
