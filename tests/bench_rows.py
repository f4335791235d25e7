"""What the tests look at in a row of the benchmarks."""

import json

import pytest

from benchmarks.machine import describe
from benchmarks.tables import tables


def tables_of(made: dict) -> str:
    return tables({"environment": describe(), "rows": {made["row"]: made | {"code": "c"}}})


def assert_is_a_row(made: dict, rounds: int) -> None:
    assert json.loads(json.dumps(made)) == made
    assert len(made["ratio"]["rounds"]) == len(made["ours"]["rounds"]) == len(made["peer"]["rounds"]) == rounds
    for side in ("ours", "peer"):
        assert made[side]["settings"]["precision"] in ("float32", "bfloat16")
    if "profile" in made:
        assert sum(made["profile"].values()) == pytest.approx(1)
        assert min(made["profile"].values()) >= 0
    assert any("seconds" in entry or "peak" in entry for entry in made["peer_tried"])
    compared = [found for found in made["agreement"].values() if isinstance(found, dict)]
    assert compared
    assert all(0 <= found["difference"] <= found["tolerance"] for found in compared)
    assert made["row"] in tables_of(made)


def failures(made: dict) -> list[str]:
    return [entry["failed"] for entry in made["peer_tried"] if "failed" in entry]
