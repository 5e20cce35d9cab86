//! Keeps the Mac awake. It knows no command.

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2_foundation::{NSActivityOptions, NSProcessInfo, NSString};

/// Work that somebody waits for: while there is one, the system does not go to sleep by itself, however long nobody touches the Mac, nor does it
/// slow the process down as one that nobody looks at. A lid that is closed it does not outlast.
pub(super) struct Activity {
    process: Retained<NSProcessInfo>,
    token: Retained<ProtocolObject<dyn NSObjectProtocol>>,
}

impl Activity {
    pub fn begin() -> Self {
        autoreleasepool(|_| {
            let process = NSProcessInfo::processInfo();
            // What `pmset -g assertions` shows.
            let reason = NSString::from_str("vllm-apple computes");
            let token = process.beginActivityWithOptions_reason(NSActivityOptions::UserInitiated, &reason);
            Self { process, token }
        })
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        // SAFETY: what the same object has begun, and once.
        autoreleasepool(|_| unsafe { self.process.endActivity(&self.token) });
    }
}
