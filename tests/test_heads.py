"""Figures of heads, on losses made by hand."""

import numpy as np
import pytest

from nlm_core.ablate import Losses
from nlm_core.errors import UserError
from nlm_core.heads import Heads, judge_heads
from nlm_core.stats import ratio_interval, sign_flip_p
from nlm_core.tables import heads_table


@pytest.fixture
def losses():
    """60 stories, 2 layers of 2 heads: one that costs 0.5 nats a token, one that harms, two without effect."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(50, 200, size=60).astype(float)
    clean = tokens * rng.normal(2, 0.3, size=60)
    effect = np.array([0.5, -0.2, 0.0, 0.0])
    deltas = tokens[:, None] * (effect + rng.normal(0, 0.05, size=(60, 4)))
    nothing = np.zeros(1)  # a story without a target, as a first one of one token has none
    return Losses(
        np.append(nothing, clean), np.vstack([np.zeros(4), clean[:, None] + deltas]), np.append(nothing, tokens)
    )


def test_each_figure_is_the_losses(losses):
    heads = judge_heads(losses, n_heads=2, draws=500)
    assert heads.deltas.shape == (2, 2)
    expected = losses.deltas.sum(axis=0) / losses.targets.sum()
    assert np.allclose(heads.deltas.ravel(), expected)
    assert heads.clean == pytest.approx(losses.clean.sum() / losses.targets.sum())
    low, high = ratio_interval(losses.deltas[1:], losses.targets[1:], draws=500)
    assert np.allclose(heads.low.ravel(), low)
    assert np.allclose(heads.high.ravel(), high)
    assert heads.ranked()[0] == (0, 0)
    assert heads.ranked()[-1] == (0, 1)
    assert heads.counts() == {"above": 1, "unclear": 2, "below": 1}


def test_the_share_of_the_top_is_of_the_whole_sum():
    deltas = np.array([[3.0, -1.0], [2.0, 0.0]])
    heads = Heads(1.0, deltas, deltas, deltas, np.zeros((2, 2)))
    assert heads.share_of_top(1) == 3 / 4
    assert heads.share_of_top(2) == 5 / 4  # the others take some of it away again


def test_later_layers_that_matter_more_are_found():
    rng = np.random.default_rng(1)
    rising = np.arange(12)[:, None] + rng.normal(0, 3, size=(12, 8))
    none = rng.normal(size=(12, 8))
    rho, p = Heads(1.0, rising, rising, rising, rising).later_matters_more(999)
    assert rho > 0.5
    assert p < 0.01
    rho, p = Heads(1.0, none, none, none, none).later_matters_more(999)
    assert abs(rho) < 0.3
    assert p > 0.01
    with pytest.raises(UserError, match="no later layers"):
        Heads(1.0, none[:1], none[:1], none[:1], none[:1]).later_matters_more()


def test_flipped_signs_tell_effects_from_none():
    rng = np.random.default_rng(2)
    p = sign_flip_p(np.column_stack([rng.normal(0.5, 1, 100), rng.normal(-0.5, 1, 100), rng.normal(0, 1, 100)]))
    assert p[0] < 0.01
    assert p[1] < 0.01
    assert p[2] > 0.05
    assert p.min() >= 1e-4


def test_flipped_signs_without_an_effect_are_wrong_as_often_as_they_say():
    none = np.random.default_rng(3).standard_t(3, size=(30, 2000))
    assert 0.03 <= (sign_flip_p(none, draws=999) <= 0.05).mean() <= 0.07


def test_flipped_signs_of_few_units_are_the_exact_test():
    p = sign_flip_p(np.array([[1.0], [2.0], [3.0]]), draws=20_000)
    assert p[0] == pytest.approx(2 / 8, abs=0.01)  # all of one sign: 2 of 8 ways
    with pytest.raises(UserError, match="one draw or more"):
        sign_flip_p(np.ones((2, 1)), draws=0)
    with pytest.raises(UserError, match="finite"):
        sign_flip_p(np.array([[np.nan], [1.0]]))


def test_the_table_says_it_all(losses):
    heads = judge_heads(losses, n_heads=2, draws=500)
    table = heads_table(heads, {"text": "made.txt", "stories": 60, "tokens": 7000, "mode": "zero"}, top=2)
    assert f"{heads.deltas[0, 0]:+.4f}" in table
    assert "1 of 4 heads help, 1 harm; for 2 we can't tell" in table
    assert "the first 2 hold" in table


def test_no_share_is_shown_of_a_sum_below_0():
    measured = {"text": "a text", "stories": 3, "tokens": 30, "mode": "zero"}
    for last, shown in ((-1.0, True), (-9.0, False)):
        deltas = np.array([[3.0, 1.0], [2.0, last]])
        table = heads_table(Heads(1.0, deltas, deltas, deltas, np.ones((2, 2))), measured, top=1)
        assert ("the first 1 hold" in table) == shown
