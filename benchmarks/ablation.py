"""Row: what the loss becomes without each single head (zero mode), beside transformer-lens' hooks on the same weights.

The peer does it as its users do: one forward pass for each head, in which a hook sets that head's z to zero. Compiled,
hooks that stay in place multiply z by a mask, since changing hooks would compile anew for each head.
"""

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.inputs import Inputs
from benchmarks.measure import Candidate, Goal, Side, alternate, best_of, require_agreement, row, say, timed
from benchmarks.peers import compiled, hooked_of
from benchmarks.profiles import step_profile
from nlm_core.ablate import ablate, single_heads
from nlm_core.hardware import autocast
from nlm_core.model import NLM

NAME = "head ablation, {} heads"
GOAL = Goal(4, 10)
CPU = torch.device("cpu")
# Largest difference in what a head's absence costs, in nats per token, over all heads.
TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}


@dataclass(frozen=True)
class PeerSettings:
    """How transformer-lens runs: in `precision`, compiled or not, `batch` windows at a time."""

    precision: str
    compile: bool
    batch: int


class PeerAblation:
    """HookedTransformer with hooks on z."""

    def __init__(self, model: NLM, settings: PeerSettings):
        self.model, self.settings, self.config = hooked_of(model), settings, model.config
        self.mask = torch.ones(self.config.n_layers, self.config.n_heads, 1)
        if settings.compile:
            for layer, block in enumerate(self.model.blocks):
                block.attn.hook_z.add_perma_hook(lambda z, hook, layer=layer: z * self.mask[layer])  # (B, T, H, D)
            self.forward = compiled(self.model)

    def _logits(self, inputs: Tensor, head: tuple[int, int] | None) -> Tensor:
        if self.settings.compile:
            self.mask.fill_(1)
            if head is not None:
                self.mask[head] = 0
            return self.forward(inputs)
        if head is None:
            return self.model(inputs)

        def zero(z: Tensor, hook: Any) -> Tensor:
            z[:, :, head[1]] = 0
            return z

        return self.model.run_with_hooks(inputs, fwd_hooks=[(f"blocks.{head[0]}.attn.hook_z", zero)])

    @torch.no_grad()
    def __call__(self, ids: np.ndarray, ablations: list[Collection[tuple[int, int]]]) -> np.ndarray:
        """Return what each ablation costs: (A,), in nats per token."""
        ids = torch.from_numpy(ids.astype(np.int64))
        T = self.config.context_length
        inputs, targets = ids[:-1].view(-1, T), ids[1:].view(-1, T)
        sums = []
        for head in [None, *(next(iter(heads)) for heads in ablations)]:
            total = 0.0
            for rows in torch.arange(len(inputs)).split(self.settings.batch):
                with autocast(CPU, self.settings.precision):
                    logits = self._logits(inputs[rows], head)
                nats = F.cross_entropy(logits.flatten(0, 1).float(), targets[rows].flatten(), reduction="none")
                total += nats.double().sum().item()
            sums.append(total)
        return (np.array(sums[1:]) - sums[0]) / targets.numel()


def our_deltas(model: NLM, ids: np.ndarray, ablations: list[Collection[tuple[int, int]]]) -> np.ndarray:
    """As `PeerAblation`, by `ablate`."""
    losses = ablate(model, ids, ablations, "zero")
    return losses.deltas[0] / losses.targets[0]


def measure(inputs: Inputs) -> list[dict[str, Any]]:
    model = inputs.model()
    heads = single_heads(model.config)
    name = NAME.format(len(heads))
    say(name)
    few = [heads[0], heads[len(heads) // 2], heads[-1]]  # to choose by
    sample = inputs.windows(0, inputs.ablation_windows)
    ours = {len(some): our_deltas(model, sample, some) for some in (few, heads)}
    peers: dict[PeerSettings, PeerAblation] = {}

    def agreement(settings: PeerSettings, some: list[Collection[tuple[int, int]]]) -> dict[str, Any]:
        difference = float(np.abs(ours[len(some)] - peers[settings](sample, some)).max())
        found = {"what a head's absence costs": (difference, TOLERANCES[settings.precision])}
        return require_agreement("the ablations", found)

    def build(settings: PeerSettings) -> Callable[[], Callable[[], np.ndarray]]:
        def fresh() -> Callable[[], np.ndarray]:
            peers[settings] = PeerAblation(model, settings)
            agreement(settings, few)
            return lambda: peers[settings](sample, few)

        return fresh

    candidates = [
        Candidate(asdict(settings), build(settings))
        for compiling in ([False, True] if inputs.compile else [False])
        for batch in sorted({1, inputs.ablation_windows})
        for precision in ("float32", "bfloat16")
        for settings in [PeerSettings(precision, compiling, batch)]
    ]
    best, tried = best_of(candidates, inputs.trials)
    settings = PeerSettings(**best.settings)
    agreed = {
        "largest cost of a head": float(np.abs(ours[len(heads)]).max()),
        "heads compared": len(heads),
        **agreement(settings, heads),
    }
    stretches = [inputs.windows(number, inputs.ablation_windows) for number in range(inputs.rounds)]
    say("    in turn")
    times = alternate(
        timed(lambda number: our_deltas(model, stretches[number], heads)),
        timed(lambda number: peers[settings](stretches[number], heads)),
        inputs.rounds,
    )
    tokens = inputs.ablation_windows * model.config.context_length
    made = row(
        name,
        GOAL,
        (Side("nlm", {"precision": "float32"}), times[0]),
        (Side("transformer-lens", asdict(settings)), times[1]),
        len(heads) * tokens,
        "tokens x heads/s",
        agreed,
        tokens_per_round=tokens,
        heads=len(heads),
        peer_tried=tried,
    )
    made["profile"] = step_profile(lambda: our_deltas(model, sample, heads))
    return [made]
