"""The loss of a text, taken apart: by story, by class of token, and beside what simpler models reach.

What is scored: the stories as one stream, in windows of the context; every token is predicted once, but for the very
first. A target's nats belong to the story that holds it, those of the separator to the story before it.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Integer

from nlm_core.errors import UserError
from nlm_core.loss import stream_nats
from nlm_core.model import NLM
from nlm_core.stats import ratio_with_error, sums_by
from nlm_core.text import PIECE, SEPARATOR
from nlm_core.tokenizer import Tokenizer

CLASSES = ("space", "word-initial", "word-internal", "punctuation", "separator")
SPACE, INITIAL, INTERNAL, PUNCTUATION, IN_SEPARATOR = range(5)
FIT_AT_ONCE = 10_000_000  # tokens whose pairs are counted at a time, so that any corpus fits in memory
PRIOR = 20.0  # weight, in tokens, of the shorter model's estimate within the longer's; never tuned


@dataclass(frozen=True)
class Tokens:
    """A text as a stream of tokens that know what they are.

    Attributes:
        ids: (N,) token ids.
        classes: (N,) indices into CLASSES.
        stories: (N,) which story each token belongs to, from 0.
        lengths: (N,) bytes.
    """

    ids: Int[np.ndarray, " N"]
    classes: Int[np.ndarray, " N"]
    stories: Int[np.ndarray, " N"]
    lengths: Int[np.ndarray, " N"]

    @property
    def sha256(self) -> str:
        """Of the ids, as 32-bit numbers."""
        return hashlib.sha256(self.ids.astype("<u4").tobytes()).hexdigest()


def tokens_of(tokenizer: Tokenizer, stories: Iterable[str]) -> Tokens:
    """Encode stories and classify their tokens.

    Whitespace characters are tokens of their own ("space"); a word's first token is "word-initial" and its others are
    "word-internal"; the pieces of the separator are "separator"; all else is "punctuation".
    """
    known: dict[str, list[int]] = {}
    ids: list[int] = []
    classes: list[int] = []
    counts: list[int] = []
    for story in stories:
        before = len(ids)
        separator = story.find(SEPARATOR)
        separator_end = separator + len(SEPARATOR) if separator >= 0 else -1
        for match in PIECE.finditer(story):
            piece = known.get(match.group())
            if piece is None:
                piece = known[match.group()] = tokenizer.encode(match.group())
            ids += piece
            if match.lastgroup == "space":
                classes += [SPACE] * len(piece)
            elif match.start() < separator_end and match.end() > separator:
                classes += [IN_SEPARATOR] * len(piece)
            elif match.lastgroup == "word":
                classes += [INITIAL] + [INTERNAL] * (len(piece) - 1)
            else:
                classes += [PUNCTUATION] * len(piece)
        counts.append(len(ids) - before)
    if len(ids) < 2:
        raise UserError("a text needs at least two tokens to be scored")
    lengths = np.array([len(token) for token in tokenizer.token_bytes])
    return Tokens(np.array(ids), np.array(classes), np.repeat(np.arange(len(counts)), counts), lengths[ids])


def _keys(ids: np.ndarray, n: int, vocab_size: int) -> np.ndarray:
    """One whole number for each run of n tokens."""
    keys = np.zeros(len(ids) - n + 1, dtype=np.int64)
    for place in range(n):
        keys = keys * vocab_size + ids[place : place + len(keys)]
    return keys


def _occurrences(fit: np.ndarray, wanted: np.ndarray, n: int, vocab_size: int) -> np.ndarray:
    """How often each wanted run of n tokens occurs in `fit`."""
    keys, place = np.unique(wanted, return_inverse=True)
    counts = np.zeros(len(keys))
    for start in range(0, len(fit) - n + 1, FIT_AT_ONCE):
        # A block reaches n - 1 tokens into the next, so that no run falls between two blocks.
        seen = _keys(fit[start : start + FIT_AT_ONCE + n - 1].astype(np.int64), n, vocab_size)
        found = np.searchsorted(keys, seen).clip(max=len(keys) - 1)
        counts += np.bincount(found[keys[found] == seen], minlength=len(keys))
    return counts[place]


def ngram_nats(
    fit: Integer[np.ndarray, " M"], ids: Integer[np.ndarray, " N"], vocab_size: int
) -> dict[str, Float[np.ndarray, " N-1"]]:
    """Nats of each token but the first under a unigram, a bigram and a trigram model of the tokens `fit`.

    Unigram: counts plus one. Each longer model: its counts plus PRIOR times the estimate of the next shorter one
    (MacKay & Peto 1995). A word mostly follows a space token, so a bigram hardly sees the word before; a trigram does.
    """
    ids = ids.astype(np.int64)
    estimate = (_occurrences(fit, ids[1:], 1, vocab_size) + 1.0) / (len(fit) + vocab_size)
    nats = {"unigram": -np.log(estimate)}
    for n, name in ((2, "bigram"), (3, "trigram")):
        runs = _occurrences(fit, _keys(ids, n, vocab_size), n, vocab_size)
        contexts = _occurrences(fit[:-1], _keys(ids[:-1], n - 1, vocab_size), n - 1, vocab_size)
        estimate = estimate.copy()
        shorter = estimate[n - 2 :]  # the first tokens have no context of this length
        estimate[n - 2 :] = (runs + PRIOR * shorter) / (contexts + PRIOR)
        nats[name] = -np.log(estimate)
    return nats


@dataclass(frozen=True)
class Score:
    """A scored text; the arrays leave out the first token, which nothing predicts.

    Attributes:
        nats: (N,) minus the natural logarithm of each target's probability.
        classes, stories, lengths: (N,) of the targets, as in `Tokens`.
        baselines: nats per token of simpler models, by name.
        fitted_on: what the n-gram baselines were estimated from.
    """

    nats: Float[np.ndarray, " N"]
    classes: Int[np.ndarray, " N"]
    stories: Int[np.ndarray, " N"]
    lengths: Int[np.ndarray, " N"]
    baselines: dict[str, float]
    fitted_on: str

    def summary(self) -> dict[str, Any]:
        """The figures as JSON-ready numbers; `error` is always a standard error with stories as units."""
        sums = self.by_story()
        whole = _losses(sums["nats"], sums["tokens"], sums["bytes"])
        separator = CLASSES[IN_SEPARATOR]
        outside = [sums[name] - sums[f"{separator} {name}"] for name in ("nats", "tokens", "bytes")]
        return {
            "stories": int((sums["tokens"] > 0).sum()),  # a first story of one token has no target
            "tokens": len(self.nats),
            "bytes": int(self.lengths.sum()),
            "nats_per_token": whole["nats_per_token"],
            "perplexity": math.exp(whole["nats_per_token"]["value"]),
            "bits_per_byte": whole["bits_per_byte"],
            # For comparing with models that write the separator otherwise.
            "without_separators": _losses(*outside),
            "classes": {
                name: {
                    "tokens": int(sums[f"{name} tokens"].sum()),
                    "nats_per_token": _figure(sums[f"{name} nats"], sums[f"{name} tokens"]),
                    "share_of_tokens": float(sums[f"{name} tokens"].sum() / len(self.nats)),
                    "share_of_loss": float(sums[f"{name} nats"].sum() / self.nats.sum()),
                }
                for name in CLASSES
            },
            "baselines": {**self.baselines, "fitted_on": self.fitted_on},
        }

    def by_story(self) -> dict[str, Float[np.ndarray, " S"]]:
        """Sums over each story: its targets, their bytes and nats, in all and of each class of token."""
        count = int(self.stories.max()) + 1
        columns = {}
        for name, own in {"": True, **{f"{name} ": self.classes == n for n, name in enumerate(CLASSES)}}.items():
            columns |= {f"{name}tokens": own * np.ones(len(self.nats)), f"{name}bytes": own * self.lengths}
            columns |= {f"{name}nats": own * self.nats}
        return {name: sums_by(self.stories, values, count) for name, values in columns.items()}


def _losses(nats: np.ndarray, tokens: np.ndarray, sizes: np.ndarray) -> dict[str, Any]:
    return {"nats_per_token": _figure(nats, tokens), "bits_per_byte": _figure(nats / math.log(2), sizes)}


def _figure(numerators: np.ndarray, denominators: np.ndarray) -> dict[str, float | None] | None:
    """The ratio with its standard error over the stories that have anything to count; None if none has."""
    there = denominators > 0
    if not there.any():
        return None
    value, error = ratio_with_error(numerators[there], denominators[there])
    return {"value": value, "error": None if math.isnan(error) else error}


def score(
    model: NLM,
    tokenizer: Tokenizer,
    stories: Iterable[str],
    fit: Integer[np.ndarray, " M"] | None = None,
    precision: str = "float32",
    progress: bool = False,
) -> Score:
    """Score stories with a model.

    Args:
        model: a model.
        tokenizer: its tokenizer.
        stories: the text, each story with its separator.
        fit: training tokens for the n-gram baselines; without them, each half of the stories (even, odd) serves for
            the other, and a single story has none.
        precision: "float32" or "bfloat16".
        progress: show a bar.

    Raises:
        UserError: there are fewer than two tokens.
    """
    tokens = tokens_of(tokenizer, stories)
    V = model.config.vocab_size
    nats = stream_nats(model, tokens.ids, precision=precision, progress=progress)
    if fit is not None and len(fit):
        ngrams = ngram_nats(fit, tokens.ids, V)
        fitted_on = "the training text"
    elif not tokens.stories[-1]:
        ngrams, fitted_on = {}, "nothing: it is one story"
    else:
        # A target is scored with the counts of the other half of the stories.
        halves = [ngram_nats(tokens.ids[tokens.stories % 2 != half], tokens.ids, V) for half in (0, 1)]
        odd = tokens.stories[1:] % 2 == 1
        ngrams = {name: np.where(odd, halves[1][name], halves[0][name]) for name in halves[0]}
        fitted_on = "the other half of the same stories"
    return Score(
        nats=nats.astype(np.float64),
        classes=tokens.classes[1:],
        stories=tokens.stories[1:],
        lengths=tokens.lengths[1:],
        baselines={"uniform": math.log(V), **{name: float(values.mean()) for name, values in ngrams.items()}},
        fitted_on=fitted_on,
    )
