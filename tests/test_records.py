"""Recorded runs come back as they were written, and damage is noticed."""

import numpy as np
import pytest

from nlm_core.errors import UserError
from nlm_core.records import read_record, write_record


def write(folder, units):
    command = ["python", "scripts/x.py", "my text"]
    write_record(folder, command=command, checkpoint="ab", data={"text": "t"}, units=units, steps=3, by={10: 1, 9: 2})


def test_a_record_comes_back(own_root):
    units = {"tokens": np.array([3, 12]), "nats-0": np.array([1.25, 7.33333])}
    write(own_root / "runs" / "some", units)
    record = read_record("some")
    assert record.results["command"] == "python scripts/x.py 'my text'"
    assert (record.results["checkpoint"], record.results["steps"]) == ("ab", 3)
    assert "torch" in record.results["machine"]
    assert record.units["tokens"].tolist() == [3, 12]
    assert record.units["nats-0"] == pytest.approx(units["nats-0"], abs=5e-5)
    assert (own_root / "runs" / "some" / "units.csv").read_text() == "tokens,nats-0\n3,1.25\n12,7.33333\n"


def test_columns_of_different_lengths_are_refused_and_nothing_is_written(own_root):
    folder = own_root / "runs" / "some"
    with pytest.raises(ValueError):
        write(folder, {"a": np.array([1.0]), "b": np.array([1.0, 2.0])})
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("damage", ["tokens\n3\n", "tokens,nats\n1,x\n", b"tokens\n3\n12\n\xff"])
def test_a_damaged_table_is_one_clear_line(own_root, damage):
    folder = own_root / "runs" / "some"
    write(folder, {"tokens": np.array([3, 12])})
    (folder / "units.csv").write_bytes(damage if isinstance(damage, bytes) else damage.encode())
    with pytest.raises(UserError, match=r"units\.csv is damaged"):
        read_record("some")


@pytest.mark.parametrize(("before", "after"), [('"steps": 3', '"steps": 30'), ('"ab"', '"abc"')])
def test_a_changed_figure_is_noticed(own_root, before, after):
    folder = own_root / "runs" / "some"
    write(folder, {"tokens": np.array([3, 12])})
    file = folder / "results.json"
    file.write_text(file.read_text().replace(before, after))
    with pytest.raises(UserError, match=r"results\.json is damaged or was edited: its hash differs"):
        read_record("some")


def test_a_missing_record_is_one_clear_line(own_root):
    with pytest.raises(UserError, match=r"runs/none/results\.json does not exist"):
        read_record("none")
