"""The committed tiny checkpoint gives the committed losses and the committed text."""

import json
from itertools import islice

import pytest
from conftest import ROOT

from nlm_core import NLM, generate, load_checkpoint
from nlm_core.score import score
from nlm_core.text import blocks, stories

GOLDEN = ROOT / "checkpoints" / "golden"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def test_it_is_the_checkpoint_that_the_figures_belong_to():
    assert load_checkpoint(GOLDEN)["sha256"] == EXPECTED["checkpoint"]
    assert sum(path.stat().st_size for path in GOLDEN.iterdir()) < 1_000_000


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
def test_losses(stories_file, precision, tolerance):
    model = NLM.from_checkpoint(GOLDEN)
    if precision == "float64":
        model = model.double()
    tok = load_checkpoint(GOLDEN)["tokenizer"]
    text = islice(stories(blocks(stories_file)), EXPECTED["scored_stories"])
    summary = score(model, tok, text).summary()
    for key in ("nats_per_token", "bits_per_byte"):
        for figure in ("value", "error"):
            assert summary[key][figure] == pytest.approx(EXPECTED["loss"][key][figure], abs=tolerance)
    for name, row in EXPECTED["loss"]["classes"].items():
        assert summary["classes"][name]["tokens"] == row["tokens"]
        found = summary["classes"][name]["nats_per_token"]["value"]
        assert found == pytest.approx(row["nats_per_token"]["value"], abs=tolerance)


def test_greedy_text():
    model = NLM.from_checkpoint(GOLDEN).double()
    tok = load_checkpoint(GOLDEN)["tokenizer"]
    prompts = list(EXPECTED["greedy"])
    texts = generate(model, tok, prompts, max_new_tokens=EXPECTED["new_tokens"], temperature=0)
    assert dict(zip(prompts, texts, strict=True)) == EXPECTED["greedy"]
