//! Numbers of schemas that llguidance computes with in 32 and 64 bits, or in floating point: what would come out as a weaker bound is refused. Knows
//! keywords of numbers, no grammar.

use serde_json::{Deserializer, Map, Number, Value};

use super::tree::{Tree, each_schema};

/// Most that all multiples may be together, their digits taken as whole numbers: each remainder is a state of 300 bytes and takes 10 us, and two
/// multiples are multiplied in 32 bits.
const MAX_MULTIPLE: u64 = 0xffff;

/// Most digits of it behind the point.
const MAX_DIGITS: u32 = 8;

/// Refuses numbers of a schema that it would not be held to.
pub fn check(schema: &mut Value) -> Result<(), String> {
    let (mut fault, mut multiples, mut are_joined) = (None, Vec::new(), false);
    each_schema(schema, &mut |fields| {
        if let Err(reason) = check_bounds(fields) {
            fault.get_or_insert(reason);
        }
        let multiple = fields.get("multipleOf").and_then(Value::as_number);
        match multiple.map(decimal) {
            None => {}
            Some(Some(decimal)) => multiples.push(decimal),
            Some(None) => {
                let multiple = multiple.map(Number::to_string).unwrap_or_default();
                let most = "digits as a whole number of at most 65535, at most 8 of them behind the point";
                fault.get_or_insert(format!("`multipleOf` of {multiple} cannot be followed: it may have {most}"));
            }
        }
        are_joined |= fields.contains_key("allOf")
            || multiple.is_some() && ["$ref", "anyOf", "oneOf"].iter().any(|name| fields.contains_key(*name));
        true
    });
    multiples.sort_unstable();
    multiples.dedup();
    match fault {
        Some(reason) => Err(reason),
        None if multiples.iter().map(|multiple| multiple.0).sum::<u64>() > MAX_MULTIPLE => {
            Err(format!("its numbers of `multipleOf` cannot be followed: their digits may add up to {MAX_MULTIPLE}"))
        }
        None if are_joined && !can_be_joined(&multiples) => {
            Err("the numbers of `multipleOf` have no common multiple that can be followed: write one of them"
                .to_owned())
        }
        None => Ok(()),
    }
}

/// The same of the schemas in a grammar of llguidance.
pub fn check_grammar(lark: &str) -> Result<(), String> {
    for (at, name) in lark.match_indices("%json") {
        let behind = &lark[at + name.len()..];
        // What is no JSON is no schema, or llguidance's to refuse.
        if let Some(Ok(Tree(mut schema))) = Deserializer::from_str(behind).into_iter::<Tree>().next() {
            check(&mut schema)?;
        }
    }
    Ok(())
}

/// Whole digits and how many of them stand behind the point.
fn decimal(number: &Number) -> Option<(u64, u32)> {
    let mut value = number.as_f64().filter(|value| *value >= 0.0)?;
    let mut digits = 0;
    // As llguidance does it.
    while value.fract() != 0.0 && digits <= MAX_DIGITS {
        value *= 10.0;
        digits += 1;
    }
    (value <= MAX_MULTIPLE as f64 && digits <= MAX_DIGITS).then_some((value as u64, digits))
}

/// Whether common multiples of any of them stay within 32 bits.
fn can_be_joined(multiples: &[(u64, u32)]) -> bool {
    let digits = multiples.iter().map(|multiple| multiple.1).max().unwrap_or(0);
    let (mut common, mut largest) = (1u64, 1);
    for &(value, own) in multiples {
        let value = (value * 10u64.pow(digits - own)).max(1);
        let divisor = greatest_common_divisor(common, value);
        (common, largest) = (common.saturating_mul(value / divisor), value.max(largest));
    }
    common.saturating_mul(largest) <= u64::from(u32::MAX)
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Whole numbers beyond 2^53 are rounded, and brought into 64 bits.
fn check_bounds(fields: &Map<String, Value>) -> Result<(), String> {
    for (name, is_least) in
        [("minimum", true), ("exclusiveMinimum", true), ("maximum", false), ("exclusiveMaximum", false)]
    {
        let Some(bound) = fields.get(name).and_then(Value::as_number) else { continue };
        let rounded = bound.as_f64().unwrap_or(f64::NAN);
        let whole = bound.as_i64().map(i128::from).or(bound.as_u64().map(i128::from));
        let exact = whole.unwrap_or(rounded as i128);
        let held = (rounded as i128).clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        if if is_least { held < exact } else { held > exact } {
            return Err(format!(
                "`{name}` of {bound} is beyond the whole numbers that can be compared with: bring it nearer to 0"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_that_would_be_weakened_are_refused() {
        for schema in [
            json!({"multipleOf": 0.01}),
            json!({"properties": {"multipleOf": {"multipleOf": 65534}, "a": {"multipleOf": 65534}, "b": {"multipleOf": 0.00000001}}}),
            json!({"const": {"multipleOf": 1e9}}),
            json!({"allOf": [{"multipleOf": 0.5}, {"multipleOf": 300}]}),
            json!({"properties": {"a": {"multipleOf": 0.001}, "b": {"multipleOf": 50000}}}),
            json!({"minimum": i64::MIN, "maximum": i64::MAX}),
            json!({"maximum": u64::MAX, "exclusiveMinimum": -1e300}),
            json!({"minimum": -9_007_199_254_740_992_i64}),
        ] {
            assert_eq!(check(&mut schema.clone()), Ok(()), "{schema}");
        }
        for schema in [
            json!({"multipleOf": 4294967291u64}),
            json!({"items": {"multipleOf": 65536}}),
            json!({"multipleOf": 1e-9}),
            json!({"multipleOf": 0.123456}),
            json!({"allOf": [{"multipleOf": 1021}, {"multipleOf": 1019}, {"multipleOf": 1013}]}),
            json!({"properties": {"a": {"multipleOf": 65521}, "b": {"multipleOf": 65519}}}),
            json!({"multipleOf": 50000, "anyOf": [{"multipleOf": 0.001}]}),
            json!({"minimum": 9_007_199_254_740_993_i64}),
            json!({"minimum": 1e19}),
            json!({"anyOf": [{"maximum": 9_007_199_254_740_995_i64}]}),
            json!({"maximum": -1e19}),
        ] {
            assert!(check(&mut schema.clone()).is_err(), "{schema}");
            assert!(check_grammar(&format!("start: \"%json\" %json {schema} \"x\"")).is_err(), "{schema}");
        }
    }
}
