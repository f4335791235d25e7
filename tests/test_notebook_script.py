"""Executing notebooks: in place, whole or not at all; on another checkpoint, in a copy."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from nlm_core import load_checkpoint, save_checkpoint


@pytest.fixture
def book(own_root) -> Path:
    (own_root / "book").mkdir()
    (own_root / "_static").mkdir()
    (own_root / "_static" / "nlm.css").write_text("")
    for name in ("_config.yml", "_toc.yml"):
        (own_root / name).write_text("")
    return own_root / "book"


def write(path: Path, *sources: str) -> bytes:
    cells = [new_markdown_cell("# Title"), *(new_code_cell(source, execution_count=7) for source in sources)]
    nbformat.write(new_notebook(cells=cells, metadata={"language_info": {"name": "python", "version": "3.99"}}), path)
    return path.read_bytes()


def run(**environment: str) -> subprocess.CompletedProcess:
    script = [sys.executable, str(ROOT / "scripts" / "notebooks.py")]
    return subprocess.run(script, env={**os.environ, **environment}, capture_output=True, text=True)


def test_in_place_and_whole_or_not_at_all(book):
    write(book / "01-good.ipynb", "import os\nx = 1\nx + 1", "print(os.getcwd())")
    before = write(book / "02-broken.ipynb", "1 / 0")
    result = run()
    assert result.returncode == 1
    assert "02-broken.ipynb ... failed: the notebook stays as it was" in result.stdout
    assert "ZeroDivisionError" in result.stderr
    assert (book / "02-broken.ipynb").read_bytes() == before

    done = nbformat.read(book / "01-good.ipynb", as_version=4)
    assert [cell.execution_count for cell in done.cells[1:]] == [1, 2]
    assert done.cells[1].outputs[0].data["text/plain"] == "2"
    assert done.cells[2].outputs[0].text.strip() == str(book.resolve())
    assert done.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert all("execution" not in cell.metadata for cell in done.cells)


def test_another_checkpoint_gets_a_copy(book, own_root, tiny_model, tokenizer):
    source = (
        "from nlm_core import load_checkpoint\nfrom nlm_core.files import project_root\n"
        "print(load_checkpoint()['sha256'], project_root())"
    )
    before = write(book / "01-good.ipynb", source)
    checkpoint = save_checkpoint(own_root / "mine", tiny_model, tokenizer, step=3)
    stale = own_root / "_build" / "own-book" / "book" / "09-gone.ipynb"
    stale.parent.mkdir(parents=True)
    stale.write_text("left by an earlier run")
    result = run(NLM_CHECKPOINT="mine")
    assert result.returncode == 0, result.stderr
    assert "build it with the same NLM_CHECKPOINT" in result.stdout
    assert (book / "01-good.ipynb").read_bytes() == before
    assert not stale.exists()
    copy = own_root / "_build" / "own-book"
    sha256, root = nbformat.read(copy / "book" / "01-good.ipynb", as_version=4).cells[1].outputs[0].text.split()
    assert sha256 == load_checkpoint(checkpoint)["sha256"]
    assert sha256 in (copy / "checkpoints" / "nlm" / "README.md").read_text()
    assert Path(root) == own_root
    assert (copy / "_static" / "nlm.css").exists()


def test_what_failed_on_another_checkpoint_is_not_left_to_be_built(book, own_root, tiny_model, tokenizer):
    write(book / "01-broken.ipynb", "1 / 0")
    save_checkpoint(own_root / "mine", tiny_model, tokenizer)
    (own_root / "_build" / "own-book").mkdir(parents=True)
    assert run(NLM_CHECKPOINT="mine").returncode == 1
    assert not (own_root / "_build" / "own-book").exists()


def test_a_checkpoint_that_is_not_there_is_one_line(book):
    result = run(NLM_CHECKPOINT="nowhere")
    assert result.returncode == 2
    assert result.stderr.strip() == "error: nowhere is not a folder with a checkpoint"
