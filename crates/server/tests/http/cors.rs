//! What browsers are told of pages of other origins: before they send, with an answer, and with an error.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, header};
use axum::response::Response;
use serde_json::json;
use vllm_apple::http::{Allowed, AppConfig, Cors};

use crate::errors::{COMPLETIONS, error, post, send};
use crate::support::Setup;

const PAGE: &str = "http://localhost:3000";

fn setup(cors: Cors) -> Setup {
    Setup { config: AppConfig { cors, ..AppConfig::default() }, ..Setup::default() }
}

fn only(origin: &'static str) -> Cors {
    Cors { origins: Allowed::Only(vec![HeaderValue::from_static(origin)]), ..Cors::default() }
}

fn any() -> Cors {
    Cors { origins: Allowed::Any, ..Cors::default() }
}

/// What a browser asks before it sends JSON with a key.
fn asking(origin: &str) -> Request<Body> {
    Request::options(COMPLETIONS)
        .header(header::ORIGIN, origin)
        .header(header::ACCESS_CONTROL_REQUEST_METHOD, "POST")
        .header(header::ACCESS_CONTROL_REQUEST_HEADERS, "authorization,content-type")
        .body(Body::empty())
        .unwrap()
}

fn of(origin: &str, mut request: Request<Body>) -> Request<Body> {
    request.headers_mut().insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
    request
}

fn text<'r>(response: &'r Response, name: &str) -> Option<&'r str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

fn allowed(response: &Response) -> Option<&str> {
    text(response, "access-control-allow-origin")
}

/// The headers of CORS that are there.
fn told(headers: &HeaderMap) -> Vec<&str> {
    headers.keys().map(header::HeaderName::as_str).filter(|name| name.starts_with("access-control-")).collect()
}

#[tokio::test]
async fn without_the_flag_no_page_of_another_origin_is_let_in() {
    let app = Setup::default().app();
    let refused = send(&app, asking(PAGE)).await;
    assert_eq!(told(refused.headers()), [""; 0]);
    let refused = error(refused, 403).await;
    assert_eq!(refused["code"], "origin_not_allowed");
    assert!(
        refused["message"].as_str().unwrap().contains(r#"--allowed-origins '["http://localhost:3000"]'"#),
        "{refused}"
    );
    let body = json!({"prompt": [5], "max_tokens": 1}).to_string();
    let response = send(&app, of(PAGE, post(COMPLETIONS, body))).await;
    assert_eq!((response.status().as_u16(), told(response.headers())), (200, vec![]));
    // Who is no browser may ask what it likes.
    let plain = Request::options(COMPLETIONS).body(Body::empty()).unwrap();
    error(send(&app, plain).await, 405).await;
}

#[tokio::test]
async fn a_browser_is_answered_without_a_key() {
    for (cors, expected) in [(any(), "*"), (only(PAGE), PAGE)] {
        let mut setup = setup(cors);
        setup.config.api_keys = vec!["secret".to_owned()];
        let app = setup.app();
        for path in [COMPLETIONS, "/v1/models", "/v1/messages", "/nowhere"] {
            let mut request = asking(PAGE);
            *request.uri_mut() = path.parse().unwrap();
            let response = send(&app, request).await;
            assert_eq!((response.status().as_u16(), allowed(&response)), (200, Some(expected)), "{path}");
            assert_eq!(text(&response, "access-control-allow-methods"), Some("POST"));
            assert_eq!(text(&response, "access-control-allow-headers"), Some("authorization,content-type"));
            assert_eq!(text(&response, "access-control-max-age"), Some("600"));
            assert_eq!(text(&response, "access-control-allow-credentials"), None);
        }
    }
}

#[tokio::test]
async fn answers_and_errors_may_be_read() {
    let mut setup = setup(any());
    setup.config.api_keys = vec!["secret".to_owned()];
    setup.config.max_body_size = 1000;
    let app = setup.app();
    let keyed = |body: String| {
        let mut request = of(PAGE, post(COMPLETIONS, body));
        request.headers_mut().insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
        request
    };
    let answered = json!({"prompt": [5], "max_tokens": 1, "user": "me"}).to_string();
    let response = send(&app, keyed(answered.clone())).await;
    assert_eq!(response.status(), 200);
    assert_eq!((allowed(&response), text(&response, "x-fields-without-effect")), (Some("*"), Some("user")));
    let shown = text(&response, "access-control-expose-headers").unwrap();
    assert!(shown.contains("x-fields-without-effect") && shown.contains("retry-after"), "{shown}");
    for (request, status) in [
        (of(PAGE, post(COMPLETIONS, answered)), 401),
        (keyed("{".to_owned()), 400),
        (keyed(json!({"prompt": "a".repeat(2000)}).to_string()), 413),
        (of(PAGE, Request::get("/v1/messages").body(Body::empty()).unwrap()), 401),
    ] {
        let response = send(&app, request).await;
        assert_eq!((response.status().as_u16(), allowed(&response)), (status, Some("*")));
    }
    // Its model is loading.
    let loading = vllm_apple::http::App::new(AppConfig { cors: only(PAGE), ..AppConfig::default() });
    let response = send(&loading, of(PAGE, Request::get("/v1/models").body(Body::empty()).unwrap())).await;
    assert_eq!((response.status().as_u16(), allowed(&response)), (503, Some(PAGE)));
    assert!(text(&response, "vary").unwrap().contains("origin"));
}

#[tokio::test]
async fn other_origins_than_those_named_are_refused() {
    let app = setup(only(PAGE)).app();
    for other in ["http://localhost:3001", "http://localhost", "https://localhost:3000", "null"] {
        let refused = send(&app, asking(other)).await;
        assert_eq!(allowed(&refused), None);
        assert_eq!(error(refused, 403).await["code"], "origin_not_allowed");
        let response = send(&app, of(other, Request::get("/v1/models").body(Body::empty()).unwrap())).await;
        assert_eq!(allowed(&response), None, "{other}");
    }
}

#[tokio::test]
async fn methods_and_headers_may_be_named_too() {
    let app = setup(Cors {
        methods: Allowed::Only(vec![Method::GET, Method::POST]),
        headers: Allowed::Only(vec![header::AUTHORIZATION]),
        ..any()
    })
    .app();
    let response = send(&app, asking(PAGE)).await;
    assert_eq!(text(&response, "access-control-allow-methods"), Some("GET,POST"));
    let headers = text(&response, "access-control-allow-headers").unwrap();
    // Without the second no page could send JSON.
    assert!(["authorization", "content-type"].iter().all(|name| headers.contains(name)), "{headers}");
}

#[tokio::test]
async fn with_cookies_an_origin_is_named() {
    for cors in [any(), only(PAGE)] {
        let app = setup(Cors { credentials: true, ..cors }).app();
        let asked = send(&app, asking(PAGE)).await;
        let answered = send(&app, of(PAGE, Request::get("/v1/models").body(Body::empty()).unwrap())).await;
        for response in [asked, answered] {
            assert_eq!(response.status(), 200);
            assert_eq!(allowed(&response), Some(PAGE));
            assert_eq!(text(&response, "access-control-allow-credentials"), Some("true"));
        }
    }
}
