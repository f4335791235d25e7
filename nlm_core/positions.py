"""What a position table holds: how alike its rows are, and copies of it with rows in the wrong order.

Shapes: T positions, C = d_model.
"""

import numpy as np
from jaxtyping import Float, Int

from nlm_core.errors import UserError
from nlm_core.stats import bootstrap, permutation_p, unit_ranks


def shuffled(table: Float[np.ndarray, "T C"], block: int, seed: int = 0) -> Float[np.ndarray, "T C"]:
    """A position table whose rows are in random order within each block of neighbours.

    The vectors stay; only their order is wrong, and no row is further than `block` - 1 places from where it belongs.

    Args:
        table: a position table.
        block: rows in a block; with T rows or more, any row may be anywhere.
        seed: of the order.
    """
    random = np.random.default_rng(seed)
    starts = range(0, len(table), block)
    order = [random.permutation(np.arange(start, min(start + block, len(table)))) for start in starts]
    return table[np.concatenate(order)]


def damaged(table: Float[np.ndarray, "T C"]) -> dict[str, Float[np.ndarray, "T C"]]:
    """Copies of a position table, each damaged in one way.

    Returns:
        Nothing is left ("zeroed": all zeros; "mean": the mean row everywhere); the order is lost, everywhere
        ("permuted-0") or within blocks of 16 ("blocks-16"), in the first quarter only ("first") or after it only,
        within blocks as long as a quarter ("rest nearby") or anywhere ("rest"); row 0 is lost, replaced by the mean row
        ("row 0 mean"), by row 1 ("row 0 row 1") or by the row in the middle ("row 0 middle"), or only made as long as
        rows are on average ("row 0 short").
    """
    quarter = max(1, len(table) // 4)
    start, others = table[:quarter], table[quarter:]
    mean = table.mean(axis=0, keepdims=True)
    lengths = np.linalg.norm(table, axis=1)
    short = table[:1] * (lengths.mean() / lengths[0])
    return {
        "zeroed": np.zeros_like(table),
        "mean": np.tile(mean, (len(table), 1)),
        "permuted-0": shuffled(table, len(table)),
        "blocks-16": shuffled(table, 16),
        "first": np.concatenate([shuffled(start, quarter), others]),
        "rest nearby": np.concatenate([start, shuffled(others, quarter)]),
        "rest": np.concatenate([start, shuffled(others, len(table))]),
        "row 0 mean": np.concatenate([mean, table[1:]]),
        "row 0 row 1": np.concatenate([table[1:2], table[1:]]),
        "row 0 middle": np.concatenate([table[[len(table) // 2]], table[1:]]),
        "row 0 short": np.concatenate([short.astype(table.dtype), table[1:]]),
    }


def distances(T: int) -> Int[np.ndarray, "T T"]:
    """How far apart each two positions are."""
    return np.abs(np.arange(T)[:, None] - np.arange(T))


def parts(T: int) -> dict[str, slice]:
    """All of T places, and the three quarters in which the chapter on positions looks at each by itself."""
    quarter = T // 4
    middle = (T - quarter) // 2
    return {
        "all places": slice(0, T),
        "first quarter": slice(0, quarter),
        "middle quarter": slice(middle, middle + quarter),
        "last quarter": slice(T - quarter, T),
    }


def by_distance(similarity: Float[np.ndarray, "T T"], level: float = 0.8) -> Float[np.ndarray, "T-1 3"]:
    """Mean, lower and upper end of the cosines at each distance from 1 to T - 1.

    Args:
        similarity: the cosine of every pair of positions.
        level: share of the pairs of that distance that lie between the two ends.
    """
    tails = [(1 - level) / 2, (1 + level) / 2]
    pairs = [np.diagonal(similarity, offset) for offset in range(1, len(similarity))]
    return np.array([[values.mean(), *np.quantile(values, tails)] for values in pairs])


def far_interval(
    similarity: Float[np.ndarray, "T T"], far: int, blocks: int = 16, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of the mean cosine of places that are at least `far` apart.

    Neighbours resemble each other, so blocks of neighbouring places are resampled, not single ones.

    Args:
        similarity: the cosine of every pair of positions.
        far: the least distance that counts.
        blocks: into how many the places are cut.
        draws, seed: of the bootstrap.

    Raises:
        UserError: there are fewer than 2 * `far` places: in a resample no two of them may be so far apart.
    """
    T = len(similarity)
    if 2 * far > T:
        raise UserError(f"{T} places are too few for an interval over those that are {far} apart: {2 * far} are needed")
    of_block = (np.arange(T) * blocks // T == np.arange(blocks)[:, None]).astype(float)  # (blocks, T)
    counted = distances(T) >= far
    sums, numbers = (of_block @ pairs @ of_block.T for pairs in (similarity * counted, counted))

    def mean_of(drawn: np.ndarray) -> float:
        pairs = np.ix_(drawn, drawn)
        return sums[pairs].sum() / numbers[pairs].sum()

    return bootstrap(mean_of, np.arange(blocks), draws=draws, seed=seed)


def mantel(similarity: Float[np.ndarray, "T T"], draws: int = 999, seed: int = 0) -> tuple[float, float]:
    """Whether nearer positions are more alike: Spearman's correlation of distance and cosine over all pairs.

    Pairs that share a position are not independent, so the p-value comes from shuffling positions, not pairs
    (Mantel 1967): how often does a table with its rows in random order reach a correlation as low?

    Args:
        similarity: the cosine of every pair of positions.
        draws: permutations.
        seed: of the permutations.

    Returns:
        The correlation (-1: nearer is always more alike) and the one-sided p-value.
    """
    T = len(similarity)
    pairs = np.triu_indices(T, 1)
    ranks = []
    for values in (distances(T), similarity):
        square = np.zeros((T, T))
        square[pairs] = unit_ranks(values[pairs])
        ranks.append(square + square.T)  # each pair twice, the diagonal zero
    distance, likeness = ranks

    def permuted(random: np.random.Generator) -> float:
        order = random.permutation(T)
        return float(np.vdot(distance, likeness[np.ix_(order, order)])) / 2

    observed = float(np.vdot(distance, likeness)) / 2
    return observed, permutation_p(observed, permuted, draws=draws, seed=seed, tail="less")
