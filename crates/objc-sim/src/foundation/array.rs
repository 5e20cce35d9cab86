//! `NSArray`.

use objc2::rc::{Allocated, Retained};
use objc2::runtime::{AnyObject, NSObject};
use objc2::{DefinedClass, define_class, msg_send};

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "NSArray"]
    #[ivars = Vec<Retained<AnyObject>>]
    pub(crate) struct Array;

    impl Array {
        #[unsafe(method_id(initWithObjects:count:))]
        fn init_with(this: Allocated<Self>, objects: *mut std::ptr::NonNull<AnyObject>, count: usize) -> Retained<Self> {
            // SAFETY: the method's contract.
            let objects = unsafe { std::slice::from_raw_parts(objects, count) };
            // SAFETY: as above.
            let objects = objects.iter().map(|object| unsafe { Retained::retain(object.as_ptr()) }.expect("not null"));
            // SAFETY: NSObject's init takes nothing.
            unsafe { msg_send![super(this.set_ivars(objects.collect())), init] }
        }
    }
);

impl Array {
    pub fn objects(&self) -> &[Retained<AnyObject>] {
        self.ivars()
    }
}
