//! Walks a file's declarations, scope by scope, and rewrites what C++ has not: function constants, threadgroup variables,
//! member functions of an address space, copies of structs out of memory. Kernels it hands to `kernels`.

use super::kernels::{self, Kernels};
use super::lint::{Lint, Severity};
use super::rules;
use super::syntax::Syntax;

/// What a `{` opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Namespace(String),
    Class,
    Function {
        is_kernel: bool,
    },
    /// A block in a function, an initialiser, an enumeration.
    Other,
}

pub(super) const ADDRESS_SPACES: [&str; 4] = ["device", "constant", "threadgroup", "thread"];

/// The walk's state.
pub(super) struct Walk<'a> {
    pub syntax: &'a mut Syntax,
    pub lints: &'a mut Vec<Lint>,
    pub kernels: Kernels,
    pub scopes: Vec<Scope>,
}

/// Rewrites the declarations of a file and returns its kernels.
pub(super) fn rewrite(syntax: &mut Syntax, lints: &mut Vec<Lint>) -> Kernels {
    let mut walk = Walk { syntax, lints, kernels: Kernels::default(), scopes: Vec::new() };
    walk.run();
    let Walk { syntax, kernels, .. } = walk;
    let ranges: Vec<_> = syntax.attributes.values().map(|a| a.range.clone()).collect();
    for range in ranges {
        // What was written around an attribute stays.
        for at in range {
            syntax.token_mut(at).text.clear();
        }
    }
    kernels
}

impl Walk<'_> {
    fn run(&mut self) {
        let (mut at, mut statement) = (0, 0);
        while at < self.syntax.len() {
            let mut next = at + 1;
            match self.syntax.text(at) {
                "[" if self.syntax.attributes.contains_key(&at) => {
                    let attributes = &self.syntax.attributes[&at];
                    next = attributes.range.end;
                    let is = |names: &[&str]| attributes.list.iter().any(|a| names.contains(&&*a.name));
                    if is(&["kernel"]) && !self.in_function() {
                        kernels::declaration(self, statement, next);
                    } else if is(&["vertex", "fragment"]) && !self.in_function() {
                        next = self.graphics(statement, at);
                        statement = next;
                    }
                }
                "kernel" if !self.in_function() && !matches!(self.syntax.previous(at), "." | "->" | "::") => {
                    kernels::declaration(self, statement, next);
                }
                "vertex" | "fragment" if !self.in_function() && self.begins_function(statement, at) => {
                    next = self.graphics(statement, at);
                    statement = next;
                }
                word @ ("kernel" | "vertex" | "fragment") => {
                    let message = format!("`{word}` is a keyword of Metal: give it another name");
                    self.error(at, message);
                }
                "{" => {
                    self.open(statement, at);
                    statement = next;
                }
                "}" => {
                    self.scopes.pop();
                    statement = next;
                }
                ";" => {
                    self.end_of_statement(statement, at);
                    statement = next;
                }
                ":" if matches!(self.syntax.previous(at), "public" | "private" | "protected") => statement = next,
                "is_function_constant_defined" => self.is_defined(at),
                "threadgroup" if self.in_function() && self.begins_declaration(statement, at) => {
                    self.threadgroup_variable(statement, at);
                }
                space if ADDRESS_SPACES.contains(&space) && self.qualifies_member(at) => {
                    if let Some(end) = self.member_of_space(statement, at) {
                        next = end;
                        statement = end;
                    }
                }
                _ => {}
            }
            at = next;
        }
    }

    pub fn in_function(&self) -> bool {
        self.scopes.iter().any(|s| matches!(s, Scope::Function { .. }))
    }

    /// Whether only namespaces are open.
    fn at_program_scope(&self) -> bool {
        self.scopes.iter().all(|s| matches!(s, Scope::Namespace(_)))
    }

    pub fn error(&mut self, at: usize, message: impl Into<String>) {
        let lint = rules::lint(self.syntax, at, Severity::Error, message.into());
        self.lints.push(lint);
    }

    pub fn warning(&mut self, at: usize, message: impl Into<String>) {
        let lint = rules::lint(self.syntax, at, Severity::Warning, message.into());
        self.lints.push(lint);
    }

    /// Whether the word at `at` is the first of a declaration, but for `static` and the like.
    fn begins_declaration(&self, statement: usize, at: usize) -> bool {
        (statement..at).all(|i| matches!(self.syntax.text(i), "static" | "const" | "volatile"))
    }

    /// Whether the word at `at` stands before a function, perhaps a template's.
    fn begins_function(&self, statement: usize, at: usize) -> bool {
        let start = self.syntax.past_attributes(self.syntax.past_template(statement));
        self.begins_declaration(start, at) || self.syntax.text(statement) == "template" && statement + 1 == start
    }

    /// Leaves out a function of the graphics pipeline, with all that its parameters would be misunderstood for.
    fn graphics(&mut self, statement: usize, at: usize) -> usize {
        self.error(at, "vertex and fragment functions are not supported: only kernels are compiled");
        let syntax = &mut *self.syntax;
        let end = (at..syntax.len()).find(|&i| matches!(syntax.text(i), "{" | ";")).unwrap_or(syntax.len() - 1);
        let end = if syntax.text(end) == "{" { syntax.closing(end) } else { end }.min(syntax.len() - 1);
        syntax.blank(statement..end + 1);
        end + 1
    }

    fn end_of_statement(&mut self, statement: usize, end: usize) {
        if self.at_program_scope() {
            if !self.function_constant(statement, end) {
                rules::program_scope(self, statement, end);
            }
        } else if self.in_function() {
            rules::static_local(self, statement, end);
        }
    }

    fn open(&mut self, statement: usize, brace: usize) {
        let scope = self.scope(statement, brace);
        if let Scope::Function { .. } = scope {
            if !self.in_function() {
                rules::parameters(self, statement, brace);
                self.array_parameters(statement, brace);
            }
        } else if scope == Scope::Class {
            rules::bases(self, statement, brace);
            self.copies_from_memory(statement, brace);
        }
        self.scopes.push(scope);
    }

    fn scope(&self, statement: usize, brace: usize) -> Scope {
        let start = self.syntax.past_template(statement);
        let words = self.syntax.words(start..brace);
        let text = |i: &usize| self.syntax.text(*i);
        if words.iter().any(|i| text(i) == "namespace") {
            let name: String = words.iter().map(text).filter(|t| !matches!(*t, "namespace" | "inline")).collect();
            return Scope::Namespace(name);
        }
        let (mut parenthesis, mut equals, mut class) = (None, None, false);
        let mut skipped = 0..0;
        for (i, word) in words.iter().enumerate() {
            match text(word) {
                _ if skipped.contains(word) => {}
                "alignas" | "__attribute__" => skipped = *word..self.syntax.closing(word + 1) + 1,
                "(" => parenthesis = parenthesis.or(Some(i)),
                "=" if i == 0 || text(&words[i - 1]) != "operator" => equals = equals.or(Some(i)),
                "struct" | "class" | "union" => class = true,
                "enum" => return Scope::Other,
                _ => {}
            }
        }
        match (parenthesis, equals) {
            (Some(p), Some(e)) if e < p => Scope::Other,
            (Some(_), _) if self.in_function() => Scope::Other,
            (Some(_), _) => Scope::Function { is_kernel: kernels::is_kernel(self.syntax, statement, brace) },
            (None, None) if class => Scope::Class,
            _ => Scope::Other,
        }
    }

    /// `threadgroup T name[n]` among a function's parameters is a pointer; clang does not let go of the array's address space.
    fn array_parameters(&mut self, statement: usize, brace: usize) {
        for range in rules::parameter_list(self.syntax, statement, brace) {
            let words = self.syntax.words(range.clone());
            let is = |word: &str| words.iter().any(|&i| self.syntax.text(i) == word);
            if is("*") || is("&") || !ADDRESS_SPACES.iter().any(|space| is(space)) {
                continue;
            }
            let Some(open) = words.iter().copied().find(|&i| self.syntax.text(i) == "[") else { continue };
            let close = self.syntax.closing(open);
            self.syntax.blank(open..close + 1);
            self.syntax.token_mut(open - 1).before.push('*');
        }
    }

    /// `struct S {` gets a copy constructor that reads from every address space, as Metal's have; S stays an aggregate.
    fn copies_from_memory(&mut self, statement: usize, brace: usize) {
        let syntax = &*self.syntax;
        let start = syntax.past_template(statement);
        let Some(keyword) = (start..brace).find(|&i| matches!(syntax.text(i), "struct" | "class")) else { return };
        let mut name = syntax.past_attributes(keyword + 1);
        while matches!(syntax.text(name), "alignas" | "__attribute__") {
            name = syntax.past_attributes(syntax.closing(name + 1) + 1);
        }
        if !syntax.is_identifier(name) {
            return;
        }
        let (name, close) = (syntax.text(name).to_owned(), syntax.closing(brace));
        let (mut constructors, mut copies, mut at) = (0, false, brace + 1);
        while at < close {
            let open = if syntax.text(at + 1) == "<" { syntax.past_angle(at + 1).unwrap_or(at + 1) } else { at + 1 };
            if syntax.text(at) == name && syntax.text(open) == "(" && syntax.previous(at) != "~" {
                let parameters = open + 1..syntax.closing(open);
                // Constructors of objects in other address spaces are dropped.
                if !matches!(syntax.text(parameters.end + 1), "device" | "constant" | "threadgroup") {
                    constructors += 1;
                    let has = |words: &[&str]| parameters.clone().any(|i| words.contains(&syntax.text(i)));
                    copies |= has(&[&name]) && has(&["&", "&&"]);
                }
            }
            at = if matches!(syntax.text(at), "{" | "(") { syntax.closing(at) + 1 } else { at + 1 };
        }
        if copies {
            return;
        }
        let default = if constructors == 0 { format!(" {name}() = default;") } else { String::new() };
        // An unnamed union has no such constructor of its own: then the bytes are copied, and S is no aggregate.
        let unnamed =
            (brace + 1..close).any(|i| matches!(syntax.text(i), "union" | "struct") && syntax.text(i + 1) == "{");
        let body = if unnamed {
            format!(" {{ __builtin_memcpy((void*)this, (const {name}*)&other, sizeof({name})); }}")
        } else {
            " = default;".to_owned()
        };
        self.syntax.token_mut(brace).after = format!("{default} {name}(const MSL_ANY {name}& other){body}");
    }

    /// `constant T name [[function_constant(n)]];` is asked of the host when the library is bound.
    fn function_constant(&mut self, statement: usize, end: usize) -> bool {
        let syntax = &mut *self.syntax;
        let Some(attribute) = syntax.attributes_in(statement..end).into_iter().find(|a| a.name == "function_constant")
        else {
            return false;
        };
        let words = syntax.words(statement..end);
        if words.iter().any(|&i| syntax.text(i) == "(") {
            return false; // A kernel whose parameter depends on a constant.
        }
        let space = words.iter().position(|&i| syntax.text(i) == "constant");
        let (Some(space), Some(&name)) = (space, words.last()) else { return false };
        let index = attribute.argument.unwrap_or_default();
        let kind = syntax.spelled(words[space] + 1..name);
        let text = syntax.text(name).to_owned();
        syntax.token_mut(name).after = format!(" = ::msl::function_constant<{kind}>({index})");
        syntax.token_mut(end).after =
            format!(" static const bool __msl_defined_{text} = ::msl::function_constant_defined({index});");
        true
    }

    /// `is_function_constant_defined(name)`.
    fn is_defined(&mut self, at: usize) {
        let name = format!("__msl_defined_{}", self.syntax.text(at + 2));
        self.syntax.blank(at..at + 4);
        self.syntax.token_mut(at).text = name;
    }

    /// `threadgroup T name[n];` in a kernel refers to memory that the host keeps for the threadgroup.
    fn threadgroup_variable(&mut self, statement: usize, space: usize) {
        let Some(end) = self.end_of_variable(space + 1) else { return };
        if !self.scopes.contains(&Scope::Function { is_kernel: true }) {
            self.error(
                statement,
                "a threadgroup variable outside a kernel: declare it in the kernel and pass a pointer",
            );
        }
        let syntax = &mut *self.syntax;
        let mut declarators = syntax.arguments(space + 1..end);
        let name = declarator_name(syntax, declarators[0].clone());
        let kind = syntax.spelled(space + 1..name);
        declarators[0].start = name;
        let mut text = String::new();
        for declarator in declarators {
            let variable = syntax.text(declarator.start).to_owned();
            let dimensions = syntax.spelled(declarator.start + 1..declarator.end);
            text += &format!(
                "typedef {kind} __msl_type_{variable}{dimensions}; static char __msl_key_{variable}; \
                 MSL_IN_THREADGROUP __msl_type_{variable}& {variable} = ::msl::threadgroup_variable<__msl_type_{variable}>(\
                 MslSite{{__FILE__, __LINE__, 1}}, &__msl_key_{variable}, \"{variable}\"); "
            );
        }
        syntax.blank(statement..end);
        syntax.token_mut(statement).before = text;
    }

    /// The `;` of a variable's declaration; none if it declares a pointer, a reference or an initialised value.
    fn end_of_variable(&self, mut at: usize) -> Option<usize> {
        loop {
            match self.syntax.text(at) {
                ";" => return Some(at),
                "*" | "&" | "=" | "" => return None,
                "[" | "(" => at = self.syntax.closing(at),
                "<" => at = self.syntax.past_angle(at)? - 1,
                _ => {}
            }
            at += 1;
        }
    }

    /// Whether the address space at `at` stands behind a member function's parameters.
    fn qualifies_member(&self, at: usize) -> bool {
        let mut before = at;
        while matches!(self.syntax.previous(before), "const" | "noexcept" | "volatile") {
            before -= 1;
        }
        let after = self.syntax.text(at + 1);
        !self.in_function()
            && self.syntax.previous(before) == ")"
            && !matches!(self.syntax.previous(self.syntax.opening(before - 1)), "__attribute__" | "alignas")
            && matches!(after, "{" | ";" | ":" | "=" | "const" | "volatile")
    }

    /// One past the body or the `;` of a member function, from behind its parameters.
    fn past_member(&self, mut at: usize) -> usize {
        while !matches!(self.syntax.text(at), "{" | ";" | "") {
            at = if self.syntax.text(at) == "(" { self.syntax.closing(at) + 1 } else { at + 1 };
        }
        let last = if self.syntax.text(at) == "{" { self.syntax.closing(at) } else { at };
        (last + 1).min(self.syntax.len())
    }

    /// A member function of `thread` objects is C++'s; those of other address spaces are dropped. One past a dropped one.
    fn member_of_space(&mut self, statement: usize, at: usize) -> Option<usize> {
        if self.syntax.text(at) == "thread" {
            self.syntax.blank(at..at + 1);
            return None;
        }
        let end = self.past_member(at + 1);
        self.syntax.blank(statement..end);
        Some(end)
    }
}

/// The position of the name in `T<…> name[n]`.
fn declarator_name(syntax: &Syntax, range: std::ops::Range<usize>) -> usize {
    let (mut at, mut name) = (range.start, range.start);
    while at < range.end {
        match syntax.text(at) {
            "[" => break,
            "<" => at = syntax.past_angle(at).unwrap_or(at + 1) - 1,
            _ if syntax.is_identifier(at) => name = at,
            _ => {}
        }
        at += 1;
    }
    name
}
