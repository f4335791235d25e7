"""Row: the loss of 200,000 tokens, beside transformers' forward pass in the same precision.

Each round scores a stretch of the text of its own, on both sides, and the rounds together score it all once. The peer
gets the same windows and returns the same thing: the nats of every token. For that it uses its logits and torch's
cross-entropy.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.inputs import Inputs
from benchmarks.measure import Candidate, Goal, Side, alternate, best_of, require_agreement, row, say, timed
from benchmarks.peers import ATTENTION, compiled, gpt2_of
from nlm_core.hardware import autocast, fast_bfloat16
from nlm_core.loss import stream_nats
from nlm_core.model import NLM

NAME = "loss of {:,} tokens, {}"
GOAL = Goal(1.2, 2)
CPU = torch.device("cpu")
BATCH_SIZES = (4, 8, 16)
# Largest difference of a token's nats, and of the mean.
TOLERANCES = {"float32": (1e-4, 1e-6), "bfloat16": (0.5, 5e-3)}


@dataclass(frozen=True)
class PeerSettings:
    """How transformers scores: in `precision`, with `attention`, `batch` windows at a time, compiled or not."""

    precision: str
    attention: str
    compile: bool
    batch: int


class PeerScorer:
    """transformers' GPT-2 over the windows of `stream_nats`."""

    def __init__(self, model: NLM, settings: PeerSettings):
        self.gpt2, self.settings, self.T = gpt2_of(model, settings.attention), settings, model.config.context_length
        self.nats = compiled(self._nats) if settings.compile else self._nats

    def _nats(self, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = self.gpt2(input_ids=inputs, use_cache=False).logits  # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")

    @torch.no_grad()
    def __call__(self, ids: np.ndarray) -> np.ndarray:
        ids = torch.from_numpy(ids.astype(np.int64))
        inputs, targets = ids[:-1].view(-1, self.T), ids[1:].view(-1, self.T)
        nats = []
        for rows in torch.arange(len(inputs)).split(self.settings.batch):
            with autocast(CPU, self.settings.precision):
                nats.append(self.nats(inputs[rows], targets[rows]))
        return torch.cat(nats).float().numpy()


def measure_one(inputs: Inputs, precision: str) -> dict[str, Any]:
    model = inputs.model()
    per_round = inputs.score_windows * model.config.context_length
    name = NAME.format(inputs.rounds * per_round, precision)
    say(name)
    sample = inputs.windows(0, 2 * max(BATCH_SIZES))  # to choose and to compare by
    ours = stream_nats(model, sample, precision=precision)
    agreements: dict[PeerSettings, Any] = {}
    scorers: dict[PeerSettings, PeerScorer] = {}

    def build(settings: PeerSettings) -> Callable[[], Callable[[], np.ndarray]]:
        def fresh() -> Callable[[], np.ndarray]:
            scorers[settings] = PeerScorer(model, settings)
            theirs = scorers[settings](sample)
            largest, mean = TOLERANCES[precision]
            found = {
                "a token's nats": (float(np.abs(ours - theirs).max()), largest),
                "the mean": (float(abs(ours.mean(dtype=float) - theirs.mean(dtype=float))), mean),
            }
            agreements[settings] = require_agreement("the losses", found)
            return lambda: scorers[settings](sample)

        return fresh

    candidates = [
        Candidate(asdict(settings), build(settings))
        for compiling in ([False, True] if inputs.compile else [False])
        for attention in ATTENTION
        for batch in BATCH_SIZES
        for settings in [PeerSettings(precision, attention, compiling, batch)]
    ]
    best, tried = best_of(candidates, inputs.trials)
    settings = PeerSettings(**best.settings)
    peer = scorers[settings]
    stretches = [inputs.windows(number, inputs.score_windows) for number in range(inputs.rounds)]
    say("    in turn")
    times = alternate(
        timed(lambda number: stream_nats(model, stretches[number], precision=precision)),
        timed(lambda number: peer(stretches[number])),
        inputs.rounds,
    )
    return row(
        name,
        GOAL,
        (Side("nlm", {"precision": precision}), times[0]),
        (Side("transformers", asdict(settings)), times[1]),
        per_round,
        "tokens/s",
        agreements[settings],
        nats_per_token=float(ours.mean(dtype=float)),
        peer_tried=tried,
    )


def measure(inputs: Inputs) -> list[dict[str, Any]]:
    """In float32, and also in bfloat16 where the processor is fast at it."""
    return [measure_one(inputs, precision) for precision in ["float32"] + ["bfloat16"] * fast_bfloat16(CPU)]
