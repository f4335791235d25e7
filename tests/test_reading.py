"""The blinded sheet: all texts once, no setting to be seen, and answers that find their way back."""

import csv
import json

import numpy as np
import pytest
from conftest import refused

from nlm_core import NLM, save_checkpoint
from nlm_core.config import ModelConfig
from nlm_core.errors import UserError
from nlm_core.matrix import Matrix
from nlm_core.reading import KEY, QUESTIONS, SHEET, scores, write_sheet


@pytest.fixture
def found():
    texts = [[[f" {setting} {prompt} {seed}" for seed in (0, 1)] for prompt in "xyz"] for setting in ("cold", "warm")]
    return Matrix(["cold", "warm"], ["x", "y", "z"], [0, 1], texts, {})


def fill(folder, answer, name=SHEET, leave_out=()):
    """Answer each text as `answer(number, story)` says."""
    with open(folder / SHEET, newline="") as file:
        rows = list(csv.DictReader(file))
    with open(folder / name, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        for row in rows:
            if row["text"] not in leave_out:
                row |= answer(row["story"])
            writer.writerow(row)


def test_every_text_stands_there_once_in_random_order_and_nothing_else(found, tmp_path):
    write_sheet(tmp_path, found)
    with open(tmp_path / SHEET, newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0].keys() == {"text", *QUESTIONS, "story"}
    stories = [row["story"] for row in rows]
    inside = [
        prompt + found.texts[n][p][s] for n in range(2) for p, prompt in enumerate(found.prompts) for s in range(2)
    ]
    assert sorted(stories) == sorted(inside)
    assert stories != inside
    with pytest.raises(UserError, match="is there already"):
        write_sheet(tmp_path, found)


def test_answers_come_back_to_their_setting(found, tmp_path):
    write_sheet(tmp_path, found)
    fill(tmp_path, lambda story: {"characters": 1, "arc": int("x" in story), "sense": 5 if "cold" in story else 2})
    again = scores(tmp_path / KEY, [tmp_path / SHEET])
    assert again.settings == ["cold", "warm"]
    assert again.means("sense").tolist() == [5, 2]
    assert again.by_prompt("arc").tolist() == [[1, 0, 0], [1, 0, 0]]
    gap, low, high = again.difference("sense", "cold", "warm")
    assert (gap, low, high) == (3, 3, 3)


def test_readers_are_averaged_and_may_leave_texts_out(found, tmp_path):
    write_sheet(tmp_path, found)
    fill(tmp_path, lambda _: {"sense": "4"}, "one.csv")
    fill(tmp_path, lambda _: {"sense": " 2 "}, "other.csv", leave_out=[str(number) for number in range(2, 13)])
    again = scores(tmp_path / KEY, [tmp_path / "one.csv", tmp_path / "other.csv"])
    assert sorted(again.metrics["sense"].ravel().tolist()) == [3] + 11 * [4]
    assert np.isnan(again.metrics["arc"]).all()


def test_what_can_not_be_scored_is_said(found, tmp_path):
    write_sheet(tmp_path, found)
    key = tmp_path / KEY
    with pytest.raises(UserError, match="no answers yet"):
        scores(key, [tmp_path / SHEET])
    fill(tmp_path, lambda _: {"sense": "6"}, "six.csv")
    with pytest.raises(UserError, match="sense is 1 to 5, not '6'"):
        scores(key, [tmp_path / "six.csv"])
    fill(tmp_path, lambda _: {"arc": "yes"}, "yes.csv")
    with pytest.raises(UserError, match="arc is 0 to 1, not 'yes'"):
        scores(key, [tmp_path / "yes.csv"])
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="not a reading sheet"):
        scores(key, [tmp_path / "other.csv"])
    (tmp_path / "more.csv").write_text("text,characters,arc,sense,story\n99,1,1,1,x\n")
    with pytest.raises(UserError, match="text 99: its story is not that of"):
        scores(key, [tmp_path / "more.csv"])
    fill(tmp_path, lambda _: {"sense": "2.5"}, "half.csv")
    with pytest.raises(UserError, match=r"sense is 1 to 5, not '2\.5'"):
        scores(key, [tmp_path / "half.csv"])
    fill(tmp_path, lambda _: {"sense": "2"}, "once.csv")
    lines = (tmp_path / "once.csv").read_text().splitlines(keepends=True)
    (tmp_path / "twice.csv").write_text("".join([*lines, lines[1]]))
    with pytest.raises(UserError, match="has answers for text 1 twice"):
        scores(key, [tmp_path / "twice.csv"])
    fill(tmp_path, lambda story: {"sense": "2"} if "cold" in story else {}, "cold.csv")
    with pytest.raises(UserError, match="no prompt has answers under every setting"):
        scores(key, [tmp_path / "cold.csv"])
    (tmp_path / "latin.csv").write_bytes("text,characters,arc,sense,story\n1,1,1,1,Bär\n".encode("latin-1"))
    with pytest.raises(UserError, match="save it as CSV in UTF-8"):
        scores(key, [tmp_path / "latin.csv"])
    for damaged in ({"texts": {}}, {"texts": {"1": {"setting": "0.8"}}}, {"texts": 3}, {}):
        key.write_text(json.dumps(damaged))
        with pytest.raises(UserError, match="not the key"):
            scores(key, [tmp_path / SHEET])


def test_a_sheet_is_joined_with_its_own_key_only(found, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    write_sheet(one, found, seed=0)
    write_sheet(other, found, seed=1)
    fill(one, lambda _: {"sense": 3})
    with pytest.raises(UserError, match=r"its story is not that of .*other/key\.json"):
        scores(other / KEY, [one / SHEET])
    text = (one / SHEET).read_text().replace("\n", "\r\n")  # as a spreadsheet saves it
    (one / "saved.csv").write_bytes(text.encode())
    assert scores(one / KEY, [one / "saved.csv"]).means("sense").tolist() == [3, 3]


def test_from_the_command_line(nlm, own_root, tokenizer):
    model = NLM(ModelConfig(vocab_size=512, context_length=64, d_model=16, n_layers=1, n_heads=2))
    save_checkpoint(own_root / "own", model, tokenizer, step=0)
    folder = own_root / "sheet"
    code, out, err = nlm("reading", "sheet", own_root / "own", "--out", folder, "--max-new-tokens", "5")
    assert code == 0, err
    assert "nlm reading score" in out
    refused(nlm("reading", "score", folder), "no answers yet")
    fill(folder, lambda _: {"characters": 1, "arc": 0, "sense": 3})
    code, out, err = nlm("reading", "score", folder)
    assert code == 0, err
    assert "sense" in out
    assert "3.00 (3.00 to 3.00)" in out
    refused(nlm("reading", "sheet", own_root / "own", "--out", folder), "is there already")
