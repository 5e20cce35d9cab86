//! What only the lowered module shows: functions that call themselves, casts that leave an address space, and casts that read
//! a vector's bits. Reads LLVM's text and its debug information; it knows no tokens.

use super::clang::SHIM;
use super::lint::{Lint, Severity};
use std::collections::HashMap;
use std::path::Path;

/// Errors in a module, of which the shim is no part.
pub(super) fn check(module: &str) -> Vec<Lint> {
    let module = Module::read(module);
    let mut lints = module.recursions();
    let casts = module.casts().chain(module.reinterpretations());
    lints.extend(casts.filter(|lint| !Path::new(&lint.file).starts_with(SHIM)));
    lints
}

struct Function<'a> {
    name: &'a str,
    /// The number of its debug information.
    debug: Option<&'a str>,
    body: Vec<&'a str>,
}

struct Module<'a> {
    functions: Vec<Function<'a>>,
    /// `!7 = …` by `!7`.
    metadata: HashMap<&'a str, &'a str>,
}

impl<'a> Module<'a> {
    fn read(module: &'a str) -> Module<'a> {
        let (mut functions, mut metadata) = (Vec::<Function>::new(), HashMap::new());
        let mut inside = false;
        for line in module.lines() {
            if line.starts_with("define ") {
                let name = line.split('@').nth(1).and_then(symbol).unwrap_or_default();
                functions.push(Function { name, debug: reference(line, "!dbg "), body: Vec::new() });
                inside = true;
            } else if line == "}" {
                inside = false;
            } else if inside {
                functions.last_mut().expect("a body follows its head").body.push(line);
            } else if line.starts_with('!')
                && let Some((key, value)) = line.split_once(" = ")
            {
                metadata.insert(key, value);
            }
        }
        Module { functions, metadata }
    }

    /// Each group of functions that reach themselves, at the first one's line.
    fn recursions(&self) -> Vec<Lint> {
        let index: HashMap<&str, usize> = self.functions.iter().enumerate().map(|(i, f)| (f.name, i)).collect();
        let calls: Vec<Vec<usize>> = self
            .functions
            .iter()
            .map(|f| {
                f.body.iter().filter_map(|line| callee(line)).filter_map(|name| index.get(name).copied()).collect()
            })
            .collect();
        let groups = Groups::of(&calls);
        let mut lints = Vec::new();
        for mut group in groups {
            if group.len() == 1 && !calls[group[0]].contains(&group[0]) {
                continue;
            }
            group.sort_unstable();
            let names: Vec<&str> = group.iter().map(|&i| self.field(self.functions[i].debug, "name: \"")).collect();
            let first = self.functions[group[0]].debug;
            let message = format!("recursion, which Metal forbids: {} calls itself", names.join(", which calls "));
            lints.push(Lint { column: 0, ..self.lint(first, message) });
        }
        lints
    }

    /// Casts from one address space to another. Copying a struct out of memory makes one too, and nothing else of it.
    fn casts(&self) -> impl Iterator<Item = Lint> {
        self.functions.iter().flat_map(move |function| {
            let casts = function.body.iter().enumerate().filter(|(_, line)| line.contains(" addrspacecast ptr"));
            casts.filter_map(move |(at, line)| {
                let result = line.trim_start().split(' ').next()?;
                let copies = function.body[at + 1..].iter().take(16).any(|line| {
                    let uses = line.split([' ', ',', ')']).any(|word| word == result);
                    uses && (line.contains("@llvm.memcpy") || line.contains("CLgeneric"))
                });
                let message = "a cast between address spaces: a pointer keeps the address space that it was made in";
                (!copies).then(|| self.lint(reference(line, "!dbg "), message.to_owned()))
            })
        })
    }

    /// Where clang keeps a vector's bits and Metal does otherwise: casts to a vector of other elements under a name that the
    /// front end has not seen through, and a comparison of vectors that chooses with `?:` or is inverted with `~`.
    fn reinterpretations(&self) -> Vec<Lint> {
        let mut lints = Vec::<Lint>::new();
        for function in &self.functions {
            for (line, next) in function.body.iter().zip(function.body.iter().skip(1).chain([&""])) {
                let Some((result, value)) = line.trim_start().split_once(" = ") else { continue };
                let inverted = next.contains(" = xor <") && next.contains(&format!("> {result}, "));
                let message = if value.starts_with("sext <") && value.contains(" x i1> ") && inverted {
                    "a comparison of vectors chooses with select, and is inverted with !: Metal takes it neither in ?: nor in ~"
                } else if value.starts_with("bitcast <") && value.contains(" to <") {
                    "a cast from one vector type to another under a name that msl-sim does not know for a type: write it with \
                     the type's own name, or with as_type if its bits are meant"
                } else {
                    continue;
                };
                let lint = self.lint(
                    reference(next, "!dbg ").filter(|_| inverted).or(reference(line, "!dbg ")),
                    message.to_owned(),
                );
                // A choice is made of casts.
                if lints.last().is_none_or(|last| (last.line, last.column) != (lint.line, lint.column)) {
                    lints.push(lint);
                }
            }
        }
        lints
    }

    /// A lint at a location or a function of the debug information.
    fn lint(&self, debug: Option<&str>, message: String) -> Lint {
        let number = |field| self.field(debug, field).parse().unwrap_or(0);
        let (line, column) = (number("line: "), number("column: "));
        let mut scope = debug;
        // A location's file is that of the block or function that it lies in.
        while let Some(entry) = scope.and_then(|key| self.metadata.get(key)) {
            if let Some(file) = reference(entry, "file: ") {
                let file = self.field(Some(file), "filename: \"").to_owned();
                return Lint { file, line, column, severity: Severity::Error, message };
            }
            scope = reference(entry, "scope: ");
        }
        Lint { file: String::new(), line, column, severity: Severity::Error, message }
    }

    /// What follows `field` in an entry of the debug information.
    fn field(&self, key: Option<&str>, field: &str) -> &'a str {
        let entry = key.and_then(|key| self.metadata.get(key)).copied().unwrap_or_default();
        let end = if field.ends_with('"') { '"' } else { ',' };
        entry.split_once(field).map_or("", |(_, rest)| rest.split([end, ')']).next().unwrap_or(rest))
    }
}

/// `!7` after a word.
fn reference<'a>(line: &'a str, after: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(after)?;
    rest.split([',', ' ', ')']).next().filter(|key| key.starts_with('!'))
}

/// A symbol at the start of a text, without quotes.
fn symbol(text: &str) -> Option<&str> {
    match text.strip_prefix('"') {
        Some(rest) => rest.split('"').next(),
        None => text.split(['(', ',', ' ', ')']).next(),
    }
}

/// The function that a line calls by name.
fn callee(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("call ")?;
    symbol(rest.split_once('@')?.1).filter(|name| !name.starts_with("llvm."))
}

/// Tarjan's strongly connected components of a graph.
struct Groups<'a> {
    edges: &'a [Vec<usize>],
    order: Vec<usize>,
    low: Vec<usize>,
    stack: Vec<usize>,
    on_stack: Vec<bool>,
    next: usize,
    groups: Vec<Vec<usize>>,
}

impl Groups<'_> {
    fn of(edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
        let n = edges.len();
        let (order, low, on_stack) = (vec![usize::MAX; n], vec![0; n], vec![false; n]);
        let mut search = Groups { edges, order, low, stack: Vec::new(), on_stack, next: 0, groups: Vec::new() };
        for start in 0..n {
            if search.order[start] == usize::MAX {
                search.visit(start);
            }
        }
        search.groups
    }

    /// As deep as the longest chain of calls.
    fn visit(&mut self, node: usize) {
        (self.order[node], self.low[node]) = (self.next, self.next);
        self.next += 1;
        self.stack.push(node);
        self.on_stack[node] = true;
        for i in 0..self.edges[node].len() {
            let target = self.edges[node][i];
            if self.order[target] == usize::MAX {
                self.visit(target);
                self.low[node] = self.low[node].min(self.low[target]);
            } else if self.on_stack[target] {
                self.low[node] = self.low[node].min(self.order[target]);
            }
        }
        if self.low[node] == self.order[node] {
            let start =
                self.stack.iter().rposition(|&i| i == node).expect("a node is on the stack while it is visited");
            let group = self.stack.split_off(start);
            for &member in &group {
                self.on_stack[member] = false;
            }
            self.groups.push(group);
        }
    }
}
