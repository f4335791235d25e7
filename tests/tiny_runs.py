"""Tiny training runs, and what the tests look at in them."""

import csv
import os
import signal
from pathlib import Path

import numpy as np
import safetensors.numpy

from nlm_core.config import Budget
from nlm_core.distributed import Team
from nlm_core.launch import new_run, resume_run
from nlm_core.runfolder import COLUMNS
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


def trainer(out: Path, steps: int = STEPS, team: Team | None = None, **settings) -> Trainer:
    budget = Budget("steps", steps)
    return new_run("tiny", "stories", out, {**SETTINGS, **settings}, budget, say=lambda _: None, team=team)


def resumed(out: Path, budget: Budget | None = None, team: Team | None = None, **settings) -> Trainer:
    return resume_run(out, None, settings, budget, say=lambda _: None, team=team)


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


def stop_after(run: Trainer, steps: int) -> None:
    """Send this process a real SIGTERM during a given step."""
    train_step = run._train_step

    def step_then_signal():
        loss = train_step()
        if run.step + 1 == steps:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    run._train_step = step_then_signal


def tell(line: str) -> None:
    """Print a line in one piece, whatever other processes print to the same pipe."""
    os.write(1, f"{line}\n".encode())
