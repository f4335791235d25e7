"""Count the stories that share a run of words with another text: a check for leakage that no lost story border hides.

    python scripts/overlap.py data/tinystories/train/TinyStories-train.txt data/stories.txt --words 30

Capitals, punctuation and the separators do not count. For text that fits into memory.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from nlm_core.errors import one_line_errors
from nlm_core.text import SEPARATOR, blocks, is_for_reporting, stories


def runs(text: str, length: int) -> Iterator[int]:
    """The hash of each run of `length` words."""
    words = re.findall(r"[a-z0-9']+", text.replace(SEPARATOR, " ").lower())
    return (hash(tuple(words[start : start + length])) for start in range(len(words) - length + 1))


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--words", type=int, default=30)
    arguments = parser.parse_args(words)
    known = set(runs("".join(blocks(arguments.train)), arguments.words))
    for path in arguments.texts:
        found = [(story, not known.isdisjoint(runs(story, arguments.words))) for story in stories(blocks(path))]
        reporting = [is_shared for story, is_shared in found if is_for_reporting(story)]
        shared = sum(is_shared for _, is_shared in found)
        print(
            f"{path.name}: {shared} of {len(found)} stories share a run of {arguments.words} words with "
            f"{arguments.train.name} ({sum(reporting)} of the {len(reporting)} in the reporting half)"
        )


if __name__ == "__main__":
    with one_line_errors():
        main()
