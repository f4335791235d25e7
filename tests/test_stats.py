"""Intervals that cover what they should, permutation tests and corrections that give the known answers."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nlm_core.errors import UserError
from nlm_core.stats import (
    bootstrap,
    bootstrap_draws,
    holm,
    mean_interval,
    permutation_p,
    ratio_interval,
    ratio_with_error,
    spearman,
    unit_ranks,
)

SMALL_WHOLE = st.integers(-5, 5)  # a narrow range, so that there are many ties


def test_a_95_percent_interval_of_a_mean_covers_the_truth_about_as_often():
    # 400 repeats of an experiment with 50 units, as columns.
    repeats = np.random.default_rng(0).exponential(size=(50, 400))
    low, high = mean_interval(repeats, draws=1000)
    assert low.shape == high.shape == (400,)
    assert 0.90 <= ((low < 1) & (high > 1)).mean() <= 0.98


def test_a_95_percent_interval_of_a_ratio_covers_the_truth_about_as_often():
    rng = np.random.default_rng(1)
    tokens = rng.integers(50, 400, size=60)
    nats = tokens[:, None] * rng.normal(1.5, 0.4, size=(60, 400))
    low, high = ratio_interval(nats, tokens, draws=1000)
    assert 0.90 <= ((low < 1.5) & (high > 1.5)).mean() <= 0.98


def test_a_ratio_interval_agrees_with_the_standard_error():
    rng = np.random.default_rng(2)
    tokens = rng.integers(50, 400, size=300)
    nats = tokens * rng.normal(1.5, 0.4, size=300)
    ratio, error = ratio_with_error(nats, tokens)
    low, high = ratio_interval(nats, tokens)
    assert low == pytest.approx(ratio - 1.96 * error, abs=0.2 * error)
    assert high == pytest.approx(ratio + 1.96 * error, abs=0.2 * error)


def test_a_paired_difference_is_far_more_certain_than_two_losses_apart():
    rng = np.random.default_rng(3)
    tokens = rng.integers(50, 400, size=200)
    before = tokens * rng.normal(1.5, 0.5, size=200)  # stories differ much
    after = before + tokens * rng.normal(0.02, 0.01, size=200)  # the change hardly does
    low, high = ratio_interval(after - before, tokens, draws=2000)
    assert 0 < low < 0.02 < high
    apart = [np.subtract(*ratio_interval(nats, tokens, draws=2000)[::-1]) for nats in (before, after)]
    assert high - low < 0.1 * min(apart)


def test_arrays_are_resampled_together_and_whole():
    # In every draw each row is still one of the data's, beside its own partner.
    rows = np.arange(10)[:, None] + np.array([0, 100])
    partners = np.arange(10) * 7
    seen = bootstrap_draws(lambda a, b: [*(a[:, 1] - a[:, 0]), *(b - 7 * a[:, 0])], rows, partners, draws=20)
    assert seen.shape == (20, 20)
    assert (seen[:, :10] == 100).all() and (seen[:, 10:] == 0).all()
    taken = bootstrap_draws(lambda a: a[:, 0], rows, draws=200)
    assert taken.shape == (200, 10)
    assert set(taken.ravel()) == set(range(10))
    assert any(len(set(draw)) < 10 for draw in taken)  # with replacement


def test_the_same_seed_gives_the_same_interval_and_another_seed_another():
    values = np.random.default_rng(4).normal(size=30)
    assert mean_interval(values, draws=200) == mean_interval(values, draws=200, seed=0)
    assert mean_interval(values, draws=200) != mean_interval(values, draws=200, seed=1)


def test_the_level_is_the_share_of_draws_within():
    values = np.random.default_rng(5).normal(size=30)
    draws = bootstrap_draws(np.mean, values, draws=2000)
    low, high = bootstrap(np.mean, values, draws=2000, level=0.8)
    assert isinstance(low, float) and isinstance(high, float)
    assert np.mean(draws < low) == pytest.approx(0.1, abs=0.01)
    assert np.mean(draws > high) == pytest.approx(0.1, abs=0.01)


def test_true_and_false_count_as_one_and_zero():
    ended = np.array([True] * 30 + [False] * 10)
    assert mean_interval(ended, draws=500) == mean_interval(ended.astype(float), draws=500)


def test_columns_get_the_intervals_that_they_would_get_alone():
    rng = np.random.default_rng(6)
    deltas, tokens = rng.normal(size=(40, 3)), rng.integers(1, 9, size=40)
    low, high = ratio_interval(deltas, tokens, draws=300)
    for head in range(3):
        assert ratio_interval(deltas[:, head], tokens, draws=300) == pytest.approx((low[head], high[head]))


@settings(max_examples=30)
@given(arrays(float, st.integers(2, 20), elements=st.floats(-100, 100)), st.floats(-100, 100))
def test_an_interval_of_a_mean_moves_with_the_values_and_stays_within_them(values, shift):
    low, high = mean_interval(values, draws=20)
    assert values.min() - 1e-9 <= low <= high <= values.max() + 1e-9
    assert mean_interval(values + shift, draws=20) == pytest.approx((low + shift, high + shift), abs=1e-9)


@pytest.mark.parametrize(
    ("units", "options", "complaint"),
    [
        ([np.array([1.0])], {}, "at least two units"),
        ([np.array([])], {}, "at least two units"),
        ([np.ones(3), np.ones(4)], {}, r"lengths \[3, 4\]"),
        ([], {}, "arrays over the same units"),
        ([np.array([1.0, np.nan])], {}, "isn't finite"),
        ([np.array([1.0, -np.inf])], {}, "isn't finite"),
        ([np.ones(3)], {"draws": 0}, "one draw or more"),
        ([np.ones(3)], {"level": 95.0}, "between 0 and 1"),
    ],
)
def test_a_bootstrap_refuses_what_it_cannot_resample(units, options, complaint):
    with pytest.raises(UserError, match=complaint):
        bootstrap(lambda *arrays: 0.0, *units, **options)


def test_a_ratio_whose_denominator_vanishes_in_some_draws_is_refused():
    with pytest.raises(UserError, match="statistic of a resample isn't finite"):
        ratio_interval(np.array([1.0, 0.0, 0.0]), np.array([2.0, 0.0, 0.0]))


def test_a_permutation_p_counts_the_observed_among_the_permutations():
    # A statistic that no permutation reaches, one that all reach, and one in the middle of 0 to 8.
    values = iter(range(9))
    assert permutation_p(100.0, lambda rng: rng.random(), tail="greater") == 1 / 1000
    assert permutation_p(100.0, lambda rng: rng.random(), tail="less") == 1
    assert permutation_p(100.0, lambda rng: rng.random()) == 2 / 1000
    assert permutation_p(7.0, lambda rng: float(next(values)), draws=9, tail="greater") == (1 + 2) / 10


def test_a_permutation_that_changes_nothing_is_as_extreme_whatever_the_rounding():
    observed = 0.1 + 0.2
    assert permutation_p(observed, lambda rng: 0.3, tail="greater") == 1
    assert permutation_p(0.3, lambda rng: observed, tail="less") == 1


def test_a_permutation_p_comes_near_the_exact_one():
    # Three against three: of the 20 ways to choose the first three, only the observed one gives the largest difference.
    values = np.array([7.0, 8.0, 9.0, 1.0, 2.0, 3.0])

    def difference(values: np.ndarray) -> float:
        return values[:3].mean() - values[3:].mean()

    p = permutation_p(difference(values), lambda rng: difference(rng.permutation(values)), draws=4000, tail="greater")
    assert p == pytest.approx(1 / 20, abs=0.015)
    both = permutation_p(difference(values), lambda rng: difference(rng.permutation(values)), draws=4000)
    assert both == pytest.approx(2 / 20, abs=0.03)


def test_a_permutation_test_is_right_as_often_as_it_says_where_nothing_differs():
    rng = np.random.default_rng(7)
    p_values = []
    for seed in range(200):
        x, y = rng.normal(size=(2, 12))
        x, y = unit_ranks(x), unit_ranks(y)
        p_values.append(permutation_p(float(x @ y), lambda rng, x=x, y=y: x @ rng.permutation(y), 99, seed))
    assert 0.01 <= np.mean(np.array(p_values) <= 0.05) <= 0.10


def test_a_permutation_test_repeats_by_seed():
    p = [permutation_p(1.0, lambda rng: rng.normal(), seed=seed, tail="greater") for seed in (0, 0, 1)]
    assert p[0] == p[1] != p[2]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [({"tail": "both"}, "tail must be"), ({"draws": 0}, "one draw or more"), ({"observed": np.nan}, "isn't finite")],
)
def test_a_permutation_test_refuses_nonsense(options, complaint):
    with pytest.raises(UserError, match=complaint):
        permutation_p(**({"observed": 1.0, "draw": lambda rng: 0.0} | options))


def test_holm_on_a_worked_example():
    # Sorted: 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1; the last is lifted to the one before it.
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.7, 0.6])) == pytest.approx([1, 1])
    assert holm(np.array([0.2])) == pytest.approx([0.2])
    assert holm(np.array([])).shape == (0,)


@settings(max_examples=30)
@given(arrays(float, st.integers(1, 30), elements=st.floats(0, 1)))
def test_holm_lies_between_no_correction_and_bonferroni_and_keeps_the_order(p_values):
    adjusted = holm(p_values)
    assert (adjusted >= p_values).all()
    assert (adjusted <= np.minimum(1, len(p_values) * p_values)).all()
    assert (np.diff(adjusted[np.argsort(p_values)]) >= 0).all()


@pytest.mark.parametrize("p", [-0.1, 1.1, np.nan])
def test_holm_refuses_what_is_no_p_value(p):
    with pytest.raises(UserError, match="between 0 and 1"):
        holm(np.array([0.5, p]))


@settings(max_examples=30)
@given(st.lists(st.tuples(SMALL_WHOLE, SMALL_WHOLE), min_size=2, max_size=40))
def test_spearman_equals_scipys_with_ties(pairs):
    x, y = np.array(pairs).T
    assume(len(set(x)) > 1 and len(set(y)) > 1)
    assert spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)


@settings(max_examples=30)
@given(arrays(float, st.integers(2, 30), elements=st.floats(-3, 3, width=16), unique=True))
def test_spearman_sees_only_the_order(values):
    assert spearman(values, np.exp(values)) == pytest.approx(1)
    assert spearman(values, -(values**3) - values) == pytest.approx(-1)


def test_ranks_can_be_permuted_instead_of_ranking_anew():
    # The test of the position table: pairs of positions, permuted by permuting the positions.
    rng = np.random.default_rng(8)
    row, column = np.triu_indices(12, 1)
    cosines = rng.integers(0, 20, size=(12, 12)).astype(float)
    cosines += cosines.T
    ranks = np.zeros((12, 12))
    ranks[row, column] = ranks[column, row] = unit_ranks(cosines[row, column])
    order = rng.permutation(12)
    moved = np.ix_(order, order)
    once = unit_ranks(column - row) @ ranks[moved][row, column]
    assert once == pytest.approx(spearman(column - row, cosines[moved][row, column]))


def test_a_rank_correlation_refuses_what_has_no_order():
    with pytest.raises(UserError, match="all equal"):
        spearman(np.ones(5), np.arange(5))
    with pytest.raises(UserError, match="isn't finite"):
        spearman(np.arange(3), np.array([1, np.nan, 2]))
