"""Write data/openings.txt: how 100 of the stories begin, for `nlm evaluate --prompts` to go on from.

    python scripts/openings.py

The first six words of each of the first stories of data/stories.txt that go on for 200 tokens or more, so that there is
something to compare with.
"""

import argparse
from collections.abc import Iterable

import numpy as np

from nlm_core import Tokenizer
from nlm_core.checkpoint import TOKENIZER
from nlm_core.errors import one_line_errors
from nlm_core.files import project_root, written_whole
from nlm_core.metrics import WORD
from nlm_core.text import SEPARATOR, blocks, stories

COUNT, WORDS, LENGTH = 100, 6, 200


def openings(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, str]:
    """The first words of stories that are long enough, with their stories; openings of one line that no other had."""
    found: dict[str, str] = {}
    for story in texts:
        opening, rest = opened(story)
        long_enough = len(tokenizer.encode(rest.partition(SEPARATOR)[0])) >= LENGTH
        if len(found) < COUNT and "\n" not in opening and long_enough:
            found.setdefault(opening, story)
    return found


def opened(story: str) -> tuple[str, str]:
    """A story's first words, and what comes after them; nothing does where it has fewer."""
    places = [match.end() for match in WORD.finditer(story)]
    at = places[WORDS - 1] if len(places) >= WORDS else len(story)
    return story[:at], story[at:]


def ending_soon(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, float | None]:
    """How many stories have an end, and what share of them ends, separator included, within LENGTH tokens, if any."""
    rests = [rest.partition(SEPARATOR) for _, rest in map(opened, texts)]
    lengths = [len(tokenizer.encode(before + separator)) for before, separator, _ in rests if separator]
    return {"stories": len(lengths), "share": float(np.mean(np.array(lengths) <= LENGTH)) if lengths else None}


def main(words: list[str] | None = None) -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(words)
    root = project_root()
    tokenizer = Tokenizer.load(root / "checkpoints" / "nlm" / TOKENIZER)
    found = openings(tokenizer, stories(blocks(root / "data" / "stories.txt")))
    with written_whole(root / "data" / "openings.txt", "w") as file:
        file.write("".join(f"{opening}\n" for opening in found))


if __name__ == "__main__":
    with one_line_errors():
        main()
