//! Arithmetic on bfloat, which few processors have: code generation would call a function for each rounding, one element at a
//! time. In LLVM's text each operation becomes the same in f32 and a rounding in integers, which vectors do at once. The results
//! are the same bit for bit. It knows IEEE 754 and LLVM's spelling, nothing of Metal.

use super::llvm::{self, Operation, splat, split_metadata, vector};
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
        if let Some((result, rest)) = line.split_once(" = fptrunc ") {
            let (operands, metadata) = split_metadata(rest);
            let (operand, to) = operands.rsplit_once(" to ")?;
            let count = elements(to)?;
            self.0.insert(("round", count));
            return Some(format!("{result} = call {to} @{}({operand}){metadata}", name("round", count)));
        }
        let operation = Operation::read(line, &OPERATIONS)?;
        let count = elements(operation.kind)?;
        let known = OPERATIONS.into_iter().find(|known| *known == operation.name)?;
        self.0.extend([("round", count), (known, count)]);
        Some(operation.call(&name(known, count)))
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
    let all = |value| splat(n, "i32", value);
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

/// How many elements a type has, if they are bfloats.
fn elements(kind: &str) -> Option<usize> {
    llvm::elements(kind).and_then(|(n, element)| (element == "bfloat").then_some(n))
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
