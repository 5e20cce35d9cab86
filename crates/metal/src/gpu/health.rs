//! What failed commands say about a Metal device: whether it can be used again. It knows the error codes and no object of Metal.

use std::time::Duration;

use super::GpuError;

/// Timeouts in a row after which the device counts as lost: macOS itself soon revokes the access of a process that causes more. A step
/// is tried twice.
const TIMEOUTS: u32 = 4;

/// In the words of the watchdog that strikes while a display is on, "Impacting Interactivity
/// (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)", whose number is no [`code`] of its own.
const INTERACTIVITY: &str = "0000000e";

/// In the words for commands that were on the GPU, perhaps another program's, when the system had to end others there: "Discarded (victim of
/// GPU error/recovery) (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)".
const INNOCENT: &str = "InnocentVictim";

/// In the words for commands that the system did not run because it had to end others before: "Ignored (for causing prior/excessive GPU errors)
/// (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)". Their code is that of a revoked access, but later ones may run again.
const IGNORED: [&str; 2] = ["SubmissionsIgnored", "Ignored (for causing"];

/// In the words for commands whose memory did not fit beside what other programs use, "Insufficient Memory
/// (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)".
const NO_MEMORY: &str = "CallbackErrorOutOfMemory";

/// `MTLCommandBufferError`, as in Metal's header MTLCommandBuffer.h.
pub(crate) mod code {
    pub const TIMEOUT: isize = 2;
    pub const PAGE_FAULT: isize = 3;
    pub const ACCESS_REVOKED: isize = 4;
    pub const NOT_PERMITTED: isize = 7;
    pub const OUT_OF_MEMORY: isize = 8;
    pub const INVALID_RESOURCE: isize = 9;
    pub const DEVICE_REMOVED: isize = 11;
    pub const STACK_OVERFLOW: isize = 12;
}

/// The error of a command buffer.
pub(crate) struct Failure {
    pub domain: String,
    pub code: isize,
    /// The system's words.
    pub description: String,
    /// Whether `domain` is that of command buffers: only then [`code`] says what the number means.
    pub of_commands: bool,
}

impl Failure {
    /// Whether the system only looked away: on another queue, a while later, commands may run.
    pub fn is_ignored(&self) -> bool {
        IGNORED.iter().any(|words| self.description.contains(words))
    }

    /// Whether there was no memory for the commands: a while later, when others have given some back, there may be.
    pub fn is_want_of_memory(&self) -> bool {
        self.of_commands && self.code == code::OUT_OF_MEMORY || self.description.contains(NO_MEMORY)
    }
}

/// Whether a device may still be used.
#[derive(Debug, Default)]
pub(crate) struct Health {
    timeouts: u32,
    /// Commands were ignored, and none has run since.
    ignored: bool,
    /// There was no memory for the last commands, for the first time.
    starved: bool,
    lost: Option<String>,
}

impl Health {
    /// # Errors
    /// [`GpuError::Lost`], with the reason, once the device is lost: it stays so.
    pub fn check(&self) -> Result<(), GpuError> {
        self.lost.as_ref().map_or(Ok(()), |reason| Err(GpuError::Lost(reason.clone())))
    }

    /// Commands have run.
    pub fn completed(&mut self) {
        (self.timeouts, self.ignored, self.starved) = (0, false, false);
    }

    /// Commands have failed: the error to report.
    pub fn failed(&mut self, failure: &Failure) -> GpuError {
        let code = if failure.of_commands { failure.code } else { 0 };
        let too_long = code == code::TIMEOUT || failure.description.contains(INTERACTIVITY);
        let ignored = failure.is_ignored();
        let ignored_once = ignored && !std::mem::replace(&mut self.ignored, true);
        let is_want = failure.is_want_of_memory();
        let meaning = match () {
            () if ignored_once => None,
            () if too_long => meaning(code::TIMEOUT),
            () if is_want => meaning(code::OUT_OF_MEMORY),
            () => meaning(code),
        };
        let text = format!(
            "{}{} (domain {}, code {})",
            failure.description,
            meaning.map(|meaning| format!("; {meaning}")).unwrap_or_default(),
            failure.domain,
            failure.code
        );
        let innocent = failure.description.contains(INNOCENT);
        // Each step is tried twice, also where the one before found no memory.
        self.starved = is_want && !self.starved;
        self.timeouts = match (too_long, innocent || ignored || is_want) {
            (true, _) => self.timeouts + 1,
            // That says nothing of these commands.
            (false, true) => self.timeouts,
            (false, false) => 0,
        };
        match code {
            code::NOT_PERMITTED | code::DEVICE_REMOVED => self.lose(text),
            _ if ignored_once => GpuError::Discarded(text),
            _ if ignored || code == code::ACCESS_REVOKED => self.lose(text),
            _ if self.timeouts >= TIMEOUTS => self.lose(format!("{} timeouts in a row: {text}", self.timeouts)),
            _ if too_long => GpuError::TooLong(text),
            _ if innocent || self.starved => GpuError::Discarded(text),
            _ if is_want => GpuError::NoMemory(text),
            _ => GpuError::Commands(text),
        }
    }

    /// Commands have neither run nor failed for as long as anybody would wait.
    pub fn silent(&mut self, waited: Duration) -> GpuError {
        self.lose(format!("no answer to commands for {} s", waited.as_secs_f32()))
    }

    fn lose(&mut self, reason: String) -> GpuError {
        self.lost = Some(reason.clone());
        GpuError::Lost(reason)
    }
}

/// What to make of a code, where the system's own words do not say it.
fn meaning(code: isize) -> Option<&'static str> {
    Some(match code {
        code::TIMEOUT => "the step ran too long: use a smaller `max_num_batched_tokens`",
        code::PAGE_FAULT => "a kernel went beyond a buffer: please report this",
        code::ACCESS_REVOKED => "macOS no longer lets this process use the GPU: restart it",
        code::NOT_PERMITTED => "macOS does not let this process use the GPU",
        code::OUT_OF_MEMORY => "close other programs that use the GPU, or use a smaller `kv_cache_memory`",
        code::INVALID_RESOURCE => "a buffer was gone before its commands ran: please report this",
        code::STACK_OVERFLOW => "a kernel calls too deep: please report this",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: isize) -> Failure {
        Failure {
            domain: "MTLCommandBufferErrorDomain".to_owned(),
            code,
            description: "Caused GPU Error".to_owned(),
            of_commands: true,
        }
    }

    #[test]
    fn errors_keep_the_systems_words_and_number() {
        let error = Health::default().failed(&failure(code::OUT_OF_MEMORY)).to_string();
        for part in ["Caused GPU Error", "MTLCommandBufferErrorDomain", "code 8", "`kv_cache_memory`"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_failed_step_is_not_the_end_of_the_device() {
        let mut health = Health::default();
        for code in [0, 1, code::PAGE_FAULT, code::INVALID_RESOURCE, code::STACK_OVERFLOW] {
            assert!(matches!(health.failed(&failure(code)), GpuError::Commands(_)), "code {code}");
            assert_eq!(health.check(), Ok(()), "code {code}");
        }
    }

    #[test]
    fn a_device_that_is_gone_stays_lost() {
        for code in [code::ACCESS_REVOKED, code::NOT_PERMITTED, code::DEVICE_REMOVED] {
            let mut health = Health::default();
            let error = health.failed(&failure(code));
            assert!(matches!(error, GpuError::Lost(_)), "code {code}");
            assert_eq!(health.check(), Err(error), "code {code}");
        }
        let mut health = Health::default();
        let error = health.silent(Duration::from_secs(60));
        assert!(error.to_string().contains("60 s"), "{error}");
        assert_eq!(health.check(), Err(error));
    }

    #[test]
    fn timeouts_in_a_row_are_the_end() {
        let mut health = Health::default();
        let timeout = |health: &mut Health| matches!(health.failed(&failure(code::TIMEOUT)), GpuError::Lost(_));
        assert!(!timeout(&mut health));
        assert!(!timeout(&mut health));
        health.completed();
        assert!(!timeout(&mut health), "a step has run since");
        assert!(!timeout(&mut health));
        assert!(!timeout(&mut health));
        assert!(timeout(&mut health));
    }

    #[test]
    fn both_watchdogs_say_that_commands_ran_too_long() {
        let interactivity = Failure {
            code: 1,
            description: "Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)"
                .to_owned(),
            ..failure(1)
        };
        for failure in [failure(code::TIMEOUT), interactivity] {
            let error = Health::default().failed(&failure);
            assert!(matches!(&error, GpuError::TooLong(_)), "{error:?}");
            assert!(error.to_string().contains("`max_num_batched_tokens`"), "{error}");
        }
    }

    #[test]
    fn the_victims_of_others_are_known() {
        let victim = |code| Failure {
            description:
                "Discarded (victim of GPU error/recovery) (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)"
                    .to_owned(),
            ..failure(code)
        };
        let mut health = Health::default();
        for _ in 0..3 {
            assert!(matches!(health.failed(&failure(code::TIMEOUT)), GpuError::TooLong(_)));
        }
        assert!(matches!(health.failed(&victim(1)), GpuError::Discarded(_)));
        assert!(matches!(health.failed(&failure(code::TIMEOUT)), GpuError::Lost(_)), "nothing has run in between");
        let revoked = Health::default().failed(&victim(code::ACCESS_REVOKED));
        assert!(matches!(revoked, GpuError::Lost(_)), "what is revoked stays so: {revoked}");
    }

    #[test]
    fn what_is_ignored_once_is_tried_again_and_twice_is_the_end() {
        let ignored =
            |description: &str| Failure { description: description.to_owned(), ..failure(code::ACCESS_REVOKED) };
        let [short, long] = [
            "Ignored (for causing prior/excessive GPU errors)",
            "GPU error (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)",
        ]
        .map(ignored);
        let mut health = Health::default();
        assert!(matches!(health.failed(&short), GpuError::Discarded(_)));
        assert_eq!(health.check(), Ok(()));
        health.completed();
        let error = health.failed(&long);
        assert!(matches!(&error, GpuError::Discarded(reason) if !reason.contains("restart")), "steps ran: {error}");
        assert!(matches!(health.failed(&failure(code::TIMEOUT)), GpuError::TooLong(_)), "which did not run to its end");
        let error = health.failed(&short);
        assert!(matches!(&error, GpuError::Lost(reason) if reason.contains("restart")), "{error}");
        assert_eq!(health.check(), Err(error));
    }

    #[test]
    fn want_of_memory_is_tried_again_once_in_each_step_and_is_no_fault_of_the_device() {
        let by_words = Failure {
            of_commands: false,
            description: "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)".to_owned(),
            ..failure(1)
        };
        for want in [failure(code::OUT_OF_MEMORY), by_words] {
            let mut health = Health::default();
            for _ in 0..10 {
                assert!(matches!(health.failed(&want), GpuError::Discarded(_)));
                let error = health.failed(&want);
                assert!(matches!(&error, GpuError::NoMemory(_)), "{error:?}");
                assert!(error.to_string().contains("close other programs"), "{error}");
            }
            assert!(matches!(health.failed(&want), GpuError::Discarded(_)));
            health.completed();
            assert!(matches!(health.failed(&want), GpuError::Discarded(_)), "the second try has run");
            assert!(matches!(health.failed(&failure(code::PAGE_FAULT)), GpuError::Commands(_)));
            assert!(matches!(health.failed(&want), GpuError::Discarded(_)), "the second try failed of something else");
            assert_eq!(health.check(), Ok(()));
        }
        let mut health = Health::default();
        (0..3).for_each(|_| drop(health.failed(&failure(code::TIMEOUT))));
        drop(health.failed(&failure(code::OUT_OF_MEMORY)));
        assert!(matches!(health.failed(&failure(code::TIMEOUT)), GpuError::Lost(_)), "nothing has run in between");
    }

    #[test]
    fn the_codes_of_other_domains_mean_nothing() {
        let other = Failure { of_commands: false, ..failure(code::DEVICE_REMOVED) };
        assert!(matches!(Health::default().failed(&other), GpuError::Commands(_)));
    }
}
