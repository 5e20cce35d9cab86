//! `NSURL`, of files.

use std::path::Path;

use objc2::rc::Retained;
use objc2::runtime::NSObject;
use objc2::{AnyThread, DefinedClass, define_class, msg_send};

use super::Text;

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "NSURL"]
    #[ivars = String]
    pub(crate) struct Url;

    impl Url {
        #[unsafe(method_id(fileURLWithPath:))]
        fn file(path: &Text) -> Retained<Self> {
            // SAFETY: NSObject's init takes nothing.
            unsafe { msg_send![super(Self::alloc().set_ivars(path.as_str().to_owned())), init] }
        }
    }
);

impl Url {
    pub fn path(&self) -> &Path {
        Path::new(self.ivars())
    }
}
