//! Downloads from a small HTTP server in place of the hub: what is fetched, resumed, cached, and how faults are told.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use vllm_apple_model::hub::{HubError, HubOptions, resolve};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one model, `owner/model`.
struct Server {
    endpoint: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    files: HashMap<&'static str, Vec<u8>>,
    /// Path and first byte asked for, of every request for content.
    requests: Vec<(String, usize)>,
    /// A file whose next download ends after so many bytes.
    cut: Option<(&'static str, usize)>,
}

impl Server {
    fn start(files: &[(&'static str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let files = files.iter().map(|&(name, content)| (name, content.to_vec())).collect();
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that goes away early is none of the server's business.
                let _ = answer(&stream.unwrap(), &shared);
            }
        });
        Self { endpoint, state }
    }

    fn options(&self, cache: &Path) -> HubOptions {
        HubOptions {
            revision: "main".to_owned(),
            offline: false,
            endpoint: self.endpoint.clone(),
            cache: cache.to_owned(),
            token: None,
            weights: true,
        }
    }

    fn downloads(&self) -> Vec<(String, usize)> {
        self.state.lock().unwrap().requests.clone()
    }
}

/// One request per connection.
fn answer(mut stream: &TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut range = (0, usize::MAX);
    for line in lines {
        let line = line?.to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some((from, to)) = line.strip_prefix("range: bytes=").and_then(|r| r.split_once('-')) {
            range = (from.parse().unwrap(), to.parse().unwrap_or(usize::MAX));
        }
    }
    let mut state = state.lock().unwrap();
    if path == "/api/models/owner/model/revision/main" {
        let names: Vec<String> = state.files.keys().map(|name| format!(r#"{{"rfilename":"{name}"}}"#)).collect();
        let body = format!(r#"{{"sha":"{COMMIT}","siblings":[{}]}}"#, names.join(","));
        return write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    }
    let name = path.strip_prefix(&format!("/owner/model/resolve/{COMMIT}/")).unwrap_or_default().to_owned();
    let Some(content) = state.files.get(name.as_str()).cloned() else {
        return write!(stream, "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    };
    let (from, to) = (range.0.min(content.len()), range.1.saturating_add(1).min(content.len()));
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{}/{}\r\n\
         ETag: \"etag-{}\"\r\nx-repo-commit: {COMMIT}\r\n\r\n",
        to - from,
        to.max(1) - 1,
        content.len(),
        name.replace('.', "-"),
    )?;
    let mut end = to;
    if range.1 == usize::MAX {
        state.requests.push((name.clone(), from));
        if let Some((_, len)) = state.cut.take_if(|cut| cut.0 == name) {
            end = from + len;
        }
    }
    stream.write_all(&content[from..end])
}

const INDEX: &[u8] = br#"{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}"#;
const CONFIG: &[u8] = include_bytes!("../../../../tests/golden/models/llama/config.json");
const FILES: [(&str, &[u8]); 7] = [
    ("config.json", CONFIG),
    ("tokenizer.json", b"{}"),
    ("README.md", b"not needed"),
    ("model.safetensors.index.json", INDEX),
    ("model-1.safetensors", b"first"),
    ("model-2.safetensors", &[7; 100_000]),
    ("consolidated.safetensors", b"the same weights again"),
];

fn no_progress() -> impl FnMut(vllm_apple_model::hub::DownloadProgress<'_>) {
    |_| ()
}

#[test]
fn fetches_only_what_is_needed_and_only_once() {
    let server = Server::start(&FILES);
    let cache = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    let directory = resolve("owner/model", &server.options(cache.path()), &mut |p| {
        seen.push((p.file.to_owned(), p.done, p.total));
    })
    .unwrap();
    assert_eq!(std::fs::read(directory.join("model-2.safetensors")).unwrap(), [7; 100_000]);
    let mut names: Vec<String> = server.downloads().into_iter().map(|d| d.0).collect();
    names.sort();
    let expected =
        ["config.json", "model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json", "tokenizer.json"];
    assert_eq!(names, expected);
    assert_eq!(seen.last(), Some(&("model-2.safetensors".to_owned(), 100_000, 100_000)));

    let again = resolve("owner/model", &server.options(cache.path()), &mut no_progress()).unwrap();
    assert_eq!(again, directory);
    assert_eq!(server.downloads().len(), expected.len(), "nothing is downloaded twice");
}

#[test]
fn weights_that_cannot_be_computed_with_are_not_downloaded() {
    let config: &[u8] = br#"{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}"#;
    let server = Server::start(&[("config.json", config), ("model.safetensors", &[7; 100_000])]);
    let cache = tempfile::tempdir().unwrap();
    let error = resolve("owner/model", &server.options(cache.path()), &mut no_progress()).unwrap_err();
    assert!(matches!(error, HubError::Unusable(_)) && error.to_string().contains("GPT2LMHeadModel"), "{error}");
    assert_eq!(server.downloads(), [("config.json".to_owned(), 0)]);
}

#[test]
fn a_broken_download_is_resumed() {
    let server = Server::start(&FILES);
    let cache = tempfile::tempdir().unwrap();
    server.state.lock().unwrap().cut = Some(("model-2.safetensors", 40_000));
    let error = resolve("owner/model", &server.options(cache.path()), &mut no_progress()).unwrap_err();
    assert!(matches!(&error, HubError::Download { file, .. } if file == "model-2.safetensors"), "{error}");
    assert!(error.to_string().ends_with("; start again to resume"), "{error}");
    let directory = resolve("owner/model", &server.options(cache.path()), &mut no_progress()).unwrap();
    assert_eq!(server.downloads().last(), Some(&("model-2.safetensors".to_owned(), 40_000)));
    assert_eq!(std::fs::read(directory.join("model-2.safetensors")).unwrap(), [7; 100_000]);
}

#[test]
fn weights_that_nobody_reads_are_not_downloaded() {
    let server = Server::start(&FILES);
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions { weights: false, ..server.options(cache.path()) };
    let directory = resolve("owner/model", &options, &mut no_progress()).unwrap();
    let mut names: Vec<String> = server.downloads().into_iter().map(|d| d.0).collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors.index.json", "tokenizer.json"]);
    let unreachable = HubOptions { endpoint: "http://127.0.0.1:9".to_owned(), ..options.clone() };
    assert_eq!(resolve("owner/model", &unreachable, &mut no_progress()).unwrap(), directory);
    let with_weights = HubOptions { weights: true, ..unreachable };
    assert!(resolve("owner/model", &with_weights, &mut no_progress()).is_err());
    resolve("owner/model", &server.options(cache.path()), &mut no_progress()).unwrap();
    assert!(directory.join("model-2.safetensors").exists());
}

#[test]
fn an_index_of_another_model_beside_the_only_file_is_not_followed() {
    let files: [(&str, &[u8]); 3] =
        [("config.json", CONFIG), ("model.safetensors.index.json", INDEX), ("model.safetensors", b"all")];
    let server = Server::start(&files);
    let cache = tempfile::tempdir().unwrap();
    let directory = resolve("owner/model", &server.options(cache.path()), &mut no_progress()).unwrap();
    assert_eq!(std::fs::read(directory.join("model.safetensors")).unwrap(), b"all");
    let unreachable = HubOptions { endpoint: "http://127.0.0.1:9".to_owned(), ..server.options(cache.path()) };
    assert_eq!(resolve("owner/model", &unreachable, &mut no_progress()).unwrap(), directory);
    // With some of its files it is this model's, of which others are missing.
    let server = Server::start(&[&files[..], &FILES[4..5]].concat());
    let cache = tempfile::tempdir().unwrap();
    let error = resolve("owner/model", &server.options(cache.path()), &mut no_progress()).unwrap_err();
    assert!(matches!(&error, HubError::NoFile { file, .. } if file == "model-2.safetensors"), "{error}");
}

/// As quantising tools had them before config.json said everything.
#[test]
fn weights_of_any_name_and_what_says_how_they_are_quantised_are_downloaded() {
    let files: [(&str, &[u8]); 5] = [
        ("config.json", CONFIG),
        ("quantize_config.json", b"{}"),
        ("gptq_model-4bit-128g.safetensors", b"all"),
        ("original/consolidated.safetensors", b"the same weights again"),
        ("model.gguf", b"and again"),
    ];
    let server = Server::start(&files);
    let cache = tempfile::tempdir().unwrap();
    let directory = resolve("owner/model", &server.options(cache.path()), &mut no_progress()).unwrap();
    let mut names: Vec<String> = server.downloads().into_iter().map(|d| d.0).collect();
    names.sort();
    assert_eq!(names, ["config.json", "gptq_model-4bit-128g.safetensors", "quantize_config.json"]);
    let unreachable = HubOptions { endpoint: "http://127.0.0.1:9".to_owned(), ..server.options(cache.path()) };
    assert_eq!(resolve("owner/model", &unreachable, &mut no_progress()).unwrap(), directory);
}

/// The library gives up after five seconds.
#[test]
fn a_file_that_another_process_downloads_is_waited_for() {
    let server = Server::start(&FILES);
    let cache = tempfile::tempdir().unwrap();
    let blobs = cache.path().join("models--owner--model/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let lock = std::fs::File::create(blobs.join("etag-model-1-safetensors.lock")).unwrap();
    lock.lock().unwrap();
    let release = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(5500));
        lock.unlock().unwrap();
        std::time::Instant::now()
    });
    let directory = resolve("owner/model", &server.options(cache.path()), &mut no_progress()).unwrap();
    assert!(release.is_finished(), "the lock was not met");
    assert_eq!(std::fs::read(directory.join("model-1.safetensors")).unwrap(), b"first");
}

#[test]
fn offline_uses_the_cache_or_says_what_is_missing() {
    let server = Server::start(&FILES);
    let cache = tempfile::tempdir().unwrap();
    let offline = HubOptions { offline: true, ..server.options(cache.path()) };
    let error = resolve("owner/model", &offline, &mut no_progress()).unwrap_err();
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
    let directory = resolve("owner/model", &server.options(cache.path()), &mut no_progress()).unwrap();
    assert_eq!(resolve("owner/model", &offline, &mut no_progress()).unwrap(), directory);
    let by_commit = HubOptions { revision: COMMIT.to_owned(), ..offline };
    assert_eq!(resolve("owner/model", &by_commit, &mut no_progress()).unwrap(), directory);
}

#[test]
fn a_tag_chooses_one_of_the_gguf_models() {
    let server = Server::start(&[
        ("README.md", b"not needed"),
        ("m-Q4_K_M.gguf", b"four"),
        ("big/m-Q8_0-00001-of-00002.gguf", b"eight"),
        ("big/m-Q8_0-00002-of-00002.gguf", b"bits"),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let options = server.options(cache.path());
    let offline = HubOptions { offline: true, ..options.clone() };
    let unreachable = HubOptions { endpoint: "http://127.0.0.1:9".to_owned(), ..options.clone() };
    let found = |model, options| resolve(model, options, &mut no_progress());

    let error = found("owner/model", &options).unwrap_err().to_string();
    assert_eq!(error, "owner/model: it has GGUF models: say which, as in owner/model:Q4_K_M; it has Q4_K_M, Q8_0");
    assert_eq!(found("owner/model:", &options).unwrap_err().to_string(), error);
    let error = found("owner/model:Q2_K", &options).unwrap_err().to_string();
    assert_eq!(error, "owner/model: it has no GGUF model Q2_K; it has Q4_K_M, Q8_0");
    assert!(
        matches!(found("owner/model:Q4_K_M", &offline), Err(HubError::NotCached { model, .. }) if model.ends_with("Q4_K_M"))
    );
    assert_eq!(server.downloads(), []);

    let four = found("owner/model:q4_k_m", &options).unwrap();
    assert_eq!(std::fs::read(&four).unwrap(), b"four");
    let eight = found("owner/model:Q8_0", &options).unwrap();
    assert!(eight.ends_with("big/m-Q8_0-00001-of-00002.gguf"), "{eight:?}");
    assert_eq!(server.downloads().len(), 3);
    let by_commit = HubOptions { revision: COMMIT.to_owned(), ..offline.clone() };
    for options in [&options, &offline, &unreachable, &by_commit] {
        assert_eq!(found("owner/model:Q4_K_M", options).unwrap(), four);
        assert_eq!(found("owner/model:Q8_0", options).unwrap(), eight);
    }
    assert_eq!(server.downloads().len(), 3, "nothing is downloaded twice");
    // A part is gone.
    std::fs::remove_file(eight.with_file_name("m-Q8_0-00002-of-00002.gguf")).unwrap();
    assert!(matches!(found("owner/model:Q8_0", &offline), Err(HubError::NotCached { .. })));
}

/// Many repositories of GGUF models have the configuration of what these were made of.
#[test]
fn a_configuration_alone_is_no_model() {
    let server = Server::start(&[("config.json", b"{}"), ("m-Q4_K_M.gguf", b"four")]);
    let cache = tempfile::tempdir().unwrap();
    let error = resolve("owner/model", &server.options(cache.path()), &mut no_progress()).unwrap_err().to_string();
    assert_eq!(error, "owner/model: it has GGUF models: say which, as in owner/model:Q4_K_M; it has Q4_K_M");
    assert_eq!(server.downloads(), []);
}

#[test]
fn an_unreachable_hub_falls_back_to_a_complete_snapshot() {
    let server = Server::start(&FILES);
    let cache = tempfile::tempdir().unwrap();
    let directory = resolve("owner/model", &server.options(cache.path()), &mut no_progress()).unwrap();
    // Port 9 (discard) answers nobody.
    let unreachable = HubOptions { endpoint: "http://127.0.0.1:9".to_owned(), ..server.options(cache.path()) };
    assert_eq!(resolve("owner/model", &unreachable, &mut no_progress()).unwrap(), directory);
    std::fs::remove_file(directory.join("model-1.safetensors")).unwrap();
    let error = resolve("owner/model", &unreachable, &mut no_progress()).unwrap_err();
    assert!(matches!(error, HubError::Download { .. }) && !error.to_string().contains("resume"), "{error}");
    let error = resolve("model", &unreachable, &mut no_progress()).unwrap_err().to_string();
    assert!(error.starts_with("there is no file or directory model here, and model: the list of files"), "{error}");
    let no_address = HubOptions { endpoint: "foo".to_owned(), ..unreachable };
    let error = resolve("owner/other", &no_address, &mut no_progress()).unwrap_err();
    assert!(matches!(error, HubError::Endpoint(_)), "{error}");
}

#[test]
fn unknown_models_and_paths_are_told_apart() {
    let server = Server::start(&FILES[..3]);
    let cache = tempfile::tempdir().unwrap();
    let options = server.options(cache.path());
    let error = |model: &str| resolve(model, &options, &mut no_progress()).unwrap_err();
    assert!(matches!(error("owner/other"), HubError::NoSuchModel { .. }));
    assert!(matches!(error("owner/model"), HubError::NoFile { .. }));
    for path in
        ["./models/x", "/models/x", "../x", "a/b/c", "models/", "~/x", "m.gguf", "a/m.GGUF", "https://hub/owner/model"]
    {
        assert!(matches!(error(path), HubError::NoSuchPath(_)), "{path}");
    }
    let file = cache.path().join("model.safetensors");
    std::fs::write(&file, b"").unwrap();
    assert!(matches!(error(file.to_str().unwrap()), HubError::NotADirectory(_)));
    let directory = cache.path().to_str().unwrap();
    assert_eq!(resolve(directory, &options, &mut no_progress()).unwrap(), cache.path());
}

#[test]
fn a_directory_is_its_only_gguf_model() {
    let directory = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions::from_variables(None, |name| {
        (name == "HF_HUB_CACHE").then(|| cache.path().to_str().unwrap().to_owned())
    });
    let path = |name: &str| directory.path().join(name);
    let found = || resolve(directory.path().to_str().unwrap(), &options, &mut no_progress());
    let put = |name: &str| std::fs::write(path(name), b"").unwrap();
    // As of the hub, a colon without a tag chooses none.
    let with_colon = format!("{}:", directory.path().display());
    assert_eq!(resolve(&with_colon, &options, &mut no_progress()).unwrap(), directory.path());
    put("m-00002-of-00002.gguf");
    let error = found().unwrap_err().to_string();
    assert!(error.contains("m-00002-of-00002.gguf, but not the first file"), "{error}");
    put("m-00001-of-00002.gguf");
    put("mmproj-m.gguf");
    assert_eq!(found().unwrap(), path("m-00001-of-00002.gguf"));
    put("n.gguf");
    let error = found().unwrap_err().to_string();
    assert!(error.contains("several GGUF models (m-00001-of-00002.gguf, n.gguf)"), "{error}");
    let of_tag = |tag: &str| {
        let model = format!("{}:{tag}", directory.path().display());
        resolve(&model, &options, &mut no_progress())
    };
    put("n-Q4_0.gguf");
    assert_eq!(of_tag("Q4_0").unwrap(), path("n-Q4_0.gguf"));
    assert_eq!(of_tag("m").unwrap(), path("m-00001-of-00002.gguf"));
    let error = of_tag("Q8_0").unwrap_err().to_string();
    assert!(error.contains("it has no GGUF model Q8_0; it has Q4_0, m, n"), "{error}");
}

/// Where `hf auth login` puts it, wherever the cache is.
#[test]
fn a_token_is_that_of_the_login_also_beside_another_cache() {
    let (home, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(home.path().join("token"), "hf_login\n").unwrap();
    let path = |directory: &tempfile::TempDir| directory.path().to_str().unwrap().to_owned();
    let options = |token: &str| {
        HubOptions::from_variables(None, |name| match name {
            "HF_HOME" => Some(path(&home)),
            "HF_HUB_CACHE" => Some(path(&cache)),
            "HF_TOKEN" => Some(token.to_owned()),
            _ => None,
        })
    };
    assert_eq!((options("").token.as_deref(), options("").cache), (Some("hf_login"), cache.path().to_owned()));
    assert_eq!(options("hf_own").token.as_deref(), Some("hf_own"));
}
