//! `vllm-apple serve`. Knows addresses and keys; the server itself is in `http`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use tokio::net::TcpListener;

use super::CliError;
use super::args::ModelArgs;
use super::load;
use crate::http::{App, serve, shutdown_signal};

#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Address to listen on; 0.0.0.0 lets other machines in
    #[arg(long, default_value = "127.0.0.1", help_heading = "Server")]
    host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000, help_heading = "Server")]
    port: u16,
    /// Names that requests may use for the model; the first stands in answers [default: as given]
    #[arg(long, value_name = "NAME", num_args = 1.., help_heading = "Server")]
    served_model_name: Vec<String>,
    /// Key that clients must send as a bearer token; repeatable
    #[arg(
        long,
        value_name = "KEY",
        env = "VLLM_API_KEY",
        hide_env_values = true,
        value_parser = NonEmptyStringValueParser::new(),
        help_heading = "Server"
    )]
    api_key: Vec<String>,
    /// Let requests bring a `chat_template` of their own, which is a program that runs here
    #[arg(long, help_heading = "Server")]
    trust_request_chat_template: bool,
    /// Most requests that wait beyond --max-num-seqs; more are refused with status 429
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Server")]
    max_waiting: usize,
}

pub async fn run(args: ServeArgs) -> Result<(), CliError> {
    // Before anything that takes time, so that no signal is lost.
    let shutdown = shutdown_signal()?;
    // Every fault of the checkpoint's files shows here, before the port is open.
    let opened = load::open(&args.model)?;
    let bind = |source| CliError::Bind { address: format!("{}:{}", args.host, args.port), source };
    let listener = TcpListener::bind((args.host.as_str(), args.port)).await.map_err(bind)?;
    tracing::info!("listening on http://{}", listener.local_addr()?);
    let names = args.served_model_name;
    let loading = tokio::task::spawn_blocking(move || opened.load(names, args.max_waiting));
    let load = async {
        match loading.await {
            Ok(loaded) => loaded.map_err(|error| error.to_string()),
            Err(panic) => Err(format!("loading the model failed: {panic}")),
        }
    };
    let app = match args.trust_request_chat_template {
        true => App::trusting_request_chat_templates(args.api_key),
        false => App::new(args.api_key),
    };
    Ok(serve(listener, app, load, shutdown).await?)
}
