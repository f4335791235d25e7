"""The script behind the recipe: each run is done once, and the table is what the logs say."""

import csv
import json

import numpy as np
import pytest
from tiny_runs import SHAPE

from nlm_core import NLM, UserError
from nlm_core.data import Corpus
from nlm_core.loss import stream_nats

SMALL = {**SHAPE, "batch_size": 4, "micro_batch_size": 2, "eval_every": 3, "save_every": 2, "keep": 3}


@pytest.fixture
def recipe(script):
    return script(
        "recipe",
        SMALL=SMALL,
        RUNS={"base": {}, "wild": {"lr": 1e30, "clip": 0.0}, "dropout": {"dropout": 0.5}},
        PARTS=(8, 2),
        TOKENS=8 * 128,
        EVAL_TOKENS=300,
        AVERAGED=3,
    )["main"]


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_the_search_from_text_to_table(recipe, corpus, own_root, capsys):
    with pytest.raises(UserError, match="no run is recorded"):
        recipe(["table", "stories"])
    recipe(["parts", "stories"])
    counts = [Corpus.open(name).manifest["maps"]["train"]["stories"] for name in ("stories-1-8", "stories-1-2")]
    assert counts == [60 // 8, 60 // 2]
    small = Corpus.open("stories-1-8")
    assert small.manifest["maps"]["choose"] == corpus.manifest["maps"]["choose"]

    recipe(["search", "stories"])
    folder = own_root / "runs" / "recipe"
    assert json.loads((folder / "dropout" / "config.json").read_text())["train"]["dropout"] == 0.5
    recipe(["table", "stories"])
    table = {row["run"]: row for row in rows(folder / "table.csv")}
    assert table["dropout"]["differs"] == "dropout=0.5"
    assert table["base"]["steps"] == table["base"]["of"] == "8"
    log = [row for row in rows(folder / "base" / "log.csv") if row["validation_loss"]]
    assert table["base"]["validation_loss"] == log[-1]["validation_loss"]
    assert table["base"]["best_validation_loss"] == min(row["validation_loss"] for row in log)
    assert "wild" in table  # what failed stays in the table
    assert int(table["wild"]["steps"]) < 8

    recipe(["average", "stories"])
    found = rows(folder / "averages.csv")
    assert [row["checkpoints"] for row in found if row["run"] == "base"] == ["1", "2", "3"]
    model = NLM.from_checkpoint(folder / "base")
    (alone,) = [row for row in found if (row["run"], row["checkpoints"]) == ("base", "1")]
    expected = stream_nats(model, np.asarray(small.choose[:301])).mean()
    assert float(alone["validation_loss"]) == pytest.approx(expected, abs=1e-4)

    recipe(["search", "stories"])  # all is done
    assert json.loads((folder / "base" / "config.json").read_text())["resumed"] == []
    capsys.readouterr()


def test_text_of_a_readers_own_is_not_replaced_by_a_part(recipe, corpus, own_root):
    mine = own_root / "data" / "stories-1-8" / "train" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("My own story.")
    with pytest.raises(UserError, match="stories-1-8 is there but not prepared; move it away first"):
        recipe(["parts", "stories"])
    assert mine.read_text() == "My own story."
