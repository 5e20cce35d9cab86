"""The chat template, and the same text written in Python, which is faster by far. Knows no content.

`python template.py --tokenizer DIRECTORY` proves on generated conversations that both write the same.
"""

import argparse
import json
from random import Random

# Tools and calls stand as in the hermes format of Qwen2.5.
TEMPLATE = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- (messages[0].content or '') + '\n\n' }}
    {%- endif %}
    {{- '# Tools\n\nYou may call these functions:\n<tools>\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- '\n' }}
    {%- endfor %}
    {{- '</tools>\n\nWrite a call as JSON within tags:\n<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + (message.content or '') + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- elif not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- if message.content or not loop.first %}
                {{- '\n' }}
            {%- endif %}
            {{- '<tool_call>\n{"name": ' }}
            {{- call.function.name | tojson }}
            {{- ', "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
""".lstrip()


def to_json(value) -> str:
    return json.dumps(value, ensure_ascii=False)


def call_text(calls: list[dict]) -> str:
    """Calls as the model writes them."""
    return "\n".join(
        f'<tool_call>\n{{"name": {to_json(c["name"])}, "arguments": {to_json(c["arguments"])}}}\n</tool_call>'
        for c in calls
    )


def text(messages: list[dict], tools: list[dict]) -> str:
    """A conversation as the template renders it."""
    parts = []
    if tools:
        system = messages[0]["content"] + "\n\n" if messages[0]["role"] == "system" else ""
        listed = "".join(to_json(t) + "\n" for t in tools)
        how = '<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>'
        parts.append(
            f"<|im_start|>system\n{system}# Tools\n\nYou may call these functions:\n<tools>\n{listed}</tools>\n\n"
            f"Write a call as JSON within tags:\n{how}<|im_end|>\n"
        )
    for n, m in enumerate(messages):
        neighbours = [messages[k]["role"] if 0 <= k < len(messages) else None for k in (n - 1, n + 1)]
        if m["role"] == "tool":
            opening = "<|im_start|>user" if neighbours[0] != "tool" else ""
            closing = "<|im_end|>\n" if neighbours[1] != "tool" else ""
            parts.append(f"{opening}\n<tool_response>\n{m['content']}\n</tool_response>{closing}")
        elif not (tools and n == 0 and m["role"] == "system"):
            said = [m["content"]] if m["content"] else []
            if m.get("tool_calls"):
                said.append(call_text([c["function"] for c in m["tool_calls"]]))
            body = "\n".join(said)
            parts.append(f"<|im_start|>{m['role']}\n{body}<|im_end|>\n")
    return "".join(parts)


def main() -> None:
    import transformers

    import calls
    import chats

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokenizer", required=True)
    arguments = parser.parse_args()
    tokenizer, rng = transformers.AutoTokenizer.from_pretrained(arguments.tokenizer), Random(5)
    for n in range(500):
        chat = calls.conversation(rng) if n % 2 else chats.conversation(rng)
        rendered = tokenizer.apply_chat_template(chat.messages, tools=chat.tools or None, tokenize=False)
        assert rendered == chat.text(), f"the template writes\n{rendered}\ninstead of\n{chat.text()}"
    print("500 conversations are the same")


if __name__ == "__main__":
    main()
