"""What is counted in a text, by hand on small ones."""

import doctest
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlm_core import metrics
from nlm_core.errors import UserError
from nlm_core.metrics import (
    Copies,
    by_frequency,
    carry_over,
    distinct,
    ends_a_sentence,
    hashes_of_runs,
    made_up,
    measure,
    name_consistency,
    ngrams,
    read_words,
    repeated,
    seq_rep,
    type_token_ratio,
    words_of,
    write_words,
)


def test_the_examples():
    assert doctest.testmod(metrics).failed == 0


def test_words_leave_punctuation_and_the_separator_out():
    assert words_of("“Look,” said Mia’s dad -- 3 birds!\n<|endoftext|>\nOnce") == [
        "look",
        "said",
        "mia's",
        "dad",
        "3",
        "birds",
        "once",
    ]


def test_repetition():
    words = "tom and his dog and his dog and his dog".split()
    assert [repeated(words, n) for n in (1, 2, 3, 6, 7, 11)] == [6, 5, 4, 1, 0, 0]
    assert seq_rep(words) == 3 / 7
    assert distinct(words, 1) == 4 / 10
    assert math.isnan(seq_rep(["one"]))


def test_variety_needs_texts_of_one_length():
    words = ["a", "b", "a", "c", "d"]
    assert type_token_ratio(words, 4) == 3 / 4
    assert type_token_ratio(words, 5) == 4 / 5
    assert math.isnan(type_token_ratio(words, 6))


@pytest.mark.parametrize("text", ["She ran.", 'He said, "Go!"', "“Why?”", "The end. \n", "(so it was.)"])
def test_endings_of_sentences(text):
    assert ends_a_sentence(text)


@pytest.mark.parametrize("text", ["She ran", "She ran,", "Stop! he", "", "The end.<|endoftext|>"])
def test_other_endings(text):
    assert not ends_a_sentence(text)


def test_made_up_words():
    assert made_up("the flumbo sat".split(), {"the", "sat"}) == 1 / 3
    assert math.isnan(made_up([], set()))


def test_names_that_stay():
    first = "One day, Tom met Lily in the park, and they had a lot of fun there. "
    assert name_consistency(first + "Then Tom and Lily and Ben went home to eat a very big cake.") == 2 / 3
    assert name_consistency("Tom was a boy who liked to play all day. Then it was Tom who ran home.") == 1
    assert math.isnan(name_consistency(first + "Then they all went home to eat a big cake with much cream."))
    assert math.isnan(name_consistency("no names, no sentences, and nobody at all is here"))
    assert (
        name_consistency(first + "Then only Lily went home to sleep. <|endoftext|> Anna and Max and Bo and Sue.") == 1
    )


def test_what_a_story_stays_with():
    known = {"the", "a", "and", "was", "bird", "sang", "flew", "tree"}
    assert carry_over("the bird sang and the bird flew flumbo the bird was a tree", known) == 1 / 3  # flew, bird, tree
    assert carry_over("a bird sang there and the tree and the tree", known) == 0
    assert carry_over("a bird sang <|endoftext|> the bird and the bird and the bird", known) == 0
    assert math.isnan(carry_over("the bird and the", known))


def test_words_are_kept_in_the_order_of_how_often_they_stand(tmp_path):
    words = by_frequency(["the dog, the cat, the dog<|endoftext|>", "A dog's dog"])
    assert words == ["dog", "the", "a", "cat", "dog's"]
    write_words(tmp_path / "words.txt", words)
    file = tmp_path / "words.txt"
    assert file.read_text() == "dog\nthe\na\ncat\ndog's\n# 5 words\n"
    assert read_words(file) == {"dog": 1, "the": 2, "a": 3, "cat": 4, "dog's": 5}
    whole = file.read_bytes()
    for damaged in (whole[:9], whole.replace(b"cat\n", b""), b"\xff" + whole, b"\n"):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=r"words\.txt is damaged"):
            read_words(file)


def longest_by_hand(words, text):
    known = words_of(text)
    for n in range(len(words), 0, -1):
        if set(ngrams(words, n)) & set(ngrams(known, n)):
            return n
    return 0


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abcd"), max_size=40))
def test_the_longest_copy_is_found(words, known):
    text = " ".join(known)
    assert Copies([text]).longest_run(words) == longest_by_hand(words, text)


def test_no_copy_reaches_from_one_text_into_the_next():
    assert Copies(["a b", "c d"]).longest_run(["b", "c"]) == 1
    assert Copies(["a b", "c d"]).longest_run(["b", "x", "c"]) == 1


def test_copies_count_no_further_than_was_asked_for():
    text = " ".join(map(str, range(30)))
    assert Copies([text], longest=7).longest_run(words_of(text)) == 7
    assert Copies([text]).longest_run(words_of(text)) == 30


def test_different_runs_have_different_hashes():
    runs = np.array(list(itertools.product(range(12), repeat=4)))
    assert len({int(hashes_of_runs(run, 4)[0]) for run in runs}) == 12**4


def test_all_of_it_by_name():
    text = "Tom saw a cat. Then Tom saw a cat again, and he flumboed."
    known = set(words_of(text)) - {"flumboed"}
    found = measure(text, known, copies=Copies(["he saw a cat there"]), length=5)
    assert found["words"] == 13
    assert found["repeated-2"] == 3
    assert found["type-token-5"] == 1
    assert found["sentence end"] == 1
    assert found["separator"] == 0
    assert found["made-up words"] == 1 / 13
    assert found["longest copy"] == 3
    assert not {"made-up words", "carry-over"} & set(measure(text))
    assert "longest copy" not in measure(text)


def test_the_prompt_has_told_of_its_names_and_its_subject():
    known = {"freddy", "whole", "wide", "wood", "once", "fox"}
    text = " was there, and then all at once there was only Freddy in the whole wide wood."
    assert measure(text)["name consistency"] == 0
    told = measure(text, known, prompt="Once fox Freddy")
    assert told["name consistency"] == 1
    assert told["carry-over"] > measure(text, known)["carry-over"]
    assert told["words"] == measure(text)["words"]  # the prompt itself is not counted
