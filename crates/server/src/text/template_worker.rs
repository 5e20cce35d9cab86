//! The process in which chat templates are compiled and rendered: Rust cannot survive a stack that overflows or memory that
//! runs out, so that a hostile template may end this process and not the server's. Knows its standard input and output only.

use std::io;
use std::sync::mpsc;

use minijinja::Value as JinjaValue;
use minijinja::value::Serde;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::signal::unix::{SignalKind, signal};
use vllm_apple_model::json;

use super::chat_template::{ChatInput, ChatTemplate, Variables};
use super::tekken::Piece;
use super::template_limits::{KEPT_BYTES, MAX_TEXT_BYTES, MEMORY_BYTES, STACK_BYTES, TemplateLimit};
use super::template_protocol::{Answer, Ask, RenderAsk, Reply, read_frame, write_frame};
use super::{TextError, mistral_chat, template_limits, text_parts};
use crate::memory;

/// Answers the frames on standard input until it ends.
///
/// # Errors
/// The system gives no thread or no signal handler, or the server's frames are damaged.
pub fn run() -> io::Result<()> {
    memory::set_limit(MEMORY_BYTES);
    outlive_signals()?;
    // A panic is an error of the request; the message would only confuse who reads the server's log.
    std::panic::set_hook(Box::new(|_| {}));
    let (frames, to_answer) = mpsc::channel();
    std::thread::Builder::new().name("template".to_owned()).stack_size(STACK_BYTES).spawn(move || {
        // Nobody is left who reads: whatever the reason, there is nothing more to do here.
        let _ = answer_all(&to_answer);
        std::process::exit(0);
    })?;
    // This thread only reads, so that the end of the server ends a rendering, too.
    let mut stdin = io::stdin().lock();
    while let Some(frame) = read_frame(&mut stdin)? {
        if frames.send(frame).is_err() {
            break;
        }
    }
    Ok(())
}

/// A terminal's Ctrl-C and a service manager's SIGTERM reach this process beside the server, which still finishes requests. It
/// says when to end by closing standard input.
fn outlive_signals() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _context = runtime.enter();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        // Once installed, a handler stays, and this one does nothing.
        let _ = signal(kind)?;
    }
    Ok(())
}

fn answer_all(frames: &mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let mut template = None;
    for frame in frames {
        write_frame(&mut stdout, &[])?;
        let reply = answer(&mut template, &frame);
        drop(frame);
        // Between compiling and rendering the worker must stay.
        let is_spent = memory::peak() > KEPT_BYTES && !matches!(reply, Reply::Compiled);
        write_frame(&mut stdout, &serde_json::to_vec(&Answer { reply, is_spent })?)?;
        if is_spent {
            break;
        }
    }
    Ok(())
}

fn answer(template: &mut Option<ChatTemplate>, frame: &[u8]) -> Reply {
    let answered = match serde_json::from_slice(frame) {
        Ok(Ask::Compile(source)) => {
            *template = None;
            ChatTemplate::compile(&source).map(|compiled| {
                *template = Some(compiled);
                Reply::Compiled
            })
        }
        Ok(Ask::Render(ask)) => match template {
            Some(template) => render(template, &ask).map(Reply::Rendered),
            None => Err(refuse("the worker has no template".to_owned())),
        },
        Ok(Ask::Mistral { version, ask }) => pieces(version, &ask).map(Reply::Pieces),
        Err(error) => Err(refuse(format!("the worker does not understand the server: {error}"))),
    };
    answered.unwrap_or_else(Reply::from)
}

fn render(template: &ChatTemplate, ask: &RenderAsk) -> Result<String, TextError> {
    let messages: Vec<&RawValue> = serde_json::from_str(ask.messages.get())
        .map_err(|error| refuse(format!("`messages` is not valid: {error}")))?;
    let messages = messages.into_iter().enumerate().map(|(at, message)| {
        // The name is made for errors only: there are many messages.
        parse("", message).or_else(|_| parse(&format!("messages[{at}]"), message)).map(|m| template.adapt(m))
    });
    let value = |name: &str, raw: &RawValue| -> Result<JinjaValue, TextError> {
        Ok(JinjaValue::from(Serde(&parse(name, raw)?)))
    };
    let kwargs = ask.kwargs.iter().map(|(name, raw)| {
        let value = value(&format!("chat_template_kwargs.{name}"), raw)?;
        Ok((name.clone(), value))
    });
    let tools = ask.tools.map(|raw| parse("tools", raw)).transpose()?.map(|tools| template.adapt_tools(tools));
    let tools = tools.as_ref().map(|tools| JinjaValue::from(Serde(tools)));
    template.render_with(Variables {
        messages,
        tools,
        documents: ask.documents.map(|raw| value("documents", raw)).transpose()?,
        add_generation_prompt: ask.add_generation_prompt,
        continue_final_message: ask.continue_final_message,
        kwargs: kwargs.collect::<Result<_, TextError>>()?,
        order: template.order(),
    })
}

fn pieces(version: u32, ask: &RenderAsk) -> Result<Vec<Piece>, TextError> {
    let list = |name: &str, raw: &RawValue| match parse(name, raw)? {
        Value::Array(list) => Ok(list),
        _ => Err(refuse(format!("`{name}` is not valid: expected a list"))),
    };
    let messages: Vec<_> = list("messages", ask.messages)?.into_iter().map(text_parts::as_text).collect();
    let tools = ask.tools.map(|raw| list("tools", raw)).transpose()?;
    // Nothing begins an answer in this format.
    let continue_final_message = ask.continue_final_message;
    let tools = tools.as_deref();
    let pieces =
        mistral_chat::pieces(version, &ChatInput { tools, continue_final_message, ..ChatInput::new(&messages) })?;
    let bytes: usize = pieces.iter().filter_map(Piece::text).map(str::len).sum();
    if bytes > MAX_TEXT_BYTES {
        return Err(TextError::TemplateLimit(TemplateLimit::Text));
    }
    Ok(pieces)
}

fn parse(name: &str, raw: &RawValue) -> Result<Value, TextError> {
    json::parse(raw.get().as_bytes()).map_err(|error| refuse(format!("`{name}` is not valid: {error}")))
}

fn refuse(mut reason: String) -> TextError {
    template_limits::shorten(&mut reason);
    TextError::Template(reason)
}
