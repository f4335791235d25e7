"""Training: it learns, it keeps what it must, and it stops when it should."""

import json
import math
import signal
import threading

import numpy as np
import pytest
import safetensors.numpy
import torch
from tiny_runs import (
    SETTINGS,
    assert_same_weights,
    log_rows,
    resumed,
    trainer,
    weights,
)

from nlm_core import train
from nlm_core.config import Budget, TrainConfig, preset
from nlm_core.data import Corpus
from nlm_core.errors import Diverged, UserError
from nlm_core.launch import new_run
from nlm_core.runfolder import COLUMNS, RunFolder
from nlm_core.train import Trainer


def test_it_learns_and_writes_a_complete_log(corpus, tmp_path):
    run = trainer(tmp_path / "run", steps=60, dropout=0.0)
    last = run.run()
    rows = log_rows(tmp_path / "run")
    assert list(rows[0]) == COLUMNS
    assert [int(row["step"]) for row in rows] == sorted({*range(3, 61, 3), *range(10, 61, 10)})
    assert all(int(row["tokens"]) == int(row["step"]) * 4 * 32 for row in rows)
    assert float(rows[0]["loss"]) > float(rows[-1]["loss"]) + 0.5
    evaluated = [row for row in rows if row["validation_loss"]]
    assert [int(row["step"]) for row in evaluated] == [10, 20, 30, 40, 50, 60]
    assert float(evaluated[-1]["validation_loss"]) < math.log(512) - 0.5  # better than a uniform guess
    assert last.name == "step-00000060"
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["budget"] == {"unit": "steps", "amount": 60, "steps": 60}
    assert config["train"]["seed"] == 0
    assert config["data"]["tokenizer"]["sha256"] == corpus.tokenizer.sha256


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_two_equal_runs_end_with_equal_bits_and_another_seed_does_not(corpus, tmp_path, optimizer):
    a = trainer(tmp_path / "a", 12, optimizer=optimizer).run()
    b = trainer(tmp_path / "b", 12, optimizer=optimizer).run()
    c = trainer(tmp_path / "c", 12, optimizer=optimizer, seed=1).run()
    assert_same_weights(a, b)
    assert any(weights(a)[name].tobytes() != value.tobytes() for name, value in weights(c).items())


def test_without_a_terminal_a_line_comes_now_and_then(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "QUIET", 0)
    said = []
    settings = {**SETTINGS, "eval_every": 1000}
    new_run("tiny", "stories", tmp_path / "run", settings, Budget("steps", 7), say=said.append).run()
    assert [line.partition(":")[0] for line in said if line.startswith("step")] == [
        "step 3 of 7",
        "step 6 of 7",
        "step 7 of 7",
    ]


def test_only_two_checkpoints_are_kept(corpus, tmp_path):
    trainer(tmp_path / "run").run()
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "step-00000036",
        "step-00000040",
    ]


def test_snapshots_of_doubled_steps_stay(corpus, tmp_path):
    trainer(tmp_path / "run", 22, keep=3, keep_doublings=True).run()
    kept = sorted(int(path.name.removeprefix("step-")) for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == [1, 2, 4, 8, 16, 20, 22]


def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(corpus, tmp_path):
    run = trainer(tmp_path / "run", save_every=5)
    train_step = run._train_step

    def poisoned():
        if run.step == 12:
            with torch.no_grad():
                run.model.final_norm.weight.fill_(math.nan)
        return train_step()

    run._train_step = poisoned
    with pytest.raises(Diverged, match=r"step 13.*last good checkpoint stays in run/checkpoints/step-00000010"):
        run.run()
    kept = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert kept[-1].name == "step-00000010"
    assert all(np.isfinite(value).all() for value in weights(kept[-1]).values())


def test_a_second_run_in_the_same_folder_is_refused(corpus, tmp_path):
    first = trainer(tmp_path / "run")
    first.folder.path.mkdir()
    with first.folder.locked(), pytest.raises(UserError, match="another run is training"):
        Trainer(RunFolder(tmp_path / "run"), corpus, first.model.config, first.config, Budget("steps", 5)).run()


def test_a_new_run_does_not_touch_an_old_one(corpus, tmp_path):
    trainer(tmp_path / "run", 4).run()
    with pytest.raises(UserError, match="already holds a run"):
        trainer(tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="is not a run"):
        trainer(tmp_path / "other")


def test_budgets(corpus, tmp_path):
    assert Budget("steps", 7).steps(100) == 7
    assert Budget("tokens", 701).steps(100) == 8
    assert Budget("minutes", 1).steps(100) is None
    for amount in (0, -1, math.nan, math.inf):
        with pytest.raises(UserError, match="must be above 0"):
            Budget("steps", amount)


def test_minutes_become_steps_once_and_are_stored(corpus, tmp_path):
    said = []
    run = new_run("tiny", "stories", tmp_path / "run", SETTINGS, Budget("minutes", 0.02), say=said.append)
    run.run()
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["budget"]
    assert stored["steps"] == run.step == run.total
    assert sum("minutes are" in line for line in said) == 1
    assert resumed(tmp_path / "run").total == run.total


def test_bfloat16_runs_too(corpus, tmp_path):
    a = trainer(tmp_path / "a", 6, precision="bfloat16")
    last = a.run()
    again = trainer(tmp_path / "b", 6, precision="bfloat16").run()
    assert_same_weights(last, again)
    assert weights(last)["token_emb"].dtype == np.float32
    assert float(log_rows(tmp_path / "a")[-1]["loss"]) < 8


def test_micro_batches_add_up_to_the_batch(corpus, tmp_path):
    """Without dropout, the sum over micro-batches is the gradient of the whole batch."""
    one = trainer(tmp_path / "one", 3, dropout=0.0, micro_batch_size=4).run()
    two = trainer(tmp_path / "two", 3, dropout=0.0, micro_batch_size=1).run()
    for name, value in safetensors.numpy.load_file(one / "model.safetensors").items():
        np.testing.assert_allclose(value, safetensors.numpy.load_file(two / "model.safetensors")[name], atol=2e-5)


def test_a_corpus_without_validation_text_trains(own_root, tokenizer, tmp_path):
    from nlm_core.data import add, prepare

    text = tmp_path / "mine.txt"
    text.write_text("The cat sat on the mat. " * 100)
    add([text], "train", "mine")
    prepare("mine", tokenizer)
    model_config, config = preset("tiny", 512, SETTINGS)
    run = Trainer(RunFolder(tmp_path / "run"), Corpus.open("mine"), model_config, config, Budget("steps", 10))
    run.run()
    assert all(row["validation_loss"] == "" for row in log_rows(tmp_path / "run"))


def test_signals_are_given_back_and_work_outside_the_main_thread(corpus, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    trainer(tmp_path / "run", 2).run()
    assert signal.getsignal(signal.SIGTERM) is before
    results = []
    thread = threading.Thread(target=lambda: results.append(trainer(tmp_path / "threaded", 2).run()))
    thread.start()
    thread.join()
    assert results and results[0].name == "step-00000002"


def test_train_config_is_what_the_record_says(corpus, tmp_path):
    trainer(tmp_path / "run", 2).run()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert TrainConfig.from_dict(config["train"]).dropout == 0.2
    assert config["train"]["precision"] in ("float32", "bfloat16")
