//! Tools of `/v1/messages` that a conversation changes on its way, as Claude Code does.

use serde_json::{Value, json};

use crate::messages_documents::count;
use crate::support::{MODEL, Server, Setup};

const COUNT: &str = "/v1/messages/count_tokens";

fn tool(name: &str, description: &str) -> Value {
    json!({"name": name, "description": description, "input_schema": {"type": "object"}})
}

fn reference(kind: &str, name: &str) -> Value {
    json!({"type": kind, "tool": {"type": "tool_reference", "name": name}, "cache_control": null})
}

fn definition(tool: Value) -> Value {
    json!({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}})
}

/// A conversation that is told something on its way.
fn told(tools: Value, blocks: Value) -> Value {
    json!({"model": MODEL, "tools": tools, "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": blocks},
        {"role": "user", "content": "So?"},
    ]})
}

async fn showing() -> Server {
    let mut setup = Setup::default().roomy();
    setup.template = Some("{{ messages | tojson }}{% if tools %} {{ tools | tojson }} <tool_call>{% endif %}");
    setup.start().await
}

#[tokio::test]
async fn the_model_is_shown_the_tools_that_there_are_in_the_end() {
    let server = showing().await;
    let (now, later, other) =
        (tool("now", "It knows."), tool("later", "It waits."), tool("now", "It knows more of it."));
    let both = json!([now, later]);
    let text = json!({"type": "text", "text": "Be."});
    let [add, remove] = ["tool_addition", "tool_removal"];
    for (blocks, expected_tools) in [
        (json!([text]), both.clone()),
        (json!([text, reference(add, "later")]), both.clone()),
        (json!([reference(remove, "now"), text]), json!([later])),
        (json!([reference(remove, "now"), text, reference(add, "now")]), both.clone()),
        (json!([reference(add, "now"), text, reference(remove, "now"), reference(remove, "later")]), json!([])),
        (json!([text, definition(tool("then", "It was."))]), json!([now, later, tool("then", "It was.")])),
        (json!([text, definition(other.clone())]), json!([other, later])),
        (json!([text, reference(remove, "now"), definition(other.clone())]), json!([other, later])),
        (json!([text, definition(tool("then", "It was.")), reference(remove, "then")]), both.clone()),
    ] {
        let expected = count(&server, told(expected_tools, json!("Be."))).await;
        assert_eq!(count(&server, told(both.clone(), blocks.clone())).await, expected, "{blocks}");
    }
    // Blocks that say nothing are no message, and tools that wait to be added are shown at once.
    let mut waiting = later.clone();
    waiting["defer_loading"] = true.into();
    let body = told(json!([now, waiting]), json!([reference(add, "later")]));
    let mut plain = told(both, json!(""));
    plain["messages"].as_array_mut().unwrap().remove(1);
    let (expected, _) = count(&server, plain).await;
    assert_eq!(count(&server, body).await, (expected, "tools.defer_loading".to_owned()));
}

#[tokio::test]
async fn what_is_wrong_with_a_change_is_named() {
    let server = showing().await;
    let tools = json!([tool("now", "It knows.")]);
    let told = |block: Value| told(tools.clone(), json!([block]));
    let path = "messages[1].content[0].tool";
    let nameless = json!({"description": "x", "input_schema": {"type": "object"}});
    let user = json!({"model": MODEL, "messages": [{"role": "user", "content": [reference("tool_addition", "now")]}]});
    let system = json!({"model": MODEL, "system": [reference("tool_addition", "now")], "messages": [{"role": "user", "content": "Hi"}]});
    for (body, param) in [
        (told(reference("tool_addition", "then")), format!("{path}.name")),
        (told(reference("tool_removal", "then")), format!("{path}.name")),
        (told(json!({"type": "tool_addition"})), path.to_owned()),
        (
            told(json!({"type": "tool_addition", "tool": {"type": "mcp_toolset_reference", "server_name": "x"}})),
            format!("{path}.type"),
        ),
        (told(json!({"type": "tool_addition", "tool": {"type": "tool_definition"}})), format!("{path}.type")),
        (
            told(json!({"type": "tool_removal", "tool": {"type": "tool_definition", "definition": tool("now", "x")}})),
            format!("{path}.type"),
        ),
        (told(json!({"type": "tool_addition", "tool": {"type": "tool_reference"}})), format!("{path}.name")),
        (told(definition(json!({"name": "x"}))), format!("{path}.definition.input_schema")),
        (told(definition(nameless)), format!("{path}.definition.name")),
        (told(json!({"type": "tool_change"})), "messages[1].content[0].type".to_owned()),
        (user, "messages[0].content[0].type".to_owned()),
        (system, "system[0].type".to_owned()),
    ] {
        let response = server.post(COUNT, body.clone()).await;
        assert_eq!(response.status(), 400, "{body}");
        let message = response.json::<Value>().await.unwrap()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(&format!("`{param}`")), "{param}: {message}");
    }
}
