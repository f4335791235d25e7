"""Which text is meant: a corpus' validation stories or a file to score, and the words of the text trained on."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nlm_core.data import Corpus, corpus_folder, corpus_names, stories_of, text_files, the_corpus
from nlm_core.errors import UserError
from nlm_core.files import project_root, readable_file, shown
from nlm_core.metrics import WORDS, Copies, by_frequency, read_words
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
    if not text_files(data, "valid"):
        raise UserError(f"{data!r} has no validation text; add some: nlm data add FILE --split valid --name {data}")
    chosen = [
        story for story in stories_of(data, "valid") if half == "all" or is_for_reporting(story) == (half == "report")
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
    """The first stories of a text: as many as have `count` tokens, or all of them for 0.

    Raises:
        UserError: the count is below 0, or the text has fewer than two tokens.
    """
    if count < 0:
        raise UserError(f"--tokens must be 0 (all) or more, not {count}")
    some, length = [], 0
    for story in source.stories:
        some.append(story)
        length += len(tokenizer.encode(story))
        if 0 < count <= length:
            break
    return tokens_of(tokenizer, some)


def words_beside(checkpoint: Path) -> dict[str, int] | None:
    """The words of a checkpoint's training text, if the list lies beside it."""
    words = checkpoint / WORDS
    return read_words(words) if words.exists() else None


def words_and_copies(corpus: str) -> tuple[frozenset[str], Copies]:
    """The words of a corpus' training text, and where texts may have been copied from; all of it is held in memory.

    Raises:
        UserError: there is no such corpus, or it has no training text.
    """
    if corpus not in corpus_names():
        raise UserError(f"there is no corpus {corpus!r}; there are: {', '.join(corpus_names()) or 'none'}")
    if not text_files(corpus, "train"):
        raise UserError(f"{corpus!r} has no training text to compare with")
    return frozenset(by_frequency(stories_of(corpus, "train"))), Copies(stories_of(corpus, "train"))
