"""Texts that go on from stories of TinyStories, counted and not kept: runs/generation-tinystories.

    python scripts/generation.py CORPUS

CORPUS is the prepared corpus that the shipped model was trained on. The first stories of the reporting half of its
validation text that are long enough begin 100 texts under each setting, five times each, as `nlm evaluate` writes them;
beside them stands how the stories themselves go on, and how many of all stories end within the texts' length. Some ten
minutes; no text is recorded, only what was counted.
"""

import argparse

from openings import LENGTH, ending_soon, openings

from nlm_core import NLM, UserError, load_checkpoint
from nlm_core.data import Corpus
from nlm_core.errors import one_line_errors
from nlm_core.evaluate import SETTINGS, evaluate_generation, reference
from nlm_core.files import project_root
from nlm_core.matrix import to_units
from nlm_core.records import write_record
from nlm_core.source import text_to_score, words_and_copies

SEEDS = range(5)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    corpus = parser.parse_args(words).corpus
    checkpoint = load_checkpoint(project_root() / "checkpoints" / "nlm")
    model, tok = NLM.from_params(checkpoint["config"], checkpoint["params"]), checkpoint["tokenizer"]
    stories = list(text_to_score(corpus, "report", tok).stories)
    begun = openings(tok, stories)
    if not begun:
        raise UserError(f"no story of {corpus!r} has {LENGTH} tokens after its first words")
    prompts = list(begun)
    known, copies = words_and_copies(corpus)
    found = evaluate_generation(model, tok, prompts, SETTINGS, SEEDS, LENGTH, known, copies, progress=True)
    own = reference(tok, list(begun.values()), prompts, LENGTH, known, copies)
    maps = Corpus.open(corpus).manifest["maps"]
    write_record(
        project_root() / "runs" / "generation-tinystories",
        command=["python", "scripts/generation.py", corpus],
        checkpoint=checkpoint["sha256"],
        data={
            "prompts": f"the first words of {len(prompts)} stories of the reporting half; units are these",
            **{part: maps[part] for part in ("train", "report")},
        },
        units=to_units(found) | to_units(own),
        seeds=list(SEEDS),
        max_new_tokens=LENGTH,
        ends_within=ending_soon(tok, stories),
    )


if __name__ == "__main__":
    with one_line_errors():
        main()
