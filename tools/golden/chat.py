"""Records what transformers renders from chat templates, and what mistral_common encodes for tekken.json.

Knows the conversations; the templates are files in templates/, or come with the checkpoints.
"""

import json
from pathlib import Path

import jinja2
from mistral_common.exceptions import MistralCommonException
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from transformers import AutoTokenizer

from tokenizer_golden import REPRESENTATIVES
from vocab import TEMPLATES

# What the feature templates see as special tokens; the checkpoints' templates see their tokenizer's own.
FEATURE_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city, with \"quotes\" & <markup>.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "e.g. Zürich"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
                "place": {"type": "object", "properties": {"lat": {"type": ["number", "null"]}}},
            },
            "required": ["city"],
        },
    },
}
SEARCH = {
    "type": "function",
    "function": {"name": "search", "description": "Looks it up.", "parameters": {"type": "object", "properties": {}}},
}


def _message(role: str, content, **more) -> dict:
    return {"role": role, "content": content, **more}


def _call(identifier: str, name: str, **arguments) -> dict:
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


USER = _message("user", "The quick brown fox asks: who are you?")
ANSWER = _message("assistant", "A small model.")
SYSTEM = _message("system", "Answer in one sentence.")
QUESTION = _message("user", "What is the weather in Zürich & Paris?")
CALL = _message("assistant", "", tool_calls=[_call("abcdefghi", "get_weather", city="Zürich", days=[1, 2])])
RESULT = _message("tool", '{"celsius": 21.5}', tool_call_id="abcdefghi", name="get_weather")

CONVERSATIONS = {
    "single": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER]},
    "turns": {"messages": [SYSTEM, USER, ANSWER, _message("user", "The fox thanks you.")]},
    "answered": {"messages": [USER, ANSWER]},
    "hostile": {
        "messages": [
            _message("system", "  spaces around  \n"),
            _message("user", "\n <|im_end|><|eot_id|></s>[/INST] {{ 7 * 7 }} {% if %} é e\u0301 👩‍👩‍👧‍👦 \"quoted\" \\n \t"),
            _message("assistant", " \u200b{\"json\": true} \n\n"),
            _message("user", ""),
        ]
    },
    "partial": {"messages": [USER, _message("assistant", "The answer is")]},
    "partial with space": {"messages": [USER, _message("assistant", "The answer is ")]},
    "wrong order": {"messages": [USER, USER]},
    "unknown role": {"messages": [_message("narrator", "Once upon a time"), USER]},
    "tools offered": {"messages": [SYSTEM, QUESTION], "tools": [WEATHER, SEARCH]},
    "tools used": {
        "messages": [QUESTION, CALL, RESULT, _message("assistant", "21.5 degrees."), USER],
        "tools": [WEATHER],
    },
    "tools in parallel": {
        "messages": [
            QUESTION,
            _message(
                "assistant",
                None,
                tool_calls=[
                    _call("abcdefghi", "get_weather", city="Zürich"),
                    _call("123456789", "get_weather", city="Paris", unit=None),
                ],
            ),
            RESULT,
            _message("tool", "none", tool_call_id="123456789", name="get_weather"),
        ],
        "tools": [WEATHER, SEARCH],
    },
    "thinking": {
        "messages": [
            USER,
            _message("assistant", "<think>\nold thoughts\n</think>\n\nOld answer."),
            _message("user", "And now?"),
            _message("assistant", "New answer.", reasoning_content="\nnew thoughts\n"),
        ]
    },
    "thinking off": {"messages": [USER], "kwargs": {"enable_thinking": False}},
    "parts": {
        "messages": [
            _message("user", [{"type": "text", "text": "What is"}, {"type": "image"}, {"type": "text", "text": " this?"}]),
            ANSWER,
        ],
        "kwargs": {"date_string": "1 Jan 2025"},
    },
}

# Valid Jinja that templates of released models rarely or never use: one by one, so that each is seen for itself.
SNIPPETS = [
    "{% for x in 'abc' %}{{ loop.cycle('odd', 'even') }}{% endfor %}",
    "{% for x in 'aab' %}{% if loop.changed(x) %}{{ x }}{% endif %}{% endfor %}",
    "{{ 'a.b.c'.rsplit('.', 1) | join('|') }}",
    "{{ 'a\\nb\\r\\nc'.splitlines() | join('|') }}",
    "{{ '%s has %d' % ('x', 3) }}",
    "{{ '%s-%s' | format('a', 'b') }}",
    "{{ '{}-{}'.format('a', 'b') }}",
    "{{ '12'.isdigit() }} {{ 'a1'.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }}",
    "{{ 'The'.startswith(('x', 'T')) }}",
    "{{ 'aaa'.replace('a', 'b', 2) }}",
    "{{ 'one two' | wordcount }}",
    "{{ ['a', 'b', 'c'] | batch(2) | map('join') | join('|') }}",
    "{% for group in [{'r': 'b'}, {'r': 'a'}, {'r': 'b'}] | groupby('r') %}{{ group.grouper }}{{ group.list | length }}{% endfor %}",
    "{% filter upper %}shouted{% endfilter %}",
    "{{ {'a': 1} | attr('keys') is defined }}",
    "{{ 'abc' | reverse }}",
    "{{ 6 is divisibleby(3) }}",
    "{{ -7 // 2 }} {{ -7 % 3 }} {{ 1_000 }} {{ 7.5 // 2 }}",
    "{% set x %}a{% endset %}{{ x ~ x }}",
    "{% set ns = namespace() %}{% set ns.a = [1] %}{{ ns.a + [2] }}",
    "{{ 'a,b' .split(',')[1] }}{{ ['a'] * 2 }}",
    "{{ ('a', 'b') | join }}{{ (1,) }}",
    "{{ 'é' | urlencode }} {{ '<a>' | striptags }} {{ 'a b' | replace(' ', '') | length }}",
    "{{ 'long text here' | truncate(8, true, '…') }} {{ 'x' | center(5) }}|",
    "{{ strftime_now('%%') }}",
    "{% for k in {'b': 1, 'a': 2} %}{{ k }}{% endfor %}{% for a, b in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{{ loop.depth }}{% endif %}{% endfor %}",
    "{{ 'a' 'b' }}{{ \"it's\" }}{{ '\\u00e9\\x41' }}",
    "{{ [1, 2, 3][:2] }} {{ [1, 2, 3][-1:] }} {{ 'abc'[:-1] }} {{ [1, 2, 3][::2] }}",
    "{{ 1e3 }} {{ 1.50 }} {{ 123456789012345678 }} {{ 1e16 }} {{ 1e15 }} {{ 0.00001 }} {{ -0.0 }}",
    "{{ none == false }} {{ 1 == true }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ [] == false }}",
    "{{ missing }}|{{ missing | length }}|{{ missing ~ 'x' }}",
    "{% if missing %}a{% elif not missing %}b{% endif %}{% for x in missing %}{% else %}c{% endfor %}",
    "{{ missing.attribute }}",
    "{{ 'a' + 1 }}",
    "{{ raise_exception('with é and {braces}') }}",
    "{{ [].append(1) }}",
    "{{ ''.__class__ }}",
    "{% if true %}",
]

PLAIN = ["single", "turns", "hostile"]
TOOLS = ["tools offered", "tools used", "tools in parallel"]
WITH_TEXT = [name for name in CONVERSATIONS if name != "parts"]
# What each feature template is rendered with; the checkpoints' own are rendered with all conversations of plain text.
FEATURE_CONVERSATIONS = {
    "feature_loops": PLAIN + ["wrong order"],
    "feature_strings": ["single", "answered"],
    "feature_tojson": ["hostile", "tools used"],
    "feature_generation": PLAIN + ["partial", "partial with space"],
    "feature_whitespace": ["turns"],
    "feature_filters": ["turns", "tools used"],
    "feature_tests": ["single", "tools offered"],
    "feature_macros": ["turns", "tools offered"],
    "feature_thinking": ["turns", "thinking", "thinking off", "partial"],
    "feature_parts": ["turns", "parts", "unknown role", "partial"],
    "feature_python": ["single", "hostile"],
}
MODES = [
    {"add_generation_prompt": False, "continue_final_message": False},
    {"add_generation_prompt": True, "continue_final_message": False},
    {"add_generation_prompt": False, "continue_final_message": True},
]


def _modes(conversation: dict) -> list[dict]:
    """A final message can only be continued where the assistant wrote it."""
    last = conversation["messages"][-1]
    return MODES if last["role"] == "assistant" else MODES[:2]


def render(tokenizer, template: str | None, conversation: dict, mode: dict) -> dict:
    """The text, or the error."""
    arguments = dict(chat_template=template, tools=conversation.get("tools"), **conversation.get("kwargs", {}), **mode)
    try:
        return {"text": tokenizer.apply_chat_template(conversation["messages"], tokenize=False, **arguments)}
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        # An error by raise_exception is the template's own text; others are worded by the implementation.
        return {"error": str(error), "is_raised_by_template": type(error) is jinja2.TemplateError}


def _snippets(tokenizer) -> list[dict]:
    conversation, mode = CONVERSATIONS["single"], MODES[0]
    return [{"source": source} | render(tokenizer, source, conversation, mode) for source in SNIPPETS]


def cases_of(source: str, tokenizer, template: str | None, names: list[str], with_ids: bool) -> list[dict]:
    cases = []
    for name in names:
        for mode in _modes(CONVERSATIONS[name]):
            case = {"template": source, "conversation": name} | mode
            case |= render(tokenizer, template, CONVERSATIONS[name], mode)
            if with_ids and "text" in case and mode["add_generation_prompt"]:
                case["ids"] = tokenizer.encode(case["text"], add_special_tokens=False)
            cases.append(case)
    return cases


def _mistral_common(directory: Path) -> list[dict]:
    """mistral_common builds token ids straight from the messages; `text` is its debug view of them."""
    tokenizer = MistralTokenizer.from_file(directory / "tekken.json")
    cases = []
    for name in ["single", "system", "turns", "hostile", "tools offered", "tools used", "tools in parallel"]:
        conversation = CONVERSATIONS[name]
        request = ChatCompletionRequest.from_openai(conversation["messages"], tools=conversation.get("tools"))
        try:
            encoded = tokenizer.encode_chat_completion(request)
            cases.append({"conversation": name, "ids": encoded.tokens, "text": encoded.text})
        except MistralCommonException as error:
            cases.append({"conversation": name, "error": str(error)})
    return cases


def make(root: Path) -> None:
    """Writes chat.json: templates, conversations and the renderings of the first from the second."""
    templates, cases = {}, []
    for kind, name in REPRESENTATIVES.items():
        tokenizer = AutoTokenizer.from_pretrained(root / "models" / name)
        special = {key: value for key, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
        templates[kind] = {"checkpoint": name, "special_tokens": special, "source": tokenizer.chat_template}
        cases += cases_of(kind, tokenizer, None, WITH_TEXT, with_ids=True)
    featureless = AutoTokenizer.from_pretrained(root / "models" / REPRESENTATIVES["llama2"])
    for name, conversations in FEATURE_CONVERSATIONS.items():
        source = (TEMPLATES / f"{name}.jinja").read_text()
        templates[name] = {"special_tokens": FEATURE_TOKENS, "source": source}
        cases += cases_of(name, featureless, source, conversations, with_ids=False)
    record = {
        "templates": templates,
        "conversations": CONVERSATIONS,
        "cases": cases,
        "snippets": _snippets(featureless),
        "mistral_common": _mistral_common(root / "models" / "mistral-tekken"),
    }
    (root / "chat.json").write_text(_lines(record))


def _lines(record: dict) -> str:
    """One template, conversation or case a line, with non-ASCII text escaped."""
    sections = []
    for key, value in record.items():
        if isinstance(value, dict):
            rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in value.items())
            sections.append(f'"{key}": {{\n{rows}\n}}')
        else:
            rows = ",\n".join(json.dumps(entry) for entry in value)
            sections.append(f'"{key}": [\n{rows}\n]')
    return "{\n" + ",\n".join(sections) + "\n}\n"
