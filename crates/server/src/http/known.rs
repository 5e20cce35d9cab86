//! Fields that endpoints ask for, by names and types, and how else a value of such a type may be spelled. Knows no request.

use std::any::TypeId;

/// A field that an endpoint asks for.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// JSON's name of its type, if it is a plain one.
    pub kind: Option<&'static str>,
}

impl Known {
    /// One that is read as this type.
    pub fn of<T: 'static>(name: &'static str) -> Self {
        let kinds = [
            (TypeId::of::<bool>(), "boolean"),
            (TypeId::of::<String>(), "string"),
            (TypeId::of::<f32>(), "number"),
            (TypeId::of::<f64>(), "number"),
            (TypeId::of::<i32>(), "integer"),
            (TypeId::of::<i64>(), "integer"),
            (TypeId::of::<u32>(), "integer"),
            (TypeId::of::<u64>(), "integer"),
            (TypeId::of::<usize>(), "integer"),
        ];
        let kind = kinds.iter().find(|(own, _)| *own == TypeId::of::<T>()).map(|(_, kind)| *kind);
        Self { name, kind }
    }

    /// A value of its type that is spelled otherwise. JSON knows one kind of number: 8.0 is 8. As in vLLM, a number or a switch may stand in a
    /// string, as forms of user interfaces send it.
    pub fn meant(self, raw: &str) -> Option<String> {
        // Longer than any number that says something.
        const LONG: usize = 64;
        let text = match self.kind {
            Some("integer" | "number" | "boolean") if raw.starts_with('"') && raw.len() <= LONG => {
                serde_json::from_str::<String>(raw).ok()?
            }
            _ => return whole_number(raw),
        };
        let text = text.trim();
        if self.kind == Some("boolean") {
            let word = text.to_ascii_lowercase();
            return ["true", "false"].contains(&&*word).then_some(word);
        }
        // Before its digits are lost as a fraction.
        if let Ok(whole) = text.parse::<i128>() {
            return Some(whole.to_string());
        }
        text.parse().ok().filter(|number: &f64| number.is_finite()).map(|number| number.to_string())
    }
}

/// The text of a whole number that is written as a fraction or with an exponent.
pub fn whole_number(raw: &str) -> Option<String> {
    // Beyond it, not every whole number is one.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let number: f64 = raw.parse().ok()?;
    (raw.contains(['.', 'e', 'E']) && number.fract() == 0.0 && number.abs() <= EXACT).then(|| format!("{number:.0}"))
}
