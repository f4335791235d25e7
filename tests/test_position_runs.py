"""The script behind the chapter on positions: records hold what the models give; a second call trains nothing."""

import json

import numpy as np
import pytest
from tiny_runs import SHAPE

from nlm_core import NLM, UserError, save_checkpoint
from nlm_core.data import Corpus
from nlm_core.loss import stream_nats
from nlm_core.positions import damaged
from nlm_core.records import read_record


@pytest.fixture
def record(script):
    return script("positions", SETTINGS=SHAPE, SEEDS=(0, 1), STEPS=2)["main"]


def total(model: NLM, corpus: Corpus) -> float:
    return float(stream_nats(model, np.asarray(corpus.report)).astype(np.float64).sum())


def test_kinds_of_positions_are_trained_and_scored(record, corpus, own_root, capsys):
    record(["train", "stories"])
    folder = own_root / "runs" / "positions-trained"
    found = read_record("positions-trained")
    assert list(found.units) == [
        "tokens",
        *(f"{kind}-{seed}" for seed in (0, 1) for kind in ("learned", "sinusoidal", "none")),
    ]
    assert found.results["checkpoint"] is None
    assert found.results["data"]["report"]["sha256"] == corpus.manifest["maps"]["report"]["sha256"]
    assert found.units["tokens"].sum() == corpus.manifest["maps"]["report"]["tokens"] - 1
    for name in list(found.units)[1:]:
        model = NLM.from_checkpoint(folder / name)
        assert model.config.positions == name[:-2]
        assert found.units[name].sum() == pytest.approx(total(model, corpus), abs=0.01)
    assert len({values.sum() for values in found.units.values()}) == 7  # kinds and seeds all differ

    norms = np.linalg.norm(NLM.from_checkpoint(folder / "learned-1").pos_emb.detach().double().numpy(), axis=1)
    assert list(found.results["tables"]) == ["learned-0", "learned-1"]
    assert found.results["tables"]["learned-1"]["norm_0_to_mean"] == pytest.approx(norms[0] / norms.mean())

    before = (folder / "results.json").read_text()
    record(["train", "stories"])
    assert json.loads((folder / "none-1" / "config.json").read_text())["resumed"] == []
    assert (folder / "results.json").read_text() == before

    record.__globals__.update(SETTINGS={**SHAPE, "n_layers": 1})
    with pytest.raises(UserError, match="learned-0 holds a run of another n_layers: 2 and not 1; move it away first"):
        record(["train", "stories"])
    capsys.readouterr()


def test_damaged_tables_are_scored_and_the_checkpoint_named(record, corpus, own_root, tiny_model, tokenizer, capsys):
    save_checkpoint(own_root / "checkpoints" / "nlm", tiny_model, tokenizer, dtype="float32")
    record(["damage", "stories"])
    found = read_record("positions-damaged")
    assert list(found.units) == ["tokens", "intact", *damaged(np.ones((4, 1))), "permuted-1"]
    sha256 = json.loads((own_root / "checkpoints" / "nlm" / "config.json").read_text())["sha256"]
    assert found.results["checkpoint"] == sha256
    assert found.units["intact"].sum() == pytest.approx(total(tiny_model, corpus), abs=0.01)
    file = own_root / "runs" / "positions-damaged" / "results.json"
    ours = file.read_text()
    file.write_text(ours.replace(corpus.manifest["maps"]["report"]["sha256"], "of another text"))
    with pytest.raises(UserError, match="holds the record of another text; move it away first"):
        record(["damage", "stories"])
    tiny_model.pos_emb.data.zero_()
    assert found.units["zeroed"].sum() == pytest.approx(total(tiny_model, corpus), abs=0.01)
    capsys.readouterr()
