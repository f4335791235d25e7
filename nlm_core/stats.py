"""Figures with their uncertainty. Nothing here knows of models."""

import numpy as np
from jaxtyping import Float, Num


def ratio_with_error(numerators: Num[np.ndarray, " S"], denominators: Num[np.ndarray, " S"]) -> tuple[float, float]:
    """A ratio of two sums and its standard error, where whole units (stories) were drawn, not their parts (tokens).

    The usual linearised estimator for clusters of unequal size (Cochran 1977, equation 2.46): the residuals
    numerator - ratio * denominator vary from unit to unit, and their spread over the mean denominator is the error.

    Args:
        numerators: for each of S units, for example its sum of nats.
        denominators: for example its number of tokens.

    Returns:
        The ratio, and its standard error (nan with fewer than two units).
    """
    units, total = len(numerators), denominators.sum()
    ratio = numerators.sum() / total
    if units < 2:
        return float(ratio), float("nan")
    residuals = numerators - ratio * denominators
    return float(ratio), float(np.sqrt(units / (units - 1) * (residuals**2).sum()) / total)


def sums_by(groups: Num[np.ndarray, " N"], values: Num[np.ndarray, " N"], count: int) -> Float[np.ndarray, " count"]:
    """Sum the values of each group; groups are numbered from 0 to `count` - 1."""
    return np.bincount(groups, weights=values, minlength=count)
