"""Generation judged at scale: every prompt under every setting with several seeds, and what `metrics` counts in it.

The posts looked at ten prompts under four temperatures, one text each. `matrix` does that, or more of it. Texts of one
prompt are not independent, so intervals resample prompts; settings are compared on the same prompts and seeds.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nlm_core.errors import UserError
from nlm_core.files import readable_file, shown
from nlm_core.generate import BATCH_SIZE, begin, write
from nlm_core.matrix import Matrix
from nlm_core.metrics import Copies, measure
from nlm_core.model import NLM
from nlm_core.sampling import Sampling
from nlm_core.text import blocks
from nlm_core.tokenizer import Tokenizer

# The posts name the first three of their ten prompts; the others are ours, in the manner of TinyStories.
PROMPTS = (
    "Once upon a time",
    "Once fox Freddy",
    "Two little birds",
    "One day, a girl named",
    "The big dog",
    "Tom and his mom",
    "It was a cold night",
    "In a small house",
    "There was a cat who",
    "A boy found a",
)
# The posts' four temperatures, and what is set against them: the nucleus against the model's own temperature, the
# penalty against the repetition of a low one.
SETTINGS = {
    "greedy": Sampling(0.0),
    "0.5": Sampling(0.5),
    "0.8": Sampling(0.8),
    "1.0": Sampling(1.0),
    "1.2": Sampling(1.2),
    "top-p-0.9": Sampling(1.0, top_p=0.9),
    "penalty-1.2": Sampling(0.5, repetition_penalty=1.2),
}
POSTS = ("0.5", "0.8", "1.0", "1.2")


def settings_named(names: Sequence[str]) -> dict[str, Sampling]:
    """The settings of these names: those of `SETTINGS`, and any number, which is a temperature.

    Raises:
        UserError: a name is neither, or the temperature is below 0.
    """
    found = {}
    for name in names:
        try:
            temperature = 0.0 if name in SETTINGS else float(name)
        except ValueError:
            raise UserError(
                f"there is no setting {name!r}; give a temperature, or one of: {', '.join(SETTINGS)}"
            ) from None
        found[name] = SETTINGS.get(name) or Sampling(temperature)
    return found


def read_prompts(path: Path) -> list[str]:
    """The lines of a text file, without those that are empty or stand there twice.

    Raises:
        UserError: the file is not there, is not UTF-8, or has no line.
    """
    lines = "".join(blocks(readable_file(path))).removeprefix("\ufeff").split("\n")
    prompts = list(dict.fromkeys(line for line in (line.removesuffix("\r") for line in lines) if line.strip()))
    if not prompts:
        raise UserError(f"{shown(path)} has no prompts: put one in each line")
    return prompts


def text_seed(seed: int, prompt: int, prompts: int) -> int:
    """The seed with which a text is written: no two prompts share one, since noise depends on seed and place alone."""
    return seed * prompts + prompt


def evaluate_generation(
    model: NLM,
    tokenizer: Tokenizer,
    prompts: Sequence[str] = PROMPTS,
    settings: dict[str, Sampling] | None = None,
    seeds: Sequence[int] = (0,),
    max_new_tokens: int = 200,
    known: Collection[str] | None = None,
    copies: Copies | None = None,
    progress: bool = False,
) -> Matrix:
    """Write every text and count in it.

    Args:
        model: a model; dropout is off while this runs.
        tokenizer: the model's.
        prompts: how texts begin.
        settings: ways of sampling, by name; the posts' four temperatures if left out.
        seeds: of the texts of each prompt (see `text_seed`); the same for every setting, so that settings are
            compared in pairs.
        max_new_tokens: of each text.
        known, copies: as for `metrics.measure`.
        progress: show a bar while standard error is a terminal.

    Raises:
        UserError: there is no prompt, setting or seed, or a prompt is longer than the context.
    """
    settings = settings_named(POSTS) if settings is None else settings
    if not prompts or not settings or not seeds:
        raise UserError("an evaluation needs at least one prompt, one setting and one seed")
    begin(model, tokenizer, prompts)  # so that a prompt that is too long is refused before any text is written
    count = len(prompts)
    pairs = [(prompt, text_seed(seed, number, count)) for number, prompt in enumerate(prompts) for seed in seeds]
    texts, counted = [], []
    with tqdm(total=len(settings) * len(pairs), unit="text", leave=False, disable=None if progress else True) as bar:
        for sampling in settings.values():
            written = []
            for start in range(0, len(pairs), BATCH_SIZE):
                some = pairs[start : start + BATCH_SIZE]
                batch = begin(model, tokenizer, [prompt for prompt, _ in some], [seed for _, seed in some])
                for _ in write(model, tokenizer, batch, max_new_tokens, sampling):
                    pass
                written += [text.written.decode("utf-8", errors="replace") for text in batch]
                bar.update(len(some))
            texts.append([written[at : at + len(seeds)] for at in range(0, len(written), len(seeds))])
            counted += [
                measure(text, known, copies, prompt=prompt) for text, (prompt, _) in zip(written, pairs, strict=True)
            ]
    shape = (len(settings), len(prompts), len(seeds))
    metrics = {name: np.array([one[name] for one in counted]).reshape(shape) for name in counted[0]}
    return Matrix(list(settings), list(prompts), list(seeds), texts, metrics)


def reference(
    tokenizer: Tokenizer,
    stories: Sequence[str],
    prompts: Sequence[str],
    length: int = 200,
    known: Collection[str] | None = None,
    copies: Copies | None = None,
) -> Matrix:
    """The stories' own continuations of their openings, cut to the length of the generated texts.

    Args:
        tokenizer: decides what `length` tokens are.
        stories: each begins with its prompt.
        prompts: one for each story.
        length: tokens after the prompt.
        known, copies: as for `metrics.measure`.

    Raises:
        UserError: a story does not begin with its prompt.
    """
    texts = []
    for story, prompt in zip(stories, prompts, strict=True):
        if not story.startswith(prompt):
            raise UserError(f"a story does not begin with its prompt {prompt!r}")
        ids = tokenizer.encode(story[len(prompt) :])[:length]
        texts.append([tokenizer.decode(ids)])
    counted = [measure(text, known, copies, prompt=prompt) for (text,), prompt in zip(texts, prompts, strict=True)]
    metrics = {name: np.array([one[name] for one in counted]).reshape(1, -1, 1) for name in counted[0]}
    return Matrix(["reference"], list(prompts), [0], [texts], metrics)
