"""Recorded runs: results that took minutes or hours, kept in `runs/NAME` for notebooks to read.

results.json    the command that makes them again, hashes of checkpoint, data and itself, machine, versions, settings
units.csv       a row for each unit that can be resampled (a story, a prompt), a column for each measurement
"""

import csv
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Num

from nlm_core.errors import UserError
from nlm_core.files import (
    digest_of,
    project_root,
    read_json,
    readable_file,
    sha256_of,
    shown,
    write_json,
    written_whole,
)
from nlm_core.hardware import describe

RESULTS, UNITS = "results.json", "units.csv"


@dataclass(frozen=True)
class Record:
    """A recorded run.

    Attributes:
        results: the content of results.json.
        units: the columns of units.csv by name, each (S,).
    """

    results: dict[str, Any]
    units: dict[str, Float[np.ndarray, " S"]]


def write_record(
    folder: Path,
    *,
    command: Sequence[str],
    checkpoint: str | None,
    data: dict[str, Any],
    units: dict[str, Num[np.ndarray, " S"]],
    **results: Any,
) -> None:
    """Write a recorded run; machine and versions are added here.

    Args:
        folder: usually `runs/NAME`; what else lies in it stays.
        command: the words that make the record again; they are quoted here as a shell needs it.
        checkpoint: the sha256 of the checkpoint that was measured; None where the run trained its own models.
        data: which text, with its hash.
        units: a column for each measurement, a row for each unit.
        results: whatever else belongs to it, JSON-ready.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with written_whole(folder / UNITS, "w") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(units)
        for row in zip(*units.values(), strict=True):
            writer.writerow(f"{value:.9g}" for value in row)
    content = {"command": shlex.join(command), "checkpoint": checkpoint, "data": data, "machine": describe(), **results}
    content["units"] = sha256_of(folder / UNITS)
    content = json.loads(json.dumps(content))  # as it will be read: the keys of JSON are text
    write_json(folder / RESULTS, {**content, "sha256": digest_of(content)})


def read_record(name: str) -> Record:
    """Read `runs/NAME`.

    Raises:
        UserError: there is no such record, or it is not whole.
    """
    folder = project_root() / "runs" / name
    results = read_json(folder / RESULTS)
    if results.get("sha256") != digest_of(results):
        raise UserError(f"{shown(folder / RESULTS)} is damaged or was edited: its hash differs")
    if results.get("units") != sha256_of(readable_file(folder / UNITS)):
        raise UserError(f"{shown(folder / UNITS)} is damaged: it is not the table that {RESULTS} belongs to")
    with open(folder / UNITS, newline="", encoding="utf-8") as file:
        names, *rows = csv.reader(file)
    columns = np.array(rows, dtype=np.float64).reshape(len(rows), len(names)).T
    return Record(results, dict(zip(names, columns, strict=True)))
