//! The chat templates of llama.cpp's source package: rendered as transformers renders them, and as llama.cpp expects. tools/test-templates.sh
//! fetches the templates and has transformers render them.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::{Map, Value};
use vllm_apple::text::{ChatInput, TextError};

use crate::chat::{Case, Conversation, Outcome, Template, difference, template_of};

/// What tools/golden/llama_cpp_templates.py records.
#[derive(Deserialize)]
struct Record {
    templates: BTreeMap<String, Template>,
    conversations: HashMap<String, Conversation>,
    cases: Vec<Case>,
    spoken: Vec<Spoken>,
}

/// A case of llama.cpp's own test.
#[derive(Deserialize)]
struct Spoken {
    name: String,
    source: String,
    special_tokens: Map<String, Value>,
    messages: Vec<Value>,
    expected: String,
    transformers: Outcome,
}

/// Whose templates have no place for a system message: llama.cpp writes it before the user's, while they, as transformers renders them, refuse
/// it or leave it out.
const OTHERWISE: [&str; 6] = [
    "mistralai/Mistral-7B-Instruct-v0.2 (NOTE: Old pre-v1 without a system prompt)",
    "google/gemma-7b-it",
    "OrionStarAI/Orion-14B-Chat",
    "Phi-3-mini",
    "Phi-3-medium",
    "yandex/YandexGPT-5-Lite-8B-instruct",
];

fn record() -> Record {
    let path = std::env::var_os("TEMPLATES").expect("TEMPLATES");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Why a case differs, where the template engine cannot do as Jinja2 does.
fn known_difference(template: &str, ours: &Result<String, TextError>, expected: &Outcome) -> Option<&'static str> {
    match (ours, expected.error.as_deref(), &expected.text) {
        (Ok(_), Some("'NoneType' object is not iterable"), _) => Some("none has no items, and no error"),
        (Ok(_), Some("Object of type generator is not JSON serializable"), _) => Some("what `map` makes is a list"),
        // Jinja2 joins a text that `safe` has marked with others by escaping these.
        (Ok(ours), _, Some(text)) if template == "meetkai-functionary-medium-v3.1" && ours != text => {
            let unescaped = [("&#34;", "\""), ("&#39;", "'"), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")];
            let text = unescaped.iter().fold(text.clone(), |text, (from, to)| text.replace(from, to));
            (*ours == text).then_some("nothing is escaped")
        }
        _ => None,
    }
}

/// Where two texts begin to differ; of errors, both.
fn first_difference(ours: &Result<String, TextError>, expected: &Outcome) -> Option<String> {
    let both = difference(ours, expected)?;
    let (Ok(ours), Some(text)) = (ours, &expected.text) else { return Some(both.chars().take(600).collect()) };
    let same = ours.chars().zip(text.chars()).take_while(|(a, b)| a == b).count();
    let around = |text: &str| text.chars().skip(same.saturating_sub(40)).take(100).collect::<String>();
    Some(format!("{:?}\nexpected {:?}", around(ours), around(text)))
}

#[test]
#[ignore = "needs TEMPLATES, a record of llama.cpp's: tools/test-templates.sh"]
fn templates_of_llama_cpp_are_rendered_as_by_transformers() {
    let record = record();
    let (mut wrong, mut texts, mut known) = (Vec::new(), 0, BTreeMap::new());
    for (name, recorded) in &record.templates {
        let template = match template_of(&recorded.source, &recorded.special_tokens) {
            Ok(template) => template,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        for case in record.cases.iter().filter(|case| case.template == *name) {
            let mut input = record.conversations[&case.conversation].input();
            input.add_generation_prompt = case.add_generation_prompt;
            input.continue_final_message = case.continue_final_message;
            texts += usize::from(case.outcome.text.is_some());
            let ours = template.render(&input);
            if let Some(reason) = known_difference(name, &ours, &case.outcome) {
                *known.entry(reason).or_insert(0) += 1;
                continue;
            }
            let found = first_difference(&ours, &case.outcome);
            wrong.extend(found.map(|found| format!("{name}, {}: {found}", case.conversation)));
        }
    }
    let (templates, cases) = (record.templates.len(), record.cases.len());
    println!("{templates} templates, {cases} cases, {texts} of them texts; {} differ; known: {known:?}", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(known.len(), 3, "a difference is none any more: {known:?}");
}

#[test]
#[ignore = "needs TEMPLATES, a record of llama.cpp's: tools/test-templates.sh"]
fn llama_cpps_own_cases_are_rendered_as_it_expects() {
    let (mut wrong, mut others) = (Vec::new(), Vec::new());
    for case in record().spoken {
        let template = template_of(&case.source, &Map::new()).unwrap();
        // Empty tokens, too, which a tokenizer cannot have.
        let input = ChatInput { kwargs: case.special_tokens, ..ChatInput::new(&case.messages) };
        let ours = template.render(&input);
        wrong.extend(first_difference(&ours, &case.transformers).map(|found| format!("{}: {found}", case.name)));
        if ours.ok().as_ref() != Some(&case.expected) {
            others.push(case.name);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(others, OTHERWISE);
}
