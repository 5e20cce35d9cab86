//! `NSString`.

use std::ffi::{CString, c_char, c_void};

use objc2::rc::{Allocated, Retained};
use objc2::runtime::{AnyObject, NSObject};
use objc2::{AnyThread, DefinedClass, define_class, msg_send};

use crate::runtime::{pool_depth, violation};

/// `NSUTF8StringEncoding`
const UTF8: i32 = 4;

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "NSString"]
    #[ivars = CString]
    pub(crate) struct Text;

    impl Text {
        #[unsafe(method_id(initWithBytes:length:encoding:))]
        fn init_with_bytes(this: Allocated<Self>, bytes: *const c_void, length: usize, encoding: i32) -> Retained<Self> {
            if encoding != UTF8 {
                violation(format!("-[NSString initWithBytes:length:encoding:]: encoding {encoding} is not simulated"));
            }
            // SAFETY: the method's contract.
            let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
            let text = std::str::from_utf8(bytes).expect("UTF-8");
            let text = CString::new(text).expect("gpu/apple has no strings with zeros");
            // SAFETY: NSObject's init takes nothing.
            unsafe { msg_send![super(this.set_ivars(text)), init] }
        }

        #[unsafe(method(UTF8String))]
        fn utf8(&self) -> *const c_char {
            // What it returns lives in an autoreleased object, if the string is not kept in that form.
            if pool_depth() == 0 {
                violation("-[NSString UTF8String] with no pool in place: it leaks");
            }
            self.ivars().as_ptr()
        }

        #[unsafe(method(lengthOfBytesUsingEncoding:))]
        fn bytes(&self, encoding: i32) -> usize {
            assert_eq!(encoding, UTF8);
            self.ivars().as_bytes().len()
        }

        #[unsafe(method(isEqual:))]
        fn is_equal(&self, other: Option<&AnyObject>) -> bool {
            other.and_then(|other| other.downcast_ref::<Self>()).is_some_and(|other| other.ivars() == self.ivars())
        }

        #[unsafe(method(isKindOfClass:))]
        fn is_kind_of(&self, class: &objc2::runtime::AnyClass) -> bool {
            class.name() == c"NSString"
        }
    }
);

impl Text {
    pub fn new(text: &str) -> Retained<Self> {
        let this = Self::alloc().set_ivars(CString::new(text.replace('\0', "")).expect("zeros are gone"));
        // SAFETY: NSObject's init takes nothing.
        unsafe { msg_send![super(this), init] }
    }

    pub fn as_str(&self) -> &str {
        self.ivars().to_str().expect("it was made of UTF-8")
    }
}
