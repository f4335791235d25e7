"""The scorecard gathers what the notebooks recorded, and nothing else."""

import json
import shutil

import matplotlib.pyplot as plt
import pytest
from conftest import ROOT

from nlm_core.claims import METADATA
from nlm_core.errors import UserError
from nlm_core.scorecard import counts, draw, read_verdicts, rows


@pytest.fixture
def book(own_root):
    folder = own_root / "book"
    folder.mkdir()
    shutil.copy(ROOT / "book" / "claims.toml", folder)
    return folder


def notebook(folder, name, records):
    outputs = [
        {"output_type": "display_data", "data": {}, "metadata": {METADATA: {**record, "measured": "1.00"}}}
        for record in records
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# A title\n", "More."]},
        {"cell_type": "code", "source": [], "outputs": [*outputs, {"output_type": "stream", "text": ""}]},
    ]
    (folder / f"{name}.ipynb").write_text(json.dumps({"cells": cells}))


def test_verdicts_of_all_notebooks_in_the_order_of_the_list(book):
    notebook(book, "02-b", [{"id": "pos.bag", "verdict": "holds"}, {"id": "tok.pieces", "verdict": "partly"}])
    notebook(book, "03-c", [{"id": "emb.dog-cat", "verdict": "can't tell"}])
    found = read_verdicts(book)
    assert [one.id for one in found] == ["tok.pieces", "emb.dog-cat", "pos.bag"]
    assert counts(found) == {"Tokenizer": {"partly": 1}, "Embeddings": {"can't tell": 1}, "Positions": {"holds": 1}}
    table = rows(found)
    assert table[0][0] == "`tok.pieces`"
    assert table[0][3:] == ["1.00", "partly", "[A title](02-b.ipynb)"]
    ax = plt.figure().subplots()
    draw(ax, found)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["holds", "partly", "can't tell"]
    assert sum(int(text.get_text() or 0) for text in ax.texts) == 3
    plt.close("all")


def test_what_is_no_notebook_or_no_claim_is_said(book):
    notebook(book, "02-b", [{"id": "pos.nothing", "verdict": "holds"}])
    with pytest.raises(UserError, match=r"records 'pos\.nothing'"):
        read_verdicts(book)
    for verdict in ({"id": "pos.bag"}, {"verdict": "holds"}, {"id": "pos.bag", "verdict": "maybe"}):
        notebook(book, "02-b", [])
        text = (book / "02-b.ipynb").read_text()
        output = {"metadata": {METADATA: verdict}}
        (book / "02-b.ipynb").write_text(text.replace('"outputs": [', f'"outputs": [{json.dumps(output)}, '))
        with pytest.raises(UserError, match="is not a notebook"):
            read_verdicts(book)
    (book / "02-b.ipynb").write_text("{}")
    with pytest.raises(UserError, match="is not a notebook"):
        read_verdicts(book)


def test_a_book_that_was_not_executed_has_no_scorecard(book):
    notebook(book, "02-b", [])
    with pytest.raises(UserError, match=r"no notebook in .*book carries a verdict; run `make notebooks`"):
        read_verdicts(book)


def test_the_books_own_notebooks_can_be_read(monkeypatch):
    monkeypatch.setenv("NLM_ROOT", str(ROOT))
    found = read_verdicts(ROOT / "book")
    assert {one.id for one in found} >= {"tok.pieces", "pos.bag"}
    assert all(one.title for one in found)
