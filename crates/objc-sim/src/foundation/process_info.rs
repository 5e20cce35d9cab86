//! `NSProcessInfo`: which system this is, and whether the process is at work.

use objc2::rc::Retained;
use objc2::runtime::NSObject;
use objc2::{AnyThread, define_class, msg_send};
use objc2_foundation::NSActivityOptions;

use super::Text;
use super::activity::Activity;
use crate::runtime::{pool_depth, violation};

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "NSProcessInfo"]
    #[ivars = ()]
    pub(crate) struct ProcessInfo;

    impl ProcessInfo {
        // In Foundation it is one for ever, which the count of what is alive would show.
        #[unsafe(method_id(processInfo))]
        fn process_info() -> Retained<Self> {
            // SAFETY: NSObject's init takes nothing.
            unsafe { msg_send![super(Self::alloc().set_ivars(())), init] }
        }

        #[unsafe(method_id(operatingSystemVersionString))]
        fn version(&self) -> Retained<Text> {
            Text::new("Version 15.0 (simulated)")
        }

        #[unsafe(method_id(beginActivityWithOptions:reason:))]
        fn begin_activity(&self, options: NSActivityOptions, reason: &Text) -> Retained<Activity> {
            if reason.as_str().is_empty() {
                violation("beginActivityWithOptions:reason: an activity must have a reason");
            }
            if !options.contains(NSActivityOptions::UserInitiated) {
                violation(format!("{options:?}: the Mac goes to sleep nevertheless"));
            }
            Activity::begin()
        }

        #[unsafe(method(endActivity:))]
        fn end_activity(&self, activity: &Activity) {
            if pool_depth() == 0 {
                violation("endActivity: with no autorelease pool in place: what it autoreleases leaks");
            }
            activity.end();
        }
    }
);
