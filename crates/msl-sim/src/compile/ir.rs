//! Rewrites LLVM's intermediate language as text: address spaces, which have done their work once the types are checked, are
//! erased, because the pass that instruments accesses passes over all but the first; and initialisers of program scope wait
//! for `msl_bind`. Vectors compare to 0 and 1. Tests of indices that accesses make needless go. It knows how LLVM spells these
//! things, and nothing of Metal.

use super::{Instrument, bfloat, divide, index};
use std::collections::HashSet;
use std::fmt::Write;

/// The module that code is generated from.
pub(super) fn rewrite(module: &str, instrument: Instrument) -> String {
    let mut out = String::with_capacity(module.len());
    let mut declared = HashSet::new();
    let mut initialisers = Vec::new();
    let mut bfloat = bfloat::Functions::default();
    let mut divide = divide::Functions::default();
    let mut lines = module.lines();
    while let Some(line) = lines.next() {
        if index::is_needless(line, lines.clone()) {
            continue;
        }
        if let Some(list) = line.strip_prefix("@llvm.global_ctors") {
            initialisers.extend(list.split("ptr @").skip(1).filter_map(|part| name(part)));
            continue;
        }
        if line.starts_with("declare") && line.contains("@msl_initialise(") {
            continue;
        }
        let line = erase(line);
        if line.starts_with("declare") && !declared.insert(line.split(['@', '(']).nth(1).unwrap_or_default().to_owned())
        {
            continue;
        }
        if line.starts_with("define internal void @__cxx_global_var_init") || line.contains("@_GLOBAL__sub_I_") {
            out.push_str(&without_attributes(&line));
        } else {
            out.push_str(bfloat.rewrite(&line).or_else(|| divide.rewrite(&line)).as_ref().unwrap_or(&line));
        }
        out.push('\n');
    }
    out.push_str("define hidden void @msl_initialise() {\n");
    for name in initialisers {
        writeln!(out, "  call void @{name}()").expect("writing to a string");
    }
    out.push_str("  ret void\n}\n");
    out.push_str(&bfloat.definitions());
    out.push_str(&divide.definitions(instrument));
    out
}

/// A global's name at the start of a text, quoted or not.
fn name(text: &str) -> Option<&str> {
    match text.strip_prefix('"') {
        Some(rest) => rest.find('"').map(|end| &text[..end + 2]),
        None => text.split([',', ' ', ')', '(']).next(),
    }
}

/// A line without address spaces.
fn erase(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    // Text in quotes is a string's.
    while let Some(quote) = rest.find('"') {
        let end = rest[quote + 1..].find('"').map_or(rest.len(), |end| quote + end + 2);
        out.push_str(&erase_code(&rest[..quote]));
        out.push_str(&rest[quote..end]);
        rest = &rest[end..];
    }
    out.push_str(&erase_code(rest));
    out
}

fn erase_code(code: &str) -> String {
    if let Some((result, operand)) = code.split_once(" = sext <")
        && operand.contains(" x i1> ")
    {
        // A comparison of vectors: true is 1 in Metal, and -1 in clang.
        return format!("{result} = zext <{operand}");
    }
    if !code.contains("addrspace") && !code.contains("@llvm.") {
        return code.to_owned();
    }
    let mut code = code.replace("addrspacecast", "bitcast");
    for space in 1..=3 {
        code = code.replace(&format!(" addrspace({space})"), "");
    }
    let Some(start) = code.find("@llvm.") else { return code };
    // An intrinsic's name says the address spaces of its pointers.
    let end = code[start..].find('(').map_or(code.len(), |end| start + end);
    let mut name = code[start..end].to_owned();
    for space in 1..=3 {
        name = name.replace(&format!(".p{space}"), ".p0");
    }
    format!("{}{name}{}", &code[..start], &code[end..])
}

/// A function's first line without its attribute group: its accesses are no kernel's.
fn without_attributes(line: &str) -> String {
    let words = line.split(' ').filter(|word| !(word.starts_with('#') && word[1..].parse::<u32>().is_ok()));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_spaces_go_and_strings_stay() {
        let module = "@t = internal addrspace(2) constant [3 x i8] c\"ptr addrspace(1)\"\n\
            declare void @llvm.memcpy.p0.p1.i64(ptr, ptr addrspace(1), i64, i1)\n\
            declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n\
            %5 = addrspacecast ptr addrspace(1) %4 to ptr, !dbg !5\n\
            call void @llvm.memcpy.p3.p1.i64(ptr addrspace(3) %1, ptr addrspace(1) %2, i64 4, i1 false)\n";
        let out = rewrite(module, Instrument::None);
        let expected = "@t = internal constant [3 x i8] c\"ptr addrspace(1)\"\n\
            declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n\
            %5 = bitcast ptr %4 to ptr, !dbg !5\n\
            call void @llvm.memcpy.p0.p0.i64(ptr %1, ptr %2, i64 4, i1 false)\n\
            define hidden void @msl_initialise() {\n  ret void\n}\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn initialisers_wait_for_the_host() {
        let module = "@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr \
            @_GLOBAL__sub_I_x, ptr null }]\ndeclare void @msl_initialise() #4\n\
            define internal void @_GLOBAL__sub_I_x() #0 section \".text.startup\" {\n";
        let expected = "define internal void @_GLOBAL__sub_I_x() section \".text.startup\" {\n\
            define hidden void @msl_initialise() {\n  call void @_GLOBAL__sub_I_x()\n  ret void\n}\n";
        assert_eq!(rewrite(module, Instrument::None), expected);
    }
}
