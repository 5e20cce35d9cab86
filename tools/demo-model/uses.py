"""What a question for a tool is, and those for the weather: the call that each needs, results, and answers from these. Knows no conversation."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import cast
import words
import world
from task import ways
from template import to_json
from toolbox import Kind, Parameter, Tool
from world import listed


@dataclass
class Use:
    """A question that a tool answers: the values of its roles, and what a result may be, with the answer to it."""

    tool: Tool
    question: str
    arguments: dict
    key: tuple
    result: Callable[[Random], tuple[str, str]]
    # What stands in the place of this in a follow-up: "And in Rome?"
    subject: str | None = None


CITIES = listed("""New York|Los Angeles|San Francisco|Chicago|Boston|Seattle|Dallas|Miami|Denver|Houston|Toronto|Vancouver|Montreal|
Barcelona|Milan|Naples|Venice|Florence|Munich|Hamburg|Cologne|Frankfurt|Zurich|Geneva|Basel|Lyon|Nice|Marseille|Porto|Seville|
Manchester|Liverpool|Oxford|Cambridge|Glasgow|Belfast|Bergen|Gothenburg|Prague|Bucharest|Sofia|Zagreb|Belgrade|Kyiv|Riga|Vilnius|
Istanbul|Dubai|Tel Aviv|Mumbai|Bangalore|Delhi|Karachi|Dhaka|Singapore|Hong Kong|Shanghai|Taipei|Osaka|Kyoto|Manila|Jakarta|
Sydney|Melbourne|Perth|Auckland|Cape Town|Johannesburg|Lagos|Accra|Casablanca|Tunis|Rio de Janeiro|Sao Paulo|Bogota|Quito""")


def place(rng: Random) -> str:
    roll = rng.random()
    if roll < 0.25:
        return rng.choice(list(world.CAPITALS.values()))
    if roll < 0.5:
        return rng.choice(CITIES)
    if roll < 0.58:
        country, city = rng.choice(list(world.CAPITALS.items()))
        return f"{city}, {country}"
    if roll < 0.66:
        return f"{rng.choice(['New', 'San', 'Port', 'Old', 'Saint', 'North', 'East'])} {cast.invented(rng)}"
    return cast.invented(rng)


PLACE = Parameter(
    "place",
    "city|location|place|town|where|city_name|area|target_city|location_name|q|l",
    "The city|Name of the city|The place|City name, for example Paris|Which city|The town to ask for|Where|The location",
)
WEATHER = Kind(
    "weather",
    "weather|forecast|current_weather|weather_report|weather_forecast|temperature|climate|conditions|meteo",
    "[Get|Gets|Get|Returns|Return|Tells|Shows|Looks up|Finds|Fetch|Fetches|Retrieve|Provides|Check] [the |the current |current |today's ]"
    "[weather|weather|weather|temperature|weather conditions|weather report|weather forecast|temperature and sky|climate]"
    "[| in a city| of a city| for a city| in a given city| in a place| for a location| for a given location| at a location| of a town][.|]||"
    "[Weather service|Weather|The weather|Weather forecast][| in a city| for cities|: how warm it is and whether it rains][.|]||"
    "How [warm|cold|sunny|wet] it is [in a city|in a place|somewhere][.|]",
    (
        PLACE,
        Parameter(
            "unit",
            "unit|units|scale|temperature_unit|degrees",
            "The unit of temperature|Celsius or Fahrenheit|Which scale",
            share=0.3,
            values=("Celsius", "Fahrenheit"),
            choices=(("celsius", "fahrenheit"), ("Celsius", "Fahrenheit"), ("C", "F"), ("c", "f")),
        ),
        Parameter(
            "day", "day|date|when|for_day", "The day|today, tomorrow or a day of the week|For which day", share=0.3
        ),
    ),
)
ASK_WEATHER = [
    "What is the weather{d} in {p}?",
    "What is the weather in {p}{d}?",
    "What's the weather in {p}{d}?",
    "What is the weather like in {p}{d}?",
    "What's the weather like in {p}{d}?",
    "How is the weather in {p}{d}?",
    "Tell me the weather in {p}{d}.",
    "Weather in {p}{d}?",
    "Is it raining in {p}{d}?",
    "Does it rain in {p}{d}?",
    "Do I need an umbrella in {p}{d}?",
    "Is it cold in {p}{d}?",
    "Is it sunny in {p}{d}?",
    "How warm is it in {p}{d}?",
    "How cold is it in {p}{d}?",
    "What is the temperature in {p}{d}?",
    "What's the temperature in {p}{d}?",
    "Check the weather in {p}{d}.",
    "Can you tell me the weather in {p}{d}?",
    "I am going to {p}{d}. What is the weather there?",
    "I live in {p}. How is the weather{d}?",
    "Please look up the weather in {p}{d}.",
    "What's the forecast for {p}{d}?",
    "Give me the weather for {p}{d}.",
    "How hot is it in {p}{d}?",
    "Show me the weather in {p}{d}, please.",
]
SKIES = (
    "sunny|rainy|cloudy|windy|snowy|foggy|clear|stormy|partly cloudy|overcast|hot|humid|dry|icy|mild|freezing".split(
        "|"
    )
)
ERRORS = "no connection|timeout|service not available|access denied|not found|rate limit reached|invalid key|internal error|nobody answers".split(
    "|"
)


def failure(rng: Random, subject: str) -> tuple[str, str]:
    why = rng.choice(
        [*ERRORS, f"unknown value {subject}", f"no data for {subject}", words.sentence(rng).rstrip(".").lower()]
    )
    shown = rng.choice([{"error": why}, {"status": "error", "message": why}, f"Error: {why}", f"error: {why}"])
    return shown_as(shown), f"The tool failed: {why}."


def shown_as(value) -> str:
    return value if isinstance(value, str) else to_json(value)


def report(rng: Random, where: str, when: str) -> tuple[str, str]:
    """A report of the weather: an object with a few of its usual keys, or a text."""
    number = rng.choice([rng.randint(-15, 40), rng.randint(-15, 40), rng.randint(41, 110), rng.randint(0, 399) / 10])
    unit = rng.choice(["°C", " °C", "°F", " degrees Celsius", "C"])
    warm, said = (number, f"{number} degrees") if rng.random() < 0.7 else (f"{number}{unit}", f"{number}{unit}")
    sky = rng.choice(SKIES) if rng.random() < 0.9 else rng.choice(world.WORDS)
    if rng.random() < 0.25:
        text = rng.choice([f"{sky}, {said}", f"{sky.capitalize()}, {said}", f"{said}, {sky}", f"{sky} and {said}"])
        shown = text if rng.random() < 0.7 else {rng.choice(["result", "weather", "report", "forecast", "text"]): text}
        return shown_as(shown), f"The weather in {where}{when}: {text}."
    if rng.random() < 0.06:
        # A sentence needs no other one.
        text = rng.choice(["It is {s} in {w}.", "The weather in {w} is {s}.", "In {w} it is {s} now, {t}."]).format(
            s=sky, w=where, t=said
        )
        return text, text
    is_ = "will be" if when.strip() not in ("", "today") else "is"
    parts = {
        rng.choice(["temperature", "temp", "temp_c", "degrees", "temperature_c", "warmth"]): warm,
        rng.choice(["condition", "conditions", "sky", "weather", "description", "summary", "state"]): sky,
    }
    kept = rng.choices([[0, 1], [0], [1]], [8, 1, 1])[0]
    items = [item for n, item in enumerate(parts.items()) if n in kept]
    answer = " and ".join([sky] * (1 in kept) + [said] * (0 in kept))
    if rng.random() < 0.4:
        items.append((rng.choice(["city", "location", "place"]), where))
    if rng.random() < 0.25:
        items.append(
            rng.choice(
                [
                    ("humidity", rng.randint(10, 99)),
                    ("wind", f"{rng.randint(0, 90)} km/h"),
                    ("wind_speed", rng.randint(0, 90)),
                ]
            )
        )
    rng.shuffle(items)
    return to_json(dict(items)), f"It {is_} {answer} in {where}{when}."


def weather(rng: Random, tool: Tool) -> Use:
    where = place(rng)
    arguments, when = {"place": where}, ""
    if "day" in tool.roles and rng.random() < 0.6:
        day = rng.choice(["today", "tomorrow", *world.DAYS])
        arguments["day"] = day
        when = f" on {day}" if day in world.DAYS else f" {day}"
    said = when or (
        rng.choice([" today", " now", " right now"]) if "day" not in tool.roles and rng.random() < 0.2 else ""
    )
    i, question = ways(rng, ASK_WEATHER, p=where, d=said)
    if "unit" in tool.roles and rng.random() < 0.5:
        unit = rng.choice(["Celsius", "Fahrenheit"])
        arguments["unit"] = unit
        question = rng.choice(
            [f"{question[:-1]} in {unit}{question[-1]}", f"{question} Use {unit}.", f"{question} In {unit}, please."]
        )
    return Use(tool, question, arguments, ("weather", where, i), lambda r: report(r, where, when), where)
