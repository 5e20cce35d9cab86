//! The template engine, set up as transformers sets up Jinja2, and its errors in words. Knows no conversation and no checkpoint.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value as JinjaValue};
use regex::Regex;

use super::template_limits::{FUEL, MAX_TEXT_BYTES, TemplateLimit, shorten};
use super::{TextError, python, python_json};

/// The environment that transformers' `_compile_jinja_template` sets up.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the standard delimiters"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(python::method);
    environment.add_filter("tojson", python_json::tojson);
    minijinja_contrib::add_to_environment(&mut environment);
    environment.add_filter("count", python::length);
    environment.add_filter("length", python::length);
    environment.add_filter("default", python::default);
    environment.add_filter("d", python::default);
    environment.add_filter("first", python::first);
    environment.add_filter("indent", python::indent);
    environment.add_filter("items", python::items);
    environment.add_filter("last", python::last);
    environment.set_formatter(python::write);
    environment.add_test("iterable", |value: JinjaValue| python::is_iterable(&value));
    environment.add_test("sequence", |value: JinjaValue| python::is_sequence(&value));
    environment.add_function("raise_exception", |message: String| -> Result<JinjaValue, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
    });
    environment.add_function("strftime_now", |format: String| {
        jiff::fmt::strtime::format(&format, &jiff::Zoned::now())
            .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
    });
    environment
}

/// Renders one template, within the limits that the template engine can keep itself.
pub(super) fn render(environment: &Environment<'static>, name: &str, context: JinjaValue) -> Result<String, TextError> {
    let mut text = BoundedText::default();
    // The template engine panics on some legal input, such as the reverse of an empty list (minijinja 3.0.5).
    let render = AssertUnwindSafe(|| {
        let template = environment.get_template(name)?;
        template.render_captured_to(context, &mut text).map(drop)
    });
    let rendered = catch_unwind(render).map_err(|_| failed("the template engine failed on this conversation"))?;
    if text.is_full {
        return Err(TextError::TemplateLimit(TemplateLimit::Text));
    }
    rendered.map_err(|e| match is_out_of_fuel(&e) {
        true => TextError::TemplateLimit(TemplateLimit::Steps),
        false => TextError::Template(describe(&e)),
    })?;
    String::from_utf8(text.bytes).map_err(|_| failed("the template engine wrote what is no text"))
}

/// A prompt's text that does not grow beyond [`MAX_TEXT_BYTES`].
#[derive(Default)]
struct BoundedText {
    bytes: Vec<u8>,
    is_full: bool,
}

impl io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_TEXT_BYTES - self.bytes.len() {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn failed(reason: &str) -> TextError {
    TextError::Template(reason.to_owned())
}

/// What a template said with `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// An error and what caused it, outermost first.
fn causes(error: &Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source())
}

fn is_out_of_fuel(error: &Error) -> bool {
    let mut causes = causes(error).filter_map(|cause| cause.downcast_ref::<Error>());
    causes.any(|cause| cause.kind() == ErrorKind::OutOfFuel)
}

/// The template's own words where it refused, else what went wrong and where; as much as a reader takes in.
pub(super) fn describe(error: &Error) -> String {
    let raised = causes(error).find_map(|cause| cause.downcast_ref::<Raised>());
    let mut reason = raised.map_or_else(|| error.to_string(), |Raised(message)| message.clone());
    shorten(&mut reason);
    reason
}

/// `{% generation %}` marks answers for training. Here its body is rendered in a scope of its own, as transformers does.
pub(super) fn without_generation_tags(template: &str) -> String {
    static TAG: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}").expect("a constant pattern"));
    let replace = |c: &regex::Captures| {
        let tag = if c.get(2).is_some() { "endwith" } else { "with" };
        format!("{{%{} {tag} {}%}}", &c[1], &c[3])
    };
    TAG.replace_all(template, replace).into_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_text_may_be_as_long_as_the_limit_says() {
        let mut text = BoundedText::default();
        assert_eq!(text.write(&vec![b'x'; MAX_TEXT_BYTES]).unwrap(), MAX_TEXT_BYTES);
        assert!(!text.is_full);
        assert!(text.write(b"x").is_err() && text.is_full);
        assert_eq!(text.bytes.len(), MAX_TEXT_BYTES);
    }
}
