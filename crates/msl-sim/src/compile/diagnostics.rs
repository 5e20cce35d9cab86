//! Reads clang's messages as lints, in Metal's words. What it says of a shim header is placed where the kernel led there.

use super::lint::{Lint, Severity};

/// The lints in clang's standard error.
pub(super) fn read(stderr: &str, shim: &std::path::Path) -> Vec<Lint> {
    let shim = shim.to_string_lossy();
    let mut lints: Vec<Lint> = Vec::new();
    // Whether the last lint still points into the shim.
    let mut displaced = false;
    for line in stderr.lines() {
        let Some((file, number, column, kind, message)) = parse(line) else { continue };
        let ours = file.starts_with(&*shim) || file.starts_with('<');
        match kind {
            "note" => {
                let Some(last) = lints.last_mut() else { continue };
                if message.starts_with("candidate") && !last.message.contains("candidate") {
                    last.message += &format!("; {}", in_metal(message));
                }
                if displaced && !ours {
                    (last.file, last.line, last.column) = (file.to_owned(), number, column);
                    displaced = false;
                }
            }
            _ => {
                let severity = if kind == "warning" { Severity::Warning } else { Severity::Error };
                lints.push(Lint { file: file.to_owned(), line: number, column, severity, message: in_metal(message) });
                displaced = ours;
            }
        }
    }
    lints
}

/// `file:line:column: kind: message`.
fn parse(line: &str) -> Option<(&str, u32, u32, &str, &str)> {
    for kind in ["error", "fatal error", "warning", "note"] {
        let Some((place, message)) = line.split_once(&format!(": {kind}: ")) else { continue };
        let mut parts = place.rsplitn(3, ':');
        let column = parts.next()?.parse().ok()?;
        let number = parts.next()?.parse().ok()?;
        return Some((parts.next()?, number, column, kind, message));
    }
    None
}

/// A type that clang describes, `'uint[4]' (aka 'unsigned int[4]')`, as Metal spells it.
pub(crate) fn type_name(described: &str) -> String {
    let name = described.strip_prefix('\'').and_then(|rest| rest.split('\'').next()).unwrap_or(described);
    let name = name.strip_suffix(" const").unwrap_or(name);
    let name = in_metal(name).replace("MSL_IN_CONSTANT const ", "constant ");
    name.replace("MSL_IN_DEVICE ", "device ").replace("MSL_IN_THREADGROUP ", "threadgroup ")
}

/// Types as Metal spells them.
fn in_metal(message: &str) -> String {
    let mut text = message.to_owned();
    for (space, number) in [("device", 1), ("constant", 2), ("threadgroup", 3)] {
        text = text.replace(&format!("__attribute__((address_space({number})))"), space);
    }
    for (metal, clang) in [("half", "_Float16"), ("bfloat", "__bf16"), ("constant ", "const constant ")] {
        text = text.replace(clang, metal);
    }
    for name in ["char", "short", "int", "long"] {
        text = text.replace(&format!("unsigned {name}"), &format!("u{name}"));
    }
    for n in 2..=4 {
        text = text.replace(&format!(" __attribute__((ext_vector_type({n})))"), &n.to_string());
    }
    for element in ["float", "half", "bfloat", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong"] {
        for n in 2..=4 {
            let name = format!("{element}{n}");
            text = text.replace(&format!("vec<{element}, {n}>"), &name).replace(&format!(" (aka '{name}')"), "");
        }
    }
    for (number, space) in ["thread", "device", "constant", "threadgroup"].iter().enumerate() {
        for spelling in [format!("address space {number}"), format!("address space '{number}'")] {
            text = text.replace(&spelling, &format!("{space} address space"));
        }
    }
    text.replace("default address space", "thread address space")
        .replace("::msl::make", "conversion")
        .replace("metal::", "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn an_error_in_the_shim_is_placed_at_the_call() {
        let stderr = "/c/shim-1/msl_math.h:3:4: error: half _Float16\nx.metal:7:9: note: in instantiation\n\
                      y.metal:1:2: error: 'const __attribute__((address_space(2))) float __attribute__((ext_vector_type(4))) *'\n";
        let lints = read(stderr, Path::new("/c/shim-1"));
        assert_eq!((&*lints[0].file, lints[0].line, lints[0].column), ("x.metal", 7, 9));
        assert_eq!(lints[1].to_string(), "y.metal:1:2: error: 'constant float4 *'");
    }
}
