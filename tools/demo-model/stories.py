"""Short stories: a cast, an opening, a plot and an ending, with the questions that each story answers. Knows no chat format."""

from dataclasses import dataclass, field
from random import Random

import plots_making as making
import plots_meeting as meeting
from cast import Cast, ending, opening
from world import with_article


@dataclass
class Story:
    """A story's title, sentences by paragraph, summary, and (ways to ask, answer, short answer) triples."""

    title: str
    paragraphs: list[list[str]]
    summary: str
    questions: list[tuple[list[str], str, str]]
    hero: str
    kind: str
    # What a request may say of it: the helper's kind, and what the hero does.
    friend_kind: str
    wish: str
    key: tuple = field(default=())

    def text(self, separator: str = "\n\n") -> str:
        return separator.join(" ".join(p) for p in self.paragraphs)


PLOTS = [
    meeting.lost,
    making.build,
    making.learn,
    meeting.fear,
    meeting.share,
    meeting.race,
    making.plant,
    meeting.treasure,
    making.gift,
    meeting.rescue,
    making.cook,
]


def story(rng: Random, name: str | None = None, kind: str | None = None, thing: str | None = None) -> Story:
    """A story, about a given hero if one is named."""
    c = Cast(rng, name, kind)
    plot = rng.choice(PLOTS)
    if thing:
        plot, c.thing = rng.choice([meeting.lost, making.gift]), thing
    middle, questions, summary, title, wish = plot(c)
    first, last = opening(c), ending(c)
    questions = questions + [
        (
            ["Who is the story about?", "Who is the hero of the story?", "What is the name of the hero?"],
            "The story is about {hero}.",
            "{hero}.",
        ),
        (["What kind of creature is {hero}?", "Who is {hero}?", "What is {hero}?"], "{hero} is {a_kind}.", "{A_kind}."),
        (["Where did {hero} live?", "Where was the home of {hero}?"], "{hero} lived in {home}.", "In {home}."),
        (
            ["How did {hero} feel in the end?", "How did {hero} feel?", "How did the story end for {hero}?"],
            "{hero} felt {feeling} in the end.",
            "{Feeling}.",
        ),
    ]
    if c.lesson:
        questions.append(
            (
                ["What did {hero} learn from this?", "What is the lesson of the story?", "What is the moral?"],
                "The lesson is that {lesson}.",
                "{Lesson}.",
            )
        )
    slots = {k: v for k, v in vars(c).items() if isinstance(v, str)}
    slots |= {"a_kind": with_article(c.kind), "a_friend": with_article(c.friend_kind), "a_thing": with_article(c.thing)}
    slots |= {k[0].upper() + k[1:]: v[0].upper() + v[1:] for k, v in slots.items() if v}
    fill = lambda text: text.format(**slots)
    return Story(
        fill(title),
        [first, *middle, last],
        fill(summary),
        [([fill(q) for q in qs], fill(a), fill(s)) for qs, a, s in questions],
        c.hero,
        c.kind,
        c.friend_kind,
        fill(wish),
        (c.hero, c.thing, c.place),
    )
