//! Rewrites what Metal's expressions mean differently from C++'s: literals without a suffix are `float`, and vectors convert
//! element by element. It knows the names of types, not the types of expressions.

use super::syntax::Syntax;
use super::token::Kind;
use std::collections::HashSet;

/// Rewrites all expressions of a file.
pub(super) fn rewrite(syntax: &mut Syntax) {
    let names = type_names(syntax);
    for at in 0..syntax.len() {
        match syntax.token(at).kind {
            Kind::Number => {
                if let Some(literal) = float_literal(syntax.text(at)) {
                    syntax.token_mut(at).text = literal;
                }
            }
            Kind::Identifier if syntax.text(at) == "static_cast" => static_cast(syntax, at),
            Kind::Identifier if names.contains(syntax.text(at)) => constructor(syntax, at),
            Kind::Punctuation if syntax.text(at) == "(" => cast(syntax, at, &names),
            _ => {}
        }
    }
}

/// A floating-point literal as clang must read it; none for integers and for what is right already.
fn float_literal(text: &str) -> Option<String> {
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let is_float = if hexadecimal { text.contains(['p', 'P']) } else { text.contains(['.', 'e', 'E']) };
    let suffix = if hexadecimal { "" } else { text.trim_start_matches(|c: char| !c.is_ascii_alphabetic()) };
    let digits = |suffix: usize| {
        let digits = &text[..text.len() - suffix];
        if digits.contains(['.', 'e', 'E', 'p', 'P']) { format!("{digits}f") } else { format!("{digits}.f") }
    };
    match suffix.trim_start_matches(|c: char| c == 'e' || c == 'E' || c == '+' || c == '-' || c.is_ascii_digit()) {
        "h" | "H" => Some(format!("((half){})", digits(1))),
        "bf" | "BF" => Some(format!("((bfloat){})", digits(2))),
        "" if is_float && !text.ends_with(['f', 'F']) => Some(digits(0)),
        _ => None,
    }
}

/// Names that may be vectors: Metal's own, parameters of templates, and aliases.
fn type_names(syntax: &Syntax) -> HashSet<String> {
    let mut names: HashSet<String> = ["half", "bfloat", "vec"].map(str::to_owned).into();
    for element in ["float", "half", "bfloat", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong"] {
        names.extend((2..=4).map(|n| format!("{element}{n}")));
    }
    for at in 0..syntax.len() {
        let name = match syntax.text(at) {
            "typename" | "class" if matches!(syntax.previous(at), "<" | ",") => at + 1,
            "using" if syntax.text(at + 2) == "=" => at + 1,
            "typedef" => match (at..syntax.len()).find(|&i| syntax.text(i) == ";") {
                Some(end) if !(at..end).any(|i| matches!(syntax.text(i), "{" | "(")) => end - 1,
                _ => continue,
            },
            _ => continue,
        };
        if syntax.is_identifier(name) {
            names.insert(syntax.text(name).to_owned());
        }
    }
    names
}

/// One past the type name at `at`, with its template arguments.
fn past_type(syntax: &Syntax, at: usize) -> usize {
    if syntax.text(at + 1) == "<" { syntax.past_angle(at + 1).unwrap_or(at + 1) } else { at + 1 }
}

/// `float4(a, b)` becomes `msl::make<float4>(a, b)`.
fn constructor(syntax: &mut Syntax, at: usize) {
    let end = past_type(syntax, at);
    if syntax.text(end) != "(" || matches!(syntax.previous(at), "operator" | "." | "->" | "new") {
        return;
    }
    let close = syntax.closing(end);
    if syntax.previous(at) == "~" && close == end + 1 {
        return; // A destructor.
    }
    let declarator = matches!(syntax.text(end + 1), "*" | "&") && matches!(syntax.text(close + 1), "(" | "[");
    if declarator {
        return;
    }
    let start = match syntax.previous(at) {
        "::" if at >= 2 && syntax.text(at - 2) == "metal" => at - 2,
        "::" => return,
        _ => at,
    };
    syntax.token_mut(start).before.insert_str(0, "::msl::make<");
    syntax.token_mut(end - 1).after.push('>');
}

/// `(float4)x` becomes `msl::caster<float4>()->*x`.
fn cast(syntax: &mut Syntax, open: usize, names: &HashSet<String>) {
    let qualified = syntax.text(open + 1) == "metal" && syntax.text(open + 2) == "::";
    let name = if qualified { open + 3 } else { open + 1 };
    if !names.contains(syntax.text(name)) {
        return;
    }
    let close = past_type(syntax, name);
    if syntax.text(close) != ")" || !is_operand(syntax, close + 1) {
        return;
    }
    let previous = syntax.previous(open);
    let keyword = matches!(previous, "return" | "case" | "else" | "do");
    let call = !keyword && open > 0 && (syntax.is_identifier(open - 1) || matches!(previous, ")" | "]"));
    // `f<int>(T)` and `a > (T)x` differ in what follows; the former is a declaration.
    let named = syntax.is_identifier(close + 1) || syntax.token(close + 1).kind == Kind::Number;
    if call || (previous == ">" && !named) {
        return;
    }
    syntax.token_mut(open).text = "::msl::caster<".to_owned();
    syntax.token_mut(close).text = ">()->*".to_owned();
}

/// Whether an expression begins here, so that a parenthesised type before it is a cast.
fn is_operand(syntax: &Syntax, at: usize) -> bool {
    if at >= syntax.len() {
        return false;
    }
    match syntax.token(at).kind {
        Kind::Identifier => {
            !matches!(syntax.text(at), "const" | "noexcept" | "thread" | "device" | "constant" | "threadgroup")
        }
        Kind::Number | Kind::Literal => true,
        _ => matches!(syntax.text(at), "(" | "-" | "+" | "!" | "~" | "*" | "&" | "::"),
    }
}

/// `static_cast` to anything but a pointer or reference.
fn static_cast(syntax: &mut Syntax, at: usize) {
    let Some(end) = syntax.past_angle(at + 1) else { return };
    if !(at..end).any(|i| matches!(syntax.text(i), "*" | "&" | "&&")) {
        syntax.token_mut(at).text = "::msl::cast".to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::super::token::Tokens;
    use super::*;

    fn rewritten(text: &str) -> String {
        let mut syntax = Syntax::new(Tokens::read(text));
        rewrite(&mut syntax);
        syntax.spelled(0..syntax.len()).replace("::msl::", "").replace(' ', "")
    }

    #[test]
    fn literals_are_float_or_what_their_suffix_says() {
        for (metal, cpp) in [
            ("1.0", "1.0f"),
            (".5e-3", ".5e-3f"),
            ("1e3", "1e3f"),
            ("2.f", "2.f"),
            ("1.5h", "((half)1.5f)"),
            ("1h", "((half)1.f)"),
            ("1.0bf", "((bfloat)1.0f)"),
            ("0x1p-3", "0x1p-3f"),
            ("0x1f", "0x1f"),
            ("42u", "42u"),
            ("1e-6f", "1e-6f"),
        ] {
            assert_eq!(rewritten(metal), cpp);
        }
    }

    #[test]
    fn constructors_and_casts_of_vectors_convert() {
        for (metal, cpp) in [
            ("x = float4(h, 1);", "x=make<float4>(h,1);"),
            ("x = metal::float4(h);", "x=make<metal::float4>(h);"),
            ("x = ~int4(h);", "x=~make<int4>(h);"),
            ("x = vec<T, 4>(h);", "x=make<vec<T,4>>(h);"),
            ("x = (half4)h * 2;", "x=caster<half4>()->*h*2;"),
            ("x = -(half)y;", "x=-caster<half>()->*y;"),
            ("f(sizeof(half));", "f(sizeof(half));"),
            ("void f(half) {}", "voidf(half){}"),
            ("x = static_cast<half>(y);", "x=cast<half>(y);"),
            ("p = static_cast<device half*>(y);", "p=static_cast<devicehalf*>(y);"),
            ("template <typename T> T f(T x) { return T(x); }", "template<typenameT>Tf(Tx){returnmake<T>(x);}"),
        ] {
            assert_eq!(rewritten(metal), cpp);
        }
    }
}
