//! A form in gpt-oss' channels, as in vLLM: what it thinks is a message of its own and free, and the form holds in the message that it is about.
//! Knows the marks around messages, no request.

use std::sync::Arc;

use vllm_apple_engine::{Grammar, GrammarError, Matcher};

use super::either::{Way, stray};
use super::mask;
use crate::text::Tokenizer;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const CALL: &str = "<|call|>";
const RETURN: &str = "<|return|>";

/// Marks that stand in no text of a message, besides what ends an answer.
const MARKS: [&str; 6] = [START, CHANNEL, CONSTRAIN, MESSAGE, CALL, RETURN];

/// What an answer ends with.
#[derive(Debug, Default)]
pub struct LastMessage {
    /// An answer with a text of this form, and whether that is JSON.
    pub text: Option<(Arc<dyn Grammar>, bool)>,
    /// A call, with a header of its own.
    pub calls: Option<Arc<dyn Grammar>>,
}

/// Where a prompt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// Behind a message.
    Nothing,
    /// Behind the mark of a message, which has no header yet.
    Header,
    /// In what the model thinks.
    Thought,
    /// In its answer.
    Answer,
}

/// Messages that are free, and one that is not.
#[derive(Debug)]
pub struct Channels(Arc<Layout>);

#[derive(Debug)]
struct Layout {
    /// Tokens of headers, none of which begins another.
    heads: Vec<(Vec<u32>, Text)>,
    calls: Option<Arc<dyn Grammar>>,
    /// Tokens between two messages.
    start: Vec<u32>,
    end: u32,
    /// Tokens that would end the answer before it has begun, and those that stand in no text.
    banned: Vec<u32>,
    open: Open,
}

/// The text of a message.
#[derive(Debug, Clone)]
enum Text {
    Free,
    Held(Arc<dyn Grammar>),
}

struct Answer {
    layout: Arc<Layout>,
    state: State,
}

enum State {
    /// So many tokens of what stands between two messages have come.
    Start(usize),
    Header {
        taken: Vec<u32>,
        calls: Option<Way>,
    },
    Free,
    Held(Box<dyn Matcher>),
}

impl Open {
    /// Of a prompt's tokens.
    pub fn of(tokenizer: &Tokenizer, prompt: &[u32]) -> Self {
        let mark = |name| tokenizer.token_to_id(name);
        let [start, message, end, call, back] = [START, MESSAGE, END, CALL, RETURN].map(mark);
        let last = prompt.iter().rposition(|&token| [start, message, end, call, back].contains(&Some(token)));
        match last {
            Some(last) if Some(prompt[last]) == start => Self::Header,
            Some(last) if Some(prompt[last]) == message => {
                let first = prompt[..last].iter().rposition(|&token| Some(token) == start).unwrap_or(0);
                let header = tokenizer.decode(&prompt[first..last], false).unwrap_or_default();
                if header.contains("<|channel|>analysis") { Self::Thought } else { Self::Answer }
            }
            _ => Self::Nothing,
        }
    }
}

impl Channels {
    /// Whether the model was taught any: the tokenizer has tokens for them.
    pub fn are_known(tokenizer: &Tokenizer) -> bool {
        Self::new(tokenizer, &[], Open::Nothing, LastMessage::default()).is_some()
    }

    /// Behind a prompt that ends so. `None`: the model knows no channels.
    pub fn new(tokenizer: &Tokenizer, eos_token_ids: &[u32], open: Open, last: LastMessage) -> Option<Self> {
        let mark = |name| tokenizer.token_to_id(name);
        let [start, channel, message, end] = [mark(START)?, mark(CHANNEL)?, mark(MESSAGE)?, mark(END)?];
        let tokens = |text: &str| tokenizer.encode(text, false).ok();
        let is_head = |head: &Vec<u32>| head.first() == Some(&channel) && head.last() == Some(&message);
        let head = |name: &str| tokens(&format!("{CHANNEL}{name}{MESSAGE}")).filter(is_head);
        let mut heads = vec![(head("analysis")?, Text::Free)];
        match &last.text {
            // The header says that JSON comes, as the model was taught and vLLM has it.
            Some((text, true)) => {
                heads.push((head("final json")?, Text::Held(Arc::clone(text))));
                if mark(CONSTRAIN).is_some() {
                    heads.push((head("final <|constrain|>json")?, Text::Held(Arc::clone(text))));
                }
            }
            Some((text, false)) => heads.push((head("final")?, Text::Held(Arc::clone(text)))),
            // What it says before a call. Before a form that would be more text than the form has.
            None => heads.push((head("commentary")?, Text::Free)),
        }
        let banned = eos_token_ids.iter().copied().chain(MARKS.into_iter().filter_map(mark)).collect();
        let start = tokens("<|start|>assistant").filter(|tokens| tokens.first() == Some(&start))?;
        Some(Self(Arc::new(Layout { heads, calls: last.calls, start, end, banned, open })))
    }
}

impl Layout {
    fn header(&self) -> State {
        State::Header { taken: Vec::new(), calls: self.calls.as_ref().map(Way::new) }
    }

    /// Behind the next token of a header.
    fn in_header(&self, mut taken: Vec<u32>, calls: Option<Way>, token: u32) -> Result<State, GrammarError> {
        taken.push(token);
        let calls = calls.map_or(Ok(None), |way| way.take(token))?;
        match (self.heads.iter().find(|(head, _)| head.starts_with(&taken)), calls) {
            (Some((head, text)), _) if head.len() == taken.len() => Ok(match text {
                Text::Free => State::Free,
                Text::Held(grammar) => State::Held(grammar.start()),
            }),
            (Some(_), calls) => Ok(State::Header { taken, calls }),
            (None, Some(call)) => Ok(State::Held(call.into_matcher())),
            (None, None) => Err(stray(token)),
        }
    }
}

impl Grammar for Channels {
    fn start(&self) -> Box<dyn Matcher> {
        let layout = Arc::clone(&self.0);
        let state = match layout.open {
            Open::Nothing => State::Start(0),
            Open::Header => layout.header(),
            Open::Thought | Open::Answer => State::Free,
        };
        Box::new(Answer { layout, state })
    }
}

impl Matcher for Answer {
    fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        let layout = &self.layout;
        self.state = match std::mem::replace(&mut self.state, State::Free) {
            State::Start(at) if layout.start.get(at) != Some(&token) => return Err(stray(token)),
            State::Start(at) if at + 1 == layout.start.len() => layout.header(),
            State::Start(at) => State::Start(at + 1),
            State::Header { taken, calls } => layout.in_header(taken, calls, token)?,
            State::Free if token == layout.end => State::Start(0),
            State::Free => State::Free,
            State::Held(mut matcher) => {
                matcher.accept(token)?;
                State::Held(matcher)
            }
        };
        Ok(())
    }

    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
        match &mut self.state {
            State::Start(at) => mask::set(mask, self.layout.start[*at]),
            State::Header { taken, calls } => {
                let heads = self.layout.heads.iter().filter(|(head, _)| head.starts_with(taken));
                heads.for_each(|(head, _)| mask::set(mask, head[taken.len()]));
                if let Some(calls) = calls {
                    calls.allowed(mask)?;
                }
            }
            State::Free => {
                mask.fill(u32::MAX);
                self.layout.banned.iter().for_each(|&token| mask::clear(mask, token));
            }
            State::Held(matcher) => matcher.allowed(mask)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::either::Either;
    use super::super::either::tests::{Tokens, masks};
    use super::*;

    const EOS: u32 = 1;
    const END: u32 = 2;
    const ASSISTANT: u32 = 3;
    const CHANNEL: u32 = 4;
    const MESSAGE: u32 = 5;
    const ANALYSIS: u32 = 6;
    const FINAL: u32 = 7;
    const COMMENTARY: u32 = 8;
    const TO: u32 = 9;

    /// What may come in free text, and between two messages.
    const FREE: u32 = !(1 << EOS | 1 << MESSAGE | 1 << CHANNEL);
    const NEXT: u32 = 1 << ASSISTANT;

    fn channels(heads: &[(u32, Text)], calls: Option<Arc<dyn Grammar>>, open: Open) -> Channels {
        let head = |(channel, text): &(u32, Text)| (vec![CHANNEL, *channel, MESSAGE], text.clone());
        Channels(Arc::new(Layout {
            heads: heads.iter().map(head).collect(),
            calls,
            start: vec![ASSISTANT],
            end: END,
            banned: vec![EOS, MESSAGE, CHANNEL, 400],
            open,
        }))
    }

    /// The text 20 21 in the last message.
    fn of_text(open: Open) -> Channels {
        let text = Arc::new(Tokens(&[20, 21, EOS]));
        channels(&[(ANALYSIS, Text::Free), (FINAL, Text::Held(text))], None, open)
    }

    #[test]
    fn thoughts_are_free_and_the_last_message_is_not() {
        let channel = 1 << CHANNEL;
        let either = 1 << ANALYSIS | 1 << FINAL;
        let message = 1 << MESSAGE;
        // At once. The form ends the answer, with what the form says.
        let form = of_text(Open::Header);
        let last = [channel, either, message, 1 << 20, 1 << 21, 1 << EOS];
        assert_eq!(masks(&form, &[CHANNEL, FINAL, MESSAGE, 20, 21]), last);
        // After thoughts, as many as there are: what stands in them is no header, and ends nothing.
        let thought = [CHANNEL, ANALYSIS, MESSAGE, 20, FINAL, ASSISTANT, END, ASSISTANT];
        let masks_of_thought = [channel, either, message, FREE, FREE, FREE, FREE, NEXT];
        for times in 1..3 {
            let tokens = [thought.repeat(times), vec![CHANNEL, FINAL, MESSAGE, 20, 21]].concat();
            assert_eq!(masks(&form, &tokens), [masks_of_thought.repeat(times), last.to_vec()].concat());
        }
    }

    #[test]
    fn a_prompt_may_have_begun_a_message() {
        let channel = 1 << CHANNEL;
        assert_eq!(masks(&of_text(Open::Thought), &[30, END, ASSISTANT]), [FREE, FREE, NEXT, channel]);
        assert_eq!(masks(&of_text(Open::Nothing), &[ASSISTANT]), [NEXT, channel]);
    }

    #[test]
    fn a_call_brings_its_header() {
        let calls = || -> Arc<dyn Grammar> {
            Arc::new(Either(vec![
                Arc::new(Tokens(&[TO, 10, MESSAGE, 20, EOS])),
                Arc::new(Tokens(&[CHANNEL, COMMENTARY, TO, MESSAGE, 21, EOS])),
            ]))
        };
        let form = channels(&[(ANALYSIS, Text::Free), (COMMENTARY, Text::Free)], Some(calls()), Open::Header);
        let begin = 1 << CHANNEL | 1 << TO;
        let channel = 1 << ANALYSIS | 1 << COMMENTARY;
        let message = 1 << MESSAGE;
        assert_eq!(masks(&form, &[TO, 10, MESSAGE, 20]), [begin, 1 << 10, message, 1 << 20, 1 << EOS]);
        let said = [CHANNEL, COMMENTARY, MESSAGE, 30, END, ASSISTANT];
        let masks_of_said = [begin, channel, message | 1 << TO, FREE, FREE, NEXT];
        let call = [CHANNEL, COMMENTARY, TO, MESSAGE, 21];
        let masks_of_call = [begin, channel, message | 1 << TO, message, 1 << 21, 1 << EOS];
        assert_eq!(masks(&form, &said), [&masks_of_said[..], &[begin]].concat());
        assert_eq!(masks(&form, &[&said[..], &call].concat()), [masks_of_said, masks_of_call].concat());
        // Beside a form either may come.
        let text = Arc::new(Tokens(&[20, EOS]));
        let both = channels(&[(ANALYSIS, Text::Free), (FINAL, Text::Held(text))], Some(calls()), Open::Header);
        let channel = 1 << ANALYSIS | 1 << FINAL | 1 << COMMENTARY;
        assert_eq!(masks(&both, &[CHANNEL, FINAL, MESSAGE]), [begin, channel, message, 1 << 20]);
        assert_eq!(masks(&both, &[CHANNEL, COMMENTARY, TO]), [begin, channel, 1 << TO, message]);
    }

    #[test]
    fn what_no_mask_allows_is_no_answer() {
        for tokens in [&[FINAL][..], &[CHANNEL, TO], &[CHANNEL, ANALYSIS, MESSAGE, END, CHANNEL]] {
            let mut matcher = of_text(Open::Header).start();
            let accepted = tokens.iter().try_for_each(|&token| {
                matcher.allowed(&mut [0])?;
                matcher.accept(token)
            });
            assert!(matches!(accepted, Err(GrammarError::Internal(_))), "{tokens:?}");
        }
    }
}
