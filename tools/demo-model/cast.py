"""Who and what a story may hold: lists of slots, the cast drawn from them, and the sentences that all plots share."""

from random import Random

import world
from world import listed, with_article

GIRLS = set(
    """Mia Anna Clara Ella Grace Ivy Kate Lily Nora Rosa Tina Uma Wendy Zoe Bella Daisy Fiona Hannah Julia Lena Nina
Ruth Vera Amy Cora Dora Flora Helen Iris Kim Maya Olive Pia Sara Yara Alma Celia Elsa Greta Ida Lola Nell Polly Rita Sonia
Tess Asha Fatima Priya Yuki Ines Amara""".split()
)
HOMES = listed("""a small house by the river|a cottage at the edge of the forest|a village in the valley|a town by the sea|
a farmhouse on a hill|a tall house in the old town|a hut near the lake|a quiet street behind the church|a village under the mountain|
a little house with a green door|a mill by the stream|a lighthouse on the coast|a flat above the bakery|a castle with three towers|
a houseboat on the canal|a cabin in the woods|a yellow house near the station|an inn at the crossroads""")
ANIMAL_HOMES = listed("""a hollow tree|a burrow under the hill|a den behind the waterfall|a meadow full of flowers|a forest by the lake|
an old barn|a garden behind the mill|a cave above the valley|a wood at the edge of the village|a field near the river""")
PLACES = listed("""the forest|the garden|the market|the park|the beach|the old mill|the meadow|the library|the harbour|the school yard|
the station|the fair|the barn|the castle|the hill|the lake|the bridge|the orchard|the museum|the town hall|the pond|the village square|
the bakery|the river bank|the playground|the field""")
SPOTS = listed("""under a bench|behind a bush|inside an old boot|on top of a wall|under a pile of leaves|next to the well|behind the door|
between two stones|in a bird's nest|under the stairs|in a basket of apples|at the foot of an oak|behind a barrel|inside a flower pot|
on the back of a sleeping dog|in the pocket of a coat""")
THINGS = listed("""kite|ball|hat|scarf|book|lantern|drum|key|doll|boat|basket|blanket|bell|flute|umbrella|bag|box|ring|watch|coat|bottle|
cup|map|whistle|brush|glove|shoe|ribbon|button|spoon""")
GOODS = listed(
    """apples|pears|nuts|berries|buns|cakes|eggs|cookies|plums|cherries|carrots|pies|pancakes|sandwiches|biscuits"""
)
BUILDS = listed("""a tree house|a raft|a bird house|a stone bridge|a snow castle|a swing|a wooden cart|a small boat|a bench|a windmill|
a garden gate|a sand castle""")
SKILLS = listed("""swim|ride a bicycle|play the violin|skate|bake bread|climb a tree|juggle|whistle|play the drum|dance|read a map|fly a kite|
row a boat|draw a horse|sing""")
FEARS = listed(
    """the dark|thunder|deep water|big dogs|high places|loud noises|spiders|the old bridge|the wind|the empty cellar"""
)
PLANTS = "a sunflower|a pumpkin|an apple tree|a rose|a bean|a tomato plant|an oak|a lily|a strawberry plant|a cherry tree".split(
    "|"
)
ADJECTIVES = "little|young|small|curious|clever|quiet|cheerful|brave|kind|shy|busy|patient".split("|")
TIMES = listed("""One morning|One day|One sunny day|One cold morning|One evening|On a Saturday|On the first day of spring|One windy afternoon|
One rainy day|Early one morning|On a warm summer day|One winter day|On the last day of autumn""")
WEATHER = "sun was shining|wind was blowing|sky was grey|birds were singing|air was cold and clear|clouds were low|grass was wet".split(
    "|"
)
FEELINGS = "happy|proud|glad|thankful|cheerful|relieved".split("|")
LESSONS = listed("""a friend makes every task lighter|it pays to be patient|asking for help is not a weakness|small steps lead far|
a kind word costs nothing|what is shared tastes better|everyone makes mistakes|it is good to listen first|
courage grows when you use it|honest words are the best words|practice makes hard things easy""")
OPENINGS = [
    "Once upon a time there was {a_adj} {kind} named {hero}.",
    "Once upon a time there lived {a_adj} {kind} named {hero}.",
    "Once there was {a_adj} {kind} named {hero}.",
    "There once was {a_adj} {kind} called {hero}.",
    "Long ago there lived {a_adj} {kind} called {hero}.",
    "{Hero} was {a_adj} {kind}.",
    "Once upon a time there lived {a_adj} {kind}. {His} name was {hero}.",
    "Once upon a time, in a land far away, there lived {a_adj} {kind} named {hero}.",
    "This is the story of {hero}, {a_adj} {kind}.",
]
ROLES = "knight|king|queen|prince|princess|wizard|baker|sailor|farmer|painter|giant|dragon|robot".split("|")


class Cast:
    """The slots that all plots share, drawn once per story."""

    def __init__(self, rng: Random, name: str | None = None, kind: str | None = None):
        self.rng = rng
        self.hero = name or _name(rng)
        self.kind = kind or _kind(rng, self.hero)
        self.person = self.kind in ("girl", "boy") or self.kind in ROLES
        female = self.hero in GIRLS if self.kind not in ("boy", "king", "prince") else False
        female = True if self.kind in ("girl", "queen", "princess") else female
        self.he, self.him, self.his = ("she", "her", "her") if female else ("he", "him", "his")
        self.adj = rng.choice(ADJECTIVES)
        self.home = rng.choice(HOMES if self.person else ANIMAL_HOMES)
        while True:
            self.friend = rng.choice(world.NAMES)
            if self.friend != self.hero:
                break
        self.friend_kind = (
            rng.choice(list(world.ANIMALS)) if rng.random() < 0.6 else ("girl" if self.friend in GIRLS else "boy")
        )
        if self.friend_kind == self.kind:
            self.friend_kind = "old man" if self.friend not in GIRLS else "old woman"
        self.colour = rng.choice(world.COLOURS[:11])
        self.thing = rng.choice(THINGS)
        self.place, self.place2 = rng.sample(PLACES, 2)
        self.spot = rng.choice(SPOTS)
        self.time = rng.choice(TIMES)
        self.feeling = rng.choice(FEELINGS)
        self.lesson = rng.choice(LESSONS)

    def say(self, *options: str, **more) -> str:
        """One of the sentences with its slots filled and its first letter raised."""
        slots = dict(
            vars(self),
            a_adj=with_article(self.adj),
            Hero=self.hero,
            He=self.he.capitalize(),
            His=self.his.capitalize(),
            **more,
        )
        text = self.rng.choice(options).format(**slots)
        return text[0].upper() + text[1:]


def _name(rng: Random) -> str:
    if rng.random() < 0.06:
        return invented(rng)
    return rng.choice(world.NAMES)


def invented(rng: Random) -> str:
    """A name that no list holds, so that names are copied and not only remembered."""
    return "".join(
        rng.choice("bcdfghjklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(2, 3))
    ).capitalize() + rng.choice(["", "", "n", "x", "k", "l"])


def _kind(rng: Random, name: str) -> str:
    if rng.random() < 0.5:
        return "girl" if name in GIRLS else "boy"
    if rng.random() < 0.25:
        return rng.choice(
            [r for r in ROLES if r not in (("king", "prince") if name in GIRLS else ("queen", "princess"))]
        )
    return rng.choice(list(world.ANIMALS))


def opening(c: Cast) -> list[str]:
    lines = [c.say(*OPENINGS), c.say("{He} lived in {home}.", "{hero} lived in {home}.")]
    if c.rng.random() < 0.6:
        lines.append(
            c.say(
                "Everyone there knew {him} well.",
                "{He} liked to get up early.",
                "{He} liked long walks.",
                "{He} was never bored.",
                "{He} had many plans.",
                "{He} often sat by the window and dreamed.",
                "{He} liked the smell of fresh bread.",
                "{He} always wore a {colour} scarf.",
                "Most days were quiet there.",
            )
        )
    return lines


def weather(c: Cast) -> list[str]:
    return (
        [c.say("The {weather}.", "It was a fine day, and the {weather}.", weather=c.rng.choice(WEATHER))]
        if c.rng.random() < 0.5
        else []
    )


def ending(c: Cast) -> list[str]:
    lines = [
        c.say(
            "{hero} felt {feeling}.",
            "That evening {hero} felt {feeling}.",
            "In the end {hero} felt {feeling}.",
            "Now {hero} felt very {feeling}.",
        )
    ]
    if c.rng.random() < 0.7:
        lines.append(
            c.say(
                "{He} had learned that {lesson}.",
                "From that day on {hero} knew that {lesson}.",
                "{hero} never forgot that {lesson}.",
            )
        )
    else:
        c.lesson = ""
    if c.rng.random() < 0.4:
        lines.append(
            c.say(
                "And {he} slept well that night.",
                "Then it was time to go home.",
                "And they remained friends.",
                "The end.",
                "And they all laughed.",
            )
        )
    return lines


def met(c: Cast) -> str:
    return c.say(
        "There {he} met {a_friend} named {friend}.",
        "Then {a_friend} named {friend} came along.",
        "Just then {a_friend} called {friend} came by.",
        "{a_friend} named {friend} was sitting there.",
        a_friend=with_article(c.friend_kind),
    )


def helper_questions():
    return [
        (["Who helped {hero}?", "Who was the helper?", "Who came to help?"], "{friend} helped {hero}.", "{friend}."),
        (
            ["What kind of creature was {friend}?", "Who was {friend}?", "What was {friend}?"],
            "{friend} was {a_friend}.",
            "{A_friend}.",
        ),
    ]
