"""What a chapter shows besides figures: sentences with computed numbers, and tables, as Markdown."""

from collections.abc import Iterable, Sequence

from IPython.display import Markdown, display

from nlm_core.markdown import table


def say(text: str) -> None:
    """Show a sentence that a cell has computed, as prose."""
    display(Markdown(text))


def show_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Show a table; cells are turned into text."""
    say(table(heads, rows))
