"""What xgrammar accepts by vLLM's structural tags: `python tools/golden/structural_tags.py` beside an installed vLLM.

Writes tests/golden/structural_tags.json: formats, and for each the texts that are, or are not, whole answers of it.
"""

import json
from importlib.metadata import version
from pathlib import Path

import xgrammar
from xgrammar.testing import _is_grammar_accept_string

GOLDEN = Path(__file__).parent.parent.parent / "tests/golden/structural_tags.json"


def const(value):
    return {"type": "const_string", "value": value}


def regex(pattern):
    return {"type": "regex", "pattern": pattern}


def any_text(*excludes, **more):
    return {"type": "any_text", "excludes": list(excludes), **more}


def schema(json_schema):
    return {"type": "json_schema", "json_schema": json_schema}


def tag(begin, content, end):
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements):
    return {"type": "sequence", "elements": list(elements)}


def one_of(*elements):
    return {"type": "or", "elements": list(elements)}


def triggered(tags, *triggers, **more):
    return {"type": "triggered_tags", "triggers": list(triggers), "tags": tags, **more}


def separated(tags, **more):
    return {"type": "tags_with_separator", "tags": tags, "separator": ",", **more}


def repeated(kind, content, **more):
    return {"type": kind, "content": content, **more}


DIGIT = schema({"enum": [1, 2]})
CITY = schema({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False})
CALLS = [tag("<f=a>", DIGIT, "</f>"), tag("<f=b>", CITY, "</f>")]
THINK = tag("<think>", any_text(), "</think>")
OSLO = '<f=b>{"city": "Oslo"}</f>'
CALLED = ["", "text", "<f=a>1</f>", "<f=a>3</f>", "<f=a>1", "x<f=a>2</f>y" + OSLO, "<f=c>1</f>", "<f", "a < b, <f>", "<f=a>1</f><f=a>2</f>",
          "<f=a>1</f>,<f=a>2</f>", "<f=a>1</f>stop", "stop"]
ONCE = {"type": "dispatch", "rules": [["#", DIGIT]], "loop": False}
EBNF = {"type": "grammar", "grammar": 'root ::= "(" root ")" | [a-c]+'}

CASES = [
    (const("Hello!"), ["Hello!", "Hello", "Hello!!", ""]),
    (regex("[A-Z]{2}/[0-9]+"), ["AB/1", "AB/12", "A/1", "AB/", "AB/1x"]),
    (any_text(), ["", "any\ntext", "é <think>"]),
    (any_text("<f=", "é"), ["", "any\ntext", "a <f b", "a <f=", "é"]),
    (any_text(max_chars=3), ["", "abc", "éé\n", "abcd"]),
    (CITY, ['{"city": "Oslo"}', "{}", '{"city": 1}', "x"]),
    (EBNF, ["a", "(abc)", "((b))", "((b)", "()", "d"]),
    (sequence(const("n="), regex("[0-9]+"), const(";")), ["n=1;", "n=12;", "n=;", "n=1", "1;"]),
    (sequence(any_text(), const("end")), ["end", "an end", "end end", "en", "end."]),
    (sequence(any_text("<x>"), const("<x>"), DIGIT), ["<x>1", "ab<x>2", "a<x>b<x>1", "<x>3", "a"]),
    (sequence(const("city: "), CITY, const(".")), ['city: {"city": "O"}.', 'city: {"city": "O"}', '{"city": "O"}.']),
    (sequence(DIGIT, any_text("!"), const("!"), DIGIT), ["1!2", "1 and !2", "1 and 2", "!1", "1!!2"]),
    (one_of(const("yes"), const("no")), ["yes", "no", "yesno", "", "y"]),
    (one_of(CITY, const("none")), ['{"city": "O"}', "none", "{}", "non"]),
    (one_of(const("a"), sequence(const("a"), CITY)), ["a", 'a{"city": ""}', "b", "a{}"]),
    (repeated("optional", DIGIT), ["", "1", "11", "3"]),
    (repeated("star", const("ab")), ["", "ab", "abab", "aba"]),
    (repeated("plus", sequence(const("-"), DIGIT)), ["", "-1", "-1-2", "-1-", "1"]),
    (repeated("repeat", const("x"), min=2, max=3), ["x", "xx", "xxx", "xxxx"]),
    (repeated("repeat", tag("[", DIGIT, "]"), min=2, max=-1), ["[1]", "[1][2]", "[1][2][1]", "[1][3]"]),
    (tag("<a>", const("x"), "</a>"), ["<a>x</a>", "<a>x", "<a></a>", "x"]),
    (tag("<a>", CITY, ["</a>", "<b>"]), ['<a>{"city": "O"}</a>', '<a>{"city": "O"}<b>', '<a>{"city": "O"}', "<a>{}</a>"]),
    (tag("<a>", any_text(), ["</a>", "<b>"]), ["<a>x</a>", "<a>x<b>", "<a></a>", "<a>x</a></a>", "<a>x<b></a>", "<a>x"]),
    (tag("<a>", sequence(any_text("<b>"), tag("<b>", DIGIT, "</b>")), "</a>"), ["<a>x<b>1</b></a>", "<a><b>2</b></a>", "<a>x</a>", "<a>x<b>1</b>"]),
    (THINK, ["<think></think>", "<think>a\nb</think>", "<think>a</think>b", "<think>a<think></think>", "a"]),
    (sequence(THINK, CITY), ['<think>Hm.</think>{"city": "O"}', '{"city": "O"}', '<think>a</think></think>{"city": "O"}', "<think>a</think>"]),
    (sequence(repeated("optional", THINK), DIGIT), ["1", "<think>a</think>2", "<think>a</think>", "a2"]),
    (triggered(CALLS, "<f="), CALLED),
    (triggered(CALLS, "<f=a", "<f=b"), CALLED),
    (triggered(CALLS, "<f=", at_least_one=True), CALLED),
    (triggered(CALLS, "<f=", stop_after_first=True), CALLED),
    (triggered(CALLS, "<f=", at_least_one=True, stop_after_first=True), CALLED),
    (triggered(CALLS, "<f=", excludes=["stop"]), CALLED),
    (triggered([tag("<f=a>", regex("[0-9]+"), "</f>")], "<f="), CALLED),
    (tag("<all>", triggered(CALLS, "<f="), "</all>"), ["<all></all>", "<all>x<f=a>1</f>y</all>", "<all>x<f=a>3</f>y</all>", "<all>x</all>y", "<all>x"]),
    (tag("<all>", triggered(CALLS, "<f=", stop_after_first=True), "</all>"), ["<all>x</all>", "<all>x<f=a>1</f></all>", "<all>x<f=a>1</f>y</all>"]),
    (sequence(THINK, triggered(CALLS, "<f=")), ["<think>a</think>", "<think>a <f=a></think><f=a>1</f>", "<think>a</think><f=a>3</f>", "x<think></think>"]),
    (sequence(triggered(CALLS, "<f=", excludes=["!"]), const("!"), DIGIT), ["!1", "x!2", "<f=a>1</f>!1", "<f=a>1</f>", "a!b!1"]),
    (sequence(triggered(CALLS, "<f=", excludes=["!"], stop_after_first=True), const("!")), ["!", "x!", "<f=a>1</f>!", "<f=a>1</f>x!", "x"]),
    (one_of(triggered(CALLS, "<f=", at_least_one=True), CITY), ["<f=a>1</f>", '{"city": "O"}', "x", "<f=a>1</f>x"]),
    (triggered([tag("<f=a>", triggered([tag("<g>", DIGIT, "</g>")], "<g>"), "</f>")], "<f="), ["<f=a>x<g>1</g></f>y", "<f=a></f>", "<f=a><g>3</g></f>", "<g>3</g>"]),
    (separated(CALLS), CALLED),
    (separated(CALLS, at_least_one=True), CALLED),
    (separated(CALLS, stop_after_first=True), CALLED),
    (separated([tag("<a>", any_text(), "</a>")]), ["", "<a>x</a>", "<a>x</a>,<a></a>", "<a>x</a>,", "<a>x</a><a>y</a>"]),
    ({"type": "dispatch", "rules": [["#", DIGIT], ["city ", CITY]]}, ["", "a#1b", "a#3", 'a city {"city": "O"}, #2', "city O", "#1#2"]),
    ({"type": "dispatch", "rules": [["#", DIGIT]], "loop": False, "excludes": ["x"]}, ["", "a#1", "a#1b", "x", "a#1x", "#3"]),
    (triggered([tag("<", DIGIT, ">")], "<", excludes=["a<", "<"]), ["<1>", "a<1>", "b<1>", "a"]),
    (triggered([tag("<", DIGIT, ">")], "<", excludes=["a<"]), ["<1>", "a<1>", "b<1>b<1>a", "a"]),
    (tag("[", triggered([tag("]x", DIGIT, ">")], "]x"), "]"), ["[]", "[a]", "[]x1>]", "[a]x1>]"]),
    (tag("", sequence(tag("", sequence(DIGIT, ONCE), "E"), ONCE), "E"), ["1EE", "1a#1Eb#2E", "1#3EE", "1#1aEE", "1E"]),
    (const("\x7f"), ["\x7f", ""]),
    ({"type": "grammar", "grammar": "root ::= [+--] \"\\x7f\""}, ["+\x7f", ",\x7f", "-\x7f", ".\x7f", "-"]),
]


def rules(*pairs, **more):
    return {"type": "dispatch", "rules": [list(pair) for pair in pairs], **more}


def ebnf(grammar):
    return {"type": "grammar", "grammar": grammar}


# Free text beside other parts, and before the end of its tag.
CASES += [
    (one_of(any_text(), DIGIT), ["", "1", "x", "1x"]),
    (one_of(any_text("!"), DIGIT), ["1", "!", "a"]),
    (one_of(sequence(DIGIT, any_text()), CITY), ["1abc", "1", '{"city": "O"}', "x"]),
    (one_of(triggered(CALLS, "<f="), CITY), ["", "x", "<f=a>1</f>z", '{"city": "O"}', "<f=a>3</f>"]),
    (tag("<a>", one_of(any_text(), DIGIT), "</a>"), ["<a>x</a>", "<a>1</a>", "<a></a>", "<a>x", "<a>x</a>y"]),
    (tag("<a>", one_of(CITY, any_text()), "</a>"), ['<a>{"city": "O"}</a>', "<a>#x</a>", "<a>{}</a>", "<a>#"]),
    (tag("<a>", one_of(CITY, sequence(const("#"), any_text())), "</a>"), ['<a>{"city": "O"}</a>', "<a>#x</a>", "<a>x</a>", "<a>#</a>", "<a>{}</a>"]),
    (tag("<a>", one_of(triggered(CALLS, "<f="), DIGIT), "</a>"), ["<a>1</a>", "<a>1x</a>", "<a>x<f=a>1</f></a>", "<a>x<f=a>3</f></a>"]),
    (tag("<a>", sequence(DIGIT, any_text()), "</a>"), ["<a>1</a>", "<a>1x</a>", "<a>3x</a>", "<a>1x"]),
    (tag("<a>", repeated("optional", sequence(DIGIT, any_text())), "</a>"), ["<a></a>", "<a>1x</a>", "<a>3x</a>", "<a>x</a>"]),
    (sequence(one_of(any_text(), const("b")), const("c")), ["c", "bc", "xc", "xcc", "b"]),
    (sequence(one_of(any_text("!"), DIGIT), const("!"), DIGIT), ["!1", "1!1", "xc!1", "x!!1", "b"]),
    (sequence(repeated("optional", any_text("x")), const("x"), DIGIT), ["x1", "ax1", "axx1", "1"]),
    (sequence(repeated("star", sequence(const("-"), any_text("x"), const("x"))), DIGIT), ["1", "-x1", "-ax-bx1", "-x-1"]),
    (repeated("repeat", any_text("x"), min=2, max=3), ["", "a", "x"]),
    (tag("<", any_text(max_chars=2), ">"), ["<ab>", "<abc>", "<>", "<é1>", "<ab"]),
    (sequence(any_text("!", max_chars=2), const("!"), DIGIT), ["ab!1", "abc!1", "!1", "!!1"]),
]
# Where strings overlap that begin something.
CASES += [
    (rules(["aa", DIGIT]), ["", "a", "aa", "aa1", "aaa1", "aaaa1", "xaa1a", "aa1aa1"]),
    (rules(["aba", DIGIT]), ["aba1", "ababa1", "ab", "abab", "aaba1", "abba1"]),
    (triggered([tag("aa", DIGIT, ";")], "aa"), ["", "a", "aa", "aa1;", "aaa1;", "xaa1;a"]),
    (triggered([tag("aab", DIGIT, ";"), tag("ab", DIGIT, ";")], "aa", "ab"), ["", "aa", "aab1;", "ab1;", "aaab1;", "xaab1;a"]),
    (rules(["a", DIGIT], ["ab", CITY]), ["", "a1", "ab", 'ab{"city": "O"}', 'xa1yab{"city": "O"}', "ab1", "ax1", "aa1", "xab"]),
    (rules(["ab", CITY], ["a", DIGIT]), ["a1", 'ab{"city": "O"}', 'a{"city": "O"}', "ab1"]),
    (rules(["aa", DIGIT], ["a", CITY]), ["aa1", 'a{"city": "O"}', 'aa{"city": "O"}', "aaa1"]),
    (rules(["a", DIGIT], ["a", CITY]), ["a1", 'a{"city": "O"}', "a", "a3"]),
    (rules(["a", const("bx")], ["ab", DIGIT]), ["abx", "ab1", "ab", "a"]),
    (rules(["ab", CITY], ["b", DIGIT]), ["", "b1", 'ab{"city": "O"}', "xb1", "ab1", "bab1", "abb1"]),
    (rules(["abc", CITY], ["b", DIGIT]), ["ab1", 'abc{"city": "O"}', "ab", "abx", "xb1", "xb3", "b1"]),
    (rules(["a", DIGIT], ["xay", DIGIT], ["ab", DIGIT]), ["xab1", "xab", "xay1", "xa1", "xaz", "xaa1", "xaa", "axab1", "ab1"]),
    (rules(["a", DIGIT], ["xa", CITY], ["ab", DIGIT]), ["xab1", 'xa{"city": "O"}', "xa1", "a1", "ab1"]),
    (rules(["b", DIGIT], ["abc", DIGIT], ["abd", DIGIT]), ["ab1", "abc1", "ab", "abe", "abb1", "aabd1"]),
    (rules(["ab", DIGIT], ["abcab", DIGIT]), ["ab1", "abcab1", "abcab", "ab1abcab1"]),
    (rules(["b", DIGIT], excludes=["abc"]), ["ab1", "abx", "b1", "b3", "abc", "b1abc", "xab3"]),
    (rules(["a", DIGIT], ["aab", DIGIT], excludes=["aa"]), ["a1", "aab1", "aa", "xa1", "aab", "ab1"]),
    (rules(["ab", DIGIT], excludes=["b"]), ["ab1", "a", "b", "ab"]),
    (rules(["ab", DIGIT], excludes=["abc"]), ["ab1", "abc", "ab"]),
    (tag("[", rules(["b", DIGIT]), "abc"), ["[ab1abc", "[abc", "[b1abc", "[xab1abc", "[babc"]),
]
# Free text within the forms of free text.
CASES += [
    (rules(["#", any_text()]), ["", "a#1", "a#", "a"]),
    (rules(["#", any_text("!")], ["?", const("1")]), ["", "a#1", "a#?1", "a?1", "a?3", "a#!?3"]),
    (rules(["#", tag("", any_text(), "!")]), ["", "a#1", "a#1!x", "a"]),
    (rules(["#", any_text()], loop=False), ["", "a#1", "a#1!x", "a#3", "a"]),
    (rules(["#", sequence(DIGIT, any_text())], loop=False), ["", "a#1", "a#1!x", "a#3", "a"]),
    (rules(["#", any_text(max_chars=2)]), ["#ab", "#abc", "#abc#ab"]),
    (tag("[", rules(["<t>", any_text()], loop=False), "]"), ["[]", "[x]", "[<t>a]", "[<t>a]]", "[<t>a<t>b]"]),
    (tag("[", rules(["<t>", any_text()]), "]"), ["[]", "[x]", "[<t>a]", "[<t>a]]", "[<t>a"]),
    (rules(["<t>", tag("", any_text(), "</t>")], ["#", DIGIT]), ["#1", "#3", "<t>#3", "<t>#3</t>", "<t></t>#3", "<t></t>#1x"]),
    (triggered([tag("<t>", any_text(), "</t>"), tag("<f>", DIGIT, "</f>")], "<"), ["<t>a</t>b", "<t>a", "<f>1</f>", "<f>3</f>", "<t><f>3</f></t><f>1</f>"]),
    (triggered([tag("<a>", one_of(any_text(), DIGIT), "</a>")], "<a>"), ["<a>x</a>", "<a>1</a>", "<a>x</a>y", "<a>x"]),
]
# Grammars, whose rules may have names with dots.
CASES += [
    (ebnf('root ::= a.b\na.b ::= "x" a.c\na.c ::= "y"'), ["xy", "x"]),
    (ebnf('root ::= [a-z]+ "abc"'), ["abcabc", "xabyabc", "abc", "ab"]),
    (ebnf('root ::= item+\nitem ::= [a-z]* "ab" ("c" | "cd")'), ["abc", "xabcd", "abcdabc", "abcabcd", "ab"]),
    (sequence(ebnf("root ::= [a-z]+"), DIGIT), ["ab1", "1", "ab"]),
    (sequence(ebnf("root ::= [a-z]+"), const("a"), DIGIT), ["aba1", "a1", "ab1"]),
    (sequence(regex("[a-z]+"), const("a"), regex("[a-z]")), ["abab", "aa", "aab", "ab"]),
]


def judged(form, texts):
    grammar = xgrammar.Grammar.from_structural_tag({"type": "structural_tag", "format": form})
    return {"format": form, "texts": [[text, _is_grammar_accept_string(grammar, text)] for text in texts]}


def main():
    golden = {"xgrammar": version("xgrammar"), "cases": [judged(form, texts) for form, texts in CASES]}
    GOLDEN.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    texts = [text for case in golden["cases"] for text in case["texts"]]
    print(len(golden["cases"]), "formats,", len(texts), "texts,", sum(accepted for _, accepted in texts), "accepted")


if __name__ == "__main__":
    main()
