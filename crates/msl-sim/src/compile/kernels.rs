//! Reads the signatures of kernels, and writes what the host needs to call them: a table of parameters for each kernel, and an
//! entry for each name. It knows Metal's attributes, and nothing of what a kernel's body does.

use super::declarations::{ADDRESS_SPACES, Scope, Walk};
use super::syntax::{Attribute, Syntax};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// What a thread may ask about itself; the names are also those of `msl::Builtin`.
const BUILTINS: [&str; 18] = [
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup_position_in_grid",
    "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "threadgroups_per_grid",
    "threads_per_grid",
    "grid_origin",
    "grid_size",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "threads_per_simdgroup",
    "thread_execution_width",
    "thread_index_in_quadgroup",
    "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup",
];

/// Of buffers, and of threadgroup arguments.
const LARGEST_INDEX: u32 = 30;

/// The kernels of a file.
#[derive(Default)]
pub(super) struct Kernels {
    /// The table of parameters of each kernel function, by name, and the constant that holds its
    /// `[[max_total_threads_per_threadgroup(n)]]`.
    tables: HashMap<String, (String, Option<String>)>,
    entries: Vec<Entry>,
    names: HashSet<String>,
    count: usize,
}

/// A kernel that the host can call.
struct Entry {
    /// As a C++ string literal.
    name: String,
    /// Where the kernel is declared, as a line marker: what is wrong with its parameters is said there.
    marker: String,
    function: String,
    table: String,
    /// The most threads in a threadgroup, as an expression; 0 if the kernel does not say.
    threads: String,
}

impl Kernels {
    /// The definition of `msl_entries`, which ends the file.
    pub fn entries(&self) -> String {
        let entry = |e: &Entry| {
            format!("{}\n::msl::Kernel<{}, {}>::entry({}, {}),\n", e.marker, e.function, e.table, e.name, e.threads)
        };
        let entries: String = self.entries.iter().map(entry).collect();
        format!(
            "# 1 \"entries\"\nstatic constexpr MslEntry __msl_entries[] = {{\n{entries}# 1 \"entries\"\n{{nullptr, nullptr, 0, 0, nullptr}}}};\n\
             const MslEntry* msl_entries(size_t* count) {{\n  *count = {};\n  return __msl_entries;\n}}\n",
            self.entries.len()
        )
    }
}

/// Whether a definition is a kernel's.
pub(super) fn is_kernel(syntax: &Syntax, statement: usize, brace: usize) -> bool {
    let range = statement..brace;
    syntax.words(range.clone()).into_iter().any(|i| syntax.text(i) == "kernel")
        || syntax.attributes_in(range).iter().any(|a| a.name == "kernel")
}

/// A declaration with `kernel` or `[[kernel]]`, which ends before `at`: a definition, or a template's instantiation.
pub(super) fn declaration(walk: &mut Walk, statement: usize, at: usize) {
    let syntax = &*walk.syntax;
    let result = syntax.past_attributes(at);
    let after_result = match syntax.text(result) {
        "decltype" => syntax.closing(result + 1) + 1,
        _ if syntax.text(result + 1) == "<" => syntax.past_angle(result + 1).unwrap_or(result + 1),
        _ => result + 1,
    };
    let name = syntax.past_attributes(after_result);
    if !syntax.is_identifier(name) {
        return;
    }
    if syntax.text(statement) == "template" && syntax.text(statement + 1) != "<" {
        instantiation(walk, statement, name);
    } else {
        definition(walk, statement, result, name);
    }
}

fn definition(walk: &mut Walk, statement: usize, result: usize, name: usize) {
    let syntax = &*walk.syntax;
    if syntax.text(name + 1) != "(" {
        return;
    }
    let close = syntax.closing(name + 1);
    let Some(brace) = (close..syntax.len()).find(|&i| matches!(syntax.text(i), "{" | ";")) else { return };
    if syntax.text(brace) == ";" {
        return;
    }
    if syntax.text(result) != "void" {
        walk.error(result, "a kernel returns void");
    }
    let rows = parameters(walk, name + 2..close);
    let syntax = &mut *walk.syntax;
    let (text, number) = (syntax.text(name).to_owned(), walk.kernels.count);
    walk.kernels.count += 1;
    let path = path(&walk.scopes);
    let table = format!("__msl_parameters_{number}");
    let mut after = format!(" static constexpr ::msl::Attribute {table}[] = {{{} {{nullptr, 0, 0}}}};", rows.concat());
    let attributes = syntax.attributes_in(statement..brace);
    let is_template = syntax.text(statement) == "template";
    let limit = attributes.iter().find(|a| a.name == "max_total_threads_per_threadgroup");
    let threads = limit.and_then(|a| a.argument.as_ref()).map(|limit| {
        // Of a template, it may depend on what the template is of.
        let header = if is_template { syntax.past_angle(statement + 1) } else { None }.unwrap_or(statement);
        let header = syntax.spelled(statement..header);
        after += &format!(" {header} static constexpr uint32_t __msl_threads_{number} = {limit};");
        format!("{path}__msl_threads_{number}")
    });
    if !is_template {
        let host_name = host_name(&attributes).unwrap_or_else(|| format!("\"{text}\""));
        after += &format!(" static constexpr auto __msl_kernel_{number} = &{text};");
        let function = format!("{path}__msl_kernel_{number}");
        add(walk, name, host_name, function, format!("{path}{table}"), threads.clone());
    }
    let syntax = &mut *walk.syntax;
    let end = syntax.closing(brace);
    if end < syntax.len() {
        syntax.token_mut(end).after = after;
    }
    walk.kernels.tables.insert(text, (format!("{path}{table}"), threads));
}

/// `template [[host_name("x")]] kernel void f<T>(…);`
fn instantiation(walk: &mut Walk, statement: usize, name: usize) {
    let syntax = &*walk.syntax;
    let text = syntax.text(name).to_owned();
    let Some((table, threads)) = walk.kernels.tables.get(&text).cloned() else {
        return walk.error(name, format!("no kernel template '{text}' before this instantiation"));
    };
    let arguments = if syntax.text(name + 1) == "<" { syntax.past_angle(name + 1) } else { None }.unwrap_or(name + 1);
    let function = syntax.spelled(name..arguments);
    // Without arguments that are spelled out, there is nothing to name it by.
    let threads = threads.filter(|_| arguments > name + 1);
    let threads = threads.map(|threads| threads + &syntax.spelled(name + 1..arguments));
    let Some(end) = (arguments..syntax.len()).find(|&i| syntax.text(i) == ";") else { return };
    let address = if syntax.text(arguments) == "(" {
        let types: Vec<String> = syntax
            .arguments(arguments + 1..syntax.closing(arguments))
            .into_iter()
            .map(|range| syntax.spelled(range))
            .collect();
        // The types choose among overloads; a parameter's name is left out by the cast.
        format!("::msl::address<void({})>(&{function})", types.join(", "))
    } else {
        format!("&{function}")
    };
    let host_name = host_name(&syntax.attributes_in(statement..end)).unwrap_or_else(|| format!("\"{text}\""));
    let number = walk.kernels.count;
    walk.kernels.count += 1;
    walk.syntax.token_mut(end).after = format!(" static constexpr auto __msl_kernel_{number} = {address};");
    let function = format!("{}__msl_kernel_{number}", path(&walk.scopes));
    add(walk, name, host_name, function, table, threads);
}

fn add(walk: &mut Walk, at: usize, name: String, function: String, table: String, threads: Option<String>) {
    if !walk.kernels.names.insert(name.clone()) {
        walk.error(at, format!("two kernels named {name}"));
    }
    let token = walk.syntax.token(at);
    let marker = format!("# {} \"{}\"", token.line, walk.syntax.tokens.files[token.file]);
    walk.kernels.entries.push(Entry {
        name,
        marker,
        function,
        table,
        threads: threads.unwrap_or_else(|| "0".to_owned()),
    });
}

fn host_name(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find(|a| a.name == "host_name").and_then(|a| a.argument.clone())
}

/// The open namespaces as a prefix.
fn path(scopes: &[Scope]) -> String {
    let mut path = "::".to_owned();
    for scope in scopes {
        if let Scope::Namespace(name) = scope
            && !name.is_empty()
        {
            path += name;
            path += "::";
        }
    }
    path
}

/// The rows of a kernel's table, one for each parameter.
fn parameters(walk: &mut Walk, range: Range<usize>) -> Vec<String> {
    let ranges = walk.syntax.arguments(range);
    let mut taken: HashSet<(&str, u32)> = HashSet::new();
    for range in &ranges {
        for attribute in walk.syntax.attributes_in(range.clone()) {
            let kind = if attribute.name == "buffer" { "buffer" } else { "threadgroup" };
            let index = attribute.argument.as_deref().and_then(|a| a.parse().ok());
            let (true, Some(index)) = (matches!(&*attribute.name, "buffer" | "threadgroup"), index) else { continue };
            let optional = walk.syntax.attributes_in(range.clone()).iter().any(|a| a.name == "function_constant");
            if !taken.insert((kind, index)) && !optional {
                walk.error(range.start, format!("[[{kind}({index})]] is taken by an earlier parameter"));
            }
            if index > LARGEST_INDEX {
                walk.error(range.start, format!("[[{kind}({index})]]: the largest index is {LARGEST_INDEX}"));
            }
        }
    }
    ranges.into_iter().map(|range| parameter(walk, range, &mut taken)).collect()
}

/// `{name, kind, index},` of one parameter.
fn parameter(walk: &mut Walk, range: Range<usize>, taken: &mut HashSet<(&str, u32)>) -> String {
    let syntax = &*walk.syntax;
    let mut words = syntax.words(range.clone());
    words.truncate(words.iter().position(|&i| syntax.text(i) == "=").unwrap_or(words.len()));
    let is = |word: &str| words.iter().any(|&i| syntax.text(i) == word);
    let memory = is("*") || is("&") || is("[");
    let space = ADDRESS_SPACES.into_iter().find(|space| is(space));
    words.truncate(words.iter().position(|&i| syntax.text(i) == "[").unwrap_or(words.len()));
    let last = words.last().copied().unwrap_or(range.start);
    let name = if syntax.is_identifier(last) { syntax.text(last).to_owned() } else { String::new() };
    let attributes = syntax.attributes_in(range.clone());
    let kind = if space == Some("threadgroup") { "threadgroup" } else { "buffer" };
    for attribute in &attributes {
        let argument = attribute.argument.clone().unwrap_or_default();
        match &*attribute.name {
            "buffer" => return format!("{{\"{name}\", MSL_BUFFER, {argument}}}, "),
            "threadgroup" => return format!("{{\"{name}\", MSL_THREADGROUP, {argument}}}, "),
            builtin if BUILTINS.contains(&builtin) => {
                return format!("{{\"{name}\", MSL_BUILTIN, (uint)::msl::Builtin::{builtin}}}, ");
            }
            "function_constant" | "maybe_unused" => {}
            other => {
                let message = format!("parameter '{name}': [[{other}]] is not supported");
                walk.error(range.start, message);
                return format!("{{\"{name}\", MSL_BUILTIN, 0}}, ");
            }
        }
    }
    if !memory {
        let message = format!("parameter '{name}' has no attribute such as [[thread_position_in_grid]]");
        walk.error(range.start, message);
        return format!("{{\"{name}\", MSL_BUILTIN, 0}}, ");
    }
    let index = (0..).find(|&i| taken.insert((kind, i))).expect("indices do not end");
    let message = format!("parameter '{name}' has no [[{kind}(n)]]: it gets {index}, the lowest index that is free");
    walk.warning(range.start, message);
    format!("{{\"{name}\", {}, {index}}}, ", if kind == "buffer" { "MSL_BUFFER" } else { "MSL_THREADGROUP" })
}
