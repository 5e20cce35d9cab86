//! Calls beside a form of the text, and answers that go on inside of what the model thinks.

use serde_json::{Value, json};

use crate::more_tokens::{app, ask, checkpoint_with};
use crate::support::{Setup, with};

fn tools(strict: Value) -> Value {
    let place = json!({"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
        "additionalProperties": false});
    let tool = |name: &str, strict: &Value| json!({"type": "function", "function": {"name": name, "parameters": place, "strict": strict}});
    json!([tool("weather", &strict), tool("time", &Value::Null)])
}

fn body(strict: Value) -> Value {
    let schema = json!({"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    json!({"messages": [{"role": "user", "content": "Hi!"}], "tools": tools(strict), "response_format": format, "max_tokens": 200})
}

#[tokio::test]
async fn an_answer_is_a_form_or_calls() {
    let calls = Setup::scripted("<tool_call>\n{\"name\": \"weather\", ").roomy();
    let one = with(body(json!(true)), json!({"parallel_tool_calls": false}));
    let (choice, idle) = ask(&calls.app(), one).await;
    let function = &choice["message"]["tool_calls"][0]["function"];
    let city: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    assert!(city == json!({"city": "Oslo"}) || city == json!({"city": "Rome"}), "{choice}");
    assert_eq!((&choice["finish_reason"], idle.as_str()), (&json!("tool_calls"), ""), "{choice}");
    // What does not ask for its schema may be called with anything.
    let (choice, idle) = ask(&calls.app(), with(body(json!(false)), json!({"parallel_tool_calls": false}))).await;
    assert_eq!((&choice["message"]["tool_calls"][0]["function"]["name"], idle.as_str()), (&json!("weather"), ""));
    let answers = Setup::scripted("{").roomy();
    for strict in [json!(true), json!(false), json!(null)] {
        let (choice, idle) = ask(&answers.app(), body(strict)).await;
        let content: Value = serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
        assert!(content["sure"].is_boolean(), "{content}");
        assert_eq!(idle, "");
    }
    // vLLM's own forms hold from the first token on, unless a tool asks for its schema.
    for (strict, expected) in [(true, ""), (false, "tools")] {
        let mut own = body(json!(strict));
        let format = own.as_object_mut().unwrap().remove("response_format").unwrap();
        let form = json!({"structured_outputs": {"json": format["json_schema"]["schema"]}});
        assert_eq!(ask(&answers.app(), with(own, form)).await.1, expected);
    }
    // Without a form nothing holds the calls.
    let mut free = body(json!(true));
    free.as_object_mut().unwrap().remove("response_format");
    assert_eq!(ask(&answers.app(), with(free, json!({"max_tokens": 1}))).await.1, "tools.function.strict");
    // Nothing is known of how the model writes calls in this format.
    const PYTHONIC: &str =
        "{% if tools %}[func_name1(params_name1=1)]{{ tools | tojson }}{% endif %}{{ messages[0].content }}";
    let pythonic = Setup { template: Some(PYTHONIC), ..answers };
    assert_eq!(ask(&pythonic.app(), body(json!(true))).await.1, "tools");
}

#[tokio::test]
async fn a_llama_calls_beside_a_form() {
    const LLAMA: &str = "{% if tools %}<|python_tag|>{{ tools | tojson }}{% endif %}{{ messages[0].content }}";
    let setup = Setup { template: Some(LLAMA), ..Setup::scripted("{\"name\": \"time\", ").roomy() };
    let (choice, idle) = ask(&setup.app(), body(json!(true))).await;
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!((&function["name"], idle.as_str()), (&json!("time"), ""), "{choice}");
    // This one does not ask for its schema.
    assert!(function["arguments"].as_str().unwrap().starts_with('{'), "{choice}");
}

/// It has tokens for reasoning, and writes each message between special tokens.
const THINKS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                      {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# <think></think> #}";

#[tokio::test]
async fn an_answer_may_go_on_inside_of_thoughts() {
    let dir = checkpoint_with(&["<think>", "</think>"], false, &["<|im_end|>"], THINKS);
    let body = |user: &str, assistant: &str| {
        json!({"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}],
            "continue_final_message": true, "max_tokens": 100})
    };
    for (user, begun, written, thought, said) in [
        ("Hi!", "<think>\nHmm", " so.\n</think>\n\nParis.", Some(" so.\n"), "\n\nParis."),
        ("Hi!", "<think>\nHm.\n</think>\n\nPar", "is.", None, "is."),
        // What others say of tags begins nothing.
        ("What is <think>?", "It is", " a tag.", None, " a tag."),
    ] {
        let app = app(dir.path(), &format!("{written}<|im_end|>"));
        let message = ask(&app, body(user, begun)).await.0["message"].clone();
        assert_eq!((message["reasoning_content"].as_str(), &message["content"]), (thought, &json!(said)), "{begun}");
    }
    // A form holds behind them.
    let form = json!({"guided_regex": "[ab]{3}"});
    let app = app(dir.path(), " so.</think>");
    let message = ask(&app, with(body("Hi!", "<think>\nHmm"), form)).await.0["message"].clone();
    let content = message["content"].as_str().unwrap();
    assert!(
        message["reasoning_content"] == " so." && content.len() == 3 && content.bytes().all(|b| b"ab".contains(&b)),
        "{message}"
    );
    let asked = json!({"messages": [{"role": "user", "content": "What is <think>?"}], "max_tokens": 100});
    let app = crate::more_tokens::app(dir.path(), "A tag.<|im_end|>");
    assert_eq!(ask(&app, asked).await.0["message"]["content"], "A tag.");
}
