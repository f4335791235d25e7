"""The scorecard: all verdicts of the book, gathered from its executed notebooks."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from nlm_core.claims import METADATA, VERDICTS, all_claims
from nlm_core.errors import UserError
from nlm_core.files import readable_file, shown
from nlm_core.plots import COLOURS

FAMILIES = {
    "tok": "Tokenizer",
    "emb": "Embeddings",
    "pos": "Positions",
    "train": "Training",
    "eval": "Generation",
    "abl": "Heads",
}
# From "holds" to "not applicable": a colour and a hatching, so that they can be told apart in grey as well.
STYLES = ((COLOURS[0], ""), (COLOURS[5], "//"), (COLOURS[1], "xx"), ("#BBBBBB", ".."), ("#FFFFFF", ""))


@dataclass(frozen=True)
class Verdict:
    """A recorded claim and where it stands.

    Attributes:
        notebook: the file's name without its ending.
        title: of the notebook.
        record: what `claim` recorded.
        listed: the claim's entry in book/claims.toml.
    """

    notebook: str
    title: str
    record: dict[str, Any]
    listed: dict[str, Any]

    @property
    def id(self) -> str:
        return self.record["id"]

    @property
    def verdict(self) -> str:
        return self.record["verdict"]

    @property
    def family(self) -> str:
        return self.id.partition(".")[0]


def read_verdicts(folder: Path) -> list[Verdict]:
    """All verdicts that the executed notebooks of a folder carry, in the order of book/claims.toml.

    Raises:
        UserError: a notebook can't be read, or records a claim that is not in the list; or none records any.
    """
    listed = all_claims()
    found = {}
    for path in sorted(folder.glob("*.ipynb")):
        text = readable_file(path).read_bytes()
        try:
            cells = json.loads(text)["cells"]
            title = "".join(cells[0]["source"]).partition("\n")[0].removeprefix("# ")
            outputs = [output for cell in cells for output in cell.get("outputs", [])]
            records = [output["metadata"][METADATA] for output in outputs if METADATA in output.get("metadata", {})]
            if unknown := {record["verdict"] for record in records} - set(VERDICTS):
                raise ValueError(f"no verdicts: {unknown}")
            by_id = {record["id"]: record for record in records}
        except (ValueError, KeyError, IndexError, TypeError):
            raise UserError(f"{shown(path)} is not a notebook") from None
        for id, record in by_id.items():
            if id not in listed:
                raise UserError(f"{shown(path)} records {id!r}, which is not in book/claims.toml")
            found[id] = Verdict(path.stem, title, record, listed[id])
    if not found:
        raise UserError(f"no notebook in {shown(folder)} carries a verdict; run `make notebooks`")
    return [found[id] for id in listed if id in found]


def counts(verdicts: Sequence[Verdict]) -> dict[str, Counter[str]]:
    """How many claims of each family got which verdict; families in the order of the book."""
    return {
        name: Counter(one.verdict for one in verdicts if one.family == family)
        for family, name in FAMILIES.items()
        if any(one.family == family for one in verdicts)
    }


def draw(ax: Axes, verdicts: Sequence[Verdict]) -> None:
    """Draw a bar for each family of claims, divided by verdict."""
    families = counts(verdicts)
    left = np.zeros(len(families))
    for verdict, (colour, hatch) in zip(VERDICTS, STYLES, strict=True):
        widths = np.array([family[verdict] for family in families.values()])
        if not widths.any():
            continue
        bars = ax.barh(
            list(families),
            widths,
            left=left,
            color=colour,
            hatch=hatch,
            edgecolor="#777777" if colour == "#FFFFFF" else "white",
            linewidth=0.8,
            label=verdict,
        )
        dark = colour in (COLOURS[0], COLOURS[1])
        ax.bar_label(
            bars,
            [str(width) if width else "" for width in widths],
            label_type="center",
            color="white" if dark else "black",
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 2.5},
        )
        left += widths
    ax.invert_yaxis()
    ax.set(xlabel="claims", xlim=(0, left.max()))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(visible=False, axis="y")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=9, handleheight=1.2)


def rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """A row for each claim: id, what was expected, what the post said, what we measured, the verdict, and where."""
    return [
        [
            f"`{one.id}`",
            one.listed["expected"] or "-",
            one.listed["said"],
            one.record["measured"],
            one.verdict,
            f"[{one.title}]({one.notebook}.ipynb)",
        ]
        for one in verdicts
    ]
