"""Make a time-ordered, labelled CSV of invented messages whose language drifts, for trying slice.py and train.py.

    python generate.py messages.csv

Each message is neutral words with some that express its mood. Slowly, words fall out of use and others take their
place; at ``--change-at`` the mood suddenly becomes harder to recognise: fewer words carry it, out of many more.
Trainings then need more epochs, so that their costs rise, as they do on real text. Needs only Python.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

MOODS = ("negative", "positive")
SYLLABLES = [consonant + vowel for consonant in "bdfghjklmnprstvz" for vowel in "aeiou"]
NEUTRAL_WORDS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """How the mood is expressed: how many words of a message express it, out of how many words of that mood."""

    telling: int
    lexicon: int


EASY = Language(telling=4, lexicon=30)
HARD = Language(telling=3, lexicon=800)
MISLEADING = 0.1  # the share of words with a mood that belong to the other mood


def words(count: int, generator: random.Random) -> list[str]:
    """So many different words that nobody uses."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(generator.choices(SYLLABLES, k=generator.randint(2, 4)))] = None
    return list(found)


class Speakers:
    """Messages as they are written at some time."""

    def __init__(self, arguments: argparse.Namespace, generator: random.Random) -> None:
        self._generator = generator
        self._change_at = arguments.change_at
        self._turnover = arguments.turnover
        longest = int(HARD.lexicon * (1 + arguments.turnover)) + 1
        vocabulary = words(NEUTRAL_WORDS + 2 * longest, generator)
        self._neutral = vocabulary[:NEUTRAL_WORDS]
        self._usual = list(itertools.accumulate(1.0 / rank for rank in range(1, NEUTRAL_WORDS + 1)))
        moody = vocabulary[NEUTRAL_WORDS:]
        self._moody = {"negative": moody[:longest], "positive": moody[longest:]}

    def message(self, progress: float) -> tuple[str, str]:
        """A mood and a message; ``progress`` is the time, from 0 to 1."""
        language = HARD if progress >= self._change_at else EASY
        oldest = int(progress * self._turnover * language.lexicon)
        mood, other = self._generator.sample(MOODS, k=2)
        message = self._generator.choices(self._neutral, cum_weights=self._usual, k=self._generator.randint(6, 12))
        for _ in range(language.telling):
            whose = other if self._generator.random() < MISLEADING else mood
            word = self._moody[whose][oldest + self._generator.randrange(language.lexicon)]
            message.insert(self._generator.randint(0, len(message)), word)
        return mood, " ".join(message)


def rows(arguments: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Time, label and text of each message."""
    generator = random.Random(arguments.seed)  # noqa: S311  # invented data, the same for the same seed
    speakers = Speakers(arguments, generator)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(arguments.rows):
        progress = number / arguments.rows
        moment = begin + progress * timedelta(days=arguments.days)
        mood, message = speakers.message(progress)
        yield moment.isoformat(timespec="seconds"), mood, message


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, help="the file to write")
    parser.add_argument("--rows", type=int, default=60_000, help="messages (60000)")
    parser.add_argument("--days", type=float, default=300.0, help="the time that they span (300)")
    parser.add_argument("--change-at", type=float, default=0.5, help="when the language changes, of 0 to 1 (0.5)")
    parser.add_argument(
        "--turnover", type=float, default=1.0, help="share of words with a mood replaced over the time (1)"
    )
    parser.add_argument("--seed", type=int, default=1, help="(1)")
    arguments = parser.parse_args()
    if arguments.rows < 1 or arguments.turnover < 0.0:
        parser.error("--rows must be at least 1, --turnover at least 0")
    with arguments.csv.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("time", "label", "text"))
        writer.writerows(rows(arguments))
    print(f"{arguments.rows} messages in {arguments.csv}")


if __name__ == "__main__":
    main()
