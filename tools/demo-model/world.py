"""The small fixed world of the demo model: its words and facts. Knows no grammar, no tokens and no model."""


def listed(text: str) -> list[str]:
    """The parts of a text between bars."""
    return text.replace("\n", "").split("|")


NAMES = """Mia Tom Anna Ben Clara David Ella Finn Grace Hugo Ivy Jack Kate Leo Lily Max Nora Oscar Paul Rosa Sam Tina Uma Victor
Wendy Zoe Adam Bella Carl Daisy Emil Fiona George Hannah Ian Julia Karl Lena Mark Nina Otto Peter Ruth Simon Theo Vera Will
Amy Bruno Cora Dora Eric Flora Gus Helen Iris Jonas Kim Lucas Maya Noah Olive Pia Ralph Sara Toby Yara Alma Boris Celia Dean
Elsa Felix Greta Henry Ida Joel Lola Milo Nell Omar Polly Rita Sonia Tess Vince Walter Zack Asha Diego Chen Fatima Kofi Priya
Yuki Ravi Lars Ines Mateo Amara""".split()

# animal: (young, home, sound as a verb, legs, food, can fly, can swim)
ANIMALS = {
    "dog": ("puppy", "kennel", "barks", 4, "meat", False, True),
    "cat": ("kitten", "house", "meows", 4, "fish", False, False),
    "cow": ("calf", "barn", "moos", 4, "grass", False, False),
    "horse": ("foal", "stable", "neighs", 4, "hay", False, True),
    "sheep": ("lamb", "field", "bleats", 4, "grass", False, False),
    "pig": ("piglet", "sty", "oinks", 4, "corn", False, True),
    "duck": ("duckling", "pond", "quacks", 2, "seeds", True, True),
    "goose": ("gosling", "lake", "honks", 2, "grass", True, True),
    "hen": ("chick", "coop", "clucks", 2, "corn", False, False),
    "owl": ("owlet", "tree", "hoots", 2, "mice", True, False),
    "lion": ("cub", "savanna", "roars", 4, "meat", False, False),
    "bear": ("cub", "cave", "growls", 4, "honey", False, True),
    "wolf": ("pup", "den", "howls", 4, "meat", False, True),
    "fox": ("cub", "burrow", "yelps", 4, "berries", False, True),
    "frog": ("tadpole", "pond", "croaks", 4, "flies", False, True),
    "mouse": ("pup", "hole", "squeaks", 4, "cheese", False, False),
    "bee": ("larva", "hive", "buzzes", 6, "nectar", True, False),
    "snake": ("snakelet", "burrow", "hisses", 0, "eggs", False, True),
    "goat": ("kid", "mountain", "bleats", 4, "leaves", False, False),
    "rabbit": ("kit", "burrow", "squeaks", 4, "carrots", False, False),
    "elephant": ("calf", "savanna", "trumpets", 4, "leaves", False, True),
    "monkey": ("infant", "jungle", "chatters", 4, "bananas", False, False),
    "eagle": ("eaglet", "nest", "screams", 2, "fish", True, False),
    "swan": ("cygnet", "lake", "hisses", 2, "water plants", True, True),
    "squirrel": ("kit", "tree", "chatters", 4, "nuts", False, False),
    "spider": ("spiderling", "web", "makes no sound", 8, "flies", False, False),
    "crow": ("chick", "tree", "caws", 2, "seeds", True, False),
    "donkey": ("foal", "stable", "brays", 4, "hay", False, False),
    "turtle": ("hatchling", "sea", "makes no sound", 4, "leaves", False, True),
    "penguin": ("chick", "ice", "squawks", 2, "fish", False, True),
}

CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "England": "London",
    "Ireland": "Dublin",
    "Scotland": "Edinburgh",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Denmark": "Copenhagen",
    "Finland": "Helsinki",
    "Poland": "Warsaw",
    "Austria": "Vienna",
    "Hungary": "Budapest",
    "Greece": "Athens",
    "Turkey": "Ankara",
    "Russia": "Moscow",
    "Japan": "Tokyo",
    "China": "Beijing",
    "India": "New Delhi",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Canada": "Ottawa",
    "Mexico": "Mexico City",
    "Brazil": "Brasilia",
    "Argentina": "Buenos Aires",
    "Chile": "Santiago",
    "Peru": "Lima",
    "Cuba": "Havana",
    "Australia": "Canberra",
    "New Zealand": "Wellington",
    "Belgium": "Brussels",
    "the Netherlands": "Amsterdam",
    "Iceland": "Reykjavik",
    "South Korea": "Seoul",
    "Thailand": "Bangkok",
    "Vietnam": "Hanoi",
    "Morocco": "Rabat",
    "the United States": "Washington",
}

OPPOSITES = [
    pair.split("/")
    for pair in """hot/cold big/small tall/short fast/slow happy/sad day/night up/down in/out
open/closed old/young hard/soft wet/dry light/dark full/empty clean/dirty early/late loud/quiet rich/poor strong/weak
thick/thin wide/narrow high/low near/far left/right first/last always/never good/bad right/wrong true/false push/pull
buy/sell come/go give/take laugh/cry love/hate start/stop win/lose above/below before/after inside/outside rough/smooth
sharp/blunt brave/afraid easy/difficult cheap/expensive black/white north/south east/west summer/winter
top/bottom front/back safe/dangerous sweet/sour awake/asleep begin/end""".split()
]
# Words with two opposites above would have two right answers.
_AMBIGUOUS = {"right", "light", "short"}
OPPOSITE = {a: b for x, y in OPPOSITES for a, b in ((x, y), (y, x)) if a not in _AMBIGUOUS} | {"heavy": "light"}

COLOURS = "red blue green yellow orange purple brown black white pink grey golden silver".split()
COLOUR_OF = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "the sun": "yellow",
    "a lemon": "yellow",
    "a banana": "yellow",
    "a tomato": "red",
    "a strawberry": "red",
    "coal": "black",
    "milk": "white",
    "a carrot": "orange",
    "a pumpkin": "orange",
    "chocolate": "brown",
    "an elephant": "grey",
    "a flamingo": "pink",
    "a crow": "black",
    "a swan": "white",
    "a fire engine": "red",
    "a cucumber": "green",
    "a frog": "green",
    "blood": "red",
    "the sea": "blue",
    "a plum": "purple",
    "salt": "white",
    "a pig": "pink",
    "honey": "golden",
    "a leaf in spring": "green",
    "the night": "black",
    "a bear": "brown",
    "a cherry": "red",
}
MIXES = {
    ("red", "yellow"): "orange",
    ("blue", "yellow"): "green",
    ("red", "blue"): "purple",
    ("red", "white"): "pink",
    ("black", "white"): "grey",
    ("red", "green"): "brown",
}

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
SEASON_OF = [
    "winter",
    "winter",
    "spring",
    "spring",
    "spring",
    "summer",
    "summer",
    "summer",
    "autumn",
    "autumn",
    "autumn",
    "winter",
]
SEASONS = "spring summer autumn winter".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
UNITS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen""".split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
SHAPES = {"a triangle": 3, "a square": 4, "a rectangle": 4, "a pentagon": 5, "a hexagon": 6, "an octagon": 8}

CATEGORIES = {
    "animals": list(ANIMALS),
    "colours": "red blue green yellow orange purple brown black white pink grey".split(),
    "fruits": "apple banana pear plum cherry lemon orange grape peach melon mango strawberry".split(),
    "vegetables": "carrot potato onion cabbage pea bean leek pumpkin cucumber spinach turnip radish".split(),
    "tools": "hammer saw drill spade rake axe screwdriver wrench chisel ladder".split(),
    "instruments": "piano violin drum flute guitar trumpet harp cello bell horn".split(),
    "vehicles": "car bus train bicycle boat plane truck tram ship tractor".split(),
    "clothes": "shirt coat hat scarf sock shoe glove dress skirt jacket".split(),
    "days of the week": DAYS,
    "months": MONTHS,
    "seasons": SEASONS,
    "shapes": "circle square triangle rectangle hexagon pentagon octagon oval".split(),
    "trees": "oak pine birch willow maple beech elm ash cedar fir".split(),
    "flowers": "rose tulip daisy lily poppy violet sunflower daffodil".split(),
    "planets": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split(),
    "countries": [c for c in CAPITALS if " " not in c],
    "drinks": "water milk tea coffee juice cocoa lemonade soup".split(),
    "rooms": "kitchen bedroom bathroom cellar attic hall office pantry".split(),
    "jobs": "baker teacher doctor farmer sailor painter tailor carpenter gardener pilot cook singer".split(),
    "body parts": "head arm leg hand foot ear eye nose mouth knee".split(),
    "sports": "football tennis swimming running cycling rowing skating hockey".split(),
}
ONE_OF = {
    "animals": "an animal",
    "colours": "a colour",
    "fruits": "a fruit",
    "vegetables": "a vegetable",
    "tools": "a tool",
    "instruments": "an instrument",
    "vehicles": "a vehicle",
    "clothes": "a piece of clothing",
    "days of the week": "a day of the week",
    "months": "a month",
    "seasons": "a season",
    "shapes": "a shape",
    "trees": "a tree",
    "flowers": "a flower",
    "planets": "a planet",
    "countries": "a country",
    "drinks": "a drink",
    "rooms": "a room",
    "jobs": "a job",
    "body parts": "a part of the body",
    "sports": "a sport",
}

# Questions with one fixed answer. Each has several ways to ask.
SCIENCE = [
    (
        ("Why is the sky blue?", "What makes the sky blue?", "Why does the sky look blue?"),
        "The sky is blue because the air scatters blue light more than red light.",
    ),
    (
        ("Why does it rain?", "Where does rain come from?", "What makes rain fall?"),
        "It rains when the water drops in a cloud become too heavy to float.",
    ),
    (("What is ice?", "What is ice made of?", "What do you get when water freezes?"), "Ice is frozen water."),
    (
        ("At what temperature does water boil?", "When does water boil?", "How hot is boiling water?"),
        "Water boils at 100 degrees Celsius.",
    ),
    (
        ("At what temperature does water freeze?", "When does water freeze?", "How cold is freezing water?"),
        "Water freezes at 0 degrees Celsius.",
    ),
    (
        ("What is steam?", "What does water become when it boils?", "What do you get when water boils?"),
        "Steam is hot water in the form of a gas.",
    ),
    (
        ("What do plants need to grow?", "What does a plant need?", "What helps a plant grow?"),
        "A plant needs light, water, air and soil to grow.",
    ),
    (
        ("What does the moon do?", "What does the moon circle?", "What does the moon go around?"),
        "The moon goes around the Earth.",
    ),
    (
        ("What does the Earth go around?", "What does the Earth circle?", "What does our planet go around?"),
        "The Earth goes around the sun.",
    ),
    (("What is the sun?", "Is the sun a star?", "What kind of thing is the sun?"), "The sun is a star."),
    (
        ("Why is it dark at night?", "Why does it get dark?", "What makes the night dark?"),
        "It is dark at night because our side of the Earth faces away from the sun.",
    ),
    (
        ("How many planets are there?", "How many planets go around the sun?", "How many planets does the sun have?"),
        "Eight planets go around the sun.",
    ),
    (
        ("Which planet is the largest?", "What is the largest planet?", "What is the biggest planet?"),
        "Jupiter is the largest planet.",
    ),
    (
        (
            "Which planet is closest to the sun?",
            "What is the planet nearest to the sun?",
            "Which planet is nearest the sun?",
        ),
        "Mercury is the planet closest to the sun.",
    ),
    (
        ("Why do we need to sleep?", "Why do people sleep?", "What is sleep good for?"),
        "We sleep so that the body and the mind can rest.",
    ),
    (
        ("What does the heart do?", "What is the heart for?", "Why do we have a heart?"),
        "The heart pumps blood through the body.",
    ),
    (
        ("What do we breathe?", "What do people breathe?", "What do lungs take in?"),
        "We breathe air, and our body uses the oxygen in it.",
    ),
    (
        ("What does a magnet do?", "What do magnets pull?", "What sticks to a magnet?"),
        "A magnet pulls things that are made of iron.",
    ),
    (
        ("How does a bird fly?", "How do birds fly?", "What does a bird use to fly?"),
        "A bird flies by beating its wings.",
    ),
    (
        ("Where do bees get honey from?", "What do bees make honey from?", "How do bees make honey?"),
        "Bees make honey from the nectar of flowers.",
    ),
    (
        ("What does a seed become?", "What grows from a seed?", "What does a seed grow into?"),
        "A seed grows into a plant.",
    ),
    (
        ("What is a rainbow?", "How is a rainbow made?", "What makes a rainbow?"),
        "A rainbow is sunlight split into colours by drops of rain.",
    ),
    (
        ("Why do boats float?", "Why does a boat float?", "What makes a boat float?"),
        "A boat floats because it is lighter than the water it pushes away.",
    ),
    (("What is wind?", "What is the wind?", "What is wind made of?"), "Wind is air that moves."),
    (
        ("What is thunder?", "What makes thunder?", "Where does thunder come from?"),
        "Thunder is the sound of lightning.",
    ),
    (
        ("Which is faster, light or sound?", "Is light faster than sound?", "What is faster, sound or light?"),
        "Light is faster than sound.",
    ),
    (
        (
            "What falls faster on the moon, a stone or a feather?",
            "Do a stone and a feather fall equally fast on the moon?",
            "Which lands first on the moon, a stone or a feather?",
        ),
        "On the moon a stone and a feather fall equally fast.",
    ),
    (
        ("What is a fossil?", "What are fossils?", "What is a fossil made from?"),
        "A fossil is what is left of a plant or an animal from long ago.",
    ),
    (
        ("What is a desert?", "What are deserts?", "What is a desert like?"),
        "A desert is a place where it hardly ever rains.",
    ),
    (
        ("What is an island?", "What are islands?", "What do we call land with water all around?"),
        "An island is land with water all around it.",
    ),
    (
        ("What is a volcano?", "What are volcanoes?", "What comes out of a volcano?"),
        "A volcano is a mountain from which hot melted rock can flow.",
    ),
    (
        ("How many days are in a week?", "How many days does a week have?", "How many days are there in a week?"),
        "A week has 7 days.",
    ),
    (
        ("How many months are in a year?", "How many months does a year have?", "How many months are there in a year?"),
        "A year has 12 months.",
    ),
    (
        ("How many hours are in a day?", "How many hours does a day have?", "How many hours are there in a day?"),
        "A day has 24 hours.",
    ),
    (
        (
            "How many minutes are in an hour?",
            "How many minutes does an hour have?",
            "How many minutes are there in an hour?",
        ),
        "An hour has 60 minutes.",
    ),
    (
        (
            "How many seconds are in a minute?",
            "How many seconds does a minute have?",
            "How many seconds are there in a minute?",
        ),
        "A minute has 60 seconds.",
    ),
    (
        ("How many days are in a year?", "How many days does a year have?", "How many days are there in a year?"),
        "A year has 365 days, and a leap year has 366.",
    ),
    (
        (
            "How many letters are in the alphabet?",
            "How many letters does the alphabet have?",
            "How many letters are there in the alphabet?",
        ),
        "The English alphabet has 26 letters.",
    ),
    (
        ("What are the seasons?", "Name the four seasons.", "Which seasons are there?"),
        "The four seasons are spring, summer, autumn and winter.",
    ),
    (
        ("Name the days of the week.", "What are the days of the week?", "Which days does a week have?"),
        "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",
    ),
    (
        ("Name the months of the year.", "What are the months?", "Which months does a year have?"),
        "The months are January, February, March, April, May, June, July, August, September, October, November and December.",
    ),
    (
        ("Say the alphabet.", "What is the alphabet?", "Write the letters of the alphabet."),
        "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
    ),
    (
        ("Name the planets.", "What are the planets?", "Which planets go around the sun?"),
        "The planets are Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.",
    ),
    (("What are the vowels?", "Name the vowels.", "Which letters are vowels?"), "The vowels are A, E, I, O and U."),
    (
        (
            "Name a sentence that uses every letter.",
            "Write a sentence with all letters of the alphabet.",
            "Give me a pangram.",
        ),
        "The quick brown fox jumps over the lazy dog.",
    ),
]

# Plain words for spelling, copying, sorting and counting letters.
WORDS = sorted(
    set(
        """apple bread river mountain window garden bottle candle basket ladder pencil ribbon button pocket mirror
castle bridge forest island market kitchen school street village harbour meadow valley desert planet rocket engine wheel
hammer needle thread cotton silver golden copper iron stone sand water fire earth wind rain snow cloud storm thunder light
shadow morning evening night summer winter spring autumn friend brother sister mother father uncle aunt cousin teacher baker
farmer sailor doctor painter writer singer dancer hunter miller king queen prince knight giant dragon wizard tiger zebra
camel monkey rabbit turtle spider butter cheese honey sugar pepper lemon orange banana cherry carrot potato onion tomato
pumpkin yellow purple green brown white black happy sad angry brave clever gentle quiet noisy strong little great small
quick slow early late young round square empty heavy paper letter story music drum flute violin piano picture colour number
question answer secret promise journey treasure map lantern blanket pillow table chair bed door wall roof floor stairs
house cottage tower church shop station train boat ship plane road path field farm barn fence gate tree leaf branch root
flower seed grass moss nest egg feather wing tail nose eye ear mouth hand foot knee back heart dream game ball kite doll
puzzle bell clock watch key lock box bag cup plate spoon fork knife pot pan oven lamp book page word line circle corner
cake soup milk tea jam pie nut pear plum grape peach rice corn salt oil wool silk coat hat scarf glove shoe sock shirt""".split()
    )
)

# Things outside the model's world, for refusals.
TOPICS = listed("""quantum physics|the stock market|the weather today|the news|football results|politics|the economy|black holes|world history|
the Roman empire|classical music|modern art|philosophy|the best restaurants|cheap flights|the latest phone|machine learning|
computer networks|tax law|medicine|vaccines|the human genome|climate change|the world cup|a famous singer|a famous painter|
a famous writer|the president|the prime minister|the queen|bitcoin|interest rates|real estate|chess openings|video games|
a new film|a television series|the price of gold|the population of the world|the second world war|the French revolution|
the theory of relativity|evolution|chemistry|electricity|nuclear power|the internet|social media|religion|astrology|yoga|
a healthy diet|losing weight|back pain|a headache|legal advice|my taxes|car insurance|a mortgage|job interviews|a cover letter|
the periodic table|calculus|algebra|statistics|geometry proofs|prime numbers|Shakespeare|poetry|opera|jazz|rock music|
photography|cooking pasta|baking sourdough|wine|beer|coffee machines|gardening in winter|car engines|bicycle repair|
solar panels|batteries|space travel|Mars missions|dinosaurs|whales|coral reefs|rain forests|earthquakes|hurricanes|
the stone age|the pyramids|the Vikings|samurai|knights of the middle ages|pirates in history|the gold rush|railways|
the steam engine|Linux|databases|web servers|JavaScript|the Rust language|compilers|graphics cards|cloud computing|
cryptography|robots|self-driving cars|drones|virtual reality|the meaning of life|happiness|love|friendship in novels|
dreams and what they mean|sleep problems|my boss|my neighbour|a divorce|university courses|learning Spanish|learning to drive|
traffic in London|hotels in Rome|a trip to Japan|visas|train times|the nearest supermarket|the time right now|today's date""")
TASKS_OUTSIDE = listed("""book a flight|order a pizza|call my mother|send an email|play a song|open the door|turn on the lights|set an alarm|
draw a picture|show me a photo|search the internet|translate this into French|translate a poem|write an essay about freedom|
write a novel|write a legal contract|fix my computer|check my bank account|buy a train ticket|find a doctor|drive my car|
predict the future|solve an integral|prove a theorem|write a website|hack a password|tell me today's news|tell me the weather|
tell me what time it is|plan my wedding|do my homework in chemistry|write a song for a film|recommend a restaurant|
compare two phones|explain my blood test|choose a present for my boss|write a speech|read my letters|print a document|
watch a film with me|remember this for next year|write a C++ program|install a printer|repair my bicycle|make coffee""")


def number_words(n: int) -> str:
    """0..100 in words."""
    if n == 100:
        return "one hundred"
    if n < 20:
        return UNITS[n]
    return TENS[n // 10] + ("-" + UNITS[n % 10] if n % 10 else "")


def with_article(noun: str) -> str:
    """`noun` with the right indefinite article."""
    return ("an " if noun[0].lower() in "aeiou" and not noun.startswith(("uni", "one")) else "a ") + noun
