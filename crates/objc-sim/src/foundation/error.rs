//! `NSError`.

use objc2::rc::Retained;
use objc2::runtime::NSObject;
use objc2::{AnyThread, DefinedClass, define_class, msg_send};

use super::Text;

pub(crate) struct Content {
    domain: Retained<Text>,
    code: isize,
    description: Retained<Text>,
}

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "NSError"]
    #[ivars = Content]
    pub(crate) struct Error;

    impl Error {
        #[unsafe(method_id(domain))]
        fn domain(&self) -> Retained<Text> {
            self.ivars().domain.clone()
        }

        #[unsafe(method(code))]
        fn code(&self) -> isize {
            self.ivars().code
        }

        #[unsafe(method_id(localizedDescription))]
        fn description(&self) -> Retained<Text> {
            self.ivars().description.clone()
        }
    }
);

impl Error {
    pub fn new(domain: &str, code: isize, description: &str) -> Retained<Self> {
        let content = Content { domain: Text::new(domain), code, description: Text::new(description) };
        // SAFETY: NSObject's init takes nothing.
        unsafe { msg_send![super(Self::alloc().set_ivars(content)), init] }
    }

    /// Into an out-parameter, autoreleased, as all errors are returned.
    pub fn put(place: *mut *mut Self, domain: &str, code: isize, description: &str) {
        // SAFETY: out-parameters are null or can be written to.
        if let Some(place) = unsafe { place.as_mut() } {
            *place = Retained::autorelease_ptr(Self::new(domain, code, description));
        }
    }
}
