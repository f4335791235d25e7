"""What README and book show of the records is what the records say."""

import json
import shutil
from collections import Counter

import pytest
from conftest import ROOT
from PIL import Image

from nlm_core.errors import UserError
from nlm_core.scorecard import read_verdicts


@pytest.fixture
def render(script, monkeypatch):
    monkeypatch.setenv("NLM_ROOT", str(ROOT))
    return script("render")


@pytest.fixture
def copy(own_root):
    """A copy of the book's sources."""
    for folder in ("book", "_static"):
        shutil.copytree(ROOT / folder, own_root / "copy" / folder)
    return own_root / "copy"


def test_texts_are_up_to_date(render):
    for path, text in render["rendered"](ROOT, ROOT).items():
        assert (ROOT / path).read_text() == text, f"{path}: run python scripts/render.py"


def test_the_picture_shows_the_verdicts(render):
    verdicts = {one.id: one.verdict for one in read_verdicts(ROOT / "book")}
    picture = Image.open(ROOT / render["PICTURE"])
    assert json.loads(picture.text["Description"]) == verdicts, "run python scripts/render.py"
    assert picture.width >= 800


def test_a_changed_record_changes_the_text(render, copy):
    for path in (copy / "book").glob("*.ipynb"):
        path.write_text(path.read_text().replace('"verdict": "holds"', '"verdict": "partly"'))
    render["main"]([str(copy)])
    made = (copy / "book" / "index.md").read_text()
    assert " hold," not in made.partition("What came out")[2].partition("## ")[0]
    assert json.loads(Image.open(copy / render["PICTURE"]).text["Description"])["pos.bag"] == "partly"
    assert (ROOT / "book" / "index.md").read_text() != made
    assert not (copy / "README.md").exists()


def test_without_verdicts_nothing_is_written(render, copy):
    for path in (copy / "book").glob("*.ipynb"):
        path.write_text(path.read_text().replace('"nlm_claim"', '"other"'))
    before = (copy / "book" / "index.md").read_text()
    with pytest.raises(UserError, match="carries a verdict"):
        render["main"]([str(copy)])
    assert (copy / "book" / "index.md").read_text() == before


def test_a_file_without_its_place_is_named(render):
    with pytest.raises(UserError, match=r"x\.md has no place for 'a'"):
        render["replaced"]("nothing", {"a": "b"}, "x.md")


def test_one_verdict_is_not_many(script):
    in_words = script("render")["in_words"]
    assert in_words(Counter({"holds": 1, "does not hold here": 2})) == "1 holds, 2 do not hold here"
    assert in_words(Counter({"holds": 3, "does not hold here": 1})) == "3 hold, 1 does not hold here"
