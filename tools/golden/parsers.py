"""What vLLM's own parsers make of the texts in tests/golden/parsers.json: `python tools/golden/parsers.py` beside an installed vLLM.

gpt-oss's need the vocabulary o200k_base: TIKTOKEN_ENCODINGS_BASE names a directory with `o200k_base.tiktoken`, if the net is not to be asked.

Each case is a text that a model wrote; its `expected` is vLLM's result for the whole text: reasoning, content, and calls with their
arguments as values (how JSON is spaced is the model's, or the parser's, and not compared).
"""

import json
import sys
from pathlib import Path

import vllm
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.parser.harmony_utils import get_encoding
from vllm.parser.harmony import HarmonyParser
from vllm.reasoning.gptoss_reasoning_parser import GptOssReasoningParser
from vllm.tool_parsers.gptoss_tool_parser import GptOssToolParser

CASES = Path(__file__).parent.parent.parent / "tests/golden/parsers.json"
SPECIAL = """<tool_call> </tool_call> <think> </think> [TOOL_CALLS] [ARGS] [CALL_ID] <|python_tag|> <｜tool▁calls▁begin｜>
<｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> <arg_key> </arg_key> <arg_value> </arg_value>
<|im_start|> <|im_end|> <tool_response> </tool_response> [THINK] [/THINK]""".split()
TYPES = {"city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"}, "note": {"type": "string"},
         "ratio": {"type": "number"}, "tags": {"type": "array"}, "where": {"type": "object"}, "maybe": {"type": ["integer", "null"]},
         "level": {"enum": [1, 2]}, "on": {"enum": [True, False]}, "whole": {"allOf": [{"type": "object"}]}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": TYPES}}}
         for name in ("weather", "now", "search.web")]


class Tokenizer:
    """As much of one as parsers ask for: special tokens, and a character a token."""

    def __init__(self):
        self.special = {token: index for index, token in enumerate(SPECIAL)}
        self.all_special_tokens, self.all_special_ids = SPECIAL, list(self.special.values())

    def get_vocab(self):
        return self.special

    def __len__(self):
        return 0x120000

    def encode(self, text, add_special_tokens=False):
        ids = []
        while text:
            token = next((token for token in SPECIAL if text.startswith(token)), None)
            ids.append(self.special[token] if token else 0x1000 + ord(text[0]))
            text = text[len(token) if token else 1:]
        return ids

    def decode(self, ids, skip_special_tokens=False):
        return "".join(SPECIAL[i] if i < 0x1000 else chr(i - 0x1000) for i in ids)

    def convert_ids_to_tokens(self, ids):
        return [self.decode([i]) for i in ids]

    def convert_tokens_to_ids(self, token):
        return self.special.get(token)


class Harmony(HarmonyParser):
    """gpt-oss's reasoning and calls are read by one parser, of tokens."""

    reasoning_parser_cls, tool_parser_cls = GptOssReasoningParser, GptOssToolParser


def expected_of_harmony(text, request):
    tokens = get_encoding().encode(text, allowed_special="all")
    parser = Harmony(Tokens(), request.tools)
    reasoning, content, calls = parser.parse(text, request, model_output_token_ids=tokens)
    calls = [[call.name, json.loads(call.arguments)] for call in calls or []]
    return {"reasoning": reasoning or "", "content": content or "", "calls": calls}


class Tokens(Tokenizer):
    """gpt-oss's."""

    def get_vocab(self):
        encoding = get_encoding()
        return {encoding.decode([token]): token for token in range(199998, 200020) if encoding.is_special_token(token)}

    def decode(self, ids, skip_special_tokens=False):
        return get_encoding().decode(ids)

    def encode(self, text, add_special_tokens=False):
        return get_encoding().encode(text, allowed_special="all")


def expected(case):
    tokenizer = Tokenizer()
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=TOOLS)
    if case.get("tools") == "openai":
        return expected_of_harmony(case["text"], request)
    text, reasoning, calls = case["text"], None, []
    if name := case.get("reasoning"):
        parser = ReasoningParserManager.get_reasoning_parser(name)(tokenizer)
        reasoning, text = parser.extract_reasoning(text, request=request)
    if (name := case.get("tools")) and text is not None:
        parser = ToolParserManager.get_tool_parser(name)(tokenizer, request.tools)
        info = parser.extract_tool_calls(text, request=request)
        text = info.content
        calls = [[call.function.name, json.loads(call.function.arguments)] for call in info.tool_calls]
    return {"reasoning": reasoning or "", "content": text or "", "calls": calls}


def main():
    golden = json.loads(CASES.read_text())
    golden["vllm"] = vllm.__version__
    golden["types"] = TYPES
    for case in golden["cases"]:
        try:
            case["expected"] = expected(case)
        except Exception as error:  # noqa: BLE001 - says of which case
            print(f"{case['name']}: {type(error).__name__}: {error}", file=sys.stderr)
    CASES.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


main()
