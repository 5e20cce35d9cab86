//! `NSProcessInfo`: which system this is.

use objc2::rc::Retained;
use objc2::runtime::NSObject;
use objc2::{AnyThread, define_class, msg_send};

use super::Text;

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
    }
);
