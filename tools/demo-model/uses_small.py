"""What other tools are asked for: the time, the date, timers, messages, lights, translations, prices, dice, notes. Knows no conversation."""

from collections.abc import Callable
from random import Random

import cast
import words
import world
from task import ways
from template import to_json
from toolbox import Kind, Parameter, Tool
from uses import PLACE, Use, place
from world import listed

DONE = listed(
    'ok|done|OK|{"status": "ok"}|{"success": true}|{"done": true}|{"result": "ok"}|success|{"status": "done"}'
)
TIME = Kind(
    "time",
    "time|local_time|clock|world_clock|hour",
    "[Tells|Get|Returns|Shows|Looks up] [the time|the local time|the current time] [in a city|of a place|for a location][.|]||A world clock",
    (PLACE,),
)
DATE = Kind(
    "date",
    "date|today|calendar|current_date|day",
    "[Tells|Get|Returns|Shows] [today's date|the current date|the date][.|]||Which day it is",
)
TIMER = Kind(
    "timer",
    "timer|alarm|countdown|set_timer|start_timer",
    "[Sets|Set|Start|Starts] a [timer|countdown|timer of some minutes|countdown in minutes][.|]||Rings after so many minutes[.|]",
    (
        Parameter(
            "minutes",
            "minutes|duration|length|time|mins|wait|m",
            "How many minutes|Minutes until it rings|The duration",
            "integer",
        ),
    ),
)
MESSAGE = Kind(
    "message",
    "message|send_message|text_message|mail|chat_message|sms",
    "[Sends|Send] a [message|text|short message] [to a person|to somebody|to a contact|to a friend][.|]||Writes to a [contact|person][.|]",
    (
        Parameter(
            "person", "to|person|recipient|name|contact|who|receiver", "Who gets it|The recipient|Name of the person"
        ),
        Parameter("text", "text|message|body|content|what|words", "What to say|The text of the message|The message"),
    ),
)
LIGHT = Kind(
    "light",
    "light|lamp|set_light|switch_light|lights",
    "[Switches|Turn|Turns|Switch] [the light of a room|a lamp|the lights|the light] on or off[.|]||Controls the lights[.| of the house|]",
    (
        Parameter("room", "room|where|place|lamp|area", "Which room|The room|Where the lamp is"),
        Parameter("on", "on|state|power|lit|enabled", "Whether it shall be on|true for on|On or off", "boolean"),
    ),
)
TRANSLATE = Kind(
    "translate",
    "translate|translation|translator|translate_text|dictionary",
    "[Translates|Translate] [a text|words|text|a word] into [a language|another language|a given language][.|]||Say something in another language",
    (
        Parameter("text", "text|word|phrase|what|source|input|content", "What to translate|The text|The words"),
        Parameter(
            "language",
            "language|to|target|target_language|lang|into",
            "The language to translate into|Target language|Into which language",
        ),
    ),
)
PRICE = Kind(
    "price",
    "price|prices|product_price|cost|shop|price_of_product",
    "[Tells|Get|Returns|Shows|Looks up] the price of [a product|an item|a thing|something][.|]||[Look up|Finds] what [something|a product] costs[.|]",
    (Parameter("product", "product|item|thing|name|what|article|goods", "The product|What to buy|Name of the item"),),
)
DICE = Kind(
    "dice",
    "dice|roll|roll_dice|die|random_number|throw_die",
    "[Rolls|Roll|Throw|Throws] a die[| with some sides| with any number of sides][.|]||A random number from 1 on[.|]",
    (
        Parameter(
            "sides",
            "sides|faces|max|n|number_of_sides|size",
            "How many sides it has|Number of sides|The largest number",
            "integer",
        ),
    ),
)
NOTE = Kind(
    "note",
    "note|notes|memo|write_note|save_note|notebook",
    "[Writes|Write|Takes|Saves] a note[| down| for later][.|]||[Saves a text for later|Keep a memo][.|]",
    (Parameter("text", "text|note|content|memo|body|what|line", "What to write|The text of the note|The note"),),
)
ROOMS = listed("kitchen|bedroom|living room|bathroom|hall|garden|cellar|office|garage|attic|nursery|library")
LANGUAGES = listed(
    "French|German|Spanish|Italian|Dutch|Polish|Greek|Turkish|Russian|Japanese|Chinese|Korean|Arabic|Swedish|Latin|Welsh"
)


def _done(answer: str) -> Callable[[Random], tuple[str, str]]:
    return lambda r: (r.choice(DONE), answer)


def _value(make: Callable[[Random], object], keys: str, answer: str) -> Callable[[Random], tuple[str, str]]:
    """A result that is one value, alone or in an object."""

    def result(r: Random) -> tuple[str, str]:
        value = make(r)
        shown = str(value) if r.random() < 0.4 else to_json({r.choice(listed(keys)): value})
        return shown, answer.format(v=value)

    return result


def clock(rng: Random, where: str) -> tuple[str, str]:
    now = lambda r: f"{r.randint(0, 23):02}:{r.randint(0, 59):02}"
    return _value(now, "time|local_time|clock|now|result", f"It is {{v}} in {where}.")(rng)


def time(rng: Random, tool: Tool) -> Use:
    where = place(rng)
    i, q = ways(
        rng,
        listed(
            "What time is it in {p}?|What's the time in {p}?|Tell me the time in {p}.|How late is it in {p}?|Time in {p}?|Which time is it now in {p}?"
        ),
        p=where,
    )
    return Use(tool, q, {"place": where}, ("time", where, i), lambda r: clock(r, where), where)


def date(rng: Random, tool: Tool) -> Use:
    i, q = ways(
        rng,
        listed(
            "What is the date today?|What's today's date?|Which day is it today?|What day is it?|Tell me the date.|What is the date?|Today's date?|Which date do we have today?"
        ),
    )
    today = lambda r: f"{r.choice(world.DAYS)}, {r.randint(1, 31)} {r.choice(world.MONTHS)} {r.randint(2020, 2040)}"
    # A few fixed phrases: there is nothing to hold out.
    return Use(tool, q, {}, ("date", i, rng.randrange(1000)), _value(today, "date|today|day|result", "Today is {v}."))


def timer(rng: Random, tool: Tool) -> Use:
    n = rng.randint(2, 180)
    i, q = ways(
        rng,
        listed(
            "Set a timer for {n} minutes.|Start a timer of {n} minutes.|Set a {n} minute timer.|Wake me in {n} minutes.|Remind me in {n} minutes.|Timer, {n} minutes.|Please start a countdown of {n} minutes."
        ),
        n=n,
    )
    return Use(tool, q, {"minutes": n}, ("timer", n, i), _done(f"The timer rings in {n} minutes."))


def message(rng: Random, tool: Tool) -> Use:
    who = rng.choice(world.NAMES) if rng.random() < 0.6 else cast.invented(rng)
    said = (
        words.sentence(rng).rstrip(".")
        if rng.random() < 0.6
        else " ".join(rng.choice(world.WORDS) for _ in range(rng.randint(1, 5)))
    )
    _, q = ways(
        rng,
        listed(
            "Send a message to {w}: {t}.|Write to {w}: {t}.|Send {w} the message: {t}.|Text {w}: {t}.|Send this to {w}: {t}.|Message {w}: {t}."
        ),
        w=who,
        t=said,
    )
    return Use(
        tool, q, {"person": who, "text": said}, ("message", who, said), _done(f"I have sent your message to {who}.")
    )


def light(rng: Random, tool: Tool) -> Use:
    room = rng.choice(ROOMS) if rng.random() < 0.6 else rng.choice(world.WORDS) + " room"
    on = rng.random() < 0.5
    way = "on" if on else "off"
    i, q = ways(
        rng,
        listed(
            "Turn {w} the light in the {r}.|Switch {w} the light in the {r}.|Turn the {r} light {w}.|Switch the light in the {r} {w}.|Lights {w} in the {r}.|Please turn {w} the lights in the {r}."
        ),
        w=way,
        r=room,
    )
    return Use(tool, q, {"room": room, "on": on}, ("light", room, on, i), _done(f"The light in the {room} is {way}."))


def translate(rng: Random, tool: Tool) -> Use:
    text = (
        rng.choice(world.WORDS)
        if rng.random() < 0.5
        else words.sentence(rng).rstrip(".")
        if rng.random() < 0.5
        else rng.choice(world.WORDS) + " " + rng.choice(world.WORDS)
    )
    language = rng.choice(LANGUAGES)
    _, q = ways(
        rng,
        listed(
            'Translate "{t}" into {l}.|How do you say "{t}" in {l}?|What is "{t}" in {l}?|Say "{t}" in {l}.|Please translate "{t}" to {l}.|Translate into {l}: "{t}"'
        ),
        t=text,
        l=language,
    )
    foreign = lambda r: " ".join(cast.invented(r).lower() for _ in text.split())
    answer = f'"{text}" in {language} is "{{v}}".'
    return Use(
        tool,
        q,
        {"text": text, "language": language},
        ("translate", text, language),
        _value(foreign, "translation|text|result|translated|output", answer),
    )


def price(rng: Random, tool: Tool) -> Use:
    thing = rng.choice(cast.THINGS) if rng.random() < 0.5 else f"{rng.choice(world.COLOURS)} {rng.choice(cast.THINGS)}"
    a = world.with_article(thing)
    i, q = ways(
        rng,
        listed(
            "How much is {a}?|What does {a} cost?|How much does {a} cost?|What is the price of {a}?|Tell me the price of {a}.|Price of {a}?"
        ),
        a=a,
    )
    money = lambda r: r.choice(
        [r.randint(1, 500), r.randint(1, 999) / 10, f"{r.randint(1, 99)} euros", f"${r.randint(1, 99)}"]
    )
    return Use(
        tool,
        q,
        {"product": thing},
        ("price", thing, i),
        _value(money, "price|cost|amount|result|value", f"{a[0].upper() + a[1:]} costs {{v}}."),
    )


def dice(rng: Random, tool: Tool) -> Use:
    n = rng.choice([6, 6, rng.randint(2, 200)])
    i, q = ways(
        rng,
        listed(
            "Roll a die with {n} sides.|Throw a die with {n} sides.|Roll a {n}-sided die.|Please roll a die that has {n} sides.|Roll a d{n}."
        ),
        n=n,
    )
    return Use(
        tool,
        q,
        {"sides": n},
        ("dice", n, i),
        _value(lambda r: r.randint(1, n), "result|value|number|roll|shown", "The die shows {v}."),
    )


def note(rng: Random, tool: Tool) -> Use:
    text = (
        words.sentence(rng).rstrip(".")
        if rng.random() < 0.6
        else "buy " + " and ".join(rng.sample(cast.GOODS, rng.randint(1, 3)))
    )
    _, q = ways(
        rng,
        listed(
            "Make a note: {t}.|Write this down: {t}.|Note this: {t}.|Save a note: {t}.|Take a note: {t}.|Please note down: {t}."
        ),
        t=text,
    )
    return Use(tool, q, {"text": text}, ("tool note", text), _done("I have written it down."))


USES: list[tuple[Kind, Callable[[Random, Tool], Use]]] = [
    (TIME, time), (DATE, date), (TIMER, timer), (MESSAGE, message), (LIGHT, light), (TRANSLATE, translate), (PRICE, price), (DICE, dice), (NOTE, note),
]  # fmt: skip
