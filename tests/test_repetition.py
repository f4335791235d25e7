"""Probabilities of continuations, against the plainest way to compute them."""

import math

import numpy as np
import pytest
import torch

from nlm_core.errors import UserError
from nlm_core.repetition import Endings, again, continuation_nats, endings


@pytest.fixture
def model(sharp_model):
    return sharp_model


def chance(model, ids, token, temperature=1.0):
    """Of one token after others."""
    with torch.no_grad():
        return float((model(torch.tensor([ids]))[0, -1].double() / temperature).softmax(dim=-1)[token])


def test_a_continuation_is_the_product_of_its_tokens(model, tokenizer):
    beginning, then = "The dog", " and the"
    for number, temperature in enumerate((0.5, 1.0)):
        expected, ids = 1.0, tokenizer.encode(beginning)
        for token in tokenizer.encode(then):
            expected *= chance(model, ids, token, temperature)
            ids.append(token)
        found = continuation_nats(model, tokenizer, beginning, then, (0.5, 1.0))
        assert math.exp(-found[number]) == pytest.approx(expected, rel=1e-4)
    with pytest.raises(UserError, match="at least one token"):
        continuation_nats(model, tokenizer, "", "x")


def test_a_phrase_said_again(model, tokenizer):
    found = again(model, tokenizer, [("A dog", " and a dog")], times=(0, 2), temperatures=(1.0,))
    assert found.shape == (1, 2, 1)
    expected = np.exp(-continuation_nats(model, tokenizer, "A dog and a dog and a dog", " and a dog"))
    assert found[0, 1] == pytest.approx(expected)


def test_the_control_is_a_phrase_that_was_not_said(model, tokenizer):
    phrases = [("A dog", " and a dog"), ("He ran", " and ran")]
    found = again(model, tokenizer, phrases, times=(1,), temperatures=(1.0,), other=True)
    expected = np.exp(-continuation_nats(model, tokenizer, "A dog and a dog", " and ran"))
    assert found[0, 0] == pytest.approx(expected)
    expected = np.exp(-continuation_nats(model, tokenizer, "He ran and ran", " and a dog"))
    assert found[1, 0] == pytest.approx(expected)


def by_hand(model, tokenizer, text):
    ids, product = tokenizer.encode(text), 1.0
    for token in tokenizer.encode("\n<|endoftext|>"):
        product *= chance(model, ids, token)
        ids.append(token)
    return product


def test_the_separator_after_every_sentence(model, tokenizer):
    found = endings(model, tokenizer, "A. B!\nC.<|endoftext|>\n")
    assert found is None  # no newline before the separator
    found = endings(model, tokenizer, 'A. "B!"\nC...\n<|endoftext|>\n')
    assert isinstance(found, Endings)
    assert found.at_end == pytest.approx(by_hand(model, tokenizer, 'A. "B!"\nC...'), rel=1e-3)
    expected = [by_hand(model, tokenizer, "A."), by_hand(model, tokenizer, 'A. "B!"')]
    assert found.elsewhere == pytest.approx(expected, rel=1e-3)
    assert found.before == pytest.approx(expected[-1], rel=1e-3)


def test_stories_without_such_an_end_or_too_long_are_left_out(model, tokenizer):
    assert endings(model, tokenizer, "No end") is None
    assert endings(model, tokenizer, "It ends in the middle of a\n<|endoftext|>\n") is None
    assert endings(model, tokenizer, "A dog. " * 30 + "It ends.\n<|endoftext|>\n") is None


def test_some_sentences_stand_for_many(model, tokenizer):
    found = endings(model, tokenizer, "A. B. C. D. E.\n<|endoftext|>\n", most=2)
    assert len(found.elsewhere) == 2
    assert found.before == pytest.approx(by_hand(model, tokenizer, "A. B. C. D."), rel=1e-3)
    again = endings(model, tokenizer, "A. B. C. D. E.\n<|endoftext|>\n", most=2)
    assert found.elsewhere.tolist() == again.elsewhere.tolist()
