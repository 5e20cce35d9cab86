//! Arithmetic on bfloat, which few processors have: code generation would call a function for each rounding, one element at a
//! time. In LLVM's text each operation becomes the same in f32 and a rounding in integers, which vectors do at once. The results
//! are the same bit for bit. It knows IEEE 754 and LLVM's spelling, nothing of Metal.

use std::collections::BTreeSet;
use std::fmt::Write;

/// The operations that round once.
const OPERATIONS: [&str; 4] = ["fadd", "fsub", "fmul", "fdiv"];

/// The functions that rewritten lines call: an operation, or `round`, and a number of elements.
#[derive(Default)]
pub(super) struct Functions(BTreeSet<(&'static str, usize)>);

impl Functions {
    /// The line with its operation on bfloat as a call; none if it has none.
    pub fn rewrite(&mut self, line: &str) -> Option<String> {
        let (result, rest) = line.split_once(" = ")?;
        let (operation, rest) = rest.split_once(' ')?;
        let (operands, metadata) = match rest.find(", !") {
            Some(end) => rest.split_at(end),
            None => (rest, ""),
        };
        if operation == "fptrunc" {
            let (operand, to) = operands.rsplit_once(" to ")?;
            let count = elements(to, "bfloat")?;
            self.0.insert(("round", count));
            return Some(format!("{result} = call {to} @{}({operand}){metadata}", name("round", count)));
        }
        let operation = OPERATIONS.iter().find(|o| **o == operation)?;
        let end = if operands.starts_with('<') { operands.find('>')? + 1 } else { operands.find(' ')? };
        let (kind, operands) = operands.split_at(end);
        let count = elements(kind, "bfloat")?;
        let (left, right) = at_comma(operands.trim_start())?;
        self.0.insert(("round", count));
        self.0.insert((operation, count));
        let name = name(operation, count);
        Some(format!("{result} = call {kind} @{name}({kind} {left}, {kind} {right}){metadata}"))
    }

    /// The definitions of the functions.
    pub fn definitions(&self) -> String {
        let mut out = String::new();
        for &(operation, n) in &self.0 {
            let (name, bfloat, float) = (name(operation, n), vector(n, "bfloat"), vector(n, "float"));
            if operation == "round" {
                out += &rounding(&name, n);
                continue;
            }
            let round = self::name("round", n);
            write!(
                out,
                "define internal {bfloat} @{name}({bfloat} %a, {bfloat} %b) alwaysinline {{\n  \
                 %x = fpext {bfloat} %a to {float}\n  %y = fpext {bfloat} %b to {float}\n  \
                 %z = {operation} {float} %x, %y\n  %r = call {bfloat} @{round}({float} %z)\n  ret {bfloat} %r\n}}\n"
            )
            .expect("writing to a string");
        }
        out
    }
}

/// To nearest, ties to even; a NaN keeps its upper bits and stays one.
fn rounding(name: &str, n: usize) -> String {
    let (bfloat, float, int, bit, short) =
        (vector(n, "bfloat"), vector(n, "float"), vector(n, "i32"), vector(n, "i1"), vector(n, "i16"));
    let all = |value: u32| match n {
        1 => value.to_string(),
        _ => format!("<{}>", vec![format!("i32 {value}"); n].join(", ")),
    };
    let (sixteen, one, half, quiet) = (all(16), all(1), all(0x7fff), all(0x40));
    format!(
        "define internal {bfloat} @{name}({float} %x) alwaysinline {{\n  \
         %bits = bitcast {float} %x to {int}\n  %upper = lshr {int} %bits, {sixteen}\n  %odd = and {int} %upper, {one}\n  \
         %more = add {int} %bits, {half}\n  %sum = add {int} %more, %odd\n  %rounded = lshr {int} %sum, {sixteen}\n  \
         %is_nan = fcmp uno {float} %x, %x\n  %nan = or {int} %upper, {quiet}\n  \
         %chosen = select {bit} %is_nan, {int} %nan, {int} %rounded\n  %short = trunc {int} %chosen to {short}\n  \
         %r = bitcast {short} %short to {bfloat}\n  ret {bfloat} %r\n}}\n"
    )
}

fn name(operation: &str, n: usize) -> String {
    format!("msl_bfloat_{operation}_{n}")
}

/// A type of `n` elements as LLVM spells it.
fn vector(n: usize, element: &str) -> String {
    if n == 1 { element.to_owned() } else { format!("<{n} x {element}>") }
}

/// How many elements a type has, if they are of a kind.
fn elements(kind: &str, element: &str) -> Option<usize> {
    if kind == element {
        return Some(1);
    }
    let (n, found) = kind.strip_prefix('<')?.strip_suffix('>')?.split_once(" x ")?;
    (found == element).then(|| n.parse().ok())?
}

/// Two operands at the comma between them, which is in no bracket.
fn at_comma(operands: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    for (i, c) in operands.char_indices() {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => return Some((&operands[..i], operands[i + 1..].trim_start())),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_become_calls() {
        let mut functions = Functions::default();
        for (line, expected) in [
            ("%1 = fadd bfloat %a, %b, !dbg !7", "%1 = call bfloat @msl_bfloat_fadd_1(bfloat %a, bfloat %b), !dbg !7"),
            (
                "%1 = fmul <2 x bfloat> <bfloat 0xR3F80, bfloat 0xR0000>, %b",
                "%1 = call <2 x bfloat> @msl_bfloat_fmul_2(<2 x bfloat> <bfloat 0xR3F80, bfloat 0xR0000>, <2 x bfloat> %b)",
            ),
            ("%1 = fptrunc float %x to bfloat", "%1 = call bfloat @msl_bfloat_round_1(float %x)"),
            (
                "%1 = fptrunc <4 x float> %x to <4 x bfloat>",
                "%1 = call <4 x bfloat> @msl_bfloat_round_4(<4 x float> %x)",
            ),
        ] {
            assert_eq!(functions.rewrite(line).as_deref(), Some(expected));
        }
        for line in ["%1 = fadd float %a, %b", "%1 = fptrunc float %a to half", "ret void"] {
            assert_eq!(functions.rewrite(line), None);
        }
        assert_eq!(functions.definitions().matches("define").count(), 5);
    }
}
