"""Execute the book's notebooks, so that what they show is what they compute.

    python scripts/notebooks.py                                    the book itself, in place
    NLM_CHECKPOINT=runs/mine python scripts/notebooks.py           a copy of the book, on another checkpoint

The copy is made in _build/own-book; the book itself stays as it is. A notebook is written only if all of it ran. Then
what README and start page show of the verdicts is made anew (scripts/render.py).
"""

import os
import shutil
import sys
import time
from pathlib import Path

import nbformat
import render
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from nlm_core import load_checkpoint
from nlm_core.errors import one_line_errors
from nlm_core.files import project_root, shown, written_whole
from nlm_core.tables import info_table

SOURCES = ("_config.yml", "_toc.yml", "_static", "book")
SECONDS_PER_CELL = 600


def execute(path: Path) -> None:
    """Run a notebook from top to bottom in a fresh kernel and replace its outputs.

    Raises:
        CellExecutionError: a cell raised; the file stays as it was.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS_PER_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--IPKernelApp.log_level=40"],  # else each kernel warns on the terminal that it uses TCP
    )
    client.execute()
    # Only what every machine would write: no versions, so that a run elsewhere changes nothing.
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.validate(notebook)
    with written_whole(path, "w") as file:
        nbformat.write(notebook, file)


def copy_for(checkpoint: Path, root: Path) -> Path:
    """Copy the book's sources, with a card of the reader's own checkpoint in place of the shipped one's.

    Until all of it ran it has another name, so that a book that is built never shows another checkpoint's results.
    """
    out = root / "_build" / "own-book-unfinished"
    shutil.rmtree(root / "_build" / "own-book", ignore_errors=True)
    table = info_table(load_checkpoint(checkpoint))
    card = f"# Your checkpoint\n\nThis copy of the book examines it.\n\n```text\n{table}\n```\n"
    shutil.rmtree(out, ignore_errors=True)
    for name in SOURCES:
        if (root / name).is_dir():
            shutil.copytree(root / name, out / name, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
        else:
            out.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, out / name)
    (out / "checkpoints" / "nlm").mkdir(parents=True)
    (out / "checkpoints" / "nlm" / "README.md").write_text(card, encoding="utf-8")
    return out


def main() -> None:
    root = project_root().resolve()
    book = root
    if own := os.environ.get("NLM_CHECKPOINT"):
        os.environ["NLM_CHECKPOINT"] = str(Path(own).resolve())  # kernels run in the notebooks' folder
        os.environ["NLM_ROOT"] = str(root)
        book = copy_for(Path(own), root)
    for path in sorted((book / "book").glob("*.ipynb")):
        begin = time.monotonic()
        print(f"{shown(path)} ... ", end="", flush=True)
        execute(path)
        print(f"{time.monotonic() - begin:.0f} s")
    if (book / "book" / "index.md").exists():
        render.main([str(book)])
    if own:
        book = book.rename(book.with_name("own-book"))
        print(f"Executed in {shown(book)}; build it with the same NLM_CHECKPOINT: make book")


if __name__ == "__main__":
    try:
        with one_line_errors():
            main()
    except (CellExecutionError, DeadKernelError, TimeoutError) as error:
        print("failed: the notebook stays as it was", flush=True)
        if getattr(error, "ename", "") == "UserError":
            print(f"error: {error.evalue}", file=sys.stderr)
            sys.exit(2)
        sys.exit(str(error))
