//! Which pages of browsers may use the server, by vLLM's flags: lists in JSON. Knows what an origin looks like, no request.

use axum::http::{HeaderName, HeaderValue, Method};
use clap::Args;

use crate::http::{Allowed, Cors};

/// What pages of other origins may do.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub struct CorsArgs {
    /// Websites whose pages may use the server from a browser, such as ["http://localhost:3000"]; ["*"]: all
    #[arg(long, value_name = "JSON", default_value = "[]", value_parser = origins)]
    allowed_origins: Allowed<HeaderValue>,
    /// Methods that such pages may use
    #[arg(long, value_name = "JSON", default_value = r#"["*"]"#, value_parser = methods)]
    allowed_methods: Allowed<Method>,
    /// Headers that such pages may send, besides Accept, Accept-Language, Content-Language and Content-Type
    #[arg(long, value_name = "JSON", default_value = r#"["*"]"#, value_parser = headers)]
    allowed_headers: Allowed<HeaderName>,
    /// Let browsers send cookies with what such pages send, for a proxy that knows them
    #[arg(long)]
    allow_credentials: bool,
}

impl CorsArgs {
    /// What they say.
    pub fn cors(&self) -> Cors {
        Cors {
            origins: self.allowed_origins.clone(),
            methods: self.allowed_methods.clone(),
            headers: self.allowed_headers.clone(),
            credentials: self.allow_credentials,
        }
    }
}

fn origins(text: &str) -> Result<Allowed<HeaderValue>, String> {
    list(text, r#"["http://localhost:3000"]"#, |origin| {
        let is_one = origin == "null" || origin.split_once("://").is_some_and(|(scheme, host)| is_origin(scheme, host));
        let origin = is_one.then(|| HeaderValue::from_str(origin).ok()).flatten();
        origin.ok_or(
            "no origin as browsers write one: scheme://host or scheme://host:port, in small letters, with no path, no / at the end, no \
             * in it, and no port that is the scheme's own",
        )
    })
}

/// Browsers send an origin in one spelling, which is compared letter by letter: another would allow nothing.
fn is_origin(scheme: &str, host: &str) -> bool {
    let is_small = |byte: u8| byte.is_ascii_graphic() && !byte.is_ascii_uppercase();
    let is_of_scheme = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
    let own_port =
        [("http", ":80"), ("https", ":443")].contains(&(scheme, host.rfind(':').map_or("", |at| &host[at..])));
    scheme.starts_with(|letter: char| letter.is_ascii_lowercase())
        && scheme.bytes().all(is_of_scheme)
        && !host.is_empty()
        && host.bytes().all(|byte| is_small(byte) && !b"/?#@*\\".contains(&byte))
        && !own_port
}

fn methods(text: &str) -> Result<Allowed<Method>, String> {
    list(text, r#"["GET", "POST"]"#, |method| {
        // They are told apart by case, too.
        let is_large = method.bytes().all(|byte| byte.is_ascii_uppercase());
        let method = is_large.then(|| Method::from_bytes(method.as_bytes()).ok()).flatten();
        method.ok_or("no method: one such as POST, in capitals")
    })
}

fn headers(text: &str) -> Result<Allowed<HeaderName>, String> {
    list(text, r#"["Authorization"]"#, |header| {
        HeaderName::from_bytes(header.as_bytes()).map_err(|_| "no name of a header, such as Authorization")
    })
}

/// A JSON list of which each entry is read, or all if one of them is `*`.
fn list<T>(text: &str, example: &str, read: impl Fn(&str) -> Result<T, &'static str>) -> Result<Allowed<T>, String> {
    let list: Vec<String> = serde_json::from_str(text)
        .map_err(|_| format!(r#"expected a JSON list of strings, such as '{example}', or '["*"]' for all"#))?;
    if list.iter().any(|entry| entry == "*") {
        return Ok(Allowed::Any);
    }
    let each = list.iter().map(|entry| read(entry).map_err(|reason| format!("{entry:?} is {reason}")));
    each.collect::<Result<_, _>>().map(Allowed::Only)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_browsers_send() {
        for good in [
            "http://localhost:3000",
            "https://chat.example.com",
            "http://127.0.0.1:8080",
            "http://[::1]:5173",
            "https://example.com:80",
            "app://obsidian.md",
            "chrome-extension://abcdefgh",
            "null",
        ] {
            let text = serde_json::to_string(&[good]).unwrap();
            assert_eq!(origins(&text), Ok(Allowed::Only(vec![HeaderValue::from_static(good)])), "{good}");
        }
        for bad in [
            "",
            "localhost:3000",
            "http://",
            "://a",
            "http://localhost:3000/",
            "https://example.com/chat",
            "https://*.example.com",
            "https://Example.com",
            "HTTPS://example.com",
            "https://a b",
            "https://me@example.com",
            "http://example.com:80",
            "https://example.com:443",
            "https://exämple.com",
        ] {
            let text = serde_json::to_string(&["http://localhost", bad]).unwrap();
            let error = origins(&text).unwrap_err();
            assert!(error.starts_with(&format!("{bad:?} is no origin")), "{error}");
        }
    }

    #[test]
    fn lists_are_json() {
        for bad in ["*", "http://localhost:3000", "[", "{}", "[1]", "null", "\"*\"", ""] {
            for error in [origins(bad).unwrap_err(), methods(bad).unwrap_err(), headers(bad).unwrap_err()] {
                assert!(error.contains("expected a JSON list of strings, such as '[\""), "{bad}: {error}");
            }
        }
        assert_eq!(origins("[]"), Ok(Allowed::Only(Vec::new())));
        assert_eq!(origins(r#"["http://localhost", "*"]"#), Ok(Allowed::Any));
        assert_eq!(methods(r#"["GET", "POST"]"#), Ok(Allowed::Only(vec![Method::GET, Method::POST])));
        assert!(methods(r#"["post"]"#).unwrap_err().contains("\"post\" is no method"));
        let authorization = HeaderName::from_static("authorization");
        assert_eq!(headers(r#"["Authorization"]"#), Ok(Allowed::Only(vec![authorization])));
        assert!(headers(r#"["a b"]"#).unwrap_err().contains("\"a b\" is no name of a header"));
    }
}
