"""Write data/openings.txt: how 100 of the stories begin, for `nlm evaluate --prompts` to go on from.

    python scripts/openings.py

The first six words of each of the first stories of data/stories.txt that go on for 200 tokens or more, so that there is
something to compare with.
"""

import argparse
from collections.abc import Iterable

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
        places = [match.end() for match in WORD.finditer(story)]
        if len(found) == COUNT or len(places) < WORDS:
            continue
        opening = story[: places[WORDS - 1]]
        rest = story[len(opening) :].partition(SEPARATOR)[0]
        if "\n" not in opening and len(tokenizer.encode(rest)) >= LENGTH:
            found.setdefault(opening, story)
    return found


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
