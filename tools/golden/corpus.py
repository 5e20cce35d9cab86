"""Sentences on which the tiny tokenizers are trained. Written for this purpose; knows nothing of tokenizers."""

ENGLISH = """
The quick brown fox jumps over the lazy dog while the other foxes sleep in the shade of the tree.
A server that answers one request at a time is simple, and a server that answers many at once is useful.
The scheduler takes the next tokens of every request until the budget of the step is spent.
When the blocks run out, the last request gives its blocks back and will be computed again later.
Numbers that cannot be checked by the reader are not worth printing on the first page.
She wrote the letter in the morning, read it in the evening and sent it on the following day.
There is nothing in the world that the children would rather see than the river in the spring.
It was raining when they came to the station, and the train to the north had already left.
You can ask the model a question, and the model will answer with the words that it has learned.
What is the name of the town where the three rivers meet, and how many people live there?
The answer is written in the book on the table; open the book and read the second chapter.
Every morning the baker opens the window, and the smell of bread goes down the whole street.
Don't worry, it's only the wind; we've closed the door and they'll be here before I'm asleep.
If the weather is good, we'll walk along the coast; if it isn't, we're staying at home with the cat.
The first prime numbers are 2, 3, 5, 7, 11, 13, 17 and 19, and 1024 is a power of two.
In 1969 the radio said that 384,400 kilometres lay between the listeners and the landing.
A good test fails when the thing that it tests is broken, and passes for no other reason.
The old teacher told the same story again and again, and each time the ending was different.
Please write a short story about a dog that finds the way home through the forest at night.
From 100 to 200 and from 200 to 300 it took 100 days; in 2024 and in 2025 it took 200, or 2000 hours at 100 a day.
Nothing is allocated inside a step, and everything that is measured is measured on the same machine.
"""

CODE = """
def fibonacci(n):
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)

for (int i = 0; i < 10; i++) {
    printf("%d\\n", values[i]);
}

fn main() -> Result<(), Error> {
    let values: Vec<u32> = (0..10).map(|x| x * x).collect();
    println!("{values:?}");
    Ok(())
}

{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}
<tool_call>{"name": "search", "arguments": {"query": "the river"}}</tool_call>
SELECT name, count(*) FROM users WHERE age > 30 GROUP BY name ORDER BY name;
"""

OTHER = """
Der schnelle braune Fuchs springt über den faulen Hund, während die Straße im Nebel verschwindet.
Où est la bibliothèque ? Elle est à côté de l'église, près du marché où l'on vend des pêches.
El niño comió una manzana en la montaña y después volvió a casa con su abuela.
Быстрая лисица прыгает через ленивую собаку, а солнце садится за дальним лесом.
狐狸跳过了懒狗。你好,世界!今天天气很好,我们去公园散步吧。
吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。
안녕하세요, 오늘은 날씨가 좋습니다. 강을 따라 걸읍시다.
السلام عليكم ورحمة الله، كيف حالك اليوم؟
שלום עולם, מה שלומך היום?
नमस्ते दुनिया, आज मौसम बहुत अच्छा है।
Γειά σου Κόσμε, πού είναι ο ποταμός;
😀 😀 👍 👍 🎉 🚀 ❤️ ❤️
"""


def sentences() -> list[str]:
    """All lines, the English ones first. Their order does not matter to a tokenizer's trainer."""
    lines = ENGLISH.strip().split("\n") + CODE.strip("\n").split("\n") + OTHER.strip().split("\n")
    return [line + "\n" for line in lines]
