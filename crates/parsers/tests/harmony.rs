//! gpt-oss, by the examples of OpenAI's description of its format; and calls that are held to a form.

use vllm_apple_parsers::{OutputParser, Piece, ReasoningFormat, ToolFormat, ToolSchemas};

fn read(format: ToolFormat, text: &str) -> Vec<Piece> {
    let reasoning = (format == ToolFormat::Harmony).then_some((ReasoningFormat::Harmony, false));
    let mut parser = OutputParser::new(reasoning, Some(format), ToolSchemas::default());
    let mut pieces = parser.push(text);
    pieces.extend(parser.finish());
    pieces
}

fn reasoning(text: &str) -> Piece {
    Piece::Reasoning(text.to_owned())
}

fn content(text: &str) -> Piece {
    Piece::Content(text.to_owned())
}

fn call(name: &str, arguments: &str) -> [Piece; 2] {
    [Piece::Call { name: name.to_owned() }, Piece::Arguments(arguments.to_owned())]
}

#[test]
fn channels_are_reasoning_answer_and_calls() {
    let answer = "<|channel|>analysis<|message|>User asks 2 + 2.<|end|><|start|>assistant<|channel|>final<|message|>4.<|return|>";
    assert_eq!(read(ToolFormat::Harmony, answer), [reasoning("User asks 2 + 2."), content("4.")]);
    let called = "<|channel|>analysis<|message|>Need weather.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather \
                  <|constrain|>json<|message|>{\"location\":\"Tokyo\"}<|call|>";
    let mut expected = vec![reasoning("Need weather.")];
    expected.extend(call("get_weather", "{\"location\":\"Tokyo\"}"));
    assert_eq!(read(ToolFormat::Harmony, called), expected);
    // The recipient may stand with the role, and a preamble before a call is for the user.
    let other = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}";
    let mut expected = vec![content("I look.")];
    expected.extend(call("now", "{}"));
    assert_eq!(read(ToolFormat::Harmony, other), expected);
    assert_eq!(read(ToolFormat::Harmony, "No channel."), [content("No channel.")]);
    assert_eq!(read(ToolFormat::Harmony, "{\"a\": \"x <| y\"}"), [content("{\"a\": \"x <| y\"}")]);
    let cut = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    assert_eq!(read(ToolFormat::Harmony, cut), [reasoning("Hm.")]);
    // As in vLLM, what goes to the assistant or to a function without a name is no call.
    let itself = "<|channel|>analysis to=assistant<|message|>Hm.<|end|><|start|>functions.now to=assistant<|channel|>commentary<|message|>{}<|end|>\
                  <|start|>assistant<|channel|>commentary to=functions.<|message|>{}<|call|>";
    assert_eq!(read(ToolFormat::Harmony, itself), [reasoning("Hm.")]);
}

#[test]
fn required_and_named_calls_are_all_there_is() {
    let list = "[{\"name\": \"a\", \"parameters\": {\"x\": 1}}, {\"name\": \"b\", \"parameters\": {}}]";
    assert_eq!(read(ToolFormat::Required, list), [call("a", "{\"x\": 1}"), call("b", "{}")].concat());
    // Cut off by a limit, a call keeps what there is.
    assert_eq!(read(ToolFormat::Required, &list[..33]), call("a", "{\"x\""));
    assert_eq!(read(ToolFormat::Named("f".to_owned()), "{\"x\": 1}"), call("f", "{\"x\": 1}"));
}

#[test]
fn formats_are_told_by_their_templates() {
    for (template, tools, reasoning) in [
        ("{{ '<tool_call>\\n{\"name\": ' }}", Some(ToolFormat::Hermes), None),
        ("<tool_call> <function=f> <parameter=p> </think>", Some(ToolFormat::QwenXml), Some(ReasoningFormat::Think)),
        ("[TOOL_CALLS]", Some(ToolFormat::Mistral), None),
        ("<tool_call>{name}<arg_key>", Some(ToolFormat::Glm), None),
        ("<｜tool▁sep｜>...```json", Some(ToolFormat::DeepSeekV3), None),
        ("<|start|><|channel|><|message|>", Some(ToolFormat::Harmony), Some(ReasoningFormat::Harmony)),
        ("{{ message.content }}", None, None),
    ] {
        assert_eq!(ToolFormat::of_template(template), tools, "{template}");
        assert_eq!(ReasoningFormat::of_template(template), reasoning, "{template}");
    }
    assert!(ToolFormat::names().all(|name| ToolFormat::named(name).is_some()));
    assert!(ReasoningFormat::names().all(|name| ReasoningFormat::named(name).is_some()));
}
