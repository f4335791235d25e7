"""Groups of words, on vectors made by hand."""

import numpy as np
import pytest
from conftest import ROOT

from nlm_core import Tokenizer
from nlm_core.embeddings import (
    GROUPS,
    OTHERS,
    ids_of,
    nearest_in_group,
    neighbours,
    vectors_of,
    within_against_between,
    without_trend,
    words_by_group,
)
from nlm_core.errors import UserError
from nlm_core.vectors import cosines


def test_every_word_is_one_token_of_the_shipped_tokenizer():
    shipped = Tokenizer.load(ROOT / "checkpoints" / "nlm" / "tokenizer.json")
    words = [word for word, _ in words_by_group()] + OTHERS.split()
    assert len(set(words)) == len(words) == 100
    assert {len(words.split()) for words in GROUPS.values()} == {12}
    ids = ids_of(shipped, words)
    assert [shipped.decode([i]) for i in ids] == words


def test_a_word_of_several_tokens_is_named(tokenizer):
    with pytest.raises(UserError, match="squirrel"):
        ids_of(tokenizer, ["the", "squirrel"])


def test_the_vector_of_a_word_in_pieces_is_their_mean(tokenizer):
    table = np.random.default_rng(0).normal(size=(512, 4)).astype(np.float32)
    pieces = tokenizer.encode("squirrel")
    assert len(pieces) > 1
    whole, cut = vectors_of(table, tokenizer, ["the", "squirrel"])
    assert whole == pytest.approx(table[tokenizer.encode("the")[0]])
    assert cut == pytest.approx(table[pieces].mean(axis=0))


def test_groups_that_are_there_are_found_and_others_are_not():
    rng = np.random.default_rng(0)
    groups = [name for name in "abcde" for _ in range(12)]
    centres = {name: rng.normal(size=64) for name in "abcde"}
    alike = np.array([centres[name] + rng.normal(0, 2, 64) for name in groups])
    within, between, p = within_against_between(cosines(alike), groups, draws=999)
    assert within > between + 0.1
    assert p == 0.001
    _, _, p = within_against_between(cosines(rng.normal(size=(60, 64))), groups, draws=999)
    assert p > 0.05


def test_the_means_are_those_of_the_pairs():
    similarity = np.array([[1, 0.5, 0.1, 0.2], [0.5, 1, 0.3, 0.4], [0.1, 0.3, 1, 0.9], [0.2, 0.4, 0.9, 1]])
    within, between, p = within_against_between(similarity, ["a", "a", "b", "b"], draws=99)
    assert within == pytest.approx((0.5 + 0.9) / 2)
    assert between == pytest.approx((0.1 + 0.2 + 0.3 + 0.4) / 4)
    assert p == pytest.approx(1 / 3, abs=0.15)  # three ways to pair four words


def test_shuffling_words_is_right_as_often_as_it_says():
    rng = np.random.default_rng(1)
    groups = ["a"] * 5 + ["b"] * 5 + ["c"] * 5
    p = [within_against_between(cosines(rng.normal(size=(15, 8))), groups, draws=99)[2] for _ in range(200)]
    assert 0.01 <= (np.array(p) <= 0.05).mean() <= 0.1


def test_nearest_words_of_one_group():
    similarity = np.array([[1, 0.5, 0.1, 0.2], [0.5, 1, 0.3, 0.6], [0.1, 0.3, 1, 0.9], [0.2, 0.4, 0.9, 1]])
    share, p = nearest_in_group(similarity, ["a", "a", "b", "b"], draws=99)
    assert share == 3 / 4  # the second word lies nearest to the last
    assert p > 0.1
    rng = np.random.default_rng(3)
    groups = ["a"] * 20 + ["b"] * 20
    alike = np.array([(2 if name == "a" else -2) * np.ones(8) + rng.normal(size=8) for name in groups])
    assert nearest_in_group(cosines(alike), groups, draws=99) == (1.0, 0.01)


def test_what_a_scale_explains_is_taken_out():
    places = np.array([0.0, 1, 3, 7])
    distance = np.abs(places[:, None] - places)
    pairs = np.triu_indices(4, 1)
    assert without_trend(0.5 - 0.1 * distance, places)[pairs] == pytest.approx(np.zeros(6))
    rest = np.random.default_rng(4).normal(size=(4, 4))
    rest = rest + rest.T
    found = without_trend(rest - 0.1 * distance, places)[pairs]
    assert np.corrcoef(found, distance[pairs])[0, 1] == pytest.approx(0, abs=1e-9)


def test_neighbours_are_in_order_and_leave_the_word_out():
    table = np.array([[1.0, 0], [0.9, 0.1], [0, 1], [-1, 0]])
    found = neighbours(cosines(table), ["a", "b", "c", "d"], "a", count=3)
    assert [word for word, _ in found] == ["b", "c", "d"]
    assert found[2][1] == pytest.approx(-1)
