"""The folder of one training run: config.json, log.csv, checkpoints, and a lock against a second run in it."""

import contextlib
import csv
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nlm_core.checkpoint import STEPS, load_checkpoint, step_folders
from nlm_core.errors import UserError
from nlm_core.files import read_json, shown, write_json, written_whole
from nlm_core.hardware import describe

COLUMNS = [
    "step",
    "tokens",
    "loss",
    "validation_loss",
    "bits_per_byte",
    "learning_rate",
    "tokens_per_second",
    "elapsed",
]
# What may differ when a run is resumed, beside the budget. Anything else would make it another run.
MAY_CHANGE = ("log_every", "eval_every", "eval_tokens", "save_every", "keep", "keep_doublings", "device")
LOCK = ".lock"


def is_doubling(step: int) -> bool:
    """Whether a step is one of 1, 2, 4, 8 and so on."""
    return step.bit_count() == 1


class RunFolder:
    """Reads and writes what lies in a run's folder."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config_file, self.log_file = self.path / "config.json", self.path / "log.csv"

    def started(self) -> bool:
        """Whether a run has begun here."""
        return self.config_file.exists()

    def unused(self) -> bool:
        """Whether a new run may begin here: nothing is there, or what a run left that died before it had begun."""
        if not self.path.exists():
            return True
        return self.path.is_dir() and all(
            path.name == LOCK or (path.name.startswith(".") and path.suffix == ".tmp") for path in self.path.iterdir()
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process alone; the lock goes with the process, however it ends.

        Raises:
            UserError: another process trains in this folder.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / LOCK, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another run is training in {shown(self.path)}; choose another --out") from None
            for leftover in [*self.path.glob(".*.tmp"), *(self.path / STEPS).glob(".*")]:
                if leftover.is_dir():
                    shutil.rmtree(leftover, ignore_errors=True)
                else:
                    leftover.unlink(missing_ok=True)
            yield

    def read_config(self) -> dict[str, Any]:
        return read_json(self.config_file)

    def write_config(self, config: dict[str, Any]) -> None:
        write_json(self.config_file, config)

    def record(
        self,
        model: dict[str, Any],
        train: dict[str, Any],
        budget: dict[str, Any],
        data: dict[str, Any],
        here: dict[str, Any],
        say: Callable[[str], None],
    ) -> dict[str, Any]:
        """Return what config.json is to hold: what the run began on stays, and each resumption adds a line.

        Args:
            model, train, budget: the settings.
            data: the corpus's manifest.
            here: the step at which this begins, and on what.
            say: told when the run goes on elsewhere than it began.
        """
        resumed = self.started()
        here = {**here, **describe()}
        before = self.read_config() if resumed else {"machine": here, "resumed": []}
        began = {"processes": 1, **before["machine"]}  # older records don't say it
        changed = [key for key in here if key != "step" and here[key] != began.get(key, here[key])]
        if changed:
            say(f"this run began with other {' and '.join(changed)}: it will not be bit for bit the same")
        return {
            "model": model,
            "train": train,
            "budget": budget,
            "data": {
                "name": data["name"],
                "tokenizer": data["tokenizer"],
                **{part: data["maps"][part] for part in ("train", "choose")},
            },
            "machine": before["machine"],
            "resumed": before.get("resumed", []) + [here] * resumed,
        }

    def step_folder(self, step: int) -> Path:
        """Where the checkpoint of a step lies, if it was kept."""
        return self.path / STEPS / f"step-{step:08d}"

    def newest(self, settings: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any] | None:
        """Load the newest checkpoint that is whole, and remove damaged ones after it, so that those steps can be saved.

        Args:
            settings: what config.json says now.
            say: told when a checkpoint is damaged.

        Returns:
            As `load_checkpoint`; None where there is no checkpoint.

        Raises:
            UserError: the run was trained with other settings, or no checkpoint is whole.
        """
        if not step_folders(self.path):
            return None
        checkpoint = load_checkpoint(self.path, say)
        before = checkpoint["config"].to_dict() | checkpoint["training"].get("settings", {})
        changed = [key for key, value in before.items() if key not in MAY_CHANGE and settings[key] != value]
        if changed:
            raise UserError(
                f"{shown(self.config_file)} was edited: {changed[0]} is {settings[changed[0]]!r}, but the run was "
                f"trained with {before[changed[0]]!r}"
            )
        for folder in step_folders(self.path):
            if folder > checkpoint["path"]:
                shutil.rmtree(folder)
        return checkpoint

    def prune(self, keep: int, doublings: bool) -> None:
        """Remove all checkpoints but the newest ones.

        Args:
            keep: how many stay.
            doublings: whether those of steps 1, 2, 4, 8 and so on stay as well.
        """
        for folder in step_folders(self.path)[:-keep]:
            if not (doublings and is_doubling(int(folder.name.removeprefix("step-")))):
                shutil.rmtree(folder)

    def cut_log(self, step: int) -> Path | None:
        """Drop what was logged after `step`: a resumed run does those steps again. Also starts a new log.

        Returns:
            Where a log went that could not be read; None where there was none such.
        """
        rows: list[dict[str, str]] = []
        damaged = None
        if self.log_file.exists():
            with open(self.log_file, newline="", encoding="utf-8-sig", errors="replace") as file:
                reader = csv.DictReader(file)
                if reader.fieldnames != COLUMNS:
                    damaged = self.log_file.with_name("log.csv.damaged")
                for row in reader if damaged is None else ():
                    # A kill can leave half a last line.
                    if None in row or None in row.values() or not row["step"].isdigit() or int(row["step"]) > step:
                        break
                    rows.append(row)
        if damaged is not None:
            self.log_file.replace(damaged)
        with written_whole(self.log_file, "w") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return damaged

    def log(self, **values: Any) -> None:
        with open(self.log_file, "a", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(values)
            file.flush()
            os.fsync(file.fileno())
