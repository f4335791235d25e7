"""Generation judged at scale: every prompt under every setting with several seeds, and what `metrics` counts in it.

The posts looked at ten prompts under four temperatures, one text each. `matrix` does that, or more of it. Texts of one
prompt are not independent, so intervals resample prompts; settings are compared on the same prompts and seeds.
"""

import gzip
import itertools
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from nlm_core.errors import UserError
from nlm_core.files import readable_file, shown, written_whole
from nlm_core.generate import BATCH_SIZE, begin, write
from nlm_core.metrics import WORD, Copies, Words, measure
from nlm_core.model import NLM
from nlm_core.sampling import Sampling
from nlm_core.stats import mean_interval
from nlm_core.text import SEPARATOR, blocks
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
KEYS = ("setting", "prompt", "seed")


def settings_named(names: Sequence[str]) -> dict[str, Sampling]:
    """The settings of these names: those of `SETTINGS`, and any number, which is a temperature.

    Raises:
        UserError: a name is neither.
    """
    found = {}
    for name in names:
        try:
            found[name] = SETTINGS.get(name) or Sampling(float(name))
        except ValueError:
            raise UserError(
                f"there is no setting {name!r}; give a temperature, or one of: {', '.join(SETTINGS)}"
            ) from None
    return found


def read_prompts(path: Path) -> list[str]:
    """The lines of a text file, without those that are empty or stand there twice."""
    lines = "".join(blocks(readable_file(path))).splitlines()
    prompts = list(dict.fromkeys(line for line in lines if line.strip()))
    if not prompts:
        raise UserError(f"{shown(path)} has no prompts: put one in each line")
    return prompts


@dataclass(frozen=True)
class Matrix:
    """Texts and what was counted in them.

    Attributes:
        settings: N names.
        prompts: P of them.
        seeds: S of them.
        texts: what was written behind each prompt, as [setting][prompt][seed].
        metrics: by name, (N, P, S); nan where a text had nothing to count.
    """

    settings: list[str]
    prompts: list[str]
    seeds: list[int]
    texts: list[list[list[str]]]
    metrics: dict[str, Float[np.ndarray, "N P S"]]

    def by_prompt(self, metric: str) -> Float[np.ndarray, "N P"]:
        """The mean over seeds, for each setting and prompt; nan where no seed's text had anything to count."""
        values = self.metrics[metric]
        counted = ~np.isnan(values)
        sums, counts = np.where(counted, values, 0).sum(axis=-1), counted.sum(axis=-1)
        return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)

    def means(self, metric: str) -> Float[np.ndarray, " N"]:
        """Each setting's mean over the prompts that have a value under every setting."""
        return complete(self.by_prompt(metric)).mean(axis=0)

    def intervals(self, metric: str, draws: int = 2000) -> tuple[np.ndarray, np.ndarray] | None:
        """The ends of each setting's 95 % interval, prompts resampled; None with fewer than two prompts."""
        rows = complete(self.by_prompt(metric))
        return None if len(rows) < 2 else mean_interval(rows, draws=draws)

    def difference(self, metric: str, one: str, other: str, draws: int = 10_000) -> tuple[float, float, float]:
        """How much larger a metric is under one setting than under another, on the same prompts, with its interval."""
        values = self.by_prompt(metric)
        pairs = complete(values[[self.settings.index(one), self.settings.index(other)]])
        gaps = pairs[:, 0] - pairs[:, 1]
        low, high = mean_interval(gaps, draws=draws)
        return float(gaps.mean()), low, high

    def summary(self) -> dict[str, dict[str, Any]]:
        """For each metric and setting the mean, over how many prompts, and its interval; JSON-ready."""
        found: dict[str, dict[str, Any]] = {}
        for metric in self.metrics:
            prompts = len(complete(self.by_prompt(metric)))
            if not prompts:
                continue
            means, ends = self.means(metric), self.intervals(metric)
            found[metric] = {
                setting: {
                    "mean": float(means[number]),
                    "prompts": prompts,
                    "interval": None if ends is None else [float(end[number]) for end in ends],
                }
                for number, setting in enumerate(self.settings)
            }
        return found


def complete(values: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "_ N"]:
    """A row for each prompt that has a value under every setting."""
    return values.T[~np.isnan(values).any(axis=0)]


def matrix(
    model: NLM,
    tokenizer: Tokenizer,
    prompts: Sequence[str] = PROMPTS,
    settings: dict[str, Sampling] | None = None,
    seeds: Sequence[int] = (0,),
    max_new_tokens: int = 200,
    known: Words | None = None,
    copies: Copies | None = None,
    progress: bool = False,
) -> Matrix:
    """Write every text and count in it.

    Args:
        model: in evaluation mode.
        tokenizer: the model's.
        prompts: how texts begin.
        settings: ways of sampling, by name; the posts' four temperatures if left out.
        seeds: of the texts of each prompt; the same for every setting, so that settings are compared in pairs.
        max_new_tokens: of each text.
        known, copies: as for `metrics.measure`.
        progress: show a bar while standard error is a terminal.

    Raises:
        UserError: there is no prompt, setting or seed, or a prompt is longer than the context.
    """
    settings = settings_named(POSTS) if settings is None else settings
    if not prompts or not settings or not seeds:
        raise UserError("an evaluation needs at least one prompt, one setting and one seed")
    pairs = [(prompt, seed) for prompt in prompts for seed in seeds]
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


def openings(
    tokenizer: Tokenizer, stories: Iterable[str], count: int = 100, words: int = 6, length: int = 200
) -> list[tuple[str, str]]:
    """The first words of stories, to be gone on from, each with its story.

    Args:
        tokenizer: decides what `length` tokens are.
        stories: in order; those that end less than `length` tokens behind their opening are left out, and so are those
            whose opening another story had.
        count: how many to take.
        words: of an opening.
        length: tokens that a story must have behind its opening, its separator not counted.
    """
    found: dict[str, str] = {}
    for story in stories:
        places = [match.end() for match in WORD.finditer(story)]
        if len(found) == count or len(places) < words:
            continue
        opening = story[: places[words - 1]]
        rest = story[len(opening) :].partition(SEPARATOR)[0]
        if len(tokenizer.encode(rest)) >= length:
            found.setdefault(opening, story)
    return list(found.items())


def reference(
    tokenizer: Tokenizer,
    stories: Sequence[str],
    prompts: Sequence[str],
    length: int = 200,
    known: Words | None = None,
    copies: Copies | None = None,
) -> Matrix:
    """The stories' own continuations of their openings, cut to the length of the generated texts.

    Args:
        tokenizer: decides what `length` tokens are.
        stories: each begins with its prompt.
        prompts: one for each story.
        length: tokens behind the prompt.
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


def write_matrix(path: Path, found: Matrix) -> None:
    """Write the texts and their counts, one JSON object in each line, compressed; the same bytes each time."""
    lines = []
    for (n, setting), (p, prompt), (s, seed) in itertools.product(
        enumerate(found.settings), enumerate(found.prompts), enumerate(found.seeds)
    ):
        counts = {name: _json(values[n, p, s]) for name, values in found.metrics.items()}
        line = {"setting": setting, "prompt": prompt, "seed": seed, "text": found.texts[n][p][s], **counts}
        lines.append(json.dumps(line, ensure_ascii=False))
    with written_whole(path) as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as packed:
        packed.write("\n".join(lines).encode())


def read_matrix(path: Path) -> Matrix:
    """Read what `write_matrix` wrote.

    Raises:
        UserError: the file is not there, or it is not whole.
    """
    try:
        rows = [json.loads(line) for line in gzip.decompress(readable_file(path).read_bytes()).splitlines()]
        settings, prompts, seeds = (list(dict.fromkeys(row.pop(key) for row in rows)) for key in KEYS)
        texts = np.array([row.pop("text") for row in rows], dtype=object)
        shape = (len(settings), len(prompts), len(seeds))
        metrics = {
            name: np.array([np.nan if row[name] is None else row[name] for row in rows]).reshape(shape)
            for name in rows[0]
        }
        return Matrix(settings, prompts, seeds, texts.reshape(shape).tolist(), metrics)
    except (OSError, EOFError, zlib.error, ValueError, KeyError, IndexError):
        raise UserError(f"{shown(path)} is damaged: it is not a whole table of generated texts") from None


def _json(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)
