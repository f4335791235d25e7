"""Make a release of a training run: float16 weights, tokenizer, configuration, log, losses, and the model card.

    python scripts/release.py RUN --text V1=CORPUS --text V2=CORPUS --notes scripts/tinystories-slice.md

Every figure in the card is measured here, on the float16 weights that ship.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from nlm_core import NLM, generate, load_checkpoint, save_checkpoint
from nlm_core.files import read_json, write_json
from nlm_core.report import text_to_score
from nlm_core.score import score

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "checkpoints" / "nlm"
PROMPTS = ["Once upon a time", "Two little birds"]

CARD = """# Model card: nlm

The book's model: a GPT-2-style transformer of {parameters:,} parameters. It writes very short stories in the words of a
small child. It was trained from scratch on a plain CPU, and it exists to be examined.

## Shape

{layers} layers, {heads} heads, width {width}, context {context} tokens; byte-level BPE with a vocabulary of
{vocabulary} and no special tokens. Learned absolute positions, pre-norm blocks, tanh GELU, output tied to the token table. Weights
ship as float16 (`model.safetensors`) and load as float32. The checkpoint's sha256 is `{sha256}`.

## How well it predicts

{losses}

After ± stands the standard error, with stories as units. Every token but the first of each text is predicted once, in
windows of {context} tokens; the separators between stories count. Baselines in nats per token: a uniform guess has
{uniform:.2f}; on {baseline_text}, a unigram model has {unigram:.2f} and a bigram model {bigram:.2f} (counts from the
training text).

On {baseline_text}, by class of token:

{classes}

Almost half of the tokens are spaces, and nearly free. That is why nats per token look small beside those of models
whose tokens include the space. Bits per byte compare across tokenizers; nats per token do not.

## How it was trained

{notes}

{train_tokens:,} training tokens were at hand; the model saw {seen:,} tokens, {passes:.2f} passes, in {steps:,} steps of
{per_step:,} tokens. {recipe}

It ran in {precision} on {threads} threads of a {system} machine for {hours:.1f} hours, at times beside other work. The
run's settings are in `run.json`, its log in `log.csv`.

| text | stories | tokens | sha256 of the token ids |
|---|---|---|---|
{data}

## What it writes

At temperature 0.8, seed 0, 120 tokens, not chosen among others:

{samples}

## Limits

- It knows nothing but TinyStories' world, and repeats its clichés and its share of sad, odd or violent turns.
- It reads {context} tokens at most. There is no vector for a later position.
- It loses track of who is who, invents words now and then, and does not know when a story makes sense. Losses say
  nothing about that.
- It was trained on {share:.1%} of TinyStories. A model that saw all of it would be better.
- It must not be used for anything that matters.

## Licence

The weights are under the MIT licence. TinyStories (Eldan & Li 2023), on which they were trained, is under
CDLA-Sharing-1.0.
"""
TINYSTORIES_BYTES = 1_924_281_556


def figure(entry: dict[str, float], digits: int) -> str:
    return f"{entry['value']:.{digits}f} ± {entry['error']:.{digits}f}"


def loss_rows(results: dict[str, dict[str, Any]]) -> str:
    lines = ["| text | bits per byte | nats per token | perplexity | stories | tokens |", "|---|---|---|---|---|---|"]
    for name, found in results.items():
        lines.append(
            f"| {name} | {figure(found['bits_per_byte'], 4)} | {figure(found['nats_per_token'], 4)} "
            f"| {found['perplexity']:.2f} | {found['stories']:,} | {found['tokens']:,} |"
        )
    return "\n".join(lines)


def class_rows(summary: dict[str, Any]) -> str:
    lines = ["| class | share of tokens | share of the loss | nats per token |", "|---|---|---|---|"]
    for name, row in summary["classes"].items():
        shares = f"{row['share_of_tokens']:.1%} | {row['share_of_loss']:.1%}"
        lines.append(f"| {name} | {shares} | {figure(row['nats_per_token'], 3)} |")
    return "\n".join(lines)


def quoted(text: str) -> str:
    return "> " + text.replace("<|endoftext|>", "`<|endoftext|>`").replace("\n", "\n>\n> ")


def recipe(train: dict[str, Any]) -> str:
    optimizer = {
        "muon": "Muon for the blocks' matrices and AdamW for everything else",
        "adamw": "AdamW",
    }[train["optimizer"]]
    return (
        f"The optimizer was {optimizer}, at a peak learning rate of {train['lr']:g}, with {train['warmup_steps']} steps "
        f"of warm-up and a linear decay over the last {train['decay_fraction']:.0%}; weight decay "
        f"{train['weight_decay']:g} on matrices, betas {train['beta1']:g} and {train['beta2']:g}, gradients clipped at "
        f"{train['clip']:g}, dropout {train['dropout']:g}, seed {train['seed']}. None of this was tuned."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument(
        "--text", action="append", required=True, metavar="LABEL=CORPUS", help="the first has the classes"
    )
    parser.add_argument(
        "--notes", type=Path, required=True, help="Markdown that says where the training text comes from"
    )
    arguments = parser.parse_args()

    trained = load_checkpoint(arguments.run)
    run = read_json(arguments.run / "config.json")
    tok = trained["tokenizer"]
    shipped = {name: value.astype(np.float16).astype(np.float32) for name, value in trained["params"].items()}
    model = NLM.from_params(trained["config"], shipped)
    results = {}
    for label, corpus in (text.split("=", 1) for text in arguments.text):
        source = text_to_score(corpus, "report", tok)
        results[label] = score(model, tok, source.stories, source.fit, progress=True).summary()
    own = text_to_score(str(ROOT / "data" / "stories.txt"), "all", tok)
    results["`data/stories.txt`"] = score(model, tok, own.stories, progress=True).summary()
    metrics = {
        label: {key: found[key] for key in ("bits_per_byte", "nats_per_token", "stories", "tokens")}
        for label, found in results.items()
    }
    save_checkpoint(OUT, model, tok, step=trained["step"], metrics=metrics)
    shutil.copy(arguments.run / "log.csv", OUT / "log.csv")
    write_json(OUT / "run.json", run)
    checkpoint = load_checkpoint(OUT)
    write_json(OUT / "losses.json", {"checkpoint": checkpoint["sha256"], "texts": results})
    hours = trained["training"]["elapsed"] / 3600
    (OUT / "README.md").write_text(card(checkpoint, model, run, hours, results, arguments.notes.read_text()))
    print(json.dumps(metrics, indent=2))


def card(
    checkpoint: dict[str, Any],
    model: NLM,
    run: dict[str, Any],
    hours: float,
    results: dict[str, dict[str, Any]],
    notes: str,
) -> str:
    config, train = checkpoint["config"], run["train"]
    first_label, first = next(iter(results.items()))
    per_step = train["batch_size"] * config.context_length
    seen = checkpoint["step"] * per_step
    texts = generate(model, checkpoint["tokenizer"], PROMPTS, max_new_tokens=120, temperature=0.8, seed=0)
    data = {"training": run["data"]["train"], "validation, choosing half": run["data"]["choose"]}
    return CARD.format(
        parameters=sum(value.numel() for value in model.parameters()),
        layers=config.n_layers,
        heads=config.n_heads,
        width=config.d_model,
        context=config.context_length,
        vocabulary=config.vocab_size,
        sha256=checkpoint["sha256"],
        losses=loss_rows(results),
        baseline_text=first_label,
        **{key: first["baselines"][key] for key in ("uniform", "unigram", "bigram")},
        classes=class_rows(first),
        notes=notes.strip(),
        train_tokens=run["data"]["train"]["tokens"],
        seen=seen,
        passes=seen / run["data"]["train"]["tokens"],
        steps=checkpoint["step"],
        per_step=per_step,
        recipe=recipe(train),
        precision=train["precision"],
        threads=run["machine"]["threads"],
        system=run["machine"]["system"],
        hours=hours,
        data="\n".join(
            f"| {name} | {entry['stories']:,} | {entry['tokens']:,} | `{entry['sha256']}` |"
            for name, entry in data.items()
        ),
        samples="\n\n".join(
            "> " + text.replace("\n", "\n>\n> ").replace("<|endoftext|>", "`<|endoftext|>`") for text in texts
        ),
        share=run["data"]["train"]["bytes"] / TINYSTORIES_BYTES,
    )


if __name__ == "__main__":
    main()
