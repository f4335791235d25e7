"""What can be counted in a generated text: repetition, variety, endings, made-up words, names, copies.

None of these says whether a story makes sense; that is left to people who read it. The posts give no definitions of
theirs, so these are ours. "Words" are runs of letters and digits with their apostrophes, in lower case. Nothing here
knows of models.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

from nlm_core.errors import UserError
from nlm_core.files import readable_file, shown, written_whole
from nlm_core.text import SEPARATOR

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
SENTENCE_END = re.compile(r"[.!?][\"'”’)]*\s*$")
SENTENCE_START = re.compile(r"(?:^|[.!?:][\"'”’)]*|\n|[\"“‘(])\s*$")
NGRAMS = (2, 3, 4, 5)
BETWEEN = -2  # the id of what stands between two texts: no word, so that no run reaches across
WORDS = "words.txt"  # beside a checkpoint: the words of its training text, the most frequent first
# Words that say little about what a story is about, because any story has them.
FUNCTION_WORDS = frozenset(
    """
    a an the this that these those some any each every all both no other another such same one two many much more
    most i me my mine we us our you your he him his she her hers it its they them their who whom whose which what
    where when why how there here and or but so if because as than then while until though although also too very
    just only even not never ever always again soon now still already of in on at by to from with without into onto
    out off up down over under about around after before behind between through near away back is are was were be
    been being am do does did done doing have has had having will would can could should shall may might must let
    let's don't didn't can't couldn't wasn't weren't isn't aren't won't wouldn't doesn't i'm it's that's he's she's
    you're they're we're said yes oh
    """.split()
)


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case; the separator is none.

    >>> words_of("Tom's dog said: Stop!<|endoftext|>")
    ["tom's", 'dog', 'said', 'stop']
    """
    return [word.lower().replace("’", "'") for word in WORD.findall(text.replace(SEPARATOR, "\n"))]


def read_words(path: Path) -> dict[str, int]:
    """Read what `write_words` wrote: each word of a training text with its rank, from 1 for the most frequent.

    Raises:
        UserError: the file is not there, or not whole: words that are missing would count as made up.
    """
    try:
        *words, end = readable_file(path).read_text(encoding="utf-8").splitlines()
    except (UnicodeDecodeError, ValueError):
        words, end = [], ""
    if end != _end(words):
        raise UserError(f"{shown(path)} is damaged: it is not a whole list of words")
    return {word: rank for rank, word in enumerate(words, 1)}


def _end(words: Sequence[str]) -> str:
    return f"# {len(words):,} words"


def by_frequency(texts: Iterable[str]) -> list[str]:
    """The words of texts, the most frequent first; equally frequent ones in alphabetical order."""
    counts = Counter(word for text in texts for word in words_of(text))
    return sorted(counts, key=lambda word: (-counts[word], word))


def write_words(path: Path, words: Sequence[str]) -> None:
    """Write words, the most frequent first, one in a line; the last line says how many, to tell a file cut short."""
    with written_whole(path) as file:
        file.write("".join(f"{word}\n" for word in [*words, _end(words)]).encode())


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """All runs of n words, in order."""
    return [tuple(words[at : at + n]) for at in range(len(words) - n + 1)]


def repeated(words: Sequence[str], n: int) -> int:
    """How many runs of n words have occurred before in the text.

    >>> repeated("tom and his dog and his dog".split(), 2)
    2
    """
    runs = ngrams(words, n)
    return len(runs) - len(set(runs))


def seq_rep(words: Sequence[str], n: int = 4) -> float:
    """The share of runs of n words that have occurred before (seq-rep-n of Welleck et al. 2019); nan without a run."""
    runs = ngrams(words, n)
    return repeated(words, n) / len(runs) if runs else float("nan")


def distinct(words: Sequence[str], n: int) -> float:
    """The share of runs of n words that are different ones (distinct-n of Li et al. 2016); nan without a run."""
    return 1 - seq_rep(words, n)


def type_token_ratio(words: Sequence[str], length: int) -> float:
    """Different words among the first `length`, as a share; nan where there are fewer: it falls with the length."""
    return len(set(words[:length])) / length if len(words) >= length else float("nan")


def ends_a_sentence(text: str) -> bool:
    """Whether a text ends with a full stop, question or exclamation mark, with or without closing quotes."""
    return SENTENCE_END.search(text) is not None


def made_up(words: Sequence[str], known: Collection[str]) -> float:
    """The share of words that are not known; nan without a word.

    Args:
        words: of a text.
        known: in lower case, such as all words of the training text.
    """
    return sum(word not in known for word in words) / len(words) if words else float("nan")


def names_with_places(text: str) -> list[tuple[int, str]]:
    """Where words stand that begin with a capital letter although no sentence begins there, and the words; "I" is none.

    >>> names_with_places("One day, Tom met Lily. They saw Tom's cat. I saw it, too.")
    [(9, 'Tom'), (17, 'Lily'), (32, 'Tom')]
    """
    found = []
    for match in WORD.finditer(text):
        word = _without_apostrophe(match.group())
        if word[0].isupper() and word != "I" and not SENTENCE_START.search(text[: match.start()]):
            found.append((match.start(), word))
    return found


def _without_apostrophe(word: str) -> str:
    return re.split("['’]", word)[0]


def name_consistency(text: str) -> float:
    """Of the names in the second half of a story, the share that stood in the first half; nan without any.

    A story ends at its separator. In the first half a name is looked for as any word, so that one that began a sentence
    there counts as well.
    """
    story = text.partition(SEPARATOR)[0]
    middle = len(story) // 2
    before = {_without_apostrophe(match.group()) for match in WORD.finditer(story) if match.start() < middle}
    later = [name for place, name in names_with_places(story) if place >= middle]
    return sum(name in before for name in later) / len(later) if later else float("nan")


def carry_over(text: str, known: Collection[str]) -> float:
    """Of the telling words in the second half of a story, the share that stood in the first half; nan without any.

    Telling are known words that are no function words, each counted once. A story that stays with its bird has it in
    both halves; one in which the bird becomes a tree does not. A story ends at its separator, and is halved by its
    words. What repeats itself has more carry-over, too.
    """
    words = words_of(text.partition(SEPARATOR)[0])
    before = set(words[: len(words) // 2])
    later = {word for word in words[len(words) // 2 :] if word in known} - FUNCTION_WORDS
    return len(later & before) / len(later) if later else float("nan")


class Copies:
    """Finds how much of a text is copied from another one, such as the training text.

    Args:
        texts: what may have been copied.
        longest: runs of more words than this count as this many.
    """

    def __init__(self, texts: Iterable[str], longest: int = 60):
        vocabulary: dict[str, int] = {}
        ids = []
        for text in texts:
            ids += [vocabulary.setdefault(word, len(vocabulary)) for word in words_of(text)]
            ids.append(BETWEEN)
        self._vocabulary, self._ids, self.longest = vocabulary, np.array(ids, dtype=np.int64), longest
        self._hashes: dict[int, np.ndarray] = {}

    def longest_run(self, words: Sequence[str]) -> int:
        """The length of the longest run of words that occurs in the texts, up to `longest`."""
        ids = np.array([self._vocabulary.get(word, -1) for word in words], dtype=np.int64)
        low, high = 0, min(self.longest, len(ids))
        while low < high:  # a run of n words that occurs holds one of n - 1 that does
            middle = (low + high + 1) // 2
            if self._occurs(ids, middle):
                low = middle
            else:
                high = middle - 1
        return low

    def _occurs(self, ids: np.ndarray, n: int) -> bool:
        if n not in self._hashes:
            self._hashes[n] = np.unique(hashes_of_runs(self._ids, n))
        known = self._hashes[n]
        runs = hashes_of_runs(ids, n)
        if not len(runs) or not len(known):
            return False
        at = np.searchsorted(known, runs).clip(max=len(known) - 1)
        return bool((known[at] == runs).any())


def hashes_of_runs(ids: np.ndarray, n: int) -> np.ndarray:
    """A 64-bit hash of every run of n ids (polynomial, modulo 2^64): (len(ids) - n + 1,)."""
    if len(ids) < n:
        return np.empty(0, dtype=np.uint64)
    # Mixed first: small consecutive ids would collide in a polynomial.
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    total = np.zeros(len(ids) - n + 1, dtype=np.uint64)
    for place in range(n):
        total = total * np.uint64(0xD1342543DE82EF95) + mixed[place : len(ids) - n + 1 + place]
    return total


def measure(
    text: str, known: Collection[str] | None = None, copies: Copies | None = None, length: int = 60, prompt: str = ""
) -> dict[str, float]:
    """All of these of one text, by name; nan where a text has nothing to count.

    Args:
        text: what was written after the prompt.
        known: the words of the training text; without them, made-up words and what is carried over are left out.
        copies: where it may have been copied from; without it that is left out.
        length: of the type-token ratio, in words.
        prompt: what the text goes on from: its names and its subject count as told, the rest is not counted.
    """
    words = words_of(text)
    found = {"words": float(len(words))}
    found |= {f"repeated-{n}": float(repeated(words, n)) for n in NGRAMS}
    found |= {"seq-rep-4": seq_rep(words), f"type-token-{length}": type_token_ratio(words, length)}
    found |= {f"distinct-{n}": distinct(words, n) for n in (1, 2, 3)}
    found |= {"sentence end": float(ends_a_sentence(text)), "separator": float(SEPARATOR in text)}
    found["name consistency"] = name_consistency(prompt + text)
    if known is not None:
        found["made-up words"] = made_up(words, known)
        found["carry-over"] = carry_over(prompt + text, known)
    if copies is not None:
        found["longest copy"] = float(copies.longest_run(words))
    return found
