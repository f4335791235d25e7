"""What every notebook of the book, and the book as a whole, keeps to.

A rule makes checks: pairs of "is this broken?" (true or not) and the line that says so. `findings` returns the lines of
the broken ones. Rules look at the files as they are and run nothing.
"""

import ast
import base64
import io
import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from nbformat import NotebookNode
from nbformat.validator import iter_validate
from PIL import Image

from nlm_core.claims import METADATA, VERDICTS

# The claims that a notebook has to record: all of book/claims.toml whose ids begin so.
FAMILIES = {
    "01-tokenizer": ("tok.pieces", "tok.no-special"),
    "02-embeddings": ("emb.",),
    "03-positional-encodings": ("pos.", "tok.same-id"),
}
STEPS = ["Question", "Hypothesis", "Experiment", "Result", "Decision"]
OTHER_H2S = {"Setup": "S", "What we found": "F", "Try it": "T"}
TAGS = {"nbval-ignore-output", "raises-exception", "hide-input", "remove-cell"}
GLUED = "application/papermill.record/"
MIMES = {"text/plain", "text/markdown", "text/html", "image/png", f"{GLUED}text/plain", f"{GLUED}text/markdown"}
BANNED_IN_SOURCE = {
    r"\b(filterwarnings|simplefilter)\b": "filters warnings: mend their cause",
    r"\bsleep\(": "sleeps",
    r"\b(requests|urllib)\b": "uses the network",
    r"\bget_ipython\b": "uses IPython's own syntax",
}
ABSOLUTE_PATH = re.compile(r"(?<![\w.~])/(?:home|root|tmp|work|Users)/|\bC:\\")
FIGURE_TITLE = re.compile(r"\.set_title\(|plt\.title\(|suptitle\(")
LITERAL_CLAIM = re.compile(r"\bclaim\(\s*[\"']([^\"']+)[\"']")
RUN_READ = re.compile(r"\b(?:runs/|runs[\"']\s*[/,]\s*[\"']|read_record\(\s*[\"'])(\w[\w.-]*)")
TOC_ENTRY = re.compile(r"^[\s-]*(?:file|root):\s*[\"']?([^\s\"']+)", re.MULTILINE)
COLOUR_CODE = re.compile(r"\x1b\[[\d;]*m")
NOT_SHOWN = re.compile(r"<!--.*?-->|^\(\S+\)=$", re.DOTALL | re.MULTILINE)


@dataclass
class Book:
    root: Path
    notebooks: dict[str, NotebookNode]  # by file name without its ending
    in_git: list[str]  # the paths of all notebooks that git knows


Checks = Iterator[tuple[object, str]]


def findings(rule: Callable[..., Checks], subject: NotebookNode | Book) -> list[str]:
    return [line for is_broken, line in rule(subject) if is_broken]


def cells(nb: NotebookNode, kind: str = "") -> Iterator[tuple[str, NotebookNode]]:
    """The cells of a kind, each with a name that a person finds again."""
    for number, cell in enumerate(nb.cells, 1):
        if kind in ("", cell.cell_type):
            yield f"cell {number} ({cell.source.strip().partition(chr(10))[0][:40]})", cell


def outputs(nb: NotebookNode) -> Iterator[tuple[str, NotebookNode, NotebookNode]]:
    return ((where, cell, output) for where, cell in cells(nb, "code") for output in cell.outputs)


def texts(output: NotebookNode) -> dict[str, str]:
    """The texts of an output by type."""
    if output.output_type == "stream":
        return {"text/plain": output.text}
    if output.output_type == "error":
        return {"error": COLOUR_CODE.sub("", "\n".join([output.evalue, *output.traceback]))}
    return {mime: text for mime, text in output.data.items() if mime.startswith("text/")}


def records(nb: NotebookNode) -> list[dict]:
    return [output.metadata[METADATA] for _, _, output in outputs(nb) if METADATA in output.get("metadata", {})]


@dataclass
class Section:
    """A heading of level 1 or 2 with its H3s, or an H3; level 0: what stands above the first heading."""

    level: int
    title: str
    written: str = ""
    cells: list[NotebookNode] = field(default_factory=list)
    steps: list["Section"] = field(default_factory=list)

    @property
    def text(self) -> str:
        return NOT_SHOWN.sub("", self.written).strip()

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.steps or any(cell.outputs for cell in self.cells))


def sections(some_cells: list[NotebookNode]) -> list[Section]:
    found = [current := Section(0, "")]
    for cell in some_cells:
        if cell.cell_type == "code":
            current.cells.append(cell)
            continue
        tokens, lines, start = MarkdownIt().parse(cell.source), cell.source.splitlines(), 0
        for token, inline in itertools.pairwise(tokens):
            if token.tag in ("h1", "h2", "h3") and token.type == "heading_open" and token.level == 0:
                current.written += "\n".join(lines[start : token.map[0]]) + "\n"
                current, start = Section(int(token.tag[1]), inline.content.strip()), token.map[1]
                (found[-1].steps if current.level == 3 else found).append(current)
        current.written += "\n".join(lines[start:]) + "\n"
    return found


# Rules for a notebook


def is_valid(nb: NotebookNode) -> Checks:
    kernel, language = nb.metadata.get("kernelspec", {}), nb.metadata.get("language_info", {})
    yield (nb.nbformat, nb.nbformat_minor) < (4, 5), "the format is older than 4.5, which brought cell ids"
    yield len({cell.get("id") for cell in nb.cells}) < len(nb.cells), "two cells have the same id"
    names = (kernel.get("name"), kernel.get("language"), language.get("name"))
    yield names != ("python3", "python", "python"), "the kernel has to be python3, its language python"
    yield "version" in language, "language_info holds a Python version, which changes with every machine: remove it"
    extra = set(nb.metadata) - {"kernelspec", "language_info"}
    yield extra, f"notebook metadata {sorted(extra)}: only kernelspec and language_info belong there"
    for error in iter_validate(nb):
        yield True, f"not a valid notebook: {error.message}"


def was_run_from_top_to_bottom(nb: NotebookNode) -> Checks:
    code = [cell for _, cell in cells(nb, "code")]
    counts = [cell.execution_count for cell in code]
    yield not 10 <= len(code) <= 25, f"{len(code)} code cells: 10 to 25 are wanted"
    yield counts != list(range(1, len(code) + 1)), f"execution counts {counts}: restart the kernel and run all cells"
    yield any(not cell.source.strip() for cell in code), "a code cell is empty"


def outputs_are_plain(nb: NotebookNode) -> Checks:
    for where, cell, output in outputs(nb):
        tags, html = cell.metadata.get("tags", []), texts(output).get("text/html", "")
        yield output.get("name") == "stderr", f"{where}: prints to stderr: mend the cause"
        yield output.output_type == "error" and "raises-exception" not in tags, f"{where}: raises an error, untagged"
        yield re.search(r"<[^>]*\sid\s*=", html), f"{where}: HTML with an id, which changes with every run"
        others = sorted(set(output.get("data", {})) - MIMES)
        yield others, f"{where}: output of type {others}: only text, Markdown, HTML and PNG belong in the book"


def output_is_short(nb: NotebookNode) -> Checks:
    for where, cell in cells(nb, "code"):
        printed = [text.get("text/markdown") or text.get("text/plain", "") for text in map(texts, cell.outputs)]
        lines = sum(len(text.splitlines()) for text in printed)
        yield lines > 30, f"{where}: prints {lines} lines: at most 30"


def paths_are_relative(nb: NotebookNode) -> Checks:
    for where, cell in cells(nb):
        for text in (cell.source, *(text for output in cell.get("outputs", []) for text in texts(output).values())):
            found = ABSOLUTE_PATH.search(text)
            yield found, f"{where}: an absolute path, {text[found.start() :][:30] if found else ''!r}"


def cell_metadata_is_known(nb: NotebookNode) -> Checks:
    for where, cell in cells(nb):
        tags, why = set(cell.metadata.get("tags", [])), cell.metadata.get("nlm", {}).get("why")
        yield tags - TAGS, f"{where}: tags {sorted(tags - TAGS)}: only {sorted(TAGS)} belong in the book"
        yield "nbval-ignore-output" in tags and not why, f"{where}: nbval-ignore-output without metadata nlm.why"
        yield {"execution", "ExecuteTime"} & set(cell.metadata), f"{where}: execution times in its metadata"


def begins_with_title_and_introduction(nb: NotebookNode) -> Checks:
    before, title, *_ = [*sections(nb.cells[:1]), Section(0, "")]  # the last one: where there is no heading
    yield sum(section.level == 1 for section in sections(nb.cells)) != 1, "exactly one H1 is wanted, the title"
    yield title.level != 1 or not before.is_empty, "the first cell has to be Markdown and begin with the H1 title"
    yield not re.search(r"\bposts?\b", title.text), "the first cell does not say which post the notebook follows"
    duration = re.search(r"\b(seconds|minutes?)\b", title.text)
    yield not duration, "the first cell does not say how long the notebook runs (seconds, minutes)"


def goes_from_question_to_decision(nb: NotebookNode) -> Checks:
    parts = [part for part in sections(nb.cells) if part.level == 2]
    order = "".join(OTHER_H2S.get(part.title, "C") for part in parts)
    wanted = "Setup (or not), one or more questions, What we found, Try it"
    yield not re.fullmatch("S?C+FT", order), f"H2s are to be: {wanted}; not {[part.title for part in parts]}"
    for part in sections(nb.cells):
        here, titles = f"under {part.title!r}", [step.title for step in part.steps]
        if part.level == 2 and part.title not in OTHER_H2S:
            yield not part.title.endswith("?"), f"H2 {part.title!r} has to be a question and end with a question mark"
            yield titles != STEPS, f"H3s {here} have to be {STEPS}, not {titles}"
        else:
            yield set(titles) & set(STEPS), f"H3s {here}, which is not an experiment: {titles}"
            yield part.title in ("What we found", "Try it") and part.is_empty, f"nothing {here}"
        for step in part.steps:
            yield step.is_empty, f"nothing in {step.title!r} {here}"
            numbers = re.findall(r"\d+(?:\.\d+)?", step.text)
            unbound, typed = step.title == "Hypothesis" and not numbers, [number for number in numbers if "." in number]
            yield unbound, f"the hypothesis {here} has no number that could refute it"
            yield step.title == "Result" and typed, f"the result {here} has {typed} typed in: let the cell print it"


def figures_are_described(nb: NotebookNode) -> Checks:
    for where, cell in cells(nb, "code"):
        pictures = [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]
        image, figure = (cell.metadata.get("mystnb", {}).get(key, {}) for key in ("image", "figure"))
        yield (image or figure) and not pictures, f"{where}: describes a figure that it does not show"
        # The builder gives caption and name to every output of the cell.
        yield pictures and len(cell.outputs) > 1, f"{where}: {len(cell.outputs)} outputs: a picture has its own cell"
        for encoded in pictures:
            yield len(image.get("alt", "")) < 20, f"{where}: mystnb.image.alt is missing or short (20 characters)"
            yield len(figure.get("caption", "")) < 20, f"{where}: mystnb.figure.caption is missing or short"
            yield not figure.get("name", "").startswith("fig-"), f"{where}: mystnb.figure.name has to begin with fig-"
            yield FIGURE_TITLE.search(cell.source), f"{where}: a title in the figure: the caption says it"
            picture = Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGBA")
            yield picture.width < 600, f"{where}: the picture is {picture.width} pixels wide: 600 or more are wanted"
            yield picture.getpixel((0, 0)) != (255,) * 4, f"{where}: the background has to be white and opaque"
            yield len(picture.getcolors(1 << 24) or ()) < 2, f"{where}: the picture is empty"


def claims_are_recorded(nb: NotebookNode) -> Checks:
    sources = "\n".join(cell.source for _, cell in cells(nb, "code"))
    recorded = records(nb)
    for record in recorded:
        here, verdict, reads = f"claim {record.get('id')}", record.get("verdict"), record.get("reads")
        missing = {"id", "verdict", "ours", "reads"} - set(record)
        yield missing, f"{here}: its record lacks {sorted(missing)}"
        yield verdict not in VERDICTS, f"{here}: unknown verdict {verdict!r}"
        yield reads not in (None, verdict), f"{here}: the text was written for another verdict, {reads!r}: rewrite it"
    for where, _, output in outputs(nb):
        if record := output.get("metadata", {}).get(METADATA):
            line = texts(output).get("text/markdown", "")
            same = f"**{record.get('verdict')}**" in line and record.get("measured", "") in line
            yield not same, f"{where}: the record of {record.get('id')} is not what the line says"
    for claim_id in set(LITERAL_CLAIM.findall(sources)) - {record.get("id") for record in recorded}:
        yield True, f"claim {claim_id}: called and not recorded: run the notebook again"
    yield recorded and "claim(" not in sources, "claims are recorded that nothing calls: run the notebook again"


def source_is_simple(nb: NotebookNode) -> Checks:
    for where, cell in cells(nb):
        yield len(cell.source.splitlines()) > 40, f"{where}: more than 40 lines: the rest belongs in nlm_core"
    for where, cell in cells(nb, "code"):
        try:
            ast.parse(cell.source)
        except SyntaxError:
            yield True, f"{where}: not plain Python: no magics, no shell"
        for pattern, what in BANNED_IN_SOURCE.items():
            yield re.search(pattern, cell.source), f"{where}: {what}"


# Rules for the book


def figure_names_are_unique(book: Book) -> Checks:
    code = [cell for nb in book.notebooks.values() for _, cell in cells(nb, "code")]
    names = Counter(cell.metadata.get("mystnb", {}).get("figure", {}).get("name") for cell in code)
    for name, times in names.items():
        yield name and times > 1, f"the figure name {name} stands {times} times"


def claims_are_complete(book: Book) -> Checks:
    file = book.root / "book" / "claims.toml"
    known = tomllib.loads(file.read_text()) if file.exists() else {}
    recorded = {name: [record.get("id") for record in records(nb)] for name, nb in book.notebooks.items()}
    for claim_id, times in Counter(claim_id for ids in recorded.values() for claim_id in ids).items():
        yield claim_id not in known, f"claim {claim_id} is not in book/claims.toml"
        yield times > 1, f"claim {claim_id} is recorded {times} times: once, where it is measured"
    for name, ids in recorded.items():
        yield ids and name not in FAMILIES, f"{name}: its family of claims is missing in tests/contract.py"
        for claim_id in set(known) - set(ids):
            yield claim_id.startswith(FAMILIES.get(name, ())), f"{name}: claim {claim_id} is not recorded"


def runs_can_be_trusted(book: Book) -> Checks:
    shipped = json.loads((book.root / "checkpoints" / "nlm" / "config.json").read_text())["sha256"]
    for path in book.root.glob("runs/*/results.json"):
        run, where = json.loads(path.read_text()), f"runs/{path.parent.name}"
        yield "checkpoint" not in run, f"{where}: no 'checkpoint' (null where none is needed)"
        yield run.get("checkpoint") not in (None, shipped), f"{where}: made with another checkpoint: make it again"
        yield not isinstance(run.get("command"), str), f"{where}: no 'command', the line that makes it again"
        yield not isinstance(run.get("data"), dict | list), f"{where}: no 'data', what it was made with"
        yield not (run.get("versions") or run.get("machine")), f"{where}: neither 'versions' nor 'machine'"
        # The weights of training runs stay on the machine that made them.
        ours = [file for file in path.parent.rglob("*") if "checkpoints" not in file.relative_to(path.parent).parts]
        yield sum(file.stat().st_size for file in ours if file.is_file()) > 6e6, f"{where}: more than 6 MB"
    for name, nb in book.notebooks.items():
        for where, cell in cells(nb, "code"):
            for run in RUN_READ.findall(cell.source):
                yield not (book.root / "runs" / run).is_dir(), f"{name}, {where}: there is no runs/{run}"


def notebooks_are_named_and_listed(book: Book) -> Checks:
    paths = {f"book/{name}.ipynb" for name in book.notebooks}
    for path in paths | set(book.in_git):
        good = re.fullmatch(r"\d\d(-[a-z0-9]+)+\.ipynb", Path(path).name)
        yield not good, f"{path}: notebooks are named like 03-words-with-hyphens.ipynb"
    listed = {entry.removesuffix(".ipynb") for entry in TOC_ENTRY.findall((book.root / "_toc.yml").read_text())}
    for path in paths:
        yield path.removesuffix(".ipynb") not in listed, f"{path} is not in _toc.yml"
