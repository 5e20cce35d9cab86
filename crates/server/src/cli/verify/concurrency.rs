//! Whether the server's answers depend on what else it does: each is asked for alone, and then with all others at once, streamed and whole,
//! greedy and drawn, while other clients leave in the middle of theirs. It knows HTTP as clients do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use vllm_apple_verify::sections::{Progress, examined, too_short};
use vllm_apple_verify::{Line, Section, Subject};

use super::VerifyArgs;
use super::client::{Answer, Ask, Client};
use crate::cli::args::LoadFormat;
use crate::cli::{CliError, load};
use crate::http::{App, AppConfig, serve};
use crate::served::OutputFormats;
use crate::served::ServedModel;

pub const NAME: &str = "concurrency";
pub const TITLE: &str = "Concurrency";

/// Tokens of the prompts of each kind.
const LENGTHS: [usize; 3] = [9, 70, 250];
/// Tokens of an answer.
const OUTPUT: usize = 24;
/// Tokens of an answer that nobody waits for.
const ABANDONED: usize = 200;
/// Requests in a step: fewer than there are clients, so that some wait.
const MAX_NUM_SEQS: usize = 8;
/// Answers that differ and are named.
const NAMED: usize = 3;
/// How long the engine may hold what nobody wants any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// The section's findings.
pub fn examine(args: &VerifyArgs, subject: &Subject, progress: &mut dyn Progress) -> Section {
    let mut section = examined(NAME, TITLE, || run(args, subject, progress));
    subject.host_ops.judge(&mut section);
    section
}

fn run(args: &VerifyArgs, subject: &Subject, progress: &mut dyn Progress) -> Result<Section, CliError> {
    if args.load_format == LoadFormat::Dummy {
        let line = Line::skipped("answers over HTTP", "random weights come without a tokenizer");
        return Ok(Section { lines: vec![line], ..Section::default() });
    }
    if let Some(section) = too_short(subject) {
        return Ok(section);
    }
    let mut model = args.model.clone();
    model.engine.max_num_seqs = Some(model.engine.max_num_seqs().min(MAX_NUM_SEQS));
    let asks = asks(subject)?;
    let served = load::open(&model)?.load(Vec::new(), 4 * asks.len(), usize::MAX, OutputFormats::default())?;
    let server = Server::start(Arc::clone(&served))?;
    let abandoned = abandoned(subject, &asks);
    let lines = examine_server(&server, &served, &asks, &abandoned, progress)?;
    server.stop()?;
    let about = format!(
        "{} requests to the HTTP server alone, then twice each at once, streamed and whole, while {} other clients leave in the middle of theirs; at \
         most {MAX_NUM_SEQS} in a step. Token ids, text and log-probabilities are compared.",
        asks.len(),
        abandoned.len()
    );
    Ok(Section { about, lines, ..Section::default() })
}

/// Prompts of every kind and length, greedy and drawn.
fn asks(subject: &Subject) -> Result<Vec<Ask>, CliError> {
    let max_tokens = OUTPUT.min(subject.max_model_len() / 2);
    let room = subject.max_model_len() - max_tokens;
    let mut asks = Vec::new();
    for kind in 0..subject.prompts.len() {
        for length in LENGTHS {
            let prompt = subject.prompt_at(kind)?.beginning(length.min(room));
            let drawn = asks.len() % 2 == 1;
            asks.push(Ask { prompt, max_tokens, seed: drawn.then_some(asks.len() as u64) });
        }
    }
    Ok(asks)
}

/// The same asks for answers that nobody waits for: only those that are long enough for a client to leave in the middle.
fn abandoned(subject: &Subject, asks: &[Ask]) -> Vec<Ask> {
    let long = |ask: &Ask| Ask { max_tokens: ABANDONED.min(subject.max_model_len() - ask.prompt.len()), ..ask.clone() };
    asks.iter().map(long).filter(|ask| ask.max_tokens >= ABANDONED / 2).collect()
}

/// The server of this program, on a port of its own.
struct Server {
    runtime: Runtime,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<Result<(), crate::http::ServeError>>,
}

impl Server {
    fn start(model: Arc<ServedModel>) -> Result<Self, CliError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(CliError::Runtime)?;
        let bind = |source| CliError::Bind { address: "127.0.0.1:0".to_owned(), source };
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            // An error means that the sender is gone, which is the end as well.
            let _ = stopped.await;
        };
        let served = runtime.spawn(serve(listener, App::new(AppConfig::default()), async { Ok(model) }, shutdown));
        Ok(Self { runtime, address, stop, served })
    }

    fn stop(self) -> Result<(), CliError> {
        drop(self.stop);
        let ended = self.runtime.block_on(self.served);
        ended.map_err(|panic| CliError::Load(format!("the server failed: {panic}")))?.map_err(CliError::from)
    }
}

fn examine_server(
    server: &Server,
    model: &ServedModel,
    asks: &[Ask],
    abandoned: &[Ask],
    progress: &mut dyn Progress,
) -> Result<Vec<Line>, CliError> {
    let client = Client::new(server.address);
    let total = 2 * asks.len() as u64;
    let mut alone = Vec::with_capacity(asks.len());
    for (at, ask) in asks.iter().enumerate() {
        progress.show(at as u64, total, "each alone");
        alone.push(client.whole(ask));
    }
    progress.show(asks.len() as u64, total, "all at once");
    let (together, left) = together(&client, asks, abandoned);
    let wrong = together.iter().enumerate().filter(|(at, answer)| **answer != alone[at % asks.len()]);
    let mut wrong: Vec<String> = wrong.map(|(at, answer)| describe(at, asks, answer)).collect();
    let differing = wrong.len();
    if differing > NAMED {
        wrong.truncate(NAMED);
        wrong.push(format!("and {} more", differing - NAMED));
    }
    let failed: Vec<&String> = alone.iter().filter_map(|answer| answer.as_ref().err()).collect();
    let answered = match failed.first() {
        None => format!("all {}", asks.len()),
        Some(first) => format!("{} are not: {first}", failed.len()),
    };
    let equal = match wrong.is_empty() {
        true => format!("{} equal", together.len()),
        false => format!("{differing} of {} differ: {}", together.len(), wrong.join("; ")),
    };
    let idle = idle(model);
    let held = match idle {
        true => "none".to_owned(),
        false => format!("{} after {} s", model.engine.stats().num_running, PATIENCE.as_secs()),
    };
    let health = client.health();
    let leaving = "clients that left in the middle";
    let leaving = match abandoned.len() {
        0 => Line::skipped(leaving, format!("sequences have no room for answers of {} tokens", ABANDONED / 2)),
        all => Line::judged(leaving, left.to_string(), all.to_string(), left == all),
    };
    Ok(vec![
        Line::judged("requests answered alone", answered, "all", failed.is_empty()),
        Line::judged("answers at once", equal, "each equal to the one alone", wrong.is_empty()),
        leaving,
        Line::judged("requests held for nobody", held, "none", idle),
        Line::judged("health afterwards", health.to_string(), "200", health == 200),
    ])
}

/// Each ask whole and streamed, at once; and how many others left before their answers ended.
fn together(client: &Client, asks: &[Ask], abandoned: &[Ask]) -> (Vec<Result<Answer, String>>, usize) {
    std::thread::scope(|scope| {
        let whole: Vec<_> = asks.iter().map(|ask| scope.spawn(|| client.whole(ask))).collect();
        let leaving = abandoned.iter().enumerate().map(|(at, ask)| scope.spawn(move || client.leave(ask, at % 5)));
        let leaving: Vec<_> = leaving.collect();
        let streamed: Vec<_> = asks.iter().map(|ask| scope.spawn(|| client.streamed(ask))).collect();
        let failed = |_| Err("the client failed".to_owned());
        let answers = whole.into_iter().chain(streamed).map(|thread| thread.join().unwrap_or_else(failed)).collect();
        let left = leaving.into_iter().filter_map(|thread| thread.join().ok()).filter(|left| *left).count();
        (answers, left)
    })
}

fn describe(at: usize, asks: &[Ask], answer: &Result<Answer, String>) -> String {
    let how = if at < asks.len() { "whole" } else { "streamed" };
    let tokens = asks[at % asks.len()].prompt.len();
    match answer {
        Ok(_) => format!("{how}, {tokens} tokens"),
        Err(error) => format!("{how}, {tokens} tokens: {error}"),
    }
}

/// Whether the engine comes to have nothing to do.
fn idle(model: &ServedModel) -> bool {
    let start = Instant::now();
    loop {
        let stats = model.engine.stats();
        if stats.num_running + stats.num_waiting == 0 {
            return true;
        }
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
