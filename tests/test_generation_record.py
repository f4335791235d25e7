"""The record of texts that go on from a corpus' stories is what can be counted in them."""

import numpy as np
import pytest

from nlm_core import NLM, UserError, save_checkpoint
from nlm_core.config import ModelConfig
from nlm_core.evaluate import SETTINGS, evaluate_generation, reference
from nlm_core.matrix import from_units
from nlm_core.records import read_record
from nlm_core.source import text_to_score, words_and_copies


def test_texts_are_counted_beside_the_stories(script, corpus, own_root, tokenizer, monkeypatch):
    model = NLM(ModelConfig(vocab_size=512, context_length=64, d_model=16, n_layers=1, n_heads=2)).eval()
    save_checkpoint(own_root / "checkpoints" / "nlm", model, tokenizer, step=0, dtype="float32")
    module = script("generation", SEEDS=range(2), LENGTH=10)
    openings = module["openings"]
    # A module that a script imports outlives the test.
    for name, value in {"COUNT": 3, "WORDS": 2, "LENGTH": 10}.items():
        monkeypatch.setitem(openings.__globals__, name, value)
    module["main"](["stories"])
    found = from_units(read_record("generation-tinystories").units)
    assert found.settings == [*SETTINGS, "reference"]

    stories = list(text_to_score("stories", "report", tokenizer).stories)
    begun = openings(tokenizer, stories)
    prompts = list(begun)
    assert len(prompts) == 3
    known, copies = words_and_copies("stories")
    again = evaluate_generation(model, tokenizer, prompts, SETTINGS, range(2), 10, known, copies)
    own = reference(tokenizer, list(begun.values()), prompts, 10, known, copies)
    for metric in ("repeated-2", "distinct-2", "made-up words", "longest copy"):
        expected = np.concatenate([again.by_prompt(metric), own.by_prompt(metric)])
        assert np.allclose(found.by_prompt(metric), expected, equal_nan=True), metric
    record = read_record("generation-tinystories").results
    assert record["ends_within"] == openings.__globals__["ending_soon"](tokenizer, stories)
    assert record["data"]["report"]["sha256"] == corpus.manifest["maps"]["report"]["sha256"]

    monkeypatch.setitem(openings.__globals__, "LENGTH", 10_000)
    with pytest.raises(UserError, match="no story of 'stories' has 10 tokens after its first words"):
        module["main"](["stories"])
