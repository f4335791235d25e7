"""Make the recorded runs of the chapter on positions.

    python scripts/positions.py train CORPUS     nine small models with three kinds of positions: runs/positions-trained
    python scripts/positions.py damage CORPUS    the shipped model, its position table damaged: runs/positions-damaged

The first takes about an hour and a half on two cores and goes on where it was interrupted; the second, a quarter of an
hour. CORPUS is a prepared corpus with validation text, as `nlm data add` and `nlm data prepare` make it. Losses are
those of the reporting half, story by story; no text is recorded.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nlm_core import NLM, UserError, load_checkpoint
from nlm_core.config import POSITIONS, Budget
from nlm_core.data import Corpus
from nlm_core.errors import one_line_errors
from nlm_core.files import project_root, read_json, shown
from nlm_core.launch import complete_run
from nlm_core.loss import stream_nats
from nlm_core.positions import damaged, mantel, parts, shuffled
from nlm_core.records import RESULTS, write_record
from nlm_core.score import Tokens, tokens_of
from nlm_core.source import text_to_score
from nlm_core.stats import sums_by
from nlm_core.vectors import cosines

SEEDS = (0, 1, 2)
STEPS = 950  # 3.9 million tokens
SETTINGS = {
    "context_length": 256,
    "d_model": 128,
    "n_layers": 4,
    "n_heads": 4,
    "batch_size": 16,
    "eval_tokens": 50_000,
}


def require_own_record(what: str, corpus: str) -> None:
    """A record of another text stays; a chapter says on which text it was made."""
    file = folder_of(what) / RESULTS
    if file.exists() and read_json(file)["data"]["report"] != Corpus.open(corpus).manifest["maps"]["report"]:
        raise UserError(f"{shown(file.parent)} holds the record of another text; move it away first")


def report_tokens(corpus: str) -> Tokens:
    tokenizer = Corpus.open(corpus).tokenizer
    return tokens_of(tokenizer, text_to_score(corpus, "report", tokenizer).stories)


def by_story(tokens: Tokens, values: np.ndarray) -> np.ndarray:
    return sums_by(tokens.stories[1:], values, int(tokens.stories[-1]) + 1)


def nats_by_story(model: NLM, tokens: Tokens) -> np.ndarray:
    return by_story(tokens, stream_nats(model, tokens.ids, progress=True).astype(np.float64))


def write(
    what: str, corpus: str, tokens: Tokens, nats: dict[str, np.ndarray], checkpoint: str | None, **results: Any
) -> None:
    manifest = Corpus.open(corpus).manifest
    write_record(
        folder_of(what),
        command=["python", "scripts/positions.py", what, corpus],
        checkpoint=checkpoint,
        data={
            "scored": "the reporting half of the validation text; units are its stories, figures are sums of nats",
            "tokenizer": manifest["tokenizer"],
            **{part: manifest["maps"][part] for part in ("train", "report")},
        },
        units={"tokens": by_story(tokens, np.ones(len(tokens.ids) - 1)), **nats},
        **results,
    )


def folder_of(what: str) -> Path:
    return project_root() / "runs" / {"train": "positions-trained", "damage": "positions-damaged"}[what]


def trained(folder: Path, corpus: str, overrides: dict[str, Any]) -> NLM:
    """Return the model of a run, after starting the run or going on with it as needed."""
    last = complete_run("tiny", corpus, folder, overrides, Budget("steps", STEPS))
    if last is None:
        raise SystemExit(130)
    return NLM.from_checkpoint(last)


def train(corpus: str) -> None:
    """Train each kind of positions with each seed, then score all of them."""
    tokens = report_tokens(corpus)
    nats, tables = {}, {}
    for seed, kind in itertools.product(SEEDS, POSITIONS):
        name = f"{kind}-{seed}"
        print(name)
        model = trained(folder_of("train") / name, corpus, {**SETTINGS, "positions": kind, "seed": seed})
        nats[name] = nats_by_story(model, tokens)
        if kind == "learned":
            tables[name] = what_it_learned(model, seed)
    write("train", corpus, tokens, nats, None, steps=STEPS, settings=SETTINGS, tables=tables)


def what_it_learned(model: NLM, seed: int) -> dict[str, Any]:
    """Whether near places are alike in a learned table, before training and after, and how long its row 0 is."""
    torch.manual_seed(seed)  # as a run does before it draws its first weights
    fresh, table = (one.pos_emb.detach().numpy() for one in (NLM(model.config), model))
    norms = np.linalg.norm(table.astype(np.float64), axis=1)
    similarity = cosines(table)
    return {
        "nearness_before": mantel(cosines(fresh)),
        "nearness_after": {part: mantel(similarity[span, span]) for part, span in parts(len(table)).items()},
        "norm_0_to_mean": float(norms[0] / norms.mean()),
    }


def damage(corpus: str) -> None:
    """Score the shipped model with its own position table and with damaged copies of it."""
    tokens = report_tokens(corpus)
    checkpoint = load_checkpoint(project_root() / "checkpoints" / "nlm")
    if checkpoint["tokenizer"].sha256 != Corpus.open(corpus).tokenizer.sha256:
        raise UserError(f"corpus {corpus!r} was prepared with another tokenizer than the shipped model's")
    model = NLM.from_params(checkpoint["config"], checkpoint["params"])
    table = checkpoint["params"]["pos_emb"]
    tables = {"intact": table, **damaged(table)}
    tables |= {f"permuted-{seed}": shuffled(table, len(table), seed) for seed in SEEDS[1:]}
    nats = {}
    for name, values in tables.items():
        print(name)
        model.pos_emb.data = torch.from_numpy(values)
        nats[name] = nats_by_story(model, tokens)
    write("damage", corpus, tokens, nats, checkpoint["sha256"])


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "damage"))
    parser.add_argument("corpus")
    arguments = parser.parse_args(words)
    require_own_record(arguments.what, arguments.corpus)
    if arguments.what == "train":
        train(arguments.corpus)
    else:
        damage(arguments.corpus)


if __name__ == "__main__":
    with one_line_errors():
        main()
