"""The record of pruning: heads go in the order of another record, and what is left is scored."""

import numpy as np
import pytest

from nlm_core import NLM, UserError, load_checkpoint, save_checkpoint
from nlm_core.ablate import ablate
from nlm_core.config import ModelConfig
from nlm_core.records import read_record
from nlm_core.source import beginning_of, text_to_score


def test_heads_go_in_the_order_of_the_record(script, corpus, own_root, tokenizer, nlm):
    model = NLM(ModelConfig(vocab_size=512, context_length=32, d_model=16, n_layers=2, n_heads=2))
    save_checkpoint(own_root / "checkpoints" / "nlm", model, tokenizer, step=0)
    prune = script("pruning", TOKENS=300, PARTS=4)["main"]
    sweep = ["ablate", "--data", "stories", "--tokens", "0", "--out"]
    assert nlm(*sweep, own_root / "runs" / "sweep")[0] == 0
    prune(["stories", "sweep"])
    found, order = read_record("heads-pruned"), np.array(read_record("sweep").results["deltas"])
    assert found.results["sizes"] == [1, 2, 3, 4]
    heads = [tuple(head) for head in found.results["orders"]["least first"]]
    assert order[heads[0]] == order.min()
    assert order[heads[-1]] == order.max()
    assert heads[::-1] == [tuple(head) for head in found.results["orders"]["most first"]]
    shipped = load_checkpoint(own_root / "checkpoints" / "nlm")
    text = beginning_of(text_to_score("stories", "choose", tokenizer), tokenizer, 300)
    model = NLM.from_params(shipped["config"], shipped["params"])
    for mode in ("zero", "mean"):
        losses = ablate(model, text.ids, [set(heads[:2]), {heads[0]}], mode, text.stories)
        layer, head = heads[0]
        assert np.allclose(found.units[f"least first, 2, {mode}"], losses.deltas[:, 0], atol=1e-4)
        assert np.allclose(found.units[f"L{layer}H{head}, {mode}"], losses.deltas[:, 1], atol=1e-4)
        none_left = [found.units[f"{name}, 4, {mode}"] for name in ("least first", "most first", "at random")]
        assert np.allclose(none_left, none_left[0], atol=1e-4)
    assert sorted(found.results["orders"]["at random"]) == sorted(found.results["orders"]["least first"])

    assert nlm(*sweep, own_root / "runs" / "mean", "--mode", "mean")[0] == 0
    with pytest.raises(UserError, match="not a zero ablation of the shipped checkpoint"):
        prune(["stories", "mean"])
