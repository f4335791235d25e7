"""What a chapter shows besides figures: sentences with computed numbers, and tables, as Markdown."""

from collections.abc import Iterable, Sequence

from IPython.display import Markdown, display


def say(text: str) -> None:
    """Show a sentence that a cell has computed, as prose."""
    display(Markdown(text))


def show_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Show a table; cells are turned into text, and a bar in them does not end the cell."""
    lines = [list(heads), ["---"] * len(heads), *rows]
    say("\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines))
