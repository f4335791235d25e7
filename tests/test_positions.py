"""Position tables: the formula, rows in the wrong order, and how alike rows are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from nlm_core.errors import UserError
from nlm_core.model import sinusoids
from nlm_core.positions import by_distance, damaged, distances, far_interval, mantel, parts, shuffled
from nlm_core.vectors import cosines


def test_the_formula_is_that_of_the_paper():
    table = sinusoids(50, 6)
    for place in (0, 1, 49):
        for i in range(3):
            angle = place / 10000 ** (2 * i / 6)
            assert table[place, 2 * i] == pytest.approx(np.sin(angle))
            assert table[place, 2 * i + 1] == pytest.approx(np.cos(angle))


@given(T=st.integers(1, 40), C=st.integers(1, 9))
def test_a_longer_table_of_the_formula_begins_with_the_shorter(T, C):
    assert np.array_equal(sinusoids(2 * T, C)[:T], sinusoids(T, C))


def test_the_cosine_of_the_formula_depends_on_the_distance_alone():
    rows = by_distance(cosines(sinusoids(64, 16)))
    assert np.ptp(rows, axis=1).max() < 1e-12


@given(T=st.integers(2, 40))
def test_each_damage_spoils_what_it_names_and_nothing_else(T):
    table = np.random.default_rng(T).normal(size=(T, 3))
    spoiled = damaged(table)
    changed = {name: set(np.flatnonzero((rows != table).any(axis=1))) for name, rows in spoiled.items()}
    first = set(range(max(1, T // 4)))
    assert changed["zeroed"] == changed["mean"] == set(range(T))
    assert changed["row 0 mean"] == changed["row 0 row 1"] == changed["row 0 middle"] == changed["row 0 short"] == {0}
    lengths, directions = (np.linalg.norm(table, axis=1), table[0] / np.linalg.norm(table[0]))
    assert np.allclose(spoiled["row 0 short"][0], directions * lengths.mean())
    assert changed["first"] <= first
    assert not (changed["rest"] | changed["rest nearby"]) & first
    for name in ("permuted-0", "blocks-16", "first", "rest", "rest nearby"):
        assert sorted(map(tuple, spoiled[name])) == sorted(map(tuple, table))


@given(T=st.integers(1, 40), block=st.integers(1, 50), seed=st.integers(0, 5))
def test_shuffled_rows_stay_within_their_block(T, block, seed):
    moved = shuffled(np.arange(T, dtype=float)[:, None], block, seed)[:, 0]
    assert sorted(moved) == list(range(T))
    assert np.array_equal(moved // block, np.arange(T) // block)


def test_shuffling_moves_rows_and_follows_the_seed():
    table = np.arange(64.0)[:, None]
    assert not np.array_equal(shuffled(table, 8, 0), table)
    assert np.array_equal(shuffled(table, 8, 0), shuffled(table, 8, 0))
    assert not np.array_equal(shuffled(table, 8, 0), shuffled(table, 8, 1))
    assert np.array_equal(shuffled(table, 1), table)


def test_cosines_against_numpy():
    table = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    a, b = table[1].astype(float), table[4].astype(float)
    assert cosines(table)[1, 4] == pytest.approx(a @ b / np.sqrt((a @ a) * (b @ b)))
    a, b = a - table.mean(axis=0, dtype=float), b - table.mean(axis=0, dtype=float)
    assert cosines(table, centred=True)[1, 4] == pytest.approx(a @ b / np.sqrt((a @ a) * (b @ b)), abs=1e-6)


def test_a_shared_direction_makes_rows_alike_until_they_are_centred():
    table = 5 + np.random.default_rng(0).normal(size=(40, 20))
    above = np.triu_indices(40, 1)
    assert cosines(table)[above].mean() > 0.9
    assert abs(cosines(table, centred=True)[above].mean()) < 0.1


def test_by_distance_takes_every_pair_once():
    rows = by_distance(np.where(distances(4) == 1, 0.5, -0.25), level=0.5)
    assert rows.tolist() == [[0.5, 0.5, 0.5], [-0.25, -0.25, -0.25], [-0.25, -0.25, -0.25]]
    picture = np.zeros((4, 4))
    picture[0, 1] = 1.0
    assert by_distance(picture)[:, 0].tolist() == [pytest.approx(1 / 3), 0, 0]


def test_mantel_equals_spearman_over_pairs_with_ties():
    picture = cosines(np.random.default_rng(1).normal(size=(12, 3))).round(1)
    above = np.triu_indices(12, 1)
    observed, p = mantel(picture, draws=49)
    assert observed == pytest.approx(spearmanr(distances(12)[above], picture[above]).statistic)
    assert 1 / 50 <= p <= 1


def test_mantel_sees_nearness_and_only_nearness():
    rho, p = mantel(cosines(sinusoids(48, 32)), draws=199)
    assert rho < -0.8
    assert p == pytest.approx(1 / 200)
    by_chance = [mantel(cosines(np.random.default_rng(seed).normal(size=(24, 32))), draws=99)[1] for seed in range(60)]
    assert 0 < np.mean(np.array(by_chance) <= 0.2) < 0.4  # a p-value is as small as 0.2 one time in five


def test_rows_in_random_order_are_no_longer_near():
    assert abs(mantel(cosines(shuffled(sinusoids(64, 32), 64)), draws=49)[0]) < 0.2


@pytest.mark.parametrize("T", [512, 256, 64, 10])
def test_parts_are_the_whole_and_three_equal_quarters(T):
    places = [np.arange(T)[span] for span in parts(T).values()]
    assert len(places[0]) == T
    assert {len(part) for part in places[1:]} == {T // 4}
    assert (places[1][0], places[3][-1]) == (0, T - 1)
    assert abs(places[2].mean() - (T - 1) / 2) <= 0.5


def test_far_places_have_an_interval_over_blocks():
    place = np.linspace(0, np.pi, 128)
    circle = np.column_stack([np.cos(place), np.sin(place)])
    noise = np.random.default_rng(0).normal(0, 0.3, size=circle.shape)
    similarity = cosines(circle + noise)
    low, high = far_interval(similarity, 64)
    far = np.abs(np.arange(128)[:, None] - np.arange(128)) >= 64
    assert low < similarity[far].mean() < high < 0
    assert (low, high) == far_interval(similarity, 64)
    with pytest.raises(UserError, match=r"128 places are too few .* 65 apart: 130 are needed"):
        far_interval(similarity, 65)
