"""Training: it learns, it stops when asked, and a run that was interrupted ends like one that was not."""

import contextlib
import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from nlm_core import train
from nlm_core.checkpoint import load_checkpoint
from nlm_core.config import Budget, TrainConfig, preset
from nlm_core.data import Corpus
from nlm_core.errors import Diverged, UserError
from nlm_core.launch import new_run, resume_run
from nlm_core.runfolder import COLUMNS, RunFolder
from nlm_core.train import Trainer

SHAPE = {"context_length": 32, "d_model": 16, "n_layers": 2, "n_heads": 2}
# Dropout, micro-batches, both optimizers and the schedule all have to survive a kill.
SETTINGS = {
    **SHAPE,
    "dropout": 0.2,
    "batch_size": 4,
    "micro_batch_size": 2,
    "warmup_steps": 5,
    "log_every": 3,
    "eval_every": 10,
    "eval_tokens": 500,
    "save_every": 4,
    "device": "cpu",
}
STEPS = 40


def trainer(out: Path, steps: int = STEPS, **settings) -> Trainer:
    return new_run("tiny", "stories", out, {**SETTINGS, **settings}, Budget("steps", steps), say=lambda _: None)


def resumed(out: Path, budget: Budget | None = None, **settings) -> Trainer:
    return resume_run(out, None, settings, budget, say=lambda _: None)


def weights(folder: Path) -> dict[str, np.ndarray]:
    return {
        **safetensors.numpy.load_file(folder / "model.safetensors"),
        **safetensors.numpy.load_file(folder / "optimizer.safetensors"),
    }


def assert_same_weights(a: Path, b: Path) -> None:
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].tobytes() == second[name].tobytes(), name


def log_rows(run: Path) -> list[dict[str, str]]:
    with open(run / "log.csv", newline="") as file:
        return list(csv.DictReader(file))


def without_times(run: Path) -> list[list[str]]:
    return [[row[column] for column in COLUMNS[:6]] for row in log_rows(run)]


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


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_stopped_by_a_signal_and_resumed_equals_uninterrupted(corpus, tmp_path, optimizer):
    whole = trainer(tmp_path / "whole", optimizer=optimizer).run()
    part = trainer(tmp_path / "part", optimizer=optimizer)
    stop_after(part, 17)
    assert part.run().name == "step-00000017"
    assert part.stop_signal == signal.SIGTERM
    again = resumed(tmp_path / "part")
    assert_same_weights(whole, again.run())
    assert without_times(tmp_path / "whole") == without_times(tmp_path / "part")


def stop_after(run: Trainer, steps: int) -> None:
    """Send this process a real SIGTERM during a given step."""
    train_step = run._train_step

    def step_then_signal():
        loss = train_step()
        if run.step + 1 == steps:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    run._train_step = step_then_signal


def test_a_signal_during_an_evaluation_stops_at_once_and_loses_nothing(corpus, tmp_path, monkeypatch):
    whole = trainer(tmp_path / "whole", 14, micro_batch_size=2).run()
    parts = 0

    def signalled(*args, real=train.stream_nats):
        nonlocal parts
        parts += 1
        os.kill(os.getpid(), signal.SIGINT)
        return real(*args)

    run = trainer(tmp_path / "run", 14, micro_batch_size=2)
    with monkeypatch.context() as patch:
        patch.setattr(train, "stream_nats", signalled)
        assert run.run().name == "step-00000010"
    assert parts == 1 < 500 / (2 * 32)
    assert [row["step"] for row in log_rows(tmp_path / "run")] == ["3", "6", "9"]
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert_same_weights(whole, resumed(tmp_path / "run").run())
    assert without_times(tmp_path / "whole") == without_times(tmp_path / "run")
    # Killed after the line of step 10 was written, but before the next checkpoint: the line is not there twice.
    shutil.copy(tmp_path / "run" / "log.csv", tmp_path / "copy" / "log.csv")
    assert_same_weights(whole, resumed(tmp_path / "copy").run())
    assert without_times(tmp_path / "whole") == without_times(tmp_path / "copy")


def test_a_signal_during_the_last_evaluation(corpus, tmp_path, monkeypatch):
    """Resuming evaluates, and the checkpoint on disk then holds the result."""
    run = trainer(tmp_path / "run", 10)

    def signalled(*args, real=train.stream_nats):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(train, "stream_nats", signalled)
        last = run.run()
    assert "validation_loss" not in load_checkpoint(last)["metrics"]
    assert resumed(tmp_path / "run").run() == last
    assert load_checkpoint(last)["metrics"]["validation_step"] == 10
    before = (tmp_path / "run" / "log.csv").read_bytes()
    resumed(tmp_path / "run").run()
    assert (tmp_path / "run" / "log.csv").read_bytes() == before


def test_the_record_keeps_what_the_run_began_on(corpus, tmp_path):
    trainer(tmp_path / "run", 2).run()
    before = torch.get_num_threads()
    said = []
    try:
        torch.set_num_threads(before + 1)
        for steps in (4, 6):
            resume_run(tmp_path / "run", None, {}, Budget("steps", steps), say=said.append).run()
    finally:
        torch.set_num_threads(before)
    assert sum("began with other threads" in line for line in said) == 2
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert record["machine"]["threads"] == before
    assert [(entry["step"], entry["threads"]) for entry in record["resumed"]] == [(2, before + 1), (4, before + 1)]


def test_a_trainer_never_starts_over_an_old_run(corpus, tmp_path):
    run = trainer(tmp_path / "run", 4)
    last = run.run()
    before = weights(last)
    with pytest.raises(UserError, match="already holds a run"):
        Trainer(RunFolder(tmp_path / "run"), corpus, run.model.config, run.config, Budget("steps", 4)).run()
    assert all(before[name].tobytes() == value.tobytes() for name, value in weights(last).items())


def test_a_kill_right_after_minutes_became_steps(corpus, tmp_path):
    """The learning rate depends on the run's length from that step on: a resumed run begins no earlier."""
    run = new_run("tiny", "stories", tmp_path / "run", {**SETTINGS, "save_every": 1000}, Budget("minutes", 1.0))
    run.say = lambda _: None
    write_config = run.folder.write_config
    writes = 0

    def killed_at_the_second_write(record):
        nonlocal writes
        write_config(record)
        writes += 1
        if writes == 2:
            raise KeyboardInterrupt

    run.folder.write_config = killed_at_the_second_write
    with pytest.raises(KeyboardInterrupt):
        run.run()
    again = resumed(tmp_path / "run")
    assert again.total is not None
    assert [int(path.name[5:]) for path in (tmp_path / "run" / "checkpoints").iterdir()] == [run.step]


def test_a_lost_checkpoint_is_said(corpus, tmp_path):
    trainer(tmp_path / "run", 4).run()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    said = []
    resume_run(tmp_path / "run", None, {}, None, say=said.append).run()
    assert any("starts again from step 0" in line for line in said)


def test_a_copy_that_a_person_made_is_neither_the_newest_nor_pruned(corpus, tmp_path):
    trainer(tmp_path / "run", 8).run()
    folder = tmp_path / "run" / "checkpoints"
    shutil.copytree(folder / "step-00000004", folder / "step-best")
    assert load_checkpoint(tmp_path / "run")["step"] == 8
    resumed(tmp_path / "run", Budget("steps", 16)).run()
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000012", "step-00000016", "step-best"]


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ({"model": {"n_heads": 4}}, None, "n_heads is 4, but the run was trained with 2"),
        ({"model": {"d_model": 32}}, None, "d_model is 32"),
        ({"train": {"lr": 0.5}}, None, "lr is 0.5"),
        ({"train": {"optimizer": "adamw"}}, None, "optimizer is 'adamw'"),
        (None, {"model": []}, "is not the record of a run"),
        (None, {"machine": None}, "is not the record of a run"),
        (None, {"resumed": "x"}, "is not the record of a run"),
        ({"budget": {"steps": "abc"}}, None, "is not the record of a run"),
    ],
)
def test_an_edited_record_is_refused(corpus, tmp_path, part, value, message):
    trainer(tmp_path / "run", 4).run()
    file = tmp_path / "run" / "config.json"
    record = json.loads(file.read_text())
    for key, changes in (part or {}).items():
        record[key] |= changes
    file.write_text(json.dumps(record | (value or {})))
    with pytest.raises(UserError, match=message):
        resumed(tmp_path / "run").run()


@pytest.mark.parametrize("start", [b"1,2,3\n", b"\xff\xfe", b"step,tokens,loss,more\n"])
def test_a_damaged_log_does_not_stop_a_run(corpus, tmp_path, start):
    trainer(tmp_path / "run", 4).run()
    log = tmp_path / "run" / "log.csv"
    log.write_bytes(start + log.read_bytes())
    resumed(tmp_path / "run", Budget("steps", 6)).run()
    assert [row["step"] for row in log_rows(tmp_path / "run")] == ["6"]
    assert (tmp_path / "run" / "log.csv.damaged").read_bytes().startswith(start)


def test_a_log_saved_by_a_spreadsheet_is_read(corpus, tmp_path):
    trainer(tmp_path / "run", 4).run()
    log = tmp_path / "run" / "log.csv"
    log.write_bytes(b"\xef\xbb\xbf" + log.read_bytes())
    resumed(tmp_path / "run", Budget("steps", 6)).run()
    assert [row["step"] for row in log_rows(tmp_path / "run")] == ["3", "4", "6"]


KILLED = """
import sys, torch
torch.set_num_threads(1)
from pathlib import Path
import test_train
run = test_train.trainer(Path(sys.argv[1])) if sys.argv[2] == "new" else test_train.resumed(Path(sys.argv[1]))
log = run.folder.log
def told(**row):
    log(**row)
    print(row["step"], flush=True)
run.folder.log = told
save = run._save
def told_save():
    print("saving", flush=True)
    save()
run._save = told_save
run.run()
print("done", flush=True)
"""


def run_until(out: Path, how: str, words: list[str]) -> list[str]:
    """Train in a process of its own and kill it with SIGKILL when it has said all of `words`, one after the other."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(out), how],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    ) as process:
        said = []
        for line in process.stdout:
            said.append(line.strip())
            if words and said[-1] == words[0]:
                words = words[1:]
                if not words:
                    process.kill()
                    break
    return said


def test_killed_at_several_moments_and_resumed_equals_uninterrupted(corpus, tmp_path):
    """SIGKILL: before the first checkpoint, while a checkpoint is being written, and between two checkpoints."""
    whole = trainer(tmp_path / "whole").run()
    out = tmp_path / "killed"
    said = run_until(out, "new", ["3"])
    assert "done" not in said
    said = run_until(out, "resume", ["saving", "saving"])
    assert "done" not in said
    said = run_until(out, "resume", ["18"])
    assert "done" not in said
    said = run_until(out, "resume", ["saving", "saving", "saving"])
    assert "done" not in said
    resumed(out).run()
    assert_same_weights(whole, out / "checkpoints" / "step-00000040")
    assert without_times(tmp_path / "whole") == without_times(out)


def test_killed_at_every_point_of_saving(corpus, tmp_path, monkeypatch):
    """A crash at any file operation of a save leaves a run that resumes to the same weights."""
    whole = trainer(tmp_path / "whole", 8).run()

    class Crash(BaseException):
        pass

    crashed_at = 0
    for crash_at in range(1, 100):
        out = tmp_path / f"crash{crash_at}"
        calls = 0

        def fsync(descriptor, real=os.fsync, crash_at=crash_at):
            nonlocal calls
            calls += 1
            if calls == crash_at:
                raise Crash
            real(descriptor)

        with monkeypatch.context() as patch, contextlib.suppress(Crash):
            patch.setattr(os, "fsync", fsync)
            trainer(out, 8).run()
        if calls < crash_at:
            break
        crashed_at += 1
        again = resumed(out) if RunFolder(out).started() else trainer(out, 8)
        assert_same_weights(whole, again.run())
    assert crashed_at > 10


def test_a_damaged_newest_checkpoint_falls_back_and_ends_the_same(corpus, tmp_path):
    whole = trainer(tmp_path / "whole").run()
    part = trainer(tmp_path / "part")
    stop_after(part, 18)
    part.run()
    newest = tmp_path / "part" / "checkpoints" / "step-00000018" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    said = []
    again = resume_run(tmp_path / "part", None, {}, None, say=said.append)
    assert_same_weights(whole, again.run())
    assert any("damaged" in line for line in said)
    assert "going on from step 16" in said


def test_only_two_checkpoints_are_kept(corpus, tmp_path):
    trainer(tmp_path / "run").run()
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "step-00000036",
        "step-00000040",
    ]


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


@pytest.mark.parametrize(
    ("change", "word"), [({"lr": 0.1}, "lr was"), ({"d_model": 32}, "d_model was"), ({"seed": 5}, "seed was")]
)
def test_resuming_with_another_setting_is_refused(corpus, tmp_path, change, word):
    trainer(tmp_path / "run", 4).run()
    with pytest.raises(UserError, match=word):
        resumed(tmp_path / "run", Budget("steps", 8), **change)


def test_budget_and_logging_may_change_on_resuming(corpus, tmp_path):
    trainer(tmp_path / "run", 4).run()
    run = resumed(tmp_path / "run", Budget("steps", 8), log_every=1)
    run.run()
    assert [int(row["step"]) for row in log_rows(tmp_path / "run")] == [3, 4, 5, 6, 7, 8]


def test_resuming_below_the_steps_done_is_refused(corpus, tmp_path):
    trainer(tmp_path / "run", 8).run()
    with pytest.raises(UserError, match="has done 8 steps already"):
        resumed(tmp_path / "run", Budget("steps", 4)).run()


def test_resuming_where_no_run_is(corpus, tmp_path):
    with pytest.raises(UserError, match="no run to resume"):
        resumed(tmp_path / "nothing")


def test_resuming_on_other_text_is_refused(corpus, tmp_path):
    trainer(tmp_path / "run", 4).run()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["data"]["train"]["sha256"] = "0" * 64
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"training text .* has changed"):
        resumed(tmp_path / "run")


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
