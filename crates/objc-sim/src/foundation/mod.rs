//! Foundation, as far as gpu/apple uses it. It knows nothing of Metal.

mod activity;
mod array;
mod error;
mod process_info;
mod string;
mod url;

use objc2::ClassType;

pub(crate) use array::Array;
pub(crate) use error::Error;
pub(crate) use string::Text;
pub(crate) use url::Url;

/// Fills in the classes.
pub(crate) fn load() {
    Text::class();
    Array::class();
    Error::class();
    Url::class();
    process_info::ProcessInfo::class();
}

/// What a method is to return, where it returns nothing but says why.
pub(crate) fn say<T>(result: Result<T, String>, domain: &str, code: isize, error: *mut *mut Error) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(words) => {
            Error::put(error, domain, code, &words);
            None
        }
    }
}
