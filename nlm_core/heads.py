"""What the ablation of single heads says of each head, and of all of them together."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from nlm_core.ablate import Losses
from nlm_core.errors import UserError
from nlm_core.stats import holm, permutation_p, ratio_interval, sign_flip_p, unit_ranks

FLIPS = 49_999  # so that the smallest p of 96 tests, 96 / (1 + FLIPS), is well below 0.01


@dataclass(frozen=True)
class Heads:
    """What each head is worth: by how much the loss rises without it, in nats per token.

    Attributes:
        clean: the loss of the whole model, in nats per token.
        deltas: (L, H) the rise of the loss; below 0 where the model predicts better without the head.
        low, high: (L, H) the ends of its 95 % interval, stories resampled, paired by story.
        p: (L, H) two-sided, whether the rise is more than chance, adjusted for testing all heads (Holm 1979).
    """

    clean: float
    deltas: Float[np.ndarray, "L H"]
    low: Float[np.ndarray, "L H"]
    high: Float[np.ndarray, "L H"]
    p: Float[np.ndarray, "L H"]

    def ranked(self) -> list[tuple[int, int]]:
        """Layer and head, the most important first."""
        order = np.argsort(-self.deltas, axis=None, kind="stable")
        return [(int(place) // self.deltas.shape[1], int(place) % self.deltas.shape[1]) for place in order]

    def counts(self, level: float = 0.05) -> dict[str, int]:
        """How many heads are above 0, below it, or can't be told from it, by the adjusted p-values."""
        sure = self.p <= level
        return {
            "above": int((sure & (self.deltas > 0)).sum()),
            "unclear": int((~sure).sum()),
            "below": int((sure & (self.deltas < 0)).sum()),
        }

    def share_of_top(self, count: int = 10) -> float:
        """The share of the summed deltas that the most important heads hold; above 1 where others harm."""
        rises = np.sort(self.deltas, axis=None)[::-1]
        return float(rises[:count].sum() / rises.sum())

    def later_matters_more(self, draws: int = 9_999, seed: int = 0) -> tuple[float, float]:
        """Spearman's correlation of layer and rise, and its two-sided p-value from permuting heads.

        Raises:
            UserError: there is one layer, or all rises are equal.
        """
        L, H = self.deltas.shape
        if L < 2:
            raise UserError("a model of one layer has no later layers")
        layers, rises = unit_ranks(np.repeat(np.arange(L), H)), unit_ranks(self.deltas.ravel())
        rho = float(layers @ rises)
        return rho, permutation_p(rho, lambda rng: float(layers @ rng.permutation(rises)), draws=draws, seed=seed)


def judge_heads(losses: Losses, n_heads: int, draws: int = 10_000, seed: int = 0) -> Heads:
    """Turn the losses of `ablate(model, ids, single_heads(config), ...)`, by story, into figures.

    Args:
        losses: of all single heads, grouped by story.
        n_heads: H, the heads of a layer.
        draws: resamples of stories behind each interval.
        seed: of the draws.

    Raises:
        UserError: there are fewer than two stories.
    """
    there = losses.targets > 0
    deltas, targets = losses.deltas[there], losses.targets[there]
    low, high = ratio_interval(deltas, targets, draws=draws, seed=seed)
    shape = (-1, n_heads)
    return Heads(
        clean=float(losses.clean.sum() / targets.sum()),
        deltas=(deltas.sum(axis=0) / targets.sum()).reshape(shape),
        low=low.reshape(shape),
        high=high.reshape(shape),
        p=holm(sign_flip_p(deltas, FLIPS, seed)).reshape(shape),
    )
