"""Questions whose answers are JSON: read out of a sentence, or a fact in a given key. Knows no chat format."""

import json
from random import Random

import cast
import facts
import stories
import sums
import world
from task import Task, ways
from world import with_article


def person(rng: Random) -> Task:
    """Some properties of a person, in the order that the question asks for."""
    all_values = {
        "name": rng.choice(world.NAMES),
        "age": rng.randint(3, 90),
        "city": rng.choice(list(world.CAPITALS.values())),
        "job": rng.choice(world.CATEGORIES["jobs"]),
        "pet": rng.choice(list(world.ANIMALS)),
        "colour": rng.choice(world.COLOURS),
        "food": rng.choice(cast.GOODS),
        "hobby": rng.choice(world.CATEGORIES["sports"]),
    }
    names = ["name"] + rng.sample(list(all_values)[1:], rng.randint(1, 4))
    said = {
        "age": "is {age} years old",
        "city": "lives in {city}",
        "job": "works as {a_job}",
        "pet": "has {a_pet}",
        "colour": "likes the colour {colour}",
        "food": "likes {food}",
        "hobby": "is good at {hobby}",
    }
    parts = [said[n] for n in names[1:]]
    rng.shuffle(parts)
    text = "{name} " + (", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0]) + "."
    text = text.format(**all_values, a_job=with_article(all_values["job"]), a_pet=with_article(all_values["pet"]))
    keys = names if rng.random() < 0.7 else rng.sample(names, rng.randint(1, len(names)))
    listed = ", ".join(keys[:-1]) + " and " + keys[-1] if len(keys) > 1 else keys[0]
    s = "s" if len(keys) > 1 else ""
    _, q = ways(
        rng,
        [
            "Answer as JSON with the key{s} {k}: {t}",
            "Write this as JSON with the key{s} {k}: {t}",
            "Give me JSON with the key{s} {k}. {t}",
            "Make a JSON object with the key{s} {k} from this: {t}",
            "{t} Answer as JSON with the key{s} {k}.",
            "Extract {k} as JSON: {t}",
        ],
        k=listed,
        t=text,
        s=s,
    )
    answer = json.dumps({k: all_values[k] for k in keys})
    return Task("JSON from a sentence", q, answer, ("person", text, *keys), loose=False)


def fact(rng: Random) -> Task:
    """A question of another kind with its short answer under one key."""
    makers, weights = zip(*(facts.KINDS[:6] + sums.KINDS[:5]))
    inner = rng.choices(makers, weights)[0](rng)
    while inner.short is None or not inner.question.endswith("?"):
        inner = rng.choices(makers, weights)[0](rng)
    key = rng.choice(["answer", "answer", "answer", "result", "value"])
    value = int(inner.short) if inner.short.isdigit() else inner.short
    _, q = ways(
        rng,
        [
            "{q} Answer as JSON with the key {k}.",
            "{q} Give the answer as JSON with the key {k}.",
            "Answer as JSON with the key {k}: {q}",
            "{q} Reply in JSON with the key {k}.",
        ],
        q=inner.question,
        k=key,
    )
    return Task("JSON facts", q, json.dumps({key: value}), ("JSON",) + inner.key + (key,), loose=False)


def array(rng: Random) -> Task:
    """A list read out of a sentence."""
    group = rng.choice(["animals", "fruits", "colours", "tools", "vehicles", "vegetables"])
    items = rng.sample(world.CATEGORIES[group], rng.randint(2, 5))
    listed = ", ".join(items[:-1]) + " and " + items[-1]
    _, q = ways(
        rng,
        [
            "Write this list as a JSON array: {t}.",
            "Make a JSON array of {t}.",
            "JSON array: {t}",
            "Give me {t} as a JSON array.",
        ],
        t=listed,
    )
    return Task("JSON arrays", q, json.dumps(items), ("array", *items))


def story_record(rng: Random) -> Task:
    """Hero and helper of a story."""
    while True:
        s = stories.story(rng)
        helper = [short for ways_to_ask, _, short in s.questions if ways_to_ask[0].startswith("Who helped")]
        if helper:
            break
    keys = rng.choice([["hero", "helper"], ["title", "hero"], ["helper", "hero"], ["hero", "kind", "helper"]])
    values = {"hero": s.hero, "helper": helper[0].rstrip("."), "kind": s.kind, "title": s.title}
    listed = ", ".join(keys[:-1]) + " and " + keys[-1]
    q = f"Answer as JSON with the keys {listed}.\n\n{s.title}\n\n{s.text()}"
    return Task("JSON from a story", q, json.dumps({k: values[k] for k in keys}), ("story record", *s.key), loose=False)


KINDS = [(person, 5), (fact, 4), (array, 1.5), (story_record, 1.5)]
