"""Generated texts and what was counted in them: settings compared on the same prompts and seeds; the file of both."""

import gzip
import itertools
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from nlm_core.errors import UserError
from nlm_core.files import readable_file, shown, written_whole
from nlm_core.stats import mean_interval

KEYS = ("setting", "prompt", "seed")


@dataclass(frozen=True)
class Matrix:
    """Texts and what was counted in them.

    Attributes:
        settings: N names.
        prompts: P of them.
        seeds: S of them; `evaluate.text_seed` says what each means for a prompt.
        texts: what was written after each prompt, as [setting][prompt][seed].
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
        """Each setting's mean over the prompts that have a value under every setting; nan if there is none."""
        rows = complete(self.by_prompt(metric))
        return rows.mean(axis=0) if len(rows) else np.full(len(self.settings), np.nan)

    def intervals(self, metric: str, draws: int = 2000) -> tuple[np.ndarray, np.ndarray] | None:
        """The ends of each setting's 95 % interval, prompts resampled; None with fewer than two prompts."""
        rows = complete(self.by_prompt(metric))
        return None if len(rows) < 2 else mean_interval(rows, draws=draws)

    def difference(self, metric: str, one: str, other: str, draws: int = 10_000) -> tuple[float, float, float]:
        """How much larger a metric is under one setting than under another, on the same prompts, with its interval.

        Raises:
            ValueError: there is no such setting, or no prompt has a value under both.
        """
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


def to_units(found: Matrix) -> dict[str, Float[np.ndarray, " P"]]:
    """What was counted, without the texts: a column for each metric and setting, a row for each prompt."""
    return {
        f"{metric}, {setting}": found.by_prompt(metric)[number]
        for metric in found.metrics
        for number, setting in enumerate(found.settings)
    }


def from_units(units: dict[str, Float[np.ndarray, " P"]]) -> Matrix:
    """A matrix of what `to_units` kept: no texts, one value for each prompt and setting, the mean of its seeds.

    Args:
        units: may join those of several matrices on the same prompts; metrics that one of their settings lacks are
            left out.
    """
    columns: dict[str, dict[str, np.ndarray]] = {}
    for name, values in units.items():
        metric, _, setting = name.rpartition(", ")
        columns.setdefault(metric, {})[setting] = values
    settings = list(dict.fromkeys(setting for found in columns.values() for setting in found))
    metrics = {
        metric: np.stack([found[setting] for setting in settings])[..., None]
        for metric, found in columns.items()
        if len(found) == len(settings)
    }
    prompts = [str(number) for number in range(len(next(iter(units.values()))))]
    return Matrix(settings, prompts, [0], [[[""] for _ in prompts] for _ in settings], metrics)


def complete(values: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "_ N"]:
    """A row for each prompt that has a value under every setting."""
    return values.T[~np.isnan(values).any(axis=0)]


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
    packed = readable_file(path).read_bytes()
    try:
        rows = [json.loads(line) for line in gzip.decompress(packed).splitlines()]
        settings, prompts, seeds = (list(dict.fromkeys(row[key] for row in rows)) for key in KEYS)
        if [tuple(row.pop(key) for key in KEYS) for row in rows] != list(itertools.product(settings, prompts, seeds)):
            raise ValueError("not in order")
        texts = np.array([row.pop("text") for row in rows], dtype=object)
        shape = (len(settings), len(prompts), len(seeds))
        metrics = {
            name: np.array([np.nan if row[name] is None else row[name] for row in rows]).reshape(shape)
            for name in rows[0]
        }
        return Matrix(settings, prompts, seeds, texts.reshape(shape).tolist(), metrics)
    except (OSError, EOFError, zlib.error, ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise UserError(f"{shown(path)} is damaged: it is not a whole table of generated texts") from None


def _json(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)
