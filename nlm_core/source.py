"""Which text is meant: a corpus' validation stories or a file to score, and the words of the text trained on."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nlm_core.data import Corpus, corpus_folder, corpus_names, text_files, the_corpus
from nlm_core.errors import UserError
from nlm_core.files import project_root, readable_file, shown
from nlm_core.metrics import WORDS, Copies, Words, by_frequency
from nlm_core.score import Tokens, tokens_of
from nlm_core.text import blocks, is_for_reporting, stories
from nlm_core.tokenizer import Tokenizer

HALVES = ("report", "choose", "all")


@dataclass(frozen=True)
class Source:
    """A text to score.

    Attributes:
        name: for people.
        stories: the text.
        fit: training tokens for the n-gram baselines, if there are any that fit the tokenizer.
    """

    name: str
    stories: Iterable[str]
    fit: np.ndarray | None = None


def text_to_score(data: str | None, half: str, tokenizer: Tokenizer) -> Source:
    """Find the text that `--data` means: a corpus' validation stories, or a file.

    Args:
        data: the name of a corpus or a file; None means the original stories that ship with the project.
        half: of a corpus' validation stories: "report", "choose" or "all".
        tokenizer: the model's.

    Raises:
        UserError: there is no such corpus or file, or it has no validation text.
    """
    if half not in HALVES:
        raise UserError(f"--half must be one of {', '.join(HALVES)}, not {half!r}")
    if data is None:
        data = str(project_root() / "data" / "stories.txt")
    if data not in corpus_names():
        if not Path(data).exists() and Path(data).name == data and "." not in data:
            the_corpus(data)  # it looks like a name: say which there are
        return Source(shown(data), stories(blocks(readable_file(data))))
    files = text_files(data, "valid")
    if not files:
        raise UserError(f"{data!r} has no validation text; add some: nlm data add FILE --split valid --name {data}")
    chosen = [
        story
        for file in files
        for story in stories(blocks(file))
        if half == "all" or is_for_reporting(story) == (half == "report")
    ]
    if not chosen:
        raise UserError(f"none of the validation stories of {data!r} is in the half {half!r}; use --half all")
    fit = None
    if (corpus_folder(data) / "prepared").exists():
        corpus = Corpus.open(data)
        fit = corpus.train if corpus.tokenizer.sha256 == tokenizer.sha256 else None
    part = "all" if half == "all" else f"the {'reporting' if half == 'report' else 'choosing'} half"
    return Source(f"{data}, validation, {part}", chosen, fit)


def beginning_of(source: Source, tokenizer: Tokenizer, count: int) -> Tokens:
    """The first stories of a text: as many as have `count` tokens, or all of them for 0."""
    if count < 0:
        raise UserError(f"--tokens must be 0 (all) or more, not {count}")
    some, length = [], 0
    for story in source.stories:
        some.append(story)
        length += len(tokenizer.encode(story))
        if 0 < count <= length:
            break
    return tokens_of(tokenizer, some)


def words_and_copies(data: str | None, checkpoint: Path) -> tuple[Words | None, Copies | None]:
    """The words of the training text, and where texts may have been copied from.

    Both from a corpus; without one, the words from the list beside the checkpoint, if there is one.
    """
    if data is None:
        words = checkpoint / WORDS
        return (Words.read(words) if words.exists() else None), None
    if data not in corpus_names():
        raise UserError(f"there is no corpus {data!r}; there are: {', '.join(corpus_names()) or 'none'}")
    files = text_files(data, "train")
    if not files:
        raise UserError(f"{data!r} has no training text to compare with")
    text = [story for file in files for story in stories(blocks(file))]
    return Words.of(by_frequency(text)), Copies(text)
