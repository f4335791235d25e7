"""Several processes that train together, as torchrun starts them, make the run that one process makes."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch.distributed.run
import typer.main
from conftest import ROOT
from tiny_runs import SETTINGS, assert_same_weights, log_rows, stop_after, trainer, weights, without_times

from nlm_core.checkpoint import load_checkpoint
from nlm_core.cli import app
from nlm_core.distributed import SaidByTheFirst, Team, joined
from nlm_core.errors import UserError

LONGEST = 120  # seconds: a launch takes some, and one that hangs must fail
WORDS = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]


class Launch:
    """Two processes that torchrun starts on this machine, each with the same Python command line.

    Attributes:
        code: torchrun's exit code, once `end` was called.
        lines: what the processes printed.
        errors: our own lines among what they and torchrun said on standard error.
    """

    def __init__(self, *words: object):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
        with open("stderr.txt", "w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, *launcher, sys.executable, *map(str, words)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)},
            )
        self.timed_out = threading.Event()
        self.timer = threading.Timer(LONGEST, self._give_up)
        self.timer.start()
        self.lines: list[str] = []

    def _give_up(self) -> None:
        self.timed_out.set()
        self.process.terminate()  # torchrun ends its processes, with SIGKILL if need be

    def read(self) -> Iterator[str]:
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            yield self.lines[-1]

    def end(self) -> "Launch":
        with self.process:
            for _ in self.read():
                pass
            self.code = self.process.wait()
        self.timer.cancel()
        said = Path("stderr.txt").read_text()
        assert not self.timed_out.is_set(), f"hung: {self.lines} {said}"
        assert said.count("Traceback") <= (self.code != 0), said  # torchrun's report of a failure has one of its own
        self.errors = [line for line in said.splitlines() if line.startswith("error: ")]
        return self


def assert_close_weights(a: Path, b: Path, atol: float) -> None:
    """All weights and the optimizers' state, but the keys' biases: their gradient is 0 but for rounding.

    (A softmax does not see what is added to all of its inputs.) AdamW divides it by its own size.
    """
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    for name in first:
        x, y = first[name], second[name]
        if name.endswith("attn.qkv.bias") and x.ndim:
            q, k, v = np.split(x - y, 3)
            assert np.abs(k).max() < 1e-3, name
            x, y = np.concatenate([q, v]), 0
        np.testing.assert_allclose(x, y, rtol=0, atol=atol, err_msg=name)


TOGETHER = """
import os
from pathlib import Path
import tiny_runs
from tiny_runs import tell
from nlm_core.config import Budget
from nlm_core.distributed import SaidByTheFirst, joined
from nlm_core.errors import UserError
from nlm_core.launch import new_run, resume_run

def refused(work):
    try:
        work()
    except UserError as error:
        tell(f"refused: {error}")
    except SaidByTheFirst:
        pass

with joined() as team:
    # Four micro-batches, so that they are not added up in the order in which one process adds them.
    tiny_runs.trainer(Path("adamw"), 12, team, optimizer="adamw", micro_batch_size=1).run()
    tiny_runs.trainer(Path("muon"), 12, team, micro_batch_size=1).run()
    resume_run(Path("begun-by-one"), None, {}, None, tell, team).run()

    run = new_run("tiny", "stories", Path("minutes"), tiny_runs.SETTINGS, Budget("minutes", 0.01), tell, team)
    run.run()
    tell(f"minutes ended at {run.step} of {run.total}")

    run = tiny_runs.trainer(Path("unequal"), 12, team)
    if not team.first:
        train_step = run._train_step
        def with_another_bit():
            loss = train_step()
            run.model.final_norm.bias.data[0] += 1e-6
            return loss
        run._train_step = with_another_bit
    refused(run.run)

    if not team.first:
        os.environ["NLM_ROOT"] = str(Path("empty").absolute())
    refused(lambda: tiny_runs.trainer(Path("without-text"), 12, team))
    tell("all done")
"""


def test_two_processes_make_the_run_of_one(corpus, tmp_path):
    """At the same global batch, with dropout: its masks belong to a micro-batch, wherever that is computed."""
    one = {
        name: trainer(tmp_path / f"one-{name}", 12, optimizer=name, micro_batch_size=1) for name in ("adamw", "muon")
    }
    last = {name: run.run() for name, run in one.items()}
    begun = trainer(tmp_path / "begun-by-one", 12, optimizer="adamw", micro_batch_size=1)
    stop_after(begun, 5)
    begun.run()
    launch = Launch("-c", TOGETHER).end()
    assert (launch.code, launch.errors) == (0, [])
    assert launch.lines.count("all done") == 2

    assert_close_weights(last["adamw"], tmp_path / "adamw" / "checkpoints" / last["adamw"].name, atol=1e-6)
    assert_close_weights(last["muon"], tmp_path / "muon" / "checkpoints" / last["muon"].name, atol=1e-5)
    for row, other in zip(log_rows(tmp_path / "one-adamw"), log_rows(tmp_path / "adamw"), strict=True):
        assert row["step"] == other["step"]
        assert float(row["loss"]) == pytest.approx(float(other["loss"]), abs=2e-5)

    # Another number of processes may go on with a run; the difference is rounding, and the run says so.
    assert_close_weights(last["adamw"], tmp_path / "begun-by-one" / "checkpoints" / last["adamw"].name, atol=1e-6)
    assert "this run began with other processes: it will not be bit for bit the same" in launch.lines
    record = json.loads((tmp_path / "begun-by-one" / "config.json").read_text())
    assert [record["machine"]["processes"], record["resumed"][0]["processes"]] == [1, 2]

    minutes = [line for line in launch.lines if line.startswith("minutes ended at")]
    steps = json.loads((tmp_path / "minutes" / "config.json").read_text())["budget"]["steps"]
    assert minutes == [f"minutes ended at {steps} of {steps}"] * 2

    unequal, without_text = [line for line in launch.lines if line.startswith("refused:")]
    assert "process 1 has other weights than process 0" in unequal
    assert not (tmp_path / "unequal" / "checkpoints").exists()
    assert "there is no text yet" in without_text
    assert "says process 1 on" in without_text


STOPPED = """
import os
from pathlib import Path
import tiny_runs
from nlm_core.distributed import joined

with joined() as team:
    tiny_runs.trainer(Path("whole"), 12, team, micro_batch_size=1).run()
    run = tiny_runs.trainer(Path("part"), 12, team, micro_batch_size=1)
    train_step = run._train_step
    def wait_at_step_6():
        if run.step == 6 and team.first:
            tiny_runs.tell("waiting")
            while run.stop_signal is None:
                os.sched_yield()
        return train_step()
    run._train_step = wait_at_step_6
    run.run()
    tiny_runs.tell(f"stopped after {run.step}")
"""


def test_sigterm_to_the_launcher_saves_and_a_resumed_run_ends_the_same(corpus, tmp_path):
    launch = Launch("-c", STOPPED)
    for line in launch.read():
        if line == "waiting":
            launch.process.send_signal(signal.SIGTERM)
            break
    launch.end()
    assert launch.errors == []
    assert launch.lines.count("stopped after 7") == 2
    assert load_checkpoint(tmp_path / "part")["step"] == 7
    launch = Launch("-m", "nlm_core", "train", "--resume", "--out", "part").end()
    assert (launch.code, launch.errors) == (0, [])
    assert [line for line in launch.lines if line.startswith("going on")] == ["going on from step 7"]
    assert "done: part/checkpoints/step-00000012" in launch.lines
    assert_same_weights(*(tmp_path / run / "checkpoints" / "step-00000012" for run in ("whole", "part")))
    assert without_times(tmp_path / "whole") == without_times(tmp_path / "part")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["lr=1e30", "warmup_steps=0"], "error: the loss is"),
        (["micro_batch_size=4"], "start at most 1, or a new run with --set micro_batch_size=2"),
    ],
)
def test_an_error_ends_all_with_one_line(corpus, settings, message):
    words = [word for setting in settings for word in ("--set", setting)]
    launch = Launch(
        "-m", "nlm_core", "train", "--preset", "tiny", "--steps", "50", "--out", "run", *WORDS, *words
    ).end()
    assert launch.code == 1
    assert len(launch.errors) == 1
    assert message in launch.errors[0]


DEAD = """
import os
from pathlib import Path
import tiny_runs
from nlm_core.distributed import joined
from nlm_core.errors import one_line_errors

with one_line_errors(), joined() as team:
    run = tiny_runs.trainer(Path("run"), 12, team)
    train_step = run._train_step
    def die_at_step_6():
        if run.step == 6 and not team.first:
            os._exit(9)
        return train_step()
    run._train_step = die_at_step_6
    run.run()
"""


def test_a_process_that_dies_ends_the_others(corpus, tmp_path):
    launch = Launch("-c", DEAD).end()
    assert launch.code == 1
    assert all("another process of this run has ended" in line for line in launch.errors)
    assert load_checkpoint(tmp_path / "run")["step"] == 4


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_each_micro_batch_is_computed_once(size):
    shares = [list(Team(rank, size).share(8)) for rank in range(size)]
    assert sorted(number for share in shares for number in share) == list(range(8))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_too_many_processes_are_told_what_would_fit():
    Team(0, 4).require_work_for_all(12, 3)
    with pytest.raises(UserError, match="start at most 2, or a new run with --set micro_batch_size=2"):
        Team(0, 5).require_work_for_all(12, 6)
    with pytest.raises(UserError, match="--set batch_size=13 or more"):
        Team(0, 13).require_work_for_all(12, 1)


def test_without_torchrun_or_alone_there_is_a_team_of_one(monkeypatch):
    with joined() as team:
        assert (team.rank, team.world_size, team.first) == (0, 1, True)
    monkeypatch.setenv("WORLD_SIZE", "2")  # what another program left there is not torchrun's
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with joined() as team:
        assert team.world_size == 1
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with joined() as team:
        assert team.world_size == 1


def test_the_others_leave_without_a_word():
    with pytest.raises(UserError, match="why"):
        Team(0, 2)._leave("why")
    with pytest.raises(SaidByTheFirst):
        Team(1, 2)._leave("why")


def test_the_readmes_commands_are_torchruns_and_ours():
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("torchrun ")]
    assert len(lines) == 2
    for line in lines:
        launcher = torch.distributed.run.parse_args(shlex.split(line)[1:])
        assert (launcher.module, launcher.training_script) == (True, "nlm_core")
        name, *words = launcher.training_script_args
        typer.main.get_command(app).commands[name].make_context(name, words)
