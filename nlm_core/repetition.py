"""Why texts repeat themselves, and how they end: probabilities of what a text goes on with.

Shapes: V vocabulary.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from nlm_core.errors import UserError
from nlm_core.model import NLM, evaluating
from nlm_core.text import SEPARATOR
from nlm_core.tokenizer import Tokenizer

# How a text begins, and what it could repeat; the first is the posts' example.
PHRASES = (
    ("Tom and his dog", " and his dog"),
    ("She saw a big tree", " and a big tree"),
    ("They played in the park", " and in the park"),
    ("He was very sad", " and very sad"),
    ("The cat ran to the door", " and to the door"),
    ("Lily had a red ball", " and a red ball"),
    ("The bird flew up", " and up"),
    ("Mom gave him a cookie", " and a cookie"),
    ("They went to the store", " and to the store"),
    ("The boy was happy", " and happy"),
)
SENTENCE = re.compile(r"[.!?]+[\"'”’)]*(?=[ \n]|$)")  # where one ends
AT_ONCE = 16  # texts in a batch


@torch.inference_mode()
def continuation_nats(
    model: NLM, tokenizer: Tokenizer, beginning: str, continuation: str, temperatures: Sequence[float] = (1.0,)
) -> Float[np.ndarray, " temperatures"]:
    """Minus the natural logarithm of the probability that a text goes on with exactly these tokens.

    Args:
        model: a model; dropout is off while this runs.
        tokenizer: its tokenizer.
        beginning: of the text; not empty.
        continuation: what it might go on with; not empty.
        temperatures: at which tokens are drawn, each above 0.

    Raises:
        UserError: the two together are longer than the context, or one of them is empty.
    """
    first, then = tokenizer.encode(beginning), tokenizer.encode(continuation)
    if not first or not then:
        raise UserError("a beginning and a continuation need at least one token each")
    with evaluating(model):
        logits = model(torch.tensor([first + then[:-1]], device=model.token_emb.device))[0, len(first) - 1 :].double()
    targets = torch.tensor(then, device=logits.device)
    nats = [
        -(logits / T).log_softmax(dim=-1).gather(1, targets[:, None]).sum() for T in temperatures
    ]  # sums over the tokens
    return torch.stack(nats).cpu().numpy()


def again(
    model: NLM,
    tokenizer: Tokenizer,
    phrases: Iterable[tuple[str, str]] = PHRASES,
    times: Sequence[int] = (0, 1, 2, 3, 4),
    temperatures: Sequence[float] = (0.5, 0.8, 1.0, 1.2),
    other: bool = False,
) -> Float[np.ndarray, "phrases times temperatures"]:
    """The probability that a phrase is said once more, by how often it has been repeated and by temperature.

    Args:
        model, tokenizer: a model and its tokenizer.
        phrases: texts, and what is said after them.
        times: how often it has been said.
        temperatures: at which tokens are drawn.
        other: a control: the probability of the next phrase of the list instead, which that text has never said.
    """
    phrases = list(phrases)
    asked = [phrase for _, phrase in phrases]
    asked = [*asked[1:], asked[0]] if other else asked
    return np.array(
        [
            [np.exp(-continuation_nats(model, tokenizer, text + phrase * k, then, temperatures)) for k in times]
            for (text, phrase), then in zip(phrases, asked, strict=True)
        ]
    )


@dataclass(frozen=True)
class Endings:
    """How likely the separator is after the sentences of one story.

    Attributes:
        at_end: after its last sentence.
        before: after the last but one, which stands as late in the story; nan where there is none.
        elsewhere: after each of the others, the last but one among them.
    """

    at_end: float
    before: float
    elsewhere: Float[np.ndarray, " _"]


@torch.inference_mode()
def endings(model: NLM, tokenizer: Tokenizer, story: str, most: int = 12, seed: int = 0) -> Endings | None:
    """The probability that a newline and the separator follow, after the sentences of a story.

    After a sentence that is not the last, text goes on with a space, or a newline and more text. There the newline
    and the separator are put in its place, so that all sentence ends are asked the same question.

    Args:
        model: a model; dropout is off while this runs.
        tokenizer: its tokenizer.
        story: with its separator.
        most: of the other sentence ends so many are taken: the last one, and the rest drawn without replacement.
        seed: of that draw.

    Returns:
        None where the story is longer than the context or does not end with a sentence, a newline and the separator.
    """
    text, separator, _ = story.partition("\n" + SEPARATOR)
    ends = [match.end() for match in SENTENCE.finditer(text)]
    if not separator or not ends or ends[-1] != len(text):
        return None
    if len(tokenizer.encode(text + separator)) > model.config.context_length:
        return None
    others = np.array(ends[:-1], dtype=int)
    if len(others) > most:
        drawn = np.random.default_rng(seed).choice(others[:-1], most - 1, replace=False)
        others = np.array([*np.sort(drawn), others[-1]])
    ids = [tokenizer.encode(text[:end] + separator) for end in (len(text), *others)]
    tail = len(tokenizer.encode(separator))
    chances: list[float] = []
    for start in range(0, len(ids), AT_ONCE):
        chances += _chances_of_tails(model, ids[start : start + AT_ONCE], tail)
    return Endings(chances[0], chances[-1] if len(chances) > 1 else float("nan"), np.array(chances[1:]))


def _chances_of_tails(model: NLM, texts: list[list[int]], tail: int) -> list[float]:
    """The probability of the last `tail` tokens of each text, given those before; shorter ones are padded."""
    longest = max(map(len, texts))
    batch = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=model.token_emb.device)
    with evaluating(model):
        x = model.read(batch)
    chances = []
    for row, text in enumerate(texts):
        places = slice(len(text) - tail - 1, len(text) - 1)
        nats = model.unembed(x[row, places]).double().log_softmax(dim=-1)
        targets = torch.tensor(text[-tail:], device=nats.device)
        chances.append(float(nats.gather(1, targets[:, None]).sum().exp()))
    return chances
