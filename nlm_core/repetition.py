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
from nlm_core.model import NLM
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
        model: a model in evaluation mode.
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
) -> Float[np.ndarray, "phrases times temperatures"]:
    """The probability that a phrase is said once more, by how often it has been repeated and by temperature."""
    return np.array(
        [
            [np.exp(-continuation_nats(model, tokenizer, text + phrase * k, phrase, temperatures)) for k in times]
            for text, phrase in phrases
        ]
    )


@dataclass(frozen=True)
class Endings:
    """How likely the separator is behind the sentences of one story.

    Attributes:
        at_end: behind its last sentence.
        elsewhere: behind each of the others.
    """

    at_end: float
    elsewhere: Float[np.ndarray, " _"]


@torch.inference_mode()
def endings(model: NLM, tokenizer: Tokenizer, story: str, most: int = 12, seed: int = 0) -> Endings | None:
    """The probability that a newline and the separator follow, behind the sentences of a story.

    Behind a sentence that is not the last, text goes on with a space, or a newline and more text. There the newline
    and the separator are put in its place, so that all sentence ends are asked the same question.

    Args:
        model: a model in evaluation mode.
        tokenizer: its tokenizer.
        story: with its separator.
        most: of the other sentence ends so many are drawn, without replacement.
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
        others = np.sort(np.random.default_rng(seed).choice(others, most, replace=False))
    ids = [tokenizer.encode(text[:end] + separator) for end in (len(text), *others)]
    tail = len(tokenizer.encode(separator))
    chances: list[float] = []
    for start in range(0, len(ids), AT_ONCE):
        chances += _chances_of_tails(model, ids[start : start + AT_ONCE], tail)
    return Endings(chances[0], np.array(chances[1:]))


def _chances_of_tails(model: NLM, texts: list[list[int]], tail: int) -> list[float]:
    """The probability of the last `tail` tokens of each text, given those before; shorter texts are padded behind."""
    longest = max(map(len, texts))
    batch = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=model.token_emb.device)
    x = model.read(batch)
    chances = []
    for row, text in enumerate(texts):
        places = slice(len(text) - tail - 1, len(text) - 1)
        nats = model.unembed(x[row, places]).double().log_softmax(dim=-1)
        targets = torch.tensor(text[-tail:], device=nats.device)
        chances.append(float(nats.gather(1, targets[:, None]).sum().exp()))
    return chances
