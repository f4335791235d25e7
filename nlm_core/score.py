"""The loss of a text, taken apart: by story, by class of token, and beside what simpler models reach.

What is scored: the stories as one stream, in windows of the context; every token is predicted once, but for the very
first. A target's nats belong to the story that holds it, those of the separator to the story before it.
"""

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
PRIOR = 20.0  # weight, in tokens, of the unigram estimate within the bigram's; never tuned


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


def ngram_nats(
    fit: Integer[np.ndarray, " M"], ids: Integer[np.ndarray, " N"], vocab_size: int
) -> tuple[Float[np.ndarray, " N-1"], Float[np.ndarray, " N-1"]]:
    """Nats of each token but the first under a unigram and a bigram model of the tokens `fit`.

    Unigram: counts plus one. Bigram: counts plus PRIOR times the unigram estimate (MacKay & Peto 1995).
    """
    ids = ids.astype(np.int64)
    wanted = ids[:-1] * vocab_size + ids[1:]
    pairs, place = np.unique(wanted, return_inverse=True)
    singles, pair_counts = np.zeros(vocab_size), np.zeros(len(pairs))
    for start in range(0, len(fit), FIT_AT_ONCE):
        # One more token than a block holds, so that no pair falls between two blocks.
        block = fit[start : start + FIT_AT_ONCE + 1].astype(np.int64)
        singles += np.bincount(block[:FIT_AT_ONCE], minlength=vocab_size)
        seen = block[:-1] * vocab_size + block[1:]
        found = np.searchsorted(pairs, seen).clip(max=len(pairs) - 1)
        pair_counts += np.bincount(found[pairs[found] == seen], minlength=len(pairs))
    firsts = singles.copy()
    firsts[fit[-1:]] -= 1  # the last token is the first of no pair
    unigram = (singles + 1.0) / (len(fit) + vocab_size)
    bigram = (pair_counts[place] + PRIOR * unigram[ids[1:]]) / (firsts[ids[:-1]] + PRIOR)
    return -np.log(unigram[ids[1:]]), -np.log(bigram)


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
        count = int(self.stories.max()) + 1
        nats = sums_by(self.stories, self.nats, count)
        tokens = sums_by(self.stories, np.ones(len(self.nats)), count)
        sizes = sums_by(self.stories, self.lengths, count)
        there = tokens > 0  # a first story of one token has no target
        loss = _figure(nats[there], tokens[there])
        return {
            "stories": int(there.sum()),
            "tokens": len(self.nats),
            "bytes": int(self.lengths.sum()),
            "nats_per_token": loss,
            "perplexity": math.exp(loss["value"]),
            "bits_per_byte": _figure(nats[there] / math.log(2), sizes[there]),
            "classes": {name: self._of_class(number, count) for number, name in enumerate(CLASSES)},
            "baselines": {**self.baselines, "fitted_on": self.fitted_on},
        }

    def _of_class(self, number: int, count: int) -> dict[str, Any]:
        own = self.classes == number
        if not own.any():
            return {"tokens": 0, "nats_per_token": None, "share_of_tokens": 0.0, "share_of_loss": 0.0}
        nats = sums_by(self.stories[own], self.nats[own], count)
        tokens = sums_by(self.stories[own], np.ones(int(own.sum())), count)
        return {
            "tokens": int(own.sum()),
            "nats_per_token": _figure(nats[tokens > 0], tokens[tokens > 0]),
            "share_of_tokens": float(own.mean()),
            "share_of_loss": float(self.nats[own].sum() / self.nats.sum()),
        }


def _figure(numerators: np.ndarray, denominators: np.ndarray) -> dict[str, float | None]:
    value, error = ratio_with_error(numerators, denominators)
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
            the other.
        precision: "float32" or "bfloat16".
        progress: show a bar.

    Raises:
        UserError: there are fewer than two tokens.
    """
    tokens = tokens_of(tokenizer, stories)
    V = model.config.vocab_size
    nats = stream_nats(model, tokens.ids, precision=precision, progress=progress)
    if fit is not None and len(fit):
        unigram, bigram = ngram_nats(fit, tokens.ids, V)
        fitted_on = "the training text"
    else:
        # A target is scored with the counts of the other half of the stories.
        halves = [ngram_nats(tokens.ids[tokens.stories % 2 != half], tokens.ids, V) for half in (0, 1)]
        odd = tokens.stories[1:] % 2 == 1
        unigram, bigram = (np.where(odd, halves[1][kind], halves[0][kind]) for kind in (0, 1))
        fitted_on = "the other half of the same stories" if tokens.stories[-1] > 0 else "nothing: it is one story"
    return Score(
        nats=nats.astype(np.float64),
        classes=tokens.classes[1:],
        stories=tokens.stories[1:],
        lengths=tokens.lengths[1:],
        baselines={"uniform": math.log(V), "unigram": float(unigram.mean()), "bigram": float(bigram.mean())},
        fitted_on=fitted_on,
    )
