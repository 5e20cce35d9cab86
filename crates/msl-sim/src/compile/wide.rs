//! Announces the accesses that clang's instrumentation passes over: those that are not 1, 2, 4, 8 or 16 bytes wide. It reads
//! optimised LLVM text, in which each access is what the processor will be asked for, and knows nothing of Metal.

use super::error::CompileError;
use std::collections::HashSet;
use std::fmt::Write;

/// Widths in bytes that clang has a function for.
const INSTRUMENTED: [usize; 5] = [1, 2, 4, 8, 16];

/// The module with a call of `msl_access` (in hooks.cpp) before each such access of an instrumented function.
pub(super) fn announce(module: &str) -> Result<String, CompileError> {
    let groups: HashSet<&str> = module.lines().filter_map(instrumented_group).collect();
    let mut out = String::with_capacity(module.len());
    let mut instrumented = false;
    for line in module.lines() {
        if line.starts_with("define ") {
            instrumented = line.split(' ').any(|word| groups.contains(word));
        } else if instrumented && let Some(access) = Access::read(line)? {
            access.write(&mut out);
        }
        out.push_str(line);
        out.push('\n');
    }
    out.push_str("declare hidden void @msl_access(ptr, i64, i32)\n");
    Ok(out)
}

/// The name of an attribute group that has functions instrumented.
fn instrumented_group(line: &str) -> Option<&str> {
    let (name, attributes) = line.strip_prefix("attributes ")?.split_once(" = ")?;
    attributes.contains(" sanitize_thread ").then_some(name)
}

/// A load or a store of a width that clang has no function for.
struct Access<'a> {
    pointer: &'a str,
    size: usize,
    /// `MSL_READ` or `MSL_WRITE`, and `MSL_PACKED`.
    kind: u32,
    debug: Option<&'a str>,
}

impl<'a> Access<'a> {
    fn read(line: &'a str) -> Result<Option<Self>, CompileError> {
        let code = line.trim_start();
        let (stores, operands) = match (code.strip_prefix("store "), code.split_once(" = load ")) {
            (Some(operands), _) => (true, operands),
            (None, Some((_, operands))) => (false, operands),
            (None, None) => return Ok(None),
        };
        let operands = operands.strip_prefix("volatile ").unwrap_or(operands);
        // A constant address is the library's own; atomics have functions in all their widths.
        let Some((value, place)) = operands.rsplit_once(", ptr %").filter(|_| !operands.starts_with("atomic ")) else {
            return Ok(None);
        };
        let width = width(value).ok_or_else(|| CompileError::Clang {
            stage: "instrumenting accesses",
            output: format!("an access of a type that is not known here: {code}"),
        })?;
        if INSTRUMENTED.contains(&width) {
            return Ok(None);
        }
        let pointer = place.split(',').next().unwrap_or(place);
        let align = place.split_once(", align ").map_or("", |(_, rest)| rest.split(',').next().unwrap_or(rest));
        let packed = align.parse::<usize>().is_ok_and(|align| align < width || !width.is_power_of_two());
        let debug = place.split(", !").find(|part| part.starts_with("dbg !"));
        Ok(Some(Self { pointer, size: width, kind: u32::from(stores) | if packed { 4 } else { 0 }, debug }))
    }

    fn write(&self, out: &mut String) {
        let Self { pointer, size, kind, debug } = self;
        let debug = debug.map_or(String::new(), |debug| format!(", !{debug}"));
        writeln!(out, "  call void @msl_access(ptr %{pointer}, i64 {size}, i32 {kind}){debug}")
            .expect("writing to a string");
    }
}

/// Bytes of the type that a text begins with; none if it is no integer, number, pointer, or vector or array of them.
fn width(text: &str) -> Option<usize> {
    bits(text).map(|(bits, _)| bits.div_ceil(8))
}

/// Bits of the type that a text begins with, and what follows it.
fn bits(text: &str) -> Option<(usize, &str)> {
    let vector = text.strip_prefix('<').map(|inner| (inner, '>'));
    if let Some((inner, close)) = vector.or_else(|| text.strip_prefix('[').map(|inner| (inner, ']'))) {
        let (count, element) = inner.split_once(" x ")?;
        let (bits, rest) = bits(element)?;
        // Elements of an array begin at whole bytes.
        let bits = if close == ']' { bits.next_multiple_of(8) } else { bits };
        return Some((count.parse::<usize>().ok()? * bits, rest.strip_prefix(close)?));
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let bits = match name {
        "half" | "bfloat" => 16,
        "float" => 32,
        "double" | "ptr" => 64,
        _ => name.strip_prefix('i')?.parse().ok()?,
    };
    Some((bits, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_of_other_widths_are_announced() {
        let module = |access: &str| {
            format!("define void @f() #1 {{\n{access}\n}}\nattributes #1 = {{ nounwind sanitize_thread \"x\" }}\n")
        };
        for (access, expected) in [
            ("%3 = load <4 x i64>, ptr %2, align 32, !tbaa !5, !dbg !7", "ptr %2, i64 32, i32 0), !dbg !7"),
            ("store <4 x i64> %3, ptr %2, align 8", "ptr %2, i64 32, i32 5)"),
            ("%.sroa = load volatile i56, ptr %x.sroa, align 1, !dbg !12", "ptr %x.sroa, i64 7, i32 4), !dbg !12"),
            ("store [3 x i8] %3, ptr %2, align 1", "ptr %2, i64 3, i32 5)"),
        ] {
            let found = announce(&module(access)).unwrap();
            assert!(found.contains(&format!("  call void @msl_access({expected}\n{access}\n")), "{found}");
        }
        for access in [
            "%3 = load <4 x float>, ptr %2, align 16",
            "%3 = load i1, ptr %2, align 1",
            "store ptr null, ptr %2, align 8",
            "store <4 x i64> zeroinitializer, ptr @table, align 32",
            "store atomic i32 %3, ptr %2 monotonic, align 4",
        ] {
            assert!(!announce(&module(access)).unwrap().contains("call"), "{access}");
        }
        let elsewhere = module("%3 = load i56, ptr %2, align 1").replace(" sanitize_thread", "");
        assert!(!announce(&elsewhere).unwrap().contains("call"));
        assert!(announce(&module("store %struct.S %3, ptr %2, align 4")).is_err());
    }
}
