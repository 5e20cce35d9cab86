"""Records what transformers renders from the chat templates in llama.cpp's source package, and the texts that it expects itself.

`llama_cpp_templates.py VENDOR OUT`: VENDOR holds models/templates/*.jinja and tests/test-chat-template.cpp. Knows no conversation but those of
chat.py and of that test.
"""

import json
import re
import sys
from pathlib import Path

from transformers import AutoTokenizer

import chat
from tokenizer_golden import REPRESENTATIVES

ROOT = Path(__file__).parents[2] / "tests" / "golden"
# The conversation of test-chat-template.cpp.
SPOKEN = [
    ("system", "You are a helpful assistant"),
    ("user", "Hello"),
    ("assistant", "Hi there"),
    ("user", "Who are you"),
    ("assistant", "   I am an assistant   "),
    ("user", "Another question"),
]
# A C++ token that a list of test cases is made of.
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"((?:[^"\\]|\\.)*)"|(true|false)|U8C|[{}(),;]|\s+', re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\"}


def _text(literal: str) -> str:
    return re.sub(r"\\(.)", lambda escape: ESCAPES[escape[1]], literal)


def _parse(source: str, at: int) -> list:
    """The nested lists of texts and booleans that stand in the braces at `at`."""
    stack: list[list] = [[]]
    glued = False
    while True:
        token = TOKEN.match(source, at)
        assert token, f"no token of a test case: {source[at : at + 40]!r}"
        at = token.end()
        if token[1] is not None:
            text = _text(token[1])
            # Literals side by side are one text.
            stack[-1].append(stack[-1].pop() + text if glued else text)
            glued = True
        elif token[2]:
            stack[-1].append(token[2] == "true")
        elif token[0] == "{":
            stack.append([])
        elif token[0] == "}":
            done = stack.pop()
            stack[-1].append(done)
        elif token[0] == ";":
            return stack[0][0]
        if token[0] in "{},":
            glued = False


def _spoken(source: str) -> list[dict]:
    """The cases of test-chat-template.cpp: name, template, expected, expected of jinja, bos, eos, whether jinja supports it, further messages."""
    start = source.index("{", source.index("test_cases"))
    cases = []
    for name, template, plain, jinja, *rest in _parse(source, start):
        bos, eos, supported, further = (rest + ["", "", True, []][len(rest) :])[:4]
        messages = [{"role": role, "content": content} for role, content in SPOKEN + further]
        if supported:
            tokens = {"bos_token": bos, "eos_token": eos}
            cases.append({"name": name, "source": template, "special_tokens": tokens, "messages": messages, "expected": jinja or plain})
    return cases


def main(vendor: Path, out: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "models" / REPRESENTATIVES["llama2"])
    templates, cases = {}, []
    for path in sorted((vendor / "models" / "templates").glob("*.jinja")):
        source = path.read_text()
        templates[path.stem] = {"special_tokens": chat.FEATURE_TOKENS, "source": source}
        cases += chat.cases_of(path.stem, tokenizer, source, list(chat.CONVERSATIONS), with_ids=False)
    assert len(templates) > 60
    spoken = _spoken((vendor / "tests" / "test-chat-template.cpp").read_text())
    assert len(spoken) > 30
    for case in spoken:
        conversation = {"messages": case["messages"], "kwargs": case["special_tokens"]}
        case["transformers"] = chat.render(tokenizer, case["source"], conversation, chat.MODES[1])
    out.write_text(json.dumps({"templates": templates, "conversations": chat.CONVERSATIONS, "cases": cases, "spoken": spoken}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
