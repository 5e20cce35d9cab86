"""What a search is asked for, what it finds, and answers from that. Knows no conversation."""

from random import Random

import cast
import words
import world
from task import ways
from template import to_json
from toolbox import Kind, Parameter, Tool
from uses import Use, place, shown_as

SEARCH = Kind(
    "search",
    "search|web_search|internet_search|wiki|encyclopedia|knowledge|articles|documents|web|facts|online",
    "[Search|Searches|Search|Look things up in|Looks up facts in|Finds pages in|Query|Find information in|Look for answers in] "
    "[the web|the web|the internet|an encyclopedia|the knowledge base|a library of articles|Wikipedia|our documents|many pages]"
    "[| for a text| for a topic| for information| and returns results| for a query][.|]||"
    "[Web search|Internet search|Search engine|Full text search|Search][| over articles| for any topic| for facts][.|]||"
    "[Use this to find|Finds|Find|Look up] [facts that you do not know|information about a topic|answers to questions|facts about anything|knowledge][.|]",
    (
        Parameter(
            "query",
            "query|q|text|search|question|topic|keywords|term|phrase|search_query|words|s",
            "What to search for|The search terms|The text to look for|Keywords|The question or topic",
        ),
        Parameter(
            "limit",
            "limit|max_results|count|top_k|number|num_results|n",
            "How many results|Most results|Number of results",
            "integer",
            share=0.3,
        ),
    ),
)
# The query is the thing alone where the user names it, and the question where there is one.
LOOK_UP = ["Search for {x}.", "Search the web for {x}.", "Look up {x}.", "Find information about {x}.", "Can you look up {x}?", "Please search for {x}.",
           "What can you find about {x}?", "Google {x}.", "Search {x}", "I need information about {x}.", "Tell me about {x}.", "What do you know about {x}?",
           "Find out about {x}.", "Search the internet for {x}, please.", "Look for {x} on the web.", "Do a search for {x}."]  # fmt: skip
WONDER = ["Who invented {x}?", "What is the history of {x}?", "When did {x} begin?", "How does {x} work?", "Why is {x} important?", "Where can I learn about {x}?",
          "What is the meaning of {x}?", "Who wrote about {x}?", "What is new about {x}?", "How old is {x}?", "Who is famous for {x}?", "Who was the first to study {x}?"]  # fmt: skip


def _topic(rng: Random) -> str:
    roll = rng.random()
    if roll < 0.35:
        return rng.choice(world.TOPICS)
    if roll < 0.55:
        return rng.choice(
            [
                cast.invented(rng),
                f"{rng.choice(world.NAMES)} {cast.invented(rng)}",
                f"the {cast.invented(rng)} {rng.choice(cast.THINGS)}",
            ]
        )
    if roll < 0.8:
        return " ".join(rng.choice(world.WORDS) for _ in range(rng.randint(1, 4)))
    return rng.choice(["the price of {a}", "how to repair {a}", "pictures of {a}", "the best {b} in {p}", "cheap {b}", "{b} from {p}", "the oldest {b} in the world"]).format(
        a=world.with_article(rng.choice(world.COLOURS) + " " + rng.choice(cast.THINGS)), b=rng.choice(cast.GOODS), p=place(rng)
    )  # fmt: skip


def _found(rng: Random, query: str) -> tuple[str, str]:
    def sentence() -> str:
        X = query[0].upper() + query[1:]
        return rng.choice(
            [
                f"{X} was first seen in {rng.randint(1200, 2020)} by {rng.choice(world.NAMES)} {cast.invented(rng)}.",
                f"{cast.invented(rng)} from {place(rng)} is the best known name here.",
                f"There are {rng.randint(2, 900)} {rng.choice(cast.GOODS)} in {place(rng)}.",
                f"It began in {place(rng)} in the year {rng.randint(1000, 2025)}.",
                f"{cast.invented(rng)} {cast.invented(rng)} wrote a book about it in {rng.randint(1700, 2025)}.",
                words.sentence(rng),
            ]
        )

    if rng.random() < 0.1:
        return shown_as(
            rng.choice([[], {"results": []}, "No results.", "nothing found", {"results": [], "total": 0}])
        ), f"I found nothing about {query}."
    if rng.random() < 0.25:
        text = " ".join(sentence() for _ in range(rng.choice([1, 1, 2])))
        return text, text
    title, text = (
        rng.choice(["title", "name", "page", "headline"]),
        rng.choice(["text", "snippet", "summary", "content", "description", "body"]),
    )
    found = []
    for _ in range(rng.randint(1, 3)):
        item = {title: rng.choice([query, cast.invented(rng), words.sentence(rng).rstrip(".")]), text: sentence()}
        if rng.random() < 0.3:
            item["url"] = f"https://{cast.invented(rng).lower()}.example/{cast.invented(rng).lower()}"
        found.append(item if rng.random() < 0.8 else {text: item[text]})
    shown = rng.choice([found, {"results": found}, found[0] if len(found) == 1 else found])
    return to_json(shown), found[0][text]


def search(rng: Random, tool: Tool) -> Use:
    topic = _topic(rng)
    if rng.random() < 0.65:
        i, question = ways(rng, LOOK_UP, x=topic)
        query = topic
        if "limit" in tool.roles and rng.random() < 0.5:
            n = rng.randint(1, 20)
            question = rng.choice(
                [
                    f"Find {n} results about {topic}.",
                    f"Search for {topic} and show {n} results.",
                    f"Give me {n} pages about {topic}.",
                ]
            )
            return Use(
                tool, question, {"query": query, "limit": n}, ("search", topic, "limit"), lambda r: _found(r, query)
            )
    else:
        i, question = ways(rng, WONDER, x=topic)
        query, i = question[:-1], i + 100
    return Use(tool, question, {"query": query}, ("search", topic, i), lambda r: _found(r, query))
