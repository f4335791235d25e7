"""Take the shipped model's heads away one after the other: runs/heads-pruned.

    python scripts/pruning.py CORPUS RECORD

RECORD is the zero ablation of single heads that gives the order, as `nlm ablate --data CORPUS --out runs/RECORD` wrote
it. Once the least important heads go first, once the most important, once any. What is left is scored on the choosing
half of the validation text, so on other stories than those that gave the order, and so is the model without each head
alone. All of it is done by zeros and by means. Some ten minutes; no text is recorded.
"""

import argparse

import numpy as np

from nlm_core import NLM, UserError, load_checkpoint
from nlm_core.ablate import Head, ablate
from nlm_core.errors import one_line_errors
from nlm_core.files import project_root
from nlm_core.records import read_record, write_record
from nlm_core.source import beginning_of, text_to_score

TOKENS = 20_000
PARTS = 24  # so many steps from all heads to none
MODES = ("zero", "mean")


def orders(deltas: np.ndarray) -> dict[str, list[Head]]:
    """The heads: the least important first, the most important first, and shuffled."""
    places = [divmod(int(place), deltas.shape[1]) for place in np.argsort(deltas, axis=None, kind="stable")]
    shuffled = [places[number] for number in np.random.default_rng(0).permutation(len(places))]
    return {"least first": places, "most first": places[::-1], "at random": shuffled}


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
    source = text_to_score(arguments.corpus, "choose", checkpoint["tokenizer"])
    text = beginning_of(source, checkpoint["tokenizer"], TOKENS)
    model = NLM.from_params(checkpoint["config"], checkpoint["params"])
    found, units = orders(deltas), {}
    for mode in MODES:
        together = {
            f"{name}, {size}, {mode}": set(heads[:size]) for name, heads in found.items() for size in sizes(deltas.size)
        }
        alone = {f"L{layer}H{head}, {mode}": {(layer, head)} for layer, head in sorted(found["least first"])}
        sets = together | alone
        losses = ablate(model, text.ids, list(sets.values()), mode, text.stories, progress=True)
        units |= {"tokens": losses.targets, "clean": losses.clean}
        units |= {name: losses.deltas[:, number] for number, name in enumerate(sets)}
    write_record(
        project_root() / "runs" / "heads-pruned",
        command=["python", "scripts/pruning.py", arguments.corpus, arguments.record],
        checkpoint=checkpoint["sha256"],
        data={
            "scored": f"the first stories of the choosing half of {arguments.corpus}, {len(text.ids):,} tokens",
            "ids": text.sha256,
            "order": f"runs/{arguments.record}",
            "units": "stories; figures are sums of nats, and rises of such sums",
        },
        units=units,
        sizes=sizes(deltas.size),
        orders=found,
    )


if __name__ == "__main__":
    with one_line_errors():
        main()
