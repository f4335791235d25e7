"""Figures with their uncertainty: intervals over whole units, permutation tests, rank correlation.

A unit is what was drawn independently: a story, a prompt, a training seed; never a token or a dimension of a vector.
Nothing here knows of models.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Num, Shaped

from nlm_core.errors import UserError

Interval = tuple[float, float] | tuple[np.ndarray, np.ndarray]


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


def bootstrap_draws(
    statistic: Callable[..., Any], *units: Shaped[np.ndarray, "_ ..."], draws: int = 10_000, seed: int = 0
) -> Shaped[np.ndarray, "draws ..."]:
    """A statistic's values when whole units are resampled (Efron & Tibshirani 1993).

    Each draw takes S of the S units at random, with replacement, the same ones from every array: what was measured on
    one unit stays together, so that differences within a unit are paired. `statistic` is called as on the data itself.
    With a row of rates (one for each temperature) for each prompt, the share of draws in which column 2 is the lowest:

        (bootstrap_draws(lambda rates: rates.mean(axis=0).argmin(), rates) == 2).mean()

    Args:
        statistic: takes one array for each of `units`, of the same shape, and returns a number or an array.
        units: arrays whose first axis counts the same S units in the same order.
        draws: how many times to resample.
        seed: of the resampling.

    Returns:
        The statistic of each draw.

    Raises:
        UserError: there are fewer than two units, the arrays don't match, or a value isn't finite.
    """
    if len({len(array) for array in units}) != 1:
        raise UserError(f"a bootstrap needs arrays over the same units, not of lengths {[len(u) for u in units]}")
    count = len(units[0])
    if count < 2:
        raise UserError(f"a bootstrap needs at least two units to resample, not {count}: measure more of them")
    if draws < 1:
        raise UserError(f"a bootstrap needs one draw or more, not {draws}")
    _check_finite("a value to resample", *units)
    rng = np.random.default_rng(seed)
    drawn = []
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 in an unlucky draw is reported below, in one line
        for _ in range(draws):
            rows = rng.integers(count, size=count)
            drawn.append(statistic(*(array[rows] for array in units)))
    values = np.array(drawn)
    _check_finite("the statistic of a resample", values)
    return values


def bootstrap(
    statistic: Callable[..., Any],
    *units: Shaped[np.ndarray, "_ ..."],
    draws: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """A percentile interval for a statistic, from resampling whole units: the middle of its `bootstrap_draws`.

        bootstrap(lambda cold, warm: np.median(cold - warm), cold, warm)

    With few units the interval is too narrow (below ten, a 95 % interval of a mean misses more than one time in ten):
    then show the values themselves as well.

    Args:
        statistic, units, draws, seed: as in `bootstrap_draws`.
        level: the share of draws within the interval.

    Returns:
        The lower and the upper end; two arrays, with one interval for each element, if the statistic is an array.

    Raises:
        UserError: there are fewer than two units, the arrays don't match, a value isn't finite, or the level isn't
            between 0 and 1.
    """
    if not 0 < level < 1:
        raise UserError(f"the level of an interval lies between 0 and 1, not at {level}: 0.95 is the usual one")
    drawn = bootstrap_draws(statistic, *units, draws=draws, seed=seed)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return (float(low), float(high)) if drawn.ndim == 1 else (low, high)


def mean_interval(
    values: Shaped[np.ndarray, "S ..."], draws: int = 10_000, level: float = 0.95, seed: int = 0
) -> Interval:
    """The bootstrap interval of a mean over units; for paired measurements give their differences.

    Args:
        values: one number (or true/false) for each of S units, or a row of them, such as one for each head.
        draws, level, seed: as in `bootstrap`.

    Returns:
        The lower and the upper end; two arrays if `values` has rows.

    Raises:
        UserError: there are fewer than two units, or a value isn't finite.
    """
    return bootstrap(lambda drawn: drawn.mean(axis=0), values, draws=draws, level=level, seed=seed)


def ratio_interval(
    numerators: Shaped[np.ndarray, "S ..."],
    denominators: Shaped[np.ndarray, " S"],
    draws: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """The bootstrap interval of a ratio of two sums, such as nats per token with whole stories resampled.

    The difference of two losses over the same tokens is a ratio as well: with the nats `a` and `b` of each story,
    `ratio_interval(a - b, tokens)` is its paired interval, free of what makes some stories harder than others.

    Args:
        numerators: one number for each of S units, or a row of them, such as one for each head.
        denominators: one number for each unit, for example its number of tokens.
        draws, level, seed: as in `bootstrap`.

    Returns:
        The lower and the upper end; two arrays if `numerators` has rows.

    Raises:
        UserError: there are fewer than two units, the arrays don't match, or a value isn't finite.
    """
    return bootstrap(
        lambda above, below: above.sum(axis=0) / below.sum(),
        numerators,
        denominators,
        draws=draws,
        level=level,
        seed=seed,
    )


def permutation_p(
    observed: float,
    draw: Callable[[np.random.Generator], float],
    draws: int = 999,
    seed: int = 0,
    tail: str = "two-sided",
) -> float:
    """The p-value of a statistic against its values under random permutations.

    p = (1 + permutations at least as extreme) / (1 + permutations): never zero, since the observed order is one of
    the possible ones (Phipson & Smyth 2010). The smallest possible p is 1 / (1 + draws): take more draws if many
    p-values are to be corrected.

        permutation_p(spearman(layer, delta), lambda rng: spearman(layer, rng.permutation(delta)), tail="greater")

    Args:
        observed: the statistic of the data.
        draw: returns the statistic under one random permutation, made with the generator that it is given.
        draws: how many permutations.
        seed: of the generator.
        tail: which values are extreme, "less", "greater" or "two-sided"; the last p is twice the smaller of the other
            two, 1 at most.

    Raises:
        UserError: the tail is unknown, there is no draw, or a statistic isn't finite.
    """
    if tail not in ("less", "greater", "two-sided"):
        raise UserError(f'tail must be "less", "greater" or "two-sided", not {tail!r}')
    if draws < 1:
        raise UserError(f"a permutation test needs one draw or more, not {draws}")
    rng = np.random.default_rng(seed)
    drawn = np.array([draw(rng) for _ in range(draws)])
    _check_finite("a statistic under permutation", np.array(observed), drawn)
    # A permutation that changes nothing may sum in another order: what rounding alone sets apart counts as equal.
    slack = 1e-12 * max(abs(observed), float(np.abs(drawn).max()))
    less = (1 + int((drawn <= observed + slack).sum())) / (1 + draws)
    greater = (1 + int((drawn >= observed - slack).sum())) / (1 + draws)
    return {"less": less, "greater": greater, "two-sided": min(1.0, 2 * min(less, greater))}[tail]


def sign_flip_p(differences: Num[np.ndarray, "S M"], draws: int = 9_999, seed: int = 0) -> Float[np.ndarray, " M"]:
    """Whether paired differences are more than chance, for M of them at once: two-sided p-values of their sums.

    If what was done to a unit made no difference, its difference would have either sign with equal chance. So each draw
    flips the signs of units at random, and p is the share of draws (the data among them) whose sum is as far from 0
    (Fisher 1935). The signs of a draw are the same for all M, as the units are.

    Args:
        differences: for each of S units a row, such as what the ablation of each head costs in a story.
        draws: how many times to flip; the smallest possible p is 1 / (1 + draws).
        seed: of the flips.

    Raises:
        UserError: there is no draw, or a value isn't finite.
    """
    if draws < 1:
        raise UserError(f"a permutation test needs one draw or more, not {draws}")
    _check_finite("a difference", differences)
    rng = np.random.default_rng(seed)
    observed = np.abs(differences.sum(axis=0))
    extreme = np.ones(differences.shape[1])
    for start in range(0, draws, 1000):  # so many at a time: the signs of all draws at once would fill memory
        signs = rng.choice([-1.0, 1.0], size=(min(1000, draws - start), len(differences)))
        # What rounding alone sets apart counts as equal, as in `permutation_p`.
        extreme += (np.abs(signs @ differences) >= observed * (1 - 1e-12)).sum(axis=0)
    return extreme / (1 + draws)


def holm(p_values: Num[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
    """P-values adjusted for being M tests at once (Holm 1979): those at most alpha are significant together at alpha.

    The k-th smallest of M, counted from 0, is multiplied by M - k, and none may fall below a smaller one's.

    Raises:
        UserError: a p-value lies outside 0 to 1.
    """
    if not ((p_values >= 0) & (p_values <= 1)).all():  # nan fails as well
        raise UserError("p-values must lie between 0 and 1")
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.maximum.accumulate(factors * p_values[order]).clip(max=1)
    return adjusted


def unit_ranks(values: Num[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Ranks (ties share their mean), centred and scaled to length 1: a dot product of two such is Spearman's rho.

    A permutation of the values only permutes their ranks. A test over many permutations can therefore rank once and
    take a dot product each time, which is many times quicker.

    Raises:
        UserError: a value isn't finite, or all are equal.
    """
    from scipy.stats import rankdata  # here, since loading it takes longer than many a command

    _check_finite("a value to rank", values)
    ranks = rankdata(values)
    ranks -= ranks.mean()
    length = np.linalg.norm(ranks)
    if length == 0:
        raise UserError("a rank correlation needs values that differ: these are all equal")
    return ranks / length


def spearman(x: Num[np.ndarray, " N"], y: Num[np.ndarray, " N"]) -> float:
    """Spearman's rank correlation of two lists of N values; ties share their mean rank.

    Raises:
        UserError: a value isn't finite, or all of a list are equal.
    """
    return float(unit_ranks(x) @ unit_ranks(y))


def _check_finite(what: str, *arrays: np.ndarray) -> None:
    if not all(np.isfinite(array).all() for array in arrays):
        raise UserError(f"{what} isn't finite: look for nan or infinity in what was measured")
