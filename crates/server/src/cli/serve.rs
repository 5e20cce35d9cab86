//! `vllm-apple serve`. Knows addresses and keys; the server itself is in `http`.

use std::net::IpAddr;
use std::time::Duration;

use clap::builder::{BoolishValueParser, NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args};
use tokio::net::TcpListener;
use vllm_apple_model::hub::looks_like_model;
use vllm_apple_parsers::{ReasoningFormat, ToolFormat};

use super::CliError;
use super::args::{ModelArgs, parse_bytes, parse_bytes_or_none, whole};
use super::cors_args::CorsArgs;
use super::pooling_args::PoolingArgs;
use super::{file_limit, load};
use crate::http::{App, AppConfig, serve, shutdown_signal};
use crate::served::OutputFormats;

#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    pooling: PoolingArgs,
    /// Address to listen on; 0.0.0.0 lets other machines in
    #[arg(long, default_value = "127.0.0.1", value_parser = host, help_heading = "Server")]
    host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000, value_parser = whole::<u16>, allow_negative_numbers = true, help_heading = "Server")]
    port: u16,
    /// Names that requests may use for the model; the first stands in answers [default: as given]
    #[arg(long, value_name = "NAME", num_args = 1.., value_parser = NonEmptyStringValueParser::new(), help_heading = "Server")]
    served_model_name: Vec<String>,
    /// Key that clients must send as a bearer token, or several of which they send one
    #[arg(
        long,
        value_name = "KEY",
        num_args = 1..,
        env = "VLLM_API_KEY",
        hide_env_values = true,
        value_parser = NonEmptyStringValueParser::new(),
        help_heading = "Server"
    )]
    api_key: Vec<String>,
    #[command(flatten)]
    cors: CorsArgs,
    /// Let requests bring a `chat_template` of their own, which is a program that runs here
    #[arg(long, help_heading = "Server")]
    trust_request_chat_template: bool,
    /// How the model writes calls of tools [default: as its chat template shows]
    #[arg(long, value_name = "FORMAT", value_parser = tool_formats(), help_heading = "Server")]
    tool_call_parser: Option<ToolFormat>,
    /// How the model writes what it thinks [default: as its chat template shows]
    #[arg(long, value_name = "FORMAT", value_parser = reasoning_formats(), help_heading = "Server")]
    reasoning_parser: Option<ReasoningFormat>,
    /// Accepted as vLLM's: the model may always choose to call a tool
    #[arg(long, help_heading = "Server")]
    enable_auto_tool_choice: bool,
    /// Answer /tokenizer_info, which shows the chat template
    #[arg(long, help_heading = "Server")]
    enable_tokenizer_info_endpoint: bool,
    /// Answer /reset_prefix_cache
    #[arg(long, env = "VLLM_SERVER_DEV_MODE", value_parser = BoolishValueParser::new(), action = ArgAction::SetTrue, help_heading = "Server")]
    server_dev_mode: bool,
    /// Most requests that wait beyond --max-num-seqs; more are refused with status 429
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = whole::<usize>, allow_negative_numbers = true, help_heading = "Server")]
    max_waiting: usize,
    /// Most bytes of a request's body
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = parse_bytes, help_heading = "Server")]
    max_body_size: u64,
    /// Memory for all requests together, prompts and answers, besides the model's own
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_bytes, help_heading = "Server")]
    max_request_memory: u64,
    /// Memory for answers of /v1/responses that are kept for `previous_response_id`; 0 keeps none
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_bytes_or_none, help_heading = "Server")]
    max_stored_responses: u64,
    /// Seconds that running requests have to finish after a SIGTERM or SIGINT, before they are ended; 0 ends them at once, as vLLM does without
    /// this flag [default: as long as they take; a second signal stops the server at once]
    #[arg(long, value_name = "SECONDS", value_parser = whole::<u64>, allow_negative_numbers = true, help_heading = "Server")]
    shutdown_timeout: Option<u64>,
}

/// A name or an address of this machine; one of IPv6 may stand in brackets, as in URLs.
fn host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let is_address =
        bare.parse::<IpAddr>().is_ok() || bare.split_once('%').is_some_and(|(ip, _)| ip.parse::<IpAddr>().is_ok());
    match bare.is_empty() || !is_address && bare.contains([':', '/', '[', ']', ' ']) {
        true => {
            Err("expected a name or an address alone, such as localhost, 0.0.0.0 or ::1; --port has the port"
                .to_owned())
        }
        false => Ok(bare.to_owned()),
    }
}

/// vLLM's parsers by their names.
fn tool_formats() -> impl TypedValueParser<Value = ToolFormat> {
    // What is none of these is refused before it is read.
    PossibleValuesParser::new(ToolFormat::names()).map(|name| ToolFormat::named(&name).unwrap_or(ToolFormat::Hermes))
}

/// The same of reasoning.
fn reasoning_formats() -> impl TypedValueParser<Value = ReasoningFormat> {
    let named = |name: String| ReasoningFormat::named(&name).unwrap_or(ReasoningFormat::Think);
    PossibleValuesParser::new(ReasoningFormat::names()).map(named)
}

impl ServeArgs {
    /// Refuses a command line whose MODEL went to a flag of several values, which stands before it.
    fn refuse_swallowed_model(&self) -> Result<(), CliError> {
        if self.model.model.is_some() {
            return Ok(());
        }
        let swallowed = |values: &[String]| values.iter().skip(1).find(|value| looks_like_model(value)).cloned();
        if let Some(model) = swallowed(&self.served_model_name) {
            return Err(CliError::SwallowedModel { flag: "--served-model-name", model });
        }
        // It may be a key after all, which nobody else should read.
        let model = "MODEL".to_owned();
        swallowed(&self.api_key).map_or(Ok(()), |_| Err(CliError::SwallowedModel { flag: "--api-key", model }))
    }

    /// As addresses are written before a port.
    fn address(&self) -> String {
        let ServeArgs { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    fn config(&self) -> AppConfig {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        AppConfig {
            api_keys: self.api_key.clone(),
            cors: self.cors.cors(),
            max_body_size: size(self.max_body_size),
            max_request_memory: size(self.max_request_memory),
            max_stored_responses: size(self.max_stored_responses),
            trust_request_chat_template: self.trust_request_chat_template,
            tokenizer_info: self.enable_tokenizer_info_endpoint,
            dev_mode: self.server_dev_mode,
            shutdown_timeout: self.shutdown_timeout.map(Duration::from_secs),
            ..AppConfig::default()
        }
    }
}

pub async fn run(args: ServeArgs) -> Result<(), CliError> {
    args.refuse_swallowed_model()?;
    // Before anything that takes time, so that no signal is lost.
    let shutdown = shutdown_signal().map_err(CliError::Signals)?;
    // Before files are opened: a checkpoint may have hundreds.
    let limit = file_limit::raise();
    // Every fault of the checkpoint's files shows here, before the port is open.
    let (model, pooling) = (args.model.clone(), args.pooling.clone());
    let opening = tokio::task::spawn_blocking(move || load::open_to(&model, |checkpoint| pooling.pooler(checkpoint)));
    tokio::pin!(shutdown);
    let opened = tokio::select! {
        opened = opening => opened.map_err(|panic| CliError::Load(format!("opening the model failed: {panic}")))??,
        () = &mut shutdown => return Ok(()),
    };
    if let Some(warning) = file_limit::warning(limit, args.model.engine.max_num_seqs(), args.max_waiting) {
        tracing::warn!("{warning}");
    }
    let bind = |source| CliError::Bind { address: args.address(), source };
    let listener = TcpListener::bind((args.host.as_str(), args.port)).await.map_err(bind)?;
    tracing::info!("listening on http://{}", listener.local_addr().map_err(bind)?);
    let config = AppConfig { max_connections: file_limit::connections(limit), ..args.config() };
    let formats = OutputFormats { tools: args.tool_call_parser, reasoning: args.reasoning_parser };
    let names = args.served_model_name;
    let text_memory = config.max_request_memory;
    let loading = tokio::task::spawn_blocking(move || opened.load(names, args.max_waiting, text_memory, formats));
    let load = async {
        match loading.await {
            Ok(loaded) => loaded.map_err(|error| error.to_string()),
            Err(panic) => Err(format!("loading the model failed: {panic}")),
        }
    };
    Ok(serve(listener, App::new(config), load, shutdown).await?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn read(arguments: &[&str]) -> ServeArgs {
        Line::try_parse_from([&["serve"], arguments].concat()).unwrap().serve
    }

    #[test]
    fn a_model_behind_names_or_keys_is_missed() {
        let directory = env!("CARGO_MANIFEST_DIR");
        for (flag, model) in
            [("--served-model-name", "a/b"), ("--served-model-name", directory), ("--api-key", "a/b:Q4_0")]
        {
            let error = read(&[flag, "x", model]).refuse_swallowed_model().unwrap_err().to_string();
            assert!(error.contains(&format!("before {flag}")), "{error}");
            assert_eq!(error.contains(model), flag != "--api-key", "{error}");
            assert!(read(&[model, flag, "x"]).refuse_swallowed_model().is_ok());
        }
        // The first value is the flag's, whatever it looks like, and names may be many.
        assert!(read(&["--served-model-name", "a/b", "gpt-4"]).refuse_swallowed_model().is_ok());
        assert_eq!(read(&["--api-key", "a", "b", "--api-key", "c"]).api_key, ["a", "b", "c"]);
    }

    #[test]
    fn a_host_is_a_host_alone() {
        for (text, expected) in
            [("localhost", "localhost:1"), ("0.0.0.0", "0.0.0.0:1"), ("::1", "[::1]:1"), ("[::]", "[::]:1")]
        {
            assert_eq!(read(&["--host", text, "--port", "1"]).address(), expected);
        }
        for bad in ["", "http://localhost", "localhost:8113", "[localhost", "127.0.0.1:80", "a b"] {
            assert!(host(bad).unwrap_err().contains("--port"), "{bad}");
        }
    }
}
