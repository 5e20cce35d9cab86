"""Questions about the fixed world: animals, colours, days, opposites, capitals, simple science. Knows no numbers but small ones."""

from random import Random

import world
from task import Task, ways
from world import with_article


def capital(rng: Random) -> Task:
    country, city = rng.choice(list(world.CAPITALS.items()))
    if rng.random() < 0.6:
        i, q = ways(
            rng,
            [
                "What is the capital of {c}?",
                "Name the capital of {c}.",
                "Which city is the capital of {c}?",
                "Tell me the capital of {c}.",
                "What's the capital of {c}?",
                "Capital of {c}?",
                "Do you know the capital of {c}?",
                "What is the capital city of {c}?",
            ],
            c=country,
        )
        return Task("capitals", q, f"The capital of {country} is {city}.", ("capital", country, i), city)
    i, q = ways(
        rng,
        [
            "{c} is the capital of which country?",
            "Which country has the capital {c}?",
            "In which country is {c}?",
            "Where is {c}?",
        ],
        c=city,
    )
    return Task(
        "capitals", q, f"{city} is the capital of {country}.", ("country", city, i), country[0].upper() + country[1:]
    )


def opposite(rng: Random) -> Task:
    word, other = rng.choice(list(world.OPPOSITE.items()))
    i, q = ways(
        rng,
        [
            "What is the opposite of {w}?",
            "Name the opposite of {w}.",
            "Give me the opposite of {w}.",
            "Which word is the opposite of {w}?",
            "What's the opposite of {w}?",
            "Tell me the opposite of {w}.",
            "{W} and its opposite?",
            "Opposite of {w}?",
            "Which word means the opposite of {w}?",
            "What is the opposite of the word {w}?",
        ],
        w=word,
        W=word.capitalize(),
    )
    return Task("opposites", q, f"The opposite of {word} is {other}.", ("opposite", word, i), other.capitalize())


def colour(rng: Random) -> Task:
    if rng.random() < 0.25:
        (a, b), c = rng.choice(list(world.MIXES.items()))
        if rng.random() < 0.5:
            a, b = b, a
        i, q = ways(
            rng,
            [
                "What do you get when you mix {a} and {b}?",
                "Which colour do {a} and {b} make?",
                "Mix {a} and {b}.",
                "What colour is {a} mixed with {b}?",
            ],
            a=a,
            b=b,
        )
        return Task("colours", q, f"{a.capitalize()} and {b} make {c}.", ("mix", a, b, i), c.capitalize())
    thing, c = rng.choice(list(world.COLOUR_OF.items()))
    i, q = ways(
        rng,
        [
            "What colour is {t}?",
            "Which colour is {t}?",
            "Tell me the colour of {t}.",
            "What is the colour of {t}?",
            "What color is {t}?",
            "Name the colour of {t}.",
        ],
        t=thing,
    )
    return Task("colours", q, f"{thing[0].upper() + thing[1:]} is {c}.", ("colour", thing, i), c.capitalize())


def animal(rng: Random) -> Task:
    name, (young, home, sound, legs, food, flies, swims) = rng.choice(list(world.ANIMALS.items()))
    a = with_article(name)
    A = a[0].upper() + a[1:]
    part = rng.randrange(7)
    if part == 0:
        i, q = ways(
            rng,
            [
                "What is a young {n} called?",
                "What do you call a baby {n}?",
                "What is the name for a young {n}?",
                "What is a baby {n}?",
            ],
            n=name,
        )
        answer, short = f"A young {name} is called {with_article(young)}.", with_article(young).capitalize()
    elif part == 1:
        i, q = ways(
            rng,
            ["Where does {a} live?", "What is the home of {a}?", "Where is {a} at home?", "Where do you find {a}?"],
            a=a,
        )
        at = {
            "web": "in a web",
            "sea": "in the sea",
            "ice": "on the ice",
            "savanna": "on the savanna",
            "mountain": "on a mountain",
            "field": "in a field",
            "jungle": "in the jungle",
        }.get(home, "in " + with_article(home))
        answer, short = f"{A} lives {at}.", at[0].upper() + at[1:]
    elif part == 2:
        i, q = ways(
            rng,
            ["What sound does {a} make?", "What does {a} say?", "What noise does {a} make?", "How does {a} sound?"],
            a=a,
        )
        answer, short = f"{A} {sound}.", f"It {sound}"
    elif part == 3:
        i, q = ways(
            rng,
            [
                "How many legs does {a} have?",
                "How many legs has {a}?",
                "Count the legs of {a}.",
                "What number of legs does {a} have?",
            ],
            a=a,
        )
        answer, short = (f"{A} has {legs} legs." if legs else f"{A} has no legs."), str(legs)
    elif part == 4:
        i, q = ways(
            rng,
            ["What does {a} eat?", "What does {a} like to eat?", "What is the food of {a}?", "What do you feed {a}?"],
            a=a,
        )
        answer, short = f"{A} eats {food}.", food.capitalize()
    elif part == 5:
        i, q = ways(rng, ["Can {a} fly?", "Does {a} fly?", "Is {a} able to fly?", "Tell me if {a} can fly."], a=a)
        answer, short = (f"Yes, {a} can fly." if flies else f"No, {a} cannot fly."), "Yes" if flies else "No"
    else:
        i, q = ways(
            rng,
            ["Is {a} an animal or a fruit?", "What is {a}?", "Is {a} an animal?", "What kind of thing is {a}?"],
            a=a,
        )
        answer, short = (
            (f"Yes, {a} is an animal." if i == 2 else f"{A} is an animal."),
            "Yes" if i == 2 else "An animal",
        )
    return Task("animals", q, answer, ("animal", name, part, i), short)


def calendar(rng: Random) -> Task:
    roll = rng.random()
    if roll < 0.4:
        k, step = rng.randrange(7), rng.choice([1, -1])
        day, other = world.DAYS[k], world.DAYS[(k + step) % 7]
        rel = "after" if step == 1 else "before"
        i, q = ways(
            rng,
            [
                "What day comes {r} {d}?",
                "Which day is {r} {d}?",
                "What is the day {r} {d}?",
                "What comes {r} {d}?",
                "If today is {d}, what day is " + ("tomorrow?" if step == 1 else "it if we go back one day?"),
            ],
            r=rel,
            d=day,
        )
        return Task("days and months", q, f"The day {rel} {day} is {other}.", ("day", day, rel, i), other)
    k = rng.randrange(12)
    month = world.MONTHS[k]
    if roll < 0.6:
        step = rng.choice([1, -1])
        other, rel = world.MONTHS[(k + step) % 12], "after" if step == 1 else "before"
        i, q = ways(
            rng,
            [
                "What month comes {r} {d}?",
                "Which month is {r} {d}?",
                "What is the month {r} {d}?",
                "What comes {r} {d}?",
            ],
            r=rel,
            d=month,
        )
        return Task("days and months", q, f"The month {rel} {month} is {other}.", ("month", month, rel, i), other)
    if roll < 0.7:
        i, q = ways(rng, ["How many days does {m} have?", "How many days are in {m}?", "How long is {m}?"], m=month)
        return Task(
            "days and months",
            q,
            f"{month} has {world.MONTH_DAYS[k]} days.",
            ("length", month, i),
            str(world.MONTH_DAYS[k]),
        )
    if roll < 0.85:
        i, q = ways(
            rng,
            [
                "In which season is {m}?",
                "Which season is {m} in?",
                "What season is it in {m}?",
                "{m} is in which season?",
            ],
            m=month,
        )
        return Task(
            "days and months",
            q,
            f"{month} is in {world.SEASON_OF[k]}.",
            ("season", month, i),
            world.SEASON_OF[k].capitalize(),
        )
    i, q = ways(
        rng,
        [
            "Which month is the {o} month of the year?",
            "What is the {o} month of the year?",
            "Name the {o} month.",
            "What is month number {n}?",
        ],
        o=world.ORDINALS[k],
        n=k + 1,
    )
    return Task("days and months", q, f"The {world.ORDINALS[k]} month is {month}.", ("ordinal", month, i), month)


def science(rng: Random) -> Task:
    k = rng.randrange(len(world.SCIENCE))
    questions, answer = world.SCIENCE[k]
    i = rng.randrange(len(questions))
    prefix = rng.choice(
        [
            "",
            "",
            "",
            "Can you tell me: ",
            "I want to know: ",
            "Explain: ",
            "Do you know this? ",
            "Please tell me: ",
            "My question is: ",
        ]
    )
    return Task("science", prefix + questions[i], answer, ("science", k, i, prefix))


def shape(rng: Random) -> Task:
    name, sides = rng.choice(list(world.SHAPES.items()))
    i, q = ways(
        rng,
        [
            "How many sides does {s} have?",
            "How many corners does {s} have?",
            "How many sides has {s}?",
            "What number of sides does {s} have?",
        ],
        s=name,
    )
    what = "corners" if i == 1 else "sides"
    return Task("shapes", q, f"{name[0].upper() + name[1:]} has {sides} {what}.", ("shape", name, i), str(sides))


def category(rng: Random) -> Task:
    group, members = rng.choice(list(world.CATEGORIES.items()))
    member = rng.choice(members)
    shown = (
        member if member[0].isupper() or group in ("colours", "seasons", "drinks", "sports") else with_article(member)
    )
    if rng.random() < 0.5:
        other = (
            group
            if rng.random() < 0.5
            else rng.choice([g for g in world.CATEGORIES if g != group and member not in world.CATEGORIES[g]])
        )
        right = other == group
        i, q = ways(
            rng, ["Is {m} {c}?", "Is {m} {c}, yes or no?", "Tell me: is {m} {c}?"], m=shown, c=world.ONE_OF[other]
        )
        verdict = f"Yes, {shown} is {world.ONE_OF[other]}." if right else f"No, {shown} is not {world.ONE_OF[other]}."
        return Task("kinds of things", q, verdict, ("is a", member, other, i), "Yes" if right else "No")
    if sum(member in m for m in world.CATEGORIES.values()) > 1:
        return category(rng)
    i, q = ways(
        rng,
        ["What kind of thing is {m}?", "What is {m}?", "Tell me what {m} is.", "What sort of thing is {m}?"],
        m=shown,
    )
    one = world.ONE_OF[group]
    return Task(
        "kinds of things", q, f"{shown[0].upper() + shown[1:]} is {one}.", ("kind", member, i), one[0].upper() + one[1:]
    )


def list_some(rng: Random) -> Task:
    group, members = rng.choice([g for g in world.CATEGORIES.items() if len(g[1]) >= 4])
    n = rng.choice([2, 3, 3, 3, 4, 5])
    n = min(n, len(members) - 1)
    i, q = ways(
        rng,
        [
            "List {w} {g}.",
            "Name {w} {g}.",
            "Give me {w} {g}.",
            "List {n} {g}.",
            "Name {n} {g}.",
            "Can you name {w} {g}?",
            "Tell me {w} {g}.",
        ],
        n=n,
        w=world.number_words(n),
        g=group,
    )
    style = rng.choice(["comma", "comma", "lines"])
    if style == "lines":
        q += rng.choice([" One per line.", " Write one on each line."])
    # In the list's own order: what has been named is then behind.
    picked = [members[k] for k in sorted(rng.sample(range(len(members)), n))]
    answer = (
        "\n".join("- " + p for p in picked) if style == "lines" else ", ".join(picked[:-1]) + " and " + picked[-1] + "."
    )
    answer = answer[0].upper() + answer[1:]
    pool = {m.lower() for m in members}

    def accept(text: str) -> bool:
        parts = (
            [p[2:] for p in text.split("\n")]
            if style == "lines"
            else text.rstrip(".").replace(" and ", ", ").split(", ")
        )
        found = [p.strip().lower() for p in parts]
        return len(found) == n and len(set(found)) == n and all(p in pool for p in found)

    return Task("lists", q, answer, ("list", group, n, i, style), accept=accept)


KINDS = [
    (capital, 4),
    (opposite, 4),
    (colour, 3),
    (animal, 6),
    (calendar, 4),
    (science, 4),
    (shape, 0.7),
    (category, 4),
    (list_some, 3),
]
