"""Write those parts of README and book that are made from records: no figure in them is typed in.

    python scripts/render.py            the project's own
    python scripts/render.py FOLDER     a copy of the book's sources, from the notebooks executed there

README.md and book/index.md   what stands between <!-- made: NAME --> and <!-- end: NAME -->
_static/scorecard.png         the verdicts of all chapters in one picture
book/benchmarks.md            the appendix on speed and memory

The tests make all of it anew and compare.
"""

import argparse
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from nlm_core.claims import VERDICTS
from nlm_core.errors import UserError, one_line_errors
from nlm_core.files import project_root, read_json, shown, written_whole
from nlm_core.markdown import table
from nlm_core.plots import figure, use_style
from nlm_core.scorecard import Verdict, counts, draw, read_verdicts
from nlm_core.tables import plus_minus

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the benchmarks are not installed
from benchmarks.tables import markdown, remarks, tables

PICTURE = Path("_static") / "scorecard.png"
IN_WORDS = dict(  # for one, and for more
    zip(
        VERDICTS,
        (
            ("{} holds", "{} hold"),
            ("{} partly", "{} partly"),
            ("{} does not hold here", "{} do not hold here"),
            ("for {} we can't tell", "for {} we can't tell"),
            ("{} does not apply", "{} do not apply"),
        ),
        strict=True,
    )
)
POST = "0.93"  # nats per token, on text that the post does not name

BENCHMARKS = """# Speed and memory

How fast is nlm, and what does it cost? The figures on this page were measured by `make bench` and `make bench-growth`.
The page is made from what they wrote, `benchmarks/results.json`.

Each comparison runs in turn with the library that one would take instead: the same weights, tokens and threads, seven
rounds. The peer runs as it is fastest on this machine. For times the ratio is the peer's over ours, for memory it is
ours over the peer's. The goals were set before we measured.

{comparisons}

{remarks}

"The goal would take" says what share of the speed of matrix products alone the goal amounts to. More than 100 % is out
of reach of anything that does the same products with PyTorch, however little time the rest takes. `transformer-lens`
runs as it is mostly used, one pass with a hook for each head, so a part of that ratio is work that we share between
heads. Our weights lie in memory as float16 where that changes none of them, as in the shipped model.

## Everything that was measured

```text
{everything}
```
"""


def in_words(family: Counter[str]) -> str:
    """Counts of verdicts as a part of a sentence."""
    return ", ".join(
        (more if family[verdict] > 1 else one).format(family[verdict])
        for verdict, (one, more) in IN_WORDS.items()
        if family[verdict]
    )


def picture(verdicts: Sequence[Verdict]) -> bytes:
    """The scorecard as PNG; the file says in its metadata which verdicts it shows."""
    use_style()
    ax = figure(height=3.6)
    draw(ax, verdicts)
    out = io.BytesIO()
    shows = json.dumps({one.id: one.verdict for one in verdicts})
    ax.figure.savefig(out, format="png", metadata={"Description": shows, "Software": None})
    plt.close(ax.figure)
    return out.getvalue()


def losses(root: Path) -> str:
    """The README's table: how well the model predicts, beside what the post says of its own."""
    found = read_json(root / "checkpoints" / "nlm" / "losses.json")["texts"]
    rows = [
        [name, *(plus_minus(text[key], 3) for key in ("bits_per_byte", "nats_per_token")), f"{text['stories']:,}"]
        for name, text in found.items()
    ]
    label, text = next(iter(found.items()))
    trigram, ratio = text["baselines"]["trigram"], text["bits_per_byte"]["value"] / text["nats_per_token"]["value"]
    rows.append([f"counts of three tokens in a row, on {label}", f"{trigram * ratio:.3f}", f"{trigram:.3f}", ""])
    rows.append(["the posts' model, on text that they don't name", "", f"about {POST}", ""])
    return table(["text, not trained on", "bits per byte", "nats per token", "stories"], rows)


def parts(root: Path, folder: Path) -> dict[str, dict[str, str]]:
    """By file, what stands between its marks."""
    verdicts = read_verdicts(folder / "book")
    families = counts(verdicts)
    outcome = f"Of {len(verdicts)} claims of the posts, {in_words(sum(families.values(), Counter()))}."
    alt = "A bar for each family of claims, divided by verdict. "
    alt += "; ".join(f"{name}: {in_words(family)}" for name, family in families.items()) + "."
    options = f"---\nname: fig-scorecard\nalt: >-\n  {alt}\n---"
    scorecard = f"```{{figure}} ../{PICTURE}\n{options}\n{outcome}\n```"
    found = {"book/index.md": {"scorecard": scorecard}}
    if folder == root:  # a copy of the book has no README
        found["README.md"] = {"scorecard": f"{outcome}\n\n![{alt}]({PICTURE})", "losses": losses(root)}
    return found


def replaced(text: str, made: dict[str, str], where: str) -> str:
    for name, content in made.items():
        pattern = re.compile(f"(<!-- made: {name} -->\n).*?(<!-- end: {name} -->)", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise UserError(f"{where} has no place for {name!r}: <!-- made: {name} --> and <!-- end: {name} -->, once")
        text = pattern.sub(lambda match, content=content: f"{match[1]}\n{content}\n\n{match[2]}", text)
    return text


def rendered(root: Path, folder: Path) -> dict[Path, str]:
    """All texts that are made from records, whole, by path below the folder."""
    found = {
        Path(name): replaced((folder / name).read_text(encoding="utf-8"), made, name)
        for name, made in parts(root, folder).items()
    }
    results: dict[str, Any] = read_json(root / "benchmarks" / "results.json")
    comparisons, more = markdown(results), remarks(results)
    page = BENCHMARKS.format(comparisons=comparisons, remarks=more, everything=tables(results).rstrip())
    found[Path("book") / "benchmarks.md"] = page
    return found


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    root = project_root().resolve()
    folder = (parser.parse_args(words).folder or root).resolve()
    # All is made before anything is written.
    made = {path: text.encode() for path, text in rendered(root, folder).items()}
    made[PICTURE] = picture(read_verdicts(folder / "book"))
    for path, content in made.items():
        with written_whole(folder / path) as file:
            file.write(content)
        print(shown(folder / path))


if __name__ == "__main__":
    with one_line_errors():
        main()
