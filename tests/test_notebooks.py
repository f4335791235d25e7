"""The notebooks of the book keep to their contract, and the contract's rules find what they are for."""

import base64
import io
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import contract
import pytest
from conftest import ROOT
from contract import Book, cells, findings
from nbformat import NotebookNode, reader
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

# Neither converted nor mended, as nbformat.read would: the rules should see what is in the file.
NOTEBOOKS = {path.stem: reader.reads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("book/*.ipynb"))}
NAME = "03-positional-encodings"
SHA256 = "5a"


def png(width: int = 640, background: tuple[int, ...] = (255, 255, 255, 255), empty: bool = False) -> str:
    file = io.BytesIO()
    picture = Image.new("RGBA", (width, 20), background)
    if not empty:
        picture.putpixel((9, 9), (0, 0, 0, 255))
    picture.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def shown(data: dict[str, str], **metadata) -> NotebookNode:
    return new_output("display_data", data=data, metadata=metadata)


def printed(text: str, name: str = "stdout") -> NotebookNode:
    return new_output("stream", name=name, text=text)


def good() -> NotebookNode:
    """A notebook that keeps to every rule."""
    record = {"id": "pos.nearer", "verdict": "holds", "ours": 0.5, "reads": "holds"}
    figure = {
        "image": {"alt": "A line that falls with distance"},
        "figure": {"caption": "Nearer positions are more alike.", "name": "fig-nearer"},
    }
    plot = new_code_cell(
        "_ = ax.plot(distance)",
        metadata={"mystnb": figure, "tags": ["hide-input"]},
        outputs=[shown({"image/png": png(), "text/plain": "<Figure>"})],
    )
    claim = new_code_cell('claim("pos.nearer")', outputs=[shown({"text/markdown": "**holds**"}, nlm_claim=record)])
    error = new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]})
    error.outputs = [new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=["line 1"])]
    nb = new_notebook(
        metadata={
            "kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"},
            "language_info": {"name": "python"},
        },
        cells=[
            new_markdown_cell("# Positions\n\nThis follows the second post. It runs in 20 seconds."),
            new_markdown_cell("## Setup"),
            new_code_cell("from nlm_core import NLM  # https://example.org/home/page"),
            new_markdown_cell(
                "## Is it nearer?\n\n### Question\n\nIs it?\n\n### Hypothesis\n\nBelow -0.5.\n\n### Experiment"
            ),
            *(new_code_cell(f"x{n} = {n} % 2") for n in range(5)),
            error,
            new_markdown_cell("### Result"),
            plot,
            claim,
            new_markdown_cell("### Decision\n\nNothing changes.\n\n```\n# not a heading\n```"),
            new_markdown_cell("## What we found"),
            new_code_cell("closing_table()", outputs=[shown({"text/markdown": "| table |", "text/plain": "table"})]),
            new_markdown_cell("## Try it\n\nChange the seed."),
        ],
    )
    for count, (_, cell) in enumerate(cells(nb, "code"), 1):
        cell.execution_count = count
    return nb


def good_book(root: Path) -> Book:
    for folder in ("book", "checkpoints/nlm", "runs/damaged"):
        (root / folder).mkdir(parents=True)
    (root / "book" / "claims.toml").write_text('["pos.nearer"]\nrule = "rho"\n["tok.pieces"]\nrule = "same"\n')
    (root / "checkpoints" / "nlm" / "config.json").write_text(json.dumps({"sha256": SHA256}))
    run = {"checkpoint": SHA256, "command": "nlm ablate", "data": {}, "versions": {"torch": "2"}}
    (root / "runs" / "damaged" / "results.json").write_text(json.dumps(run))
    (root / "_toc.yml").write_text(f"root: book/index\nparts:\n  - chapters:\n      - file: book/{NAME}\n")
    nb = good()
    at(nb, "x0").source = 'results = root / "runs" / "damaged" / "results.json"'
    return Book(root, {NAME: nb}, [f"book/{NAME}.ipynb"])


def at(nb: NotebookNode, start: str) -> NotebookNode:
    (cell,) = (cell for _, cell in cells(nb) if cell.source.startswith(start))
    return cell


# How defects are planted


def written(old: str, new: str) -> Callable[[NotebookNode], None]:
    """Other words in a cell."""

    def plant(nb: NotebookNode) -> None:
        (cell,) = (cell for _, cell in cells(nb) if old in cell.source)
        cell.source = cell.source.replace(old, new)

    return plant


def output(*outputs: NotebookNode) -> Callable[[NotebookNode], None]:
    return lambda nb: at(nb, "x1").outputs.extend(outputs)


def picture(encoded: str) -> Callable[[NotebookNode], None]:
    return lambda nb: at(nb, "_ = ax.plot").outputs[0].data.update({"image/png": encoded})


def metadata(start: str, **values) -> Callable[[NotebookNode], None]:
    return lambda nb: at(nb, start).metadata.update(values)


def record(**values) -> Callable[[NotebookNode], None]:
    return lambda nb: at(nb, "claim").outputs[0].metadata["nlm_claim"].update(values)


def figure(nb: NotebookNode) -> NotebookNode:
    return at(nb, "_ = ax.plot").metadata.mystnb


# For each rule: what it has to find, as a defect and a part of the finding. These are also all the rules there are.
NOTEBOOK_DEFECTS = {
    contract.is_valid: [
        (lambda nb: nb.update(nbformat_minor=4), "older than 4.5"),
        (lambda nb: nb.cells[0].update(id=nb.cells[1].id), "same id"),
        (lambda nb: nb.cells[0].pop("id"), "not a valid notebook"),
        (lambda nb: nb.metadata.kernelspec.update(name="nlm"), "has to be python3"),
        (lambda nb: nb.metadata.pop("language_info"), "has to be python3"),
        (lambda nb: nb.metadata.language_info.update(version="3.11.2"), "Python version"),
        (lambda nb: nb.metadata.update(widgets={}), "['widgets']"),
    ],
    contract.was_run_from_top_to_bottom: [
        (lambda nb: at(nb, "x2").update(execution_count=None), "restart the kernel"),
        (lambda nb: at(nb, "x2").update(execution_count=1), "restart the kernel"),
        (lambda nb: nb.cells.remove(at(nb, "x4")), "9 code cells"),
        (lambda nb: nb.cells.extend(new_code_cell("x") for _ in range(16)), "26 code cells"),
        (lambda nb: at(nb, "x2").update(source=" \n"), "empty"),
    ],
    contract.outputs_are_plain: [
        (output(printed("careful", "stderr")), "stderr"),
        (metadata("1 / 0", tags=[]), "raises an error"),
        (output(shown({"text/html": '<table class="a" id="T_7f"></table>'})), "HTML with an id"),
        (output(shown({"image/svg+xml": "<svg/>"})), "image/svg+xml"),
        (output(shown({"application/vnd.jupyter.widget-view+json": "{}"})), "widget"),
        (output(shown({"application/papermill.record/image/png": png()})), "papermill"),
    ],
    contract.output_is_short: [
        (output(printed("line\n" * 31)), "31 lines"),
        (output(printed("line\n" * 16), shown({"text/markdown": "line\n" * 15, "text/plain": "<M>"})), "31 lines"),
    ],
    contract.paths_are_relative: [
        (written("x1 = 1", "x1 = open('/home/ann/x')"), "/home/ann/x"),
        (written("Change", "Change C:\\nlm and"), "C:"),
        (output(printed("written to /tmp/x")), "/tmp/x"),
        (output(shown({"text/markdown": "in `/Users/ann`"})), "/Users/ann"),
        (lambda nb: at(nb, "1 / 0").outputs[0].traceback.append("File \x1b[32m/home/x.py"), "/home/x.py"),
    ],
    contract.cell_metadata_is_known: [
        (metadata("x1", tags=["hide-cell"]), "hide-cell"),
        (metadata("x1", tags=["nbval-ignore-output"]), "without metadata nlm.why"),
        (metadata("x1", tags=["nbval-ignore-output"], nlm={"why": ""}), "without metadata nlm.why"),
        (metadata("x1", execution={"iopub.execute_input": "2026-01-01"}), "execution times"),
    ],
    contract.begins_with_title_and_introduction: [
        (written("# Positions", "## Positions"), "exactly one H1"),
        (written("## Setup", "# Setup"), "exactly one H1"),
        (written("# Positions", "Welcome.\n\n# Positions"), "begin with the H1"),
        (lambda nb: nb.cells.insert(0, new_code_cell("x")), "begin with the H1"),
        (written("the second post", "nothing"), "which post"),
        (written("20 seconds", "no time"), "how long"),
    ],
    contract.goes_from_question_to_decision: [
        (written("## Setup", "## Summary"), "end with a question mark"),
        (written("nearer?", "nearer"), "end with a question mark"),
        (written("### Question\n\nIs it?\n\n", ""), "have to be"),
        (written("### Decision", "### Result"), "have to be"),
        (
            written("### Question\n\nIs it?\n\n### Hypothesis", "### Hypothesis\n\nIs 1 it?\n\n### Question"),
            "have to be",
        ),
        (written("## What we found", "## Setup"), "H2s are to be"),
        (written("## Try it", "### Try it"), "H2s are to be"),
        (lambda nb: nb.cells.append(nb.cells.pop(-3)), "H2s are to be"),
        (written("## Is it nearer?", "Is it nearer?"), "which is not an experiment"),
        (written("\n\nChange the seed.", ""), "nothing under 'Try it'"),
        (lambda nb: at(nb, "closing_table").outputs.clear(), "nothing under 'What we found'"),
        (written("\n\nIs it?", "\n\n<!-- later -->"), "nothing in 'Question'"),
        (lambda nb: at(nb, "1 / 0").outputs.clear(), "nothing in 'Experiment'"),
        (written("Below -0.5.", "Strongly falling."), "no number"),
        (written("### Result", "### Result\n\nIt is -0.62."), "'0.62'"),
    ],
    contract.figures_are_described: [
        (metadata("x1", mystnb={"figure": {"name": "fig-none"}}), "does not show"),
        (lambda nb: at(nb, "_ =").outputs.append(shown({"image/png": png()})), "2 outputs"),
        (lambda nb: at(nb, "_ =").outputs.append(printed("a line")), "a picture has its own cell"),
        (lambda nb: figure(nb).image.update(alt="A line"), "mystnb.image.alt"),
        (lambda nb: figure(nb).figure.pop("caption"), "mystnb.figure.caption"),
        (lambda nb: figure(nb).figure.update(name="nearer"), "begin with fig-"),
        (lambda nb: at(nb, "_ =").metadata.pop("mystnb"), "mystnb.image.alt"),
        (written("_ = ax.plot(distance)", "_ = ax.set_title('Distance')"), "a title in the figure"),
        (picture(png(width=599)), "599 pixels"),
        (picture(png(empty=True)), "the picture is empty"),
        (picture(png(background=(255, 255, 255, 0))), "opaque"),
        (picture(png(background=(20, 20, 20, 255))), "white"),
    ],
    contract.claims_are_recorded: [
        (lambda nb: at(nb, "claim").outputs[0].metadata["nlm_claim"].pop("ours"), "lacks ['ours']"),
        (record(verdict="refuted", reads="refuted"), "unknown verdict"),
        (record(verdict="partly"), "another verdict, 'holds': rewrite it"),
        (record(verdict="partly", reads="partly"), "is not what the line says"),
        (record(measured="99.00"), "is not what the line says"),
        (written("x1 = 1 % 2", 'claim(\n    "pos.zero-norm", ours=1)'), "pos.zero-norm: called and not recorded"),
        (written('claim("pos.nearer")', "x = 1"), "nothing calls"),
    ],
    contract.source_is_simple: [
        (written("x1 = 1", "x = 1\n" * 40 + "x1 = 1"), "more than 40 lines"),
        (written("Change the seed.", "Change it.\n" * 41), "more than 40 lines"),
        (written("x1 = 1 % 2", "!ls"), "not plain Python"),
        (written("x1 = 1 % 2", "%matplotlib inline"), "not plain Python"),
        (written("x1 = 1 % 2", "get_ipython().system('ls')"), "IPython"),
        (written("x1 = 1 % 2", "warnings.simplefilter('ignore')"), "filters warnings"),
        (written("x1 = 1 % 2", "time.sleep(1)"), "sleeps"),
        (written("x1 = 1 % 2", "from urllib.request import urlopen"), "network"),
    ],
}


def twice(book: Book) -> None:
    book.notebooks["04-twice"] = good()


def in_run(**values) -> Callable[[Book], None]:
    def plant(book: Book) -> None:
        path = book.root / "runs" / "damaged" / "results.json"
        results = {**json.loads(path.read_text()), **values}
        path.write_text(json.dumps({key: value for key, value in results.items() if value != "absent"}))

    return plant


def in_file(name: str, old: str, new: str) -> Callable[[Book], None]:
    def plant(book: Book) -> None:
        text = (book.root / name).read_text()
        assert old in text
        (book.root / name).write_text(text.replace(old, new))

    return plant


def in_notebook(plant: Callable[[NotebookNode], None]) -> Callable[[Book], None]:
    return lambda book: plant(book.notebooks[NAME])


BOOK_DEFECTS = {
    contract.figure_names_are_unique: [(twice, "fig-nearer stands 2 times")],
    contract.claims_are_complete: [
        (twice, "recorded 2 times"),
        (twice, "04-twice: its family"),
        (in_file("book/claims.toml", "pos.nearer", "pos.other"), "pos.nearer is not in"),
        (in_file("book/claims.toml", "tok.pieces", "pos.pieces"), "pos.pieces is not recorded"),
        (lambda book: (book.root / "book" / "claims.toml").unlink(), "pos.nearer is not in"),
    ],
    contract.runs_can_be_trusted: [
        (in_run(checkpoint="absent"), "no 'checkpoint'"),
        (in_run(checkpoint="6b"), "another checkpoint"),
        (in_run(command="absent"), "no 'command'"),
        (in_run(data="absent"), "no 'data'"),
        (in_run(versions="absent"), "neither 'versions' nor 'machine'"),
        (lambda book: (book.root / "runs" / "damaged" / "x.csv").write_bytes(bytes(6_000_001)), "more than 6 MB"),
        (in_notebook(written('"damaged"', '"healed"')), "no runs/healed"),
        (in_notebook(written("x1 = 1 % 2", 'open("runs/healed/results.json")')), "no runs/healed"),
        (in_notebook(written("x1 = 1 % 2", 'read_record("healed")')), "no runs/healed"),
    ],
    contract.notebooks_are_named_and_listed: [
        (in_file("_toc.yml", f"- file: book/{NAME}", "- file: book/03-positions"), f"{NAME}.ipynb is not in _toc.yml"),
        (lambda book: book.in_git.append("scripts/Untitled.ipynb"), "scripts/Untitled.ipynb: notebooks are named"),
        (lambda book: book.notebooks.update({"3_positions": good()}), "3_positions.ipynb: notebooks are named"),
    ],
}


def test_there_are_notebooks():
    assert NOTEBOOKS, "no notebook found in book/"


@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.parametrize("rule", NOTEBOOK_DEFECTS)
def test_notebook(name, rule):
    assert findings(rule, NOTEBOOKS[name]) == []


@pytest.mark.parametrize("rule", BOOK_DEFECTS)
def test_book(rule):
    in_git = []
    if shutil.which("git") and (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "*.ipynb"], cwd=ROOT, capture_output=True, text=True, check=False)
        in_git = listed.stdout.splitlines()
    assert findings(rule, Book(ROOT, NOTEBOOKS, in_git)) == []


def test_no_rule_is_left_out():
    rules = {
        value
        for value in vars(contract).values()
        if getattr(value, "__annotations__", {}).get("return") is contract.Checks
    }
    assert rules == {*NOTEBOOK_DEFECTS, *BOOK_DEFECTS}


@pytest.mark.parametrize("rule", NOTEBOOK_DEFECTS)
def test_a_good_notebook_has_no_findings(rule):
    assert findings(rule, good()) == []


@pytest.mark.parametrize("rule", BOOK_DEFECTS)
def test_a_good_book_has_no_findings(rule, tmp_path):
    assert findings(rule, good_book(tmp_path)) == []


@pytest.mark.parametrize(
    "rule, defect, finding", [(rule, *planted) for rule, defects in NOTEBOOK_DEFECTS.items() for planted in defects]
)
def test_a_defect_of_a_notebook_is_found(rule, defect, finding):
    nb = good()
    defect(nb)
    assert any(finding in line for line in findings(rule, nb)), findings(rule, nb)


@pytest.mark.parametrize(
    "rule, defect, finding", [(rule, *planted) for rule, defects in BOOK_DEFECTS.items() for planted in defects]
)
def test_a_defect_of_a_book_is_found(rule, defect, finding, tmp_path):
    book = good_book(tmp_path)
    defect(book)
    assert any(finding in line for line in findings(rule, book)), findings(rule, book)


def test_what_is_allowed_in_a_recorded_run(tmp_path):
    book = good_book(tmp_path)
    in_run(checkpoint=None, data=["stories"], versions="absent", machine="a laptop")(book)
    weights = tmp_path / "runs" / "damaged" / "seed-0" / "checkpoints" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(bytes(7_000_000))  # git ignores it
    assert findings(contract.runs_can_be_trusted, book) == []
