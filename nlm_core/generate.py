"""Writing stories: many texts at once, each as if it were alone."""

import codecs
import operator
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import SupportsIndex

import torch

from nlm_core.decode import decoder_for
from nlm_core.errors import UserError
from nlm_core.model import NLM, evaluating
from nlm_core.sampling import Sampling, choose, penalise, word_tokens
from nlm_core.tokenizer import Tokenizer

BATCH_SIZE = 64  # texts at a time; the cache of one takes 12 MB in the book's model


@dataclass
class Text:
    """A text being written.

    Attributes:
        prompt: what it begins with.
        seed: of its noise.
        stops: strings, as bytes, that end it.
        ids: of the prompt and of all that was written.
        written: the bytes after the prompt, up to a stop string if one was met.
        ended: why it ended: "length" (max_new_tokens), "stop" (a stop string), "limit" (the model's context); or None.
    """

    prompt: str
    seed: int
    ids: list[int]
    stops: list[bytes] = field(default_factory=list)
    written: bytes = b""
    new_tokens: int = 0
    ended: str | None = None

    def add(self, token: int, piece: bytes, max_new_tokens: int, context_length: int) -> None:
        """Append a token, which stands for the bytes `piece`, and see whether the text has ended."""
        self.ids.append(token)
        self.new_tokens += 1
        longest_stop = max(map(len, self.stops), default=0)
        search_from = max(0, len(self.written) - longest_stop + 1)
        self.written += piece
        places = [self.written.find(stop, search_from) for stop in self.stops]
        found = [place for place in places if place >= 0]
        if found:
            self.written = self.written[: min(found)]
            self.ended = "stop"
        elif self.new_tokens == max_new_tokens:
            self.ended = "length"
        elif len(self.ids) == context_length:
            self.ended = "limit"

    @property
    def text(self) -> str:
        """The prompt and what was written so far."""
        return self.prompt + self.written.decode("utf-8", errors="replace")

    @property
    def settled(self) -> str:
        """As `text`, without an end that the next tokens may still change: half a character, half a stop string."""
        if self.ended:
            return self.text
        held = 0
        for stop in self.stops:
            for length in range(1, len(stop)):
                if self.written.endswith(stop[:length]):
                    held = max(held, length)
        sure = self.written[: len(self.written) - held]
        return self.prompt + codecs.getincrementaldecoder("utf-8")("replace").decode(sure)


def begin(
    model: NLM,
    tok: Tokenizer,
    prompts: Sequence[str],
    seed: SupportsIndex | Sequence[SupportsIndex] = 0,
    stop: str | Sequence[str] | None = None,
) -> list[Text]:
    """Check the prompts, encode them, and return texts for `write` to go on with; for the rest see `generate`."""
    if isinstance(prompts, str):
        raise UserError("prompts must be a list of texts, not one text: write [prompt]")
    if tok.vocab_size != model.config.vocab_size:
        raise UserError(f"the tokenizer has {tok.vocab_size} ids, the model {model.config.vocab_size}: not a pair")
    seeds = [operator.index(number) for number in (seed if isinstance(seed, Sequence) else [seed] * len(prompts))]
    if len(seeds) != len(prompts):
        raise UserError(f"there are {len(prompts)} prompts but {len(seeds)} seeds; give one seed, or one for each")
    for number in seeds:
        if not 0 <= number < 2**63:
            raise UserError(f"a seed must be from 0 to 2^63 - 1, not {number}")
    stops = [stop] if isinstance(stop, str) else list(stop or [])
    if not all(tok.encode(word) for word in stops):  # which also refuses what is not text
        raise UserError("a stop string must not be empty")
    limit = model.config.context_length
    texts = []
    for prompt, number in zip(prompts, seeds, strict=True):
        ids = tok.encode(prompt)
        if not ids:
            raise UserError("a prompt is empty; the model needs at least one character to go on from")
        if len(ids) >= limit:
            raise UserError(
                f"a prompt has {len(ids)} tokens, but this model reads {limit} at most, what it writes included; "
                f"shorten it to {limit - 1} or fewer"
            )
        texts.append(Text(prompt, number, ids, [word.encode() for word in stops]))
    return texts


def write(
    model: NLM, tok: Tokenizer, texts: Sequence[Text], max_new_tokens: int = 200, sampling: Sampling | None = None
) -> Iterator[None]:
    """Write all texts, `BATCH_SIZE` at a time; yields after every token, so that a caller can show what there is."""
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens must be 1 or more, not {max_new_tokens}")
    for first in range(0, len(texts), BATCH_SIZE):
        yield from _write_batch(model, tok, texts[first : first + BATCH_SIZE], max_new_tokens, sampling or Sampling())


def _write_batch(
    model: NLM, tok: Tokenizer, texts: Sequence[Text], max_new_tokens: int, sampling: Sampling
) -> Iterator[None]:
    context_length = model.config.context_length
    longest = min(max(len(text.ids) for text in texts) + max_new_tokens, context_length)
    penalty = sampling.repetition_penalty != 1
    with evaluating(model), torch.inference_mode():
        decoder = decoder_for(model, longest)
        logits = decoder.begin([text.ids for text in texts])  # (B, V)
        if penalty:
            words = word_tokens(tok).to(logits.device)
            seen = torch.zeros_like(logits, dtype=torch.bool)
            for row, text in enumerate(texts):
                seen[row, text.ids] = words[text.ids]
        alive = list(texts)
        while alive:
            if penalty:
                logits = penalise(logits, seen, sampling.repetition_penalty)
            tokens = choose(logits, sampling, [text.seed for text in alive], [len(text.ids) for text in alive])
            for text, token in zip(alive, tokens.tolist(), strict=True):
                text.add(token, tok.token_bytes[token], max_new_tokens, context_length)
            yield
            kept = [row for row, text in enumerate(alive) if not text.ended]
            alive = [alive[row] for row in kept]
            if alive:
                tokens = tokens[kept]
                logits = decoder.step(kept, tokens)
                if penalty:
                    seen = seen[kept]
                    seen[range(len(kept)), tokens] = words[tokens]


def generate(
    model: NLM,
    tok: Tokenizer,
    prompts: Sequence[str],
    max_new_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: str | Sequence[str] | None = None,
    seed: SupportsIndex | Sequence[SupportsIndex] = 0,
) -> list[str]:
    """Write one text for each prompt.

    A text depends on the weights, its prompt, its seed and the settings: not on the other prompts, its place among
    them, or the number of threads. In float64 that is exact, and in float32 too where the kernel for it can be compiled
    (see `nlm_core.decode`); elsewhere, rounding can flip a choice, rarely.

    Args:
        model: a model.
        tok: its tokenizer.
        prompts: how the texts begin; not empty.
        max_new_tokens: the most tokens to write for each.
        temperature, top_k, top_p, repetition_penalty: see `nlm_core.sampling.Sampling`.
        stop: a string or strings; a text ends before the first that it writes.
        seed: one for all prompts, or one for each. Two texts with the same prompt and seed are the same.

    Returns:
        The texts, each with its prompt. A warning says so if any reached the model's limit before `max_new_tokens`.

    Raises:
        UserError: a prompt is empty or too long for the model, or a setting is out of range.
    """
    texts = begin(model, tok, prompts, seed, stop)
    for _ in write(model, tok, texts, max_new_tokens, Sampling(temperature, top_k, top_p, repetition_penalty)):
        pass
    if message := limit_message(texts, model.config.context_length):
        warnings.warn(message, stacklevel=2)
    return [text.text for text in texts]


def limit_message(texts: Sequence[Text], context_length: int) -> str | None:
    """What to tell a person whose texts reached the end of the context, if any did."""
    cut = sum(text.ended == "limit" for text in texts)
    if not cut:
        return None
    return f"{cut} of {len(texts)} texts stopped at {context_length} tokens, the most that this model can read"
