"""The loss: every token once, in the right class, with the right error, beside honest baselines."""

import json
import math
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nlm_core.errors import UserError
from nlm_core.loss import bits_per_byte, stream_nats
from nlm_core.score import CLASSES, PRIOR, ngram_nats, score, tokens_of
from nlm_core.stats import ratio_with_error
from nlm_core.tables import loss_table
from nlm_core.text import blocks, stories


@pytest.fixture
def some_stories(stories_file) -> list[str]:
    return list(islice(stories(blocks(stories_file)), 6))


@pytest.mark.parametrize("length", [2, 32, 33, 34, 65, 100, 297])
def test_every_token_but_the_first_is_scored_once_from_its_window(tiny_model, length):
    model = tiny_model.double()
    ids = np.random.default_rng(0).integers(512, size=length)
    expected = []
    for target in range(1, length):
        start = (target - 1) // 32 * 32
        with torch.no_grad():
            logits = model(torch.from_numpy(ids[None, start:target]))[0, -1]
        expected.append(F.cross_entropy(logits, torch.tensor(ids[target])).item())
    for batch_size in (1, 8):
        np.testing.assert_allclose(stream_nats(model, ids, batch_size=batch_size), expected, atol=1e-9)


def test_scoring_keeps_the_mode_and_switches_dropout_off(tiny_model):
    ids = np.arange(100)
    plain = stream_nats(tiny_model, ids)
    for block in tiny_model.blocks:
        block.dropout.p = 0.5
    tiny_model.train()
    np.testing.assert_array_equal(stream_nats(tiny_model, ids), plain)
    assert tiny_model.training


def test_bfloat16_is_close(tiny_model):
    ids = np.arange(200)
    assert stream_nats(tiny_model, ids, precision="bfloat16").mean() == pytest.approx(
        stream_nats(tiny_model, ids).mean(), abs=0.01
    )


def test_too_short_or_foreign_streams(tiny_model):
    with pytest.raises(UserError, match="at least two tokens"):
        stream_nats(tiny_model, np.array([1]))
    with pytest.raises(UserError, match="another tokenizer"):
        stream_nats(tiny_model, np.array([1, 512]))


def test_the_stream_is_the_text_and_its_classes_are_right(tokenizer):
    text = ['Don\'t go,\tTim! "No".\n<|endoftext|>\n', "It's <big> | é☃…\n<|endoftext|>\n"]
    tokens = tokens_of(tokenizer, text)
    assert tokenizer.decode(tokens.ids) == "".join(text)
    assert tokens.ids.tolist() == tokenizer.encode("".join(text))
    assert tokens.lengths.sum() == len("".join(text).encode())
    by_class = {
        name: b"".join(tokenizer.token_bytes[i] for i in tokens.ids[tokens.classes == number])
        for number, name in enumerate(CLASSES)
    }
    assert by_class["space"] == b" \t \n\n    \n\n".replace(b"    ", b"   ")
    assert by_class["punctuation"].decode() == "',!\"\".'<>|…"[:4] + "\".'<>|…"
    assert by_class["separator"] == b"<|endoftext|>" * 2
    words = by_class["word-initial"] + by_class["word-internal"]
    assert sorted(words) == sorted("DontgoTimNoItsbigé☃".encode())
    # One initial token for each word.
    assert (tokens.classes == CLASSES.index("word-initial")).sum() == len("Don t go Tim No It s big é☃".split())
    assert tokens.stories.tolist() == sorted(tokens.stories.tolist())
    first = tokens.ids[tokens.stories == 0]
    assert tokenizer.decode(first) == text[0]


def test_a_separator_glued_to_punctuation_is_still_the_separator(tokenizer):
    tokens = tokens_of(tokenizer, ["The end.<|endoftext|>\n"])
    kinds = tokens.classes.tolist()
    assert CLASSES.index("separator") in kinds
    assert tokenizer.decode(tokens.ids) == "The end.<|endoftext|>\n"


def test_summary_adds_up(tiny_model, tokenizer, some_stories):
    result = score(tiny_model, tokenizer, some_stories)
    summary = json.loads(json.dumps(result.summary()))
    assert summary["tokens"] == len(tokenizer.encode("".join(some_stories))) - 1
    assert summary["stories"] == 6
    first = tokenizer.decode_bytes(tokenizer.encode("".join(some_stories))[:1])
    assert summary["bytes"] == len("".join(some_stories).encode()) - len(first)
    nats = result.nats.sum()
    assert summary["nats_per_token"]["value"] == pytest.approx(nats / summary["tokens"])
    assert summary["bits_per_byte"]["value"] == pytest.approx(nats / math.log(2) / summary["bytes"])
    assert summary["bits_per_byte"]["value"] == pytest.approx(bits_per_byte(nats, summary["bytes"]))
    assert summary["perplexity"] == pytest.approx(math.exp(nats / summary["tokens"]))
    assert sum(row["tokens"] for row in summary["classes"].values()) == summary["tokens"]
    assert sum(row["share_of_loss"] for row in summary["classes"].values()) == pytest.approx(1)
    of_classes = sum(
        row["nats_per_token"]["value"] * row["tokens"] for row in summary["classes"].values() if row["tokens"]
    )
    assert of_classes == pytest.approx(nats)
    separators = result.classes == CLASSES.index("separator")
    rest = result.nats[~separators].sum() / math.log(2) / result.lengths[~separators].sum()
    assert summary["without_separators"]["bits_per_byte"]["value"] == pytest.approx(rest)
    assert result.lengths[separators].sum() == 6 * len("<|endoftext|>")
    assert summary["baselines"]["uniform"] == pytest.approx(math.log(512))
    assert summary["baselines"]["bigram"] < summary["baselines"]["unigram"] < summary["baselines"]["uniform"]
    table = loss_table({"text": "six stories", **summary})
    assert f"{summary['bits_per_byte']['value']:.4f}" in table


def test_one_story_has_no_error_and_no_other_half(tiny_model, tokenizer, some_stories):
    summary = score(tiny_model, tokenizer, some_stories[:1]).summary()
    assert summary["nats_per_token"]["error"] is None
    assert summary["baselines"] == {"uniform": pytest.approx(math.log(512)), "fitted_on": "nothing: it is one story"}
    json.dumps(summary, allow_nan=False)
    assert "±" not in loss_table({"text": "one", **summary}).split("class of token")[0]


def test_the_error_matches_a_bootstrap_over_units():
    random = np.random.default_rng(1)
    tokens = random.integers(50, 400, size=200).astype(float)
    nats = tokens * random.normal(1.2, 0.3, size=200)
    ratio, error = ratio_with_error(nats, tokens)
    assert ratio == pytest.approx(nats.sum() / tokens.sum())
    draws = random.integers(200, size=(4000, 200))
    spread = (nats[draws].sum(1) / tokens[draws].sum(1)).std()
    assert error == pytest.approx(spread, rel=0.06)


def test_ngram_baselines_by_hand():
    fit = np.array([0, 1, 0, 1, 0, 2])
    ids = np.array([0, 1, 2])
    nats = ngram_nats(fit, ids, 4)
    unigram, bigram, trigram = nats["unigram"], nats["bigram"], nats["trigram"]
    p1, p2 = (2 + 1) / (6 + 4), (1 + 1) / (6 + 4)
    np.testing.assert_allclose(np.exp(-unigram), [p1, p2])
    b1, b2 = (2 + PRIOR * p1) / (3 + PRIOR), (0 + PRIOR * p2) / (2 + PRIOR)
    np.testing.assert_allclose(np.exp(-bigram), [b1, b2])
    # The first target has one token before it, so there is nothing longer; "0 1" occurs twice, never before a 2.
    np.testing.assert_allclose(np.exp(-trigram), [b1, (0 + PRIOR * b2) / (2 + PRIOR)])


def test_baselines_are_never_fitted_on_the_story_they_score(tiny_model, tokenizer):
    """Stories alternate between two vocabularies: counts from the other half must not help."""
    text = ["aaaa aaaa aaaa aaaa\n<|endoftext|>\n", "zzzz zzzz zzzz zzzz\n<|endoftext|>\n"] * 10
    summary = score(tiny_model, tokenizer, text).summary()
    ids = tokens_of(tokenizer, text).ids
    leaking = ngram_nats(ids, ids, 512)
    for name in ("unigram", "trigram"):
        assert summary["baselines"][name] > leaking[name].mean() + 0.3


def test_ngram_counts_do_not_depend_on_the_blocks_they_are_made_in(monkeypatch):
    random = np.random.default_rng(0)
    fit, ids = random.integers(30, size=1000).astype(np.uint16), random.integers(30, size=200)
    whole = ngram_nats(fit, ids, 30)
    monkeypatch.setattr("nlm_core.score.FIT_AT_ONCE", 7)
    for name, nats in ngram_nats(fit, ids, 30).items():
        np.testing.assert_array_equal(whole[name], nats)
