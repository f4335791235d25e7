"""What the rows work on: how much of it, and the shipped model and text that both sides get."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from benchmarks.machine import ROOT
from nlm_core.checkpoint import load_checkpoint
from nlm_core.config import TrainConfig, preset
from nlm_core.model import NLM
from nlm_core.text import SEPARATOR
from nlm_core.tokenizer import Tokenizer

STORIES = ROOT / "data" / "stories.txt"


@dataclass
class Inputs:
    """The sizes of all rows, with model and text. The defaults are those of the published figures.

    Attributes:
        checkpoint: a folder in checkpoints/.
        rounds: of each comparison.
        trials: of each setting that the peer may choose.
        compile: whether the peer may choose torch.compile.
        batch_size: B of the training step.
        memory_rounds: fresh processes of each side.
        new_tokens: written for each prompt.
        prompts: written at once.
        score_windows: scored in each round; 7 rounds of 56 windows of 512 are 200,704 tokens.
        ablation_windows: in each round.
        growth_batches, growth_contexts: of training steps.
        growth_megabytes: of text to prepare.
    """

    checkpoint: str = "nlm"
    rounds: int = 7
    trials: int = 3
    compile: bool = True
    batch_size: int = 8
    memory_rounds: int = 7
    new_tokens: int = 200
    prompts: int = 40
    score_windows: int = 56
    ablation_windows: int = 2
    growth_batches: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32])
    growth_contexts: list[int] = field(default_factory=lambda: [64, 128, 256, 512])
    growth_megabytes: list[float] = field(default_factory=lambda: [1, 10, 100, 1000])

    @classmethod
    def quick(cls) -> "Inputs":
        """All of the code, on a tiny model and in seconds; the figures mean nothing."""
        return cls(
            checkpoint="golden",
            rounds=2,
            trials=1,
            compile=False,
            batch_size=4,
            memory_rounds=1,
            new_tokens=20,
            prompts=3,
            score_windows=8,
            growth_batches=[2],
            growth_contexts=[64],
            growth_megabytes=[0.1],
        )

    @cached_property
    def _loaded(self) -> dict:
        return load_checkpoint(ROOT / "checkpoints" / self.checkpoint)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._loaded["tokenizer"]

    @cached_property
    def text(self) -> str:
        return STORIES.read_text(encoding="utf-8")

    @cached_property
    def ids(self) -> np.ndarray:
        """(N,) the tokens of data/stories.txt."""
        return np.array(self.tokenizer.encode(self.text), dtype=np.uint16)

    def model(self) -> NLM:
        """A fresh copy of the model, in float32."""
        return NLM.from_params(self._loaded["config"], self._loaded["params"])

    def windows(self, number: int, count: int) -> np.ndarray:
        """A stretch of the text for a round: `count` windows of the context's length, and the token behind them.

        The text is read in a circle, so that rounds may want more than there is.
        """
        tokens = count * self._loaded["config"].context_length
        return np.take(self.ids, np.arange(number * tokens, (number + 1) * tokens + 1), mode="wrap")

    def openings(self, count: int) -> list[str]:
        """The first five words of the first stories, as prompts."""
        return [" ".join(story.split()[:5]) for story in self.text.split(SEPARATOR)[:count]]

    def train_config(self, batch_size: int | None = None) -> TrainConfig:
        """What `nlm train --preset nlm --set optimizer=adamw` would use, at this batch size."""
        overrides = {"optimizer": "adamw", "batch_size": batch_size or self.batch_size}
        return preset("nlm", self.tokenizer.vocab_size, overrides)[1]
