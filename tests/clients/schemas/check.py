"""JSON schemas of public suites against the server: at temperature 1 every answer that ends by itself must be valid, or its schema
is refused with a 400. Knows the files of the JSON Schema Test Suite and of JSONSchemaBench."""

import argparse
import collections
import concurrent.futures
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema

from server import Server

DRAFTS = {
    "draft2020-12": jsonschema.Draft202012Validator,
    "draft2019-09": jsonschema.Draft201909Validator,
    "draft7": jsonschema.Draft7Validator,
}


def of_suite(root):
    """Each group of its required tests: a name, a schema, a validator."""
    for draft, validator in DRAFTS.items():
        for file in sorted((root / "tests" / draft).glob("*.json")):
            for at, group in enumerate(json.loads(file.read_text())):
                schema = group["schema"]
                if isinstance(schema, dict):
                    # Those of older drafts do not say of which they are.
                    schema = {"$schema": validator.META_SCHEMA["$schema"]} | schema
                yield f"{draft}/{file.stem}[{at}]", schema, validator


def of_bench(root, every):
    """Every so manyth of its schemas, which are those of real programs."""
    for file in sorted((root / "maskbench" / "data").glob("*.json"))[::every]:
        schema = json.loads(file.read_text())["schema"]
        yield f"bench/{file.stem}", schema, jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)


def ask(url, schema, seed, max_tokens):
    """The answer's text and why it ended, or the refusal."""
    form = {"type": "json_schema", "json_schema": {"name": "schema", "schema": schema}}
    messages = [{"role": "user", "content": "What is the weather in Oslo? Answer as JSON."}]
    body = {"messages": messages, "response_format": form, "temperature": 1, "seed": seed, "max_tokens": max_tokens}
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            [choice] = json.load(response)["choices"]
            return choice["finish_reason"], choice["message"]["content"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"]


def judge(url, case, seed, max_tokens):
    name, schema, validator = case
    reason, text = ask(url, schema, seed, max_tokens)
    if reason == 400:
        return "refused", name, text
    if reason == "length":
        return "cut off", name, text
    if reason != "stop":
        return "failed", name, f"{reason}: {text}"
    try:
        fault = next(validator(schema).iter_errors(json.loads(text)), None)
    except Exception as error:  # noqa: BLE001  (a reference that the validator cannot follow, a pattern that it cannot read)
        return "not judged", name, f"{error!r}: {text}"
    return ("valid", name, text) if fault is None else ("INVALID", name, f"{fault.message}: {text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=Path, required=True, help="a copy of json-schema-org/JSON-Schema-Test-Suite")
    parser.add_argument("--bench", type=Path, required=True, help="a copy of guidance-ai/jsonschemabench")
    parser.add_argument("--every", type=int, default=100, help="of the latter, each so manyth schema")
    parser.add_argument("--max-tokens", type=int, default=96)
    flags = parser.parse_args()
    failed = False
    server = Server(model=None)
    server.wait_until_ready()
    for source, cases in {"suite": list(of_suite(flags.suite)), "bench": list(of_bench(flags.bench, flags.every))}.items():
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            judged = list(pool.map(lambda i: judge(server.url, cases[i], i, flags.max_tokens), range(len(cases))))
        counts = collections.Counter(verdict for verdict, _, _ in judged)
        print(source, len(cases), "schemas:", ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common()))
        for verdict, name, text in judged:
            if verdict in ("INVALID", "failed", "not judged"):
                print(f"  {verdict} {name}: {text[:300]}")
                failed |= verdict != "not judged"
    server.process.terminate()
    sys.exit(failed)


if __name__ == "__main__":
    main()
