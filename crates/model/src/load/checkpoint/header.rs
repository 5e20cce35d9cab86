//! Names that a safetensors header has twice: the format forbids them, and its library takes the last. It knows no tensors.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// The first name that the header `json` has for the second time.
pub(super) fn repeated_name(json: &[u8]) -> Option<String> {
    serde_json::from_slice::<Repeated>(json).ok()?.0
}

struct Repeated(Option<String>);

impl<'de> Deserialize<'de> for Repeated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Names)
    }
}

struct Names;

impl<'de> Visitor<'de> for Names {
    type Value = Repeated;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Repeated, A::Error> {
        let (mut seen, mut repeated) = (HashSet::new(), None);
        while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
            if !seen.contains(&name) {
                seen.insert(name);
            } else if repeated.is_none() {
                repeated = Some(name);
            }
        }
        Ok(Repeated(repeated))
    }
}
