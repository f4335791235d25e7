"""Make a release of a training run: float16 weights, tokenizer, configuration, log, losses, and the model card.

    python scripts/release.py RUN --text V1=CORPUS --text V2=CORPUS --notes scripts/tinystories-slice.md

Losses are measured here, on the float16 weights that ship; the rest of the card's figures are the run's own record.
Beside the checkpoint, runs/losses gets the losses of the first text by story and class of token (sums, no text), and
words.txt the words of the training text, which say what a made-up word is.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from model_card import card

from nlm_core import NLM, UserError, load_checkpoint, save_checkpoint
from nlm_core.data import Corpus, corpus_names, stories_of
from nlm_core.errors import one_line_errors
from nlm_core.files import folder_written_whole, project_root, read_json, shown, write_json
from nlm_core.metrics import WORDS, by_frequency, write_words
from nlm_core.records import write_record
from nlm_core.score import score
from nlm_core.source import text_to_score
from nlm_core.text import blocks


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument(
        "--text", action="append", required=True, metavar="LABEL=CORPUS", help="the first has the classes"
    )
    parser.add_argument(
        "--notes", type=Path, required=True, help="Markdown that says where the training text comes from"
    )
    arguments = parser.parse_args(words)

    trained, run = load_checkpoint(arguments.run), read_json(arguments.run / "config.json")
    if not {"budget", "data", "train"} <= run.keys():
        raise UserError(f"{shown(arguments.run)} is not the folder of a training run")
    notes = "".join(blocks(arguments.notes))
    if trained["step"] != run["budget"]["steps"]:
        raise UserError(f"the run is at step {trained['step']} of {run['budget']['steps']}; let it end first")
    pairs = [text.partition("=") for text in arguments.text]
    if wrong := [label for label, _, name in pairs if name not in corpus_names()]:
        raise UserError(f"--text {wrong[0]}: give it as LABEL=CORPUS; corpora: {', '.join(corpus_names()) or 'none'}")
    first, corpus = pairs[0][0], Corpus.open(pairs[0][2])
    if corpus.manifest["maps"]["train"]["sha256"] != run["data"]["train"]["sha256"]:
        raise UserError(f"{shown(arguments.run)} was not trained on the corpus of the first --text, {pairs[0][2]!r}")
    texts = {label: (name, "report") for label, _, name in pairs}
    texts["`data/stories.txt`"] = (str(project_root() / "data" / "stories.txt"), "all")

    # All is measured before anything is written.
    shipped = {name: value.astype(np.float16).astype(np.float32) for name, value in trained["params"].items()}
    model, tok = NLM.from_params(trained["config"], shipped), trained["tokenizer"]
    scores, fit = {}, None
    for label, (where, half) in texts.items():
        source = text_to_score(where, half, tok)
        fit = source.fit if fit is None else fit  # the training text of the first serves all
        scores[label] = score(model, tok, source.stories, fit, progress=True)
    results = {label: scored.summary() for label, scored in scores.items()}
    training_text = list(stories_of(corpus.manifest["name"], "train"))
    # As many stories as are judged by, spread over all of the text: how far the model over-fits.
    some = training_text[:: max(1, len(training_text) // results[first]["stories"])]
    trained_on = score(model, tok, some, progress=True).summary()

    hours = trained["training"]["elapsed"] / 3600
    with folder_written_whole(project_root() / "checkpoints" / "nlm") as out:
        save_checkpoint(out, model, tok, step=trained["step"], metrics=metrics_of(results))
        checkpoint = load_checkpoint(out)
        write_words(out / WORDS, by_frequency(training_text))
        shutil.copy(arguments.run / "log.csv", out / "log.csv")
        write_json(out / "run.json", run)
        write_json(out / "losses.json", {"checkpoint": checkpoint["sha256"], "texts": results})
        (out / "README.md").write_text(card(checkpoint, model, run, hours, results, notes), encoding="utf-8")
    options = [word for text in arguments.text for word in ("--text", text)]
    write_record(
        project_root() / "runs" / "losses",
        command=["python", "scripts/release.py", "RUN", *options, "--notes", shown(arguments.notes)],
        checkpoint=checkpoint["sha256"],
        data={
            "scored": "the reporting half of the validation text; units are its stories, figures are sums",
            "report": corpus.manifest["maps"]["report"],
        },
        units=scores[first].by_story(),
        training_text={key: trained_on[key] for key in ("stories", "tokens", "nats_per_token", "bits_per_byte")},
    )
    print(json.dumps(checkpoint["metrics"], indent=2))


def metrics_of(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The figures that the checkpoint carries itself."""
    keys = ("bits_per_byte", "nats_per_token")
    return {
        label: {
            **{key: found[key]["value"] for key in keys},
            **{f"error_of_{key}": found[key]["error"] for key in keys},
            "stories": found["stories"],
        }
        for label, found in results.items()
    }


if __name__ == "__main__":
    with one_line_errors():
        main()
