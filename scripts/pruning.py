"""Take the shipped model's heads away one after the other: runs/heads-pruned.

    python scripts/pruning.py CORPUS RECORD

RECORD is the zero ablation of single heads that gives the order, as `nlm ablate --data CORPUS --out runs/RECORD` wrote
it. Once the least important heads go first, once the most important. What is left is scored on the choosing half of
the validation text, so on other stories than those that gave the order. A few minutes; no text is recorded.
"""

import argparse
from typing import Any

import numpy as np

from nlm_core import NLM, UserError, load_checkpoint
from nlm_core.ablate import Head, ablate
from nlm_core.errors import one_line_errors
from nlm_core.files import project_root
from nlm_core.records import read_record, write_record
from nlm_core.source import beginning_of, text_to_score

TOKENS = 20_000
PARTS = 24  # so many steps from all heads to none


def orders(deltas: np.ndarray) -> dict[str, list[Head]]:
    """The heads, the least important first and the most important first."""
    places = [divmod(int(place), deltas.shape[1]) for place in np.argsort(deltas, axis=None, kind="stable")]
    return {"least first": places, "most first": places[::-1]}


def sizes(heads: int) -> list[int]:
    """How many heads are taken away: one by one at first, then in equal steps, in the end all."""
    return sorted({*range(1, min(5, heads + 1)), *(heads * part // PARTS for part in range(1, PARTS + 1))} - {0})


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("record")
    arguments = parser.parse_args(words)
    checkpoint = load_checkpoint(project_root() / "checkpoints" / "nlm")
    order = read_record(arguments.record).results
    if (order["checkpoint"], order.get("mode")) != (checkpoint["sha256"], "zero"):
        raise UserError(f"runs/{arguments.record} is not a zero ablation of the shipped checkpoint")
    deltas = np.array(order["deltas"])
    text = beginning_of(
        text_to_score(arguments.corpus, "choose", checkpoint["tokenizer"]), checkpoint["tokenizer"], TOKENS
    )
    taken = {(name, size): set(heads[:size]) for name, heads in orders(deltas).items() for size in sizes(deltas.size)}
    model = NLM.from_params(checkpoint["config"], checkpoint["params"])
    losses = ablate(model, text.ids, list(taken.values()), stories=text.stories, progress=True)
    units: dict[str, Any] = {"tokens": losses.targets, "clean": losses.clean}
    units |= {f"{name}, {size}": losses.ablated[:, n] for n, (name, size) in enumerate(taken)}
    write_record(
        project_root() / "runs" / "heads-pruned",
        command=f"python scripts/pruning.py {arguments.corpus} {arguments.record}",
        checkpoint=checkpoint["sha256"],
        data={
            "scored": f"the first stories of the choosing half of {arguments.corpus}, {len(text.ids):,} tokens",
            "order": f"runs/{arguments.record}",
        },
        units=units,
        sizes=sizes(deltas.size),
        orders=orders(deltas),
    )


if __name__ == "__main__":
    with one_line_errors():
        main()
