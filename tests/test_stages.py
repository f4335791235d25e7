"""The record of stages: what is in it is what can be measured at each of them."""

import numpy as np
import pytest
import safetensors.numpy
import torch
from tiny_runs import SHAPE

from nlm_core import NLM, UserError, load_checkpoint, save_checkpoint
from nlm_core.ablate import ablate, single_heads
from nlm_core.config import Budget
from nlm_core.launch import new_run
from nlm_core.loss import stream_nats
from nlm_core.score import tokens_of
from nlm_core.source import text_to_score
from nlm_core.stages import ARRAYS, read_stages

WORDS = ["the", "a", "he"]


@pytest.fixture
def record(script):
    return script("stages", ABLATION_TOKENS=500, SEEDS=range(2), NEW_TOKENS=5, WORDS=WORDS)["main"]


@pytest.fixture
def run(corpus, own_root):
    """A run of 6 steps that kept its steps 1, 2 and 4, and its end as the shipped checkpoint, in float16."""
    settings = {**SHAPE, "keep": 1, "keep_doublings": True, "device": "cpu", "save_every": 3, "log_every": 1}
    last = new_run("tiny", "stories", own_root / "run", settings, Budget("steps", 6), say=lambda _: None).run()
    end = load_checkpoint(last)
    save_checkpoint(own_root / "checkpoints" / "nlm", NLM.from_checkpoint(last), end["tokenizer"], step=end["step"])
    return own_root / "run"


def test_each_stage_is_what_the_model_was(record, run, own_root, tokenizer, capsys):
    record([str(run), "stories", "0", "2", "4", "6"])
    found = read_stages()
    assert found.steps.tolist() == [0, 2, 4, 6]
    assert found.results["checkpoint"] == load_checkpoint(own_root / "checkpoints" / "nlm")["sha256"]
    torch.manual_seed(0)
    fresh = NLM(load_checkpoint(run)["config"])
    models = [fresh, *(NLM.from_checkpoint(run / "checkpoints" / f"step-{step:08d}") for step in (2, 4))]
    models.append(NLM.from_checkpoint(own_root / "checkpoints" / "nlm"))
    tokens = tokens_of(tokenizer, text_to_score("stories", "report", tokenizer).stories)
    for number, model in enumerate(models):
        assert np.allclose(found.pos_emb[number], model.pos_emb.detach().numpy(), atol=1e-3)
        rows = model.token_emb.detach().numpy()[[tokenizer.encode(word)[0] for word in WORDS]]
        assert np.allclose(found.vectors[number], rows, atol=1e-3)
        nats = stream_nats(model, tokens.ids)
        assert found.nats[:, number].sum() == pytest.approx(nats.sum(), rel=1e-5)
        loss = found.figures[number]["losses"]["nats_per_token"]["value"]
        assert loss == pytest.approx(nats.mean(), rel=1e-5)
        assert found.figures[number]["generation"]["words"]["0.5"]["mean"] >= 0
    first = text_to_score("stories", "report", tokenizer).stories[:1]
    losses = ablate(models[2], tokens_of(tokenizer, first).ids, single_heads(fresh.config))
    expected = (losses.deltas.sum(axis=0) / losses.targets.sum()).reshape(2, 2)
    assert np.allclose(found.deltas[2], expected, atol=1e-6)
    assert found.tokens.tolist() == [step * 8 * 32 for step in (0, 2, 4, 6)]
    assert np.array_equal(found.story_tokens.sum(), len(tokens.ids) - 1)

    # Done again, nothing is measured anew but what was damaged meanwhile.
    before = (own_root / "runs" / "stages" / ARRAYS).read_bytes()
    (kept,) = (run / "stages").glob("00000002-*.safetensors")
    changed = {name: value + 1 for name, value in safetensors.numpy.load_file(kept).items()}
    kept.write_bytes(safetensors.numpy.save(changed))
    (figures,) = (run / "stages").glob("00000004-*.json")
    figures.write_text(figures.read_text().replace("0.", "1.", 1))
    capsys.readouterr()
    record([str(run), "stories", "0", "2", "4", "6"])
    assert capsys.readouterr().out == "step 2\nstep 4\n"
    assert (own_root / "runs" / "stages" / ARRAYS).read_bytes() == before

    (own_root / "runs" / "stages" / ARRAYS).write_bytes(before[:-1])
    with pytest.raises(UserError, match="damaged"):
        read_stages()


def test_what_does_not_belong_together_is_refused(record, run, own_root):
    with pytest.raises(UserError, match="last stage has to be the shipped checkpoint's step, 6"):
        record([str(run), "stories", "0", "4"])
    with pytest.raises(UserError, match="kept no checkpoint of step 3"):
        record([str(run), "stories", "3", "6"])
