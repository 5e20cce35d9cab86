"""Records what transformers and mistral_common make of hostile strings: ids with and without special tokens, and back.

Knows the tokenizers only by their checkpoint directories.
"""

import json
from pathlib import Path

from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import Tokenizer
from transformers import AutoTokenizer

# The checkpoint whose tokenizer stands for its kind; the others of that kind have the same file.
REPRESENTATIVES = {"llama2": "llama", "llama3": "llama-llama3", "mistral": "mistral", "qwen": "qwen2"}

STRINGS = {
    "empty": "",
    "space": " ",
    "word": "river",
    "sentence": "The quick brown fox jumps over the lazy dog.",
    "leading spaces": "   three before",
    "trailing spaces": "three after   ",
    "inner runs of spaces": "a  b   c    d        e",
    "tabs and spaces": "\tone\t\ttwo \t three\t ",
    "newline kinds": "a\nb\r\nc\rd\n\ne\r\n\r\nf\n\n\n\n",
    "spaces before newlines": "a  \n  b \n\n   \n c\t\n",
    "only whitespace": " \n \t \r\n  ",
    "unicode spaces": "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u1680h\u202fi",
    "contractions": "I'm you're he'll we've they'd don't it's O'Neil 'S 'LL ’s rock'n'roll",
    "contraction case": "DON'T IT'S WE'RE i'M ſ's K'd",
    "digits": "0 7 42 123 1234 12345 1234567890 3.14159 1,000,000 -5 +6",
    "other digits": "٣٤٥ ४२ ⅻ ½ ² ₃ ① ９９ 十二",
    "mixed script words": "naïve café Ångström straße ŒUVRE Ǆ ǅ ǆ ﬁn İstanbul ıstanbul",
    "camel case": "camelCase PascalCase snake_case SCREAMING_CASE HTTPServer iPhone McDonald",
    "punctuation runs": "wait... what?!?! (no) [yes] {maybe} <a/> -- == != => ::: ### /// \\\\",
    "slashes and newlines": "path/to//file/\n/another\n//\r\n// comment\n",
    "quotes": "“curly” ‘single’ «guillemets» „low“ \"straight\" 'plain' `tick`",
    "code python": "def f(x: int) -> int:\n    if x < 2:\n        return x\n\treturn f(x-1) + f(x-2)  # slow\n",
    "code rust": "fn main() {\n    let v: Vec<u32> = (0..10).map(|x| x * x).collect();\n    println!(\"{v:?}\");\n}\n",
    "json": '{"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, 2, 3]}}',
    "url": "https://example.org/a/b?c=d&e=%20f#g user@example.org",
    "composed": "\u00e9 \u00f1 \u00fc \u1e69 \uac00 \u212b \u2126",
    "decomposed": "e\u0301 n\u0303 u\u0308 s\u0323\u0307 s\u0307\u0323 \u1100\u1161 A\u030a",
    "combining alone": "\u0301 \u0301\u0302 a\u0301\u0302\u0303\u0304\u0305 \u0301",
    "zalgo": "h" + "\u0300\u0301\u0302\u0303" * 3 + "i" + "\u0316\u0317" * 4,
    "compatibility": "ﬁ ﬀ ① ㎏ ™ Ａ ｱ ﷺ ℌ",
    "emoji": "😀 👍 🎉🚀 ❤️ ❤ ☺︎",
    "emoji zwj": "👩‍👩‍👧‍👦 👨🏽‍💻 🏳️‍🌈 🧑🏿‍🤝‍🧑🏻",
    "emoji flags and keycaps": "🇩🇪🇫🇷🇯🇵 🇩 1️⃣ #️⃣ 🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "arabic": "السلام عليكم ورحمة الله، ١٢٣ كَيْفَ",
    "hebrew with points": "שָׁלוֹם עוֹלָם",
    "bidi controls": "a\u202eb\u202c \u200fc\u200e \u2067d\u2069",
    "hindi": "नमस्ते क्षत्रिय ज्ञान श्री",
    "thai": "สวัสดีชาวโลก ก็ น้ำ",
    "cjk": "狐狸跳过了懒狗。你好,世界!",
    "cjk rare": "𠮷野家 𪚥 㐀 ⼀ 﨑",
    "japanese": "吾輩は猫である。ﾊﾝｶｸ ガ ガ ー〜",
    "korean": "안녕하세요 세계 ㄱㄴㄷ",
    "greek final sigma": "ΟΔΥΣΣΕΥΣ Οδυσσεύς ς σ",
    "zero width": "a\u200bb\u200cc\u200dd\u2060e\ufefff\u00adg",
    "byte order mark": "\ufeffstart",
    "controls": "\x00 a\x01b\x07\x08\x0b\x0c\x1b[31m\x7f\x80\x9f",
    "replacement": "\ufffd a\ufffdb \ufffd\ufffd",
    "noncharacters": "\ufffe \uffff \U0010ffff \ufdd0",
    "private use": "\ue000 \uf8ff \U000f0000",
    "sentencepiece mark": "▁ ▁▁ a▁b ▁word word▁",
    "byte tokens as text": "<0x0A> <0xFF> <0x41>",
    "byte-level alphabet as text": "Ġhello Ċ ĉ Ā ł",
    "special qwen": "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "special llama3": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
    "special llama2": "<s>[INST] hi [/INST] there </s><unk>",
    "special in a word": "a<s>b</s>c <|im_end|>d<|eot_id|>e",
    "special with spaces": " <s> x <|im_start|>  y  <|eot_id|> ",
    "special broken": "<|im_start <|im_start|| >|im_end|> < s> </ s> <|IM_START|> <S>",
    "added not special": "<tool_call>{\"name\": \"f\"}</tool_call> x <tool_call>",
    "special nested": "<|im_<|im_start|>start|> <<s>> [INST<s>]",
    "tekken special": "[INST]hi[/INST]<s></s><pad>[TOOL_CALLS][<SPECIAL_21>]",
    "long run of letters": "a" * 300,
    "long run of spaces": "x" + " " * 200 + "y",
    "long run of newlines": "x" + "\n" * 100 + "y",
    "long run of punctuation": "=" * 150 + "!?" * 40,
    "long run of digits": "1234567890" * 15,
    "long run of emoji": "😀" * 40,
    "long run of marks": "o" + "\u0308" * 120,
    "long cjk": "狐狸跳过了懒狗" * 12,
}


def _id_sequences(strings_ids: list[list[int]], size: int) -> list[list[int]]:
    """Ids no encoder gives: cut inside characters, single bytes, special tokens anywhere, all tokens one by one."""
    cut = [ids[1:-1] for ids in strings_ids if len(ids) > 4][::3]
    reverse = [ids[::-1] for ids in strings_ids if 4 < len(ids) < 60][::4]
    strides = [list(range(start, size, 37)) for start in range(0, 37, 6)]
    return cut + reverse + strides + [[token] for token in range(size)]


def _record_transformers(kind: str, directory: Path) -> dict:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    # The engine reads tokenizer.json alone, so that file must say all that transformers does.
    plain = Tokenizer.from_file(str(directory / "tokenizer.json"))
    cases, encoded = [], []
    for name, text in STRINGS.items():
        with_special = tokenizer.encode(text)
        without = tokenizer.encode(text, add_special_tokens=False)
        if with_special != plain.encode(text).ids or without != plain.encode(text, add_special_tokens=False).ids:
            raise RuntimeError(f"{kind}: transformers and tokenizer.json disagree on {name!r}")
        encoded.append(without)
        cases.append({"name": name, "text": text, "ids": without, "ids_with_special": with_special})
    decodes = []
    for ids in [case["ids_with_special"] for case in cases] + _id_sequences(encoded, len(tokenizer)):
        kept = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        skipped = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if (kept, skipped) != (plain.decode(ids, skip_special_tokens=False), plain.decode(ids)):
            raise RuntimeError(f"{kind}: transformers and tokenizer.json disagree on decoding {ids}")
        decodes.append({"ids": ids, "text": kept, "text_without_special": skipped})
    return {"kind": kind, "checkpoint": directory.name, "size": len(tokenizer), "encode": cases, "decode": decodes}


def _record_tekken(directory: Path) -> dict:
    """mistral_common never reads special tokens out of text, so `ids_with_special` only adds BOS."""
    tokenizer = Tekkenizer.from_file(directory / "tekken.json")
    cases = [
        {
            "name": name,
            "text": text,
            "ids": tokenizer.encode(text, bos=False, eos=False),
            "ids_with_special": tokenizer.encode(text, bos=True, eos=False),
        }
        for name, text in STRINGS.items()
    ]
    sequences = [case["ids_with_special"] for case in cases]
    decodes = [
        {
            "ids": ids,
            "text": tokenizer.decode(ids, special_token_policy=SpecialTokenPolicy.KEEP),
            "text_without_special": tokenizer.decode(ids, special_token_policy=SpecialTokenPolicy.IGNORE),
        }
        for ids in sequences + _id_sequences([case["ids"] for case in cases], tokenizer.n_words)
    ]
    return {"kind": "tekken", "checkpoint": directory.name, "size": tokenizer.n_words, "encode": cases, "decode": decodes}


def make(root: Path) -> None:
    """Writes tokenizers/<kind>.json. Non-ASCII text is escaped, so that no editor or normaliser can change it."""
    records = [_record_transformers(kind, root / "models" / name) for kind, name in REPRESENTATIVES.items()]
    records.append(_record_tekken(root / "models" / "mistral-tekken"))
    directory = root / "tokenizers"
    directory.mkdir(parents=True, exist_ok=True)
    for record in records:
        (directory / f"{record['kind']}.json").write_text(_lines(record))


def _lines(record: dict) -> str:
    """One case a line."""
    lines = [f'"{key}": {json.dumps(record[key])}' for key in ("kind", "checkpoint", "size")]
    for key in ("encode", "decode"):
        lines.append(f'"{key}": [\n' + ",\n".join(json.dumps(case) for case in record[key]) + "\n]")
    return "{\n" + ",\n".join(lines) + "\n}\n"
