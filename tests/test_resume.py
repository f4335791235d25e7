"""A run that was interrupted, by whatever, ends like one that was not."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_runs import (
    SETTINGS,
    assert_same_weights,
    log_rows,
    resumed,
    stop_after,
    trainer,
    weights,
    without_times,
)

from nlm_core import train
from nlm_core.checkpoint import load_checkpoint
from nlm_core.config import Budget
from nlm_core.errors import UserError
from nlm_core.launch import new_run, resume_run
from nlm_core.runfolder import RunFolder
from nlm_core.train import Trainer


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


def test_minutes_that_are_used_up_are_refused(corpus, tmp_path):
    trainer(tmp_path / "run", 4).run()
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(UserError, match="minutes already"):
        resumed(tmp_path / "run", Budget("minutes", 1e-6)).run()
    assert (tmp_path / "run" / "config.json").read_bytes() == before


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
import tiny_runs
run = tiny_runs.trainer(Path(sys.argv[1])) if sys.argv[2] == "new" else tiny_runs.resumed(Path(sys.argv[1]))
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
