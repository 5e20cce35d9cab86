//! Integer divisions that a processor stops at: by zero, which Metal leaves undefined, and of the least number by -1. In LLVM's text
//! each division whose divisor is not a constant becomes a call of a function that divides by one there, and in checked libraries
//! says so to the host if it was zero. It knows LLVM's spelling, nothing of Metal.

use super::Instrument;
use super::llvm::{self, Operation, splat, vector};
use std::collections::BTreeSet;
use std::fmt::Write;

const OPERATIONS: [&str; 4] = ["sdiv", "srem", "udiv", "urem"];

/// The functions that rewritten lines call: an operation, a number of elements, and bits of each.
#[derive(Default)]
pub(super) struct Functions(BTreeSet<(&'static str, usize, u32)>);

impl Functions {
    /// The line with its division as a call; none if it has none, or one that goes well.
    pub fn rewrite(&mut self, line: &str) -> Option<String> {
        let operation = Operation::read(line, &OPERATIONS)?;
        let (n, bits) = integers(operation.kind)?;
        if operation.right.parse::<i64>().is_ok_and(|divisor| divisor > 0) {
            return None;
        }
        let known = OPERATIONS.into_iter().find(|known| *known == operation.name)?;
        self.0.insert((known, n, bits));
        Some(operation.call(&name(known, n, bits)))
    }

    /// The definitions of the functions.
    pub fn definitions(&self, instrument: Instrument) -> String {
        let mut out = String::new();
        for &(operation, n, bits) in &self.0 {
            out += &definition(operation, n, bits, instrument == Instrument::Accesses);
        }
        if instrument == Instrument::Accesses && !self.0.is_empty() {
            out += "declare hidden void @msl_division_by_zero()\n";
        }
        out
    }
}

fn definition(operation: &str, n: usize, bits: u32, reports: bool) -> String {
    let element = format!("i{bits}");
    let all = |value| splat(n, &element, value);
    let (kind, bit) = (vector(n, &element), vector(n, "i1"));
    let mut out =
        format!("define internal {kind} @{}({kind} %a, {kind} %b) alwaysinline {{\n", name(operation, n, bits));
    let mut line = |text: String| writeln!(out, "  {text}").expect("writing to a string");
    line(format!("%zero = icmp eq {kind} %b, {}", all(0)));
    if reports {
        let any = match n {
            1 => "%zero".to_owned(),
            _ => {
                line(format!("%any = call i1 @llvm.vector.reduce.or.v{n}i1({bit} %zero)"));
                "%any".to_owned()
            }
        };
        line(format!("br i1 {any}, label %report, label %divide\nreport:"));
        line("call void @msl_division_by_zero()".to_owned());
        line("br label %divide\ndivide:".to_owned());
    }
    let unsafe_bits = if operation.starts_with('s') {
        line(format!("%least = icmp eq {kind} %a, {}", all(i64::MIN >> (64 - bits))));
        line(format!("%negates = icmp eq {kind} %b, {}", all(-1)));
        line(format!("%overflows = and {bit} %least, %negates"));
        line(format!("%wrong = or {bit} %zero, %overflows"));
        "%wrong"
    } else {
        "%zero"
    };
    line(format!("%divisor = select {bit} {unsafe_bits}, {kind} {}, {kind} %b", all(1)));
    line(format!("%r = {operation} {kind} %a, %divisor"));
    line(format!("ret {kind} %r\n}}"));
    out
}

fn name(operation: &str, n: usize, bits: u32) -> String {
    format!("msl_{operation}_{n}_i{bits}")
}

/// How many integers a type has, and how many bits each.
fn integers(kind: &str) -> Option<(usize, u32)> {
    let (n, element) = llvm::elements(kind)?;
    Some((n, element.strip_prefix('i')?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_become_calls() {
        let mut functions = Functions::default();
        for (line, expected) in [
            ("%1 = udiv i32 %a, %b, !dbg !7", Some("%1 = call i32 @msl_udiv_1_i32(i32 %a, i32 %b), !dbg !7")),
            ("%1 = sdiv exact i64 %a, -1", Some("%1 = call i64 @msl_sdiv_1_i64(i64 %a, i64 -1)")),
            (
                "%1 = urem <2 x i16> %a, <i16 1, i16 0>",
                Some("%1 = call <2 x i16> @msl_urem_2_i16(<2 x i16> %a, <2 x i16> <i16 1, i16 0>)"),
            ),
            (
                "%1 = srem <2 x i32> <i32 1, i32 2>, %b",
                Some("%1 = call <2 x i32> @msl_srem_2_i32(<2 x i32> <i32 1, i32 2>, <2 x i32> %b)"),
            ),
            ("%1 = udiv i32 %a, 32", None),
            ("%1 = fdiv float %a, %b", None),
            ("ret void", None),
        ] {
            assert_eq!(functions.rewrite(line).as_deref(), expected);
        }
        assert_eq!(functions.definitions(Instrument::None).matches("define").count(), 4);
    }
}
