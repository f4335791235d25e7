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

from nlm_core import NLM, UserError, generate, load_checkpoint, save_checkpoint
from nlm_core.data import Corpus, text_files
from nlm_core.download import TINYSTORIES
from nlm_core.errors import one_line_errors
from nlm_core.files import project_root, read_json, write_json
from nlm_core.metrics import WORDS, by_frequency, write_words
from nlm_core.records import write_record
from nlm_core.score import score
from nlm_core.source import text_to_score
from nlm_core.tables import plus_minus
from nlm_core.text import blocks, stories

PROMPTS, SEEDS = ["Once upon a time", "Two little birds"], [0, 1]

CARD = """# Model card: nlm

The book's model: a GPT-2-style transformer of {parameters:,} parameters. It writes very short stories in the words of a
small child. It was trained from scratch, and it exists to be examined.

## Shape

{layers} layers, {heads} heads, width {width}, context {context} tokens; byte-level BPE with a vocabulary of
{vocabulary} and no special tokens. Learned absolute positions, pre-norm blocks, tanh GELU, output tied to the token
table. Weights ship as float16 (`model.safetensors`) and load as float32. The checkpoint's sha256 begins with
`{sha256}`.

## How well it predicts

{losses}

After ± stands the standard error over stories, as if they were drawn at random. It says how far other stories would
move the figure, not how far another seed or another training text would: this is one run. Each text is one stream in
windows of {context} tokens that do not overlap and take no notice of where stories begin; every token but the first is
predicted once, from 1 to {context} tokens of context. The separator `<|endoftext|>` is text like any other; the column
without it leaves it out of both nats and bytes.

For comparison, in nats per token (a uniform guess has {uniform:.2f}; counts from {fitted_on}):

{baselines}

A word mostly follows a space token, so a bigram of tokens hardly sees the word before; a trigram does.

On {baseline_text}, by class of token:

{classes}

*Space*: one space or newline. *Word-initial*: the first token of a run of letters and digits (so also the t of don't).
*Word-internal*: its other tokens; only rarer words have any. *Punctuation*: all else. *Separator*: its pieces. Bits per
byte compare across tokenizers on the same text; nats per token do not.

## How it was trained

{notes}

{train_tokens:,} training tokens were at hand; the model saw {seen:,} tokens, {passes:.2f} passes, in {steps:,} steps of
{per_step:,} tokens. {recipe}

The log's validation loss is that of the first {eval_tokens:,} tokens of the choosing half of {baseline_text}, so it
differs from the table's.

It ran in {precision} on a {device} with {threads} threads ({system}) for {hours:.1f} hours, and was resumed {resumed}
times. Its settings are in `run.json`, its log in `log.csv`.

| text | stories | tokens | token ids, sha256 |
|---|---|---|---|
{data}

## What it writes

At temperature 0.8, seeds 0 and 1, cut after 120 tokens, not chosen among others:

{samples}

## Limits

- It knows nothing but TinyStories' world, and repeats its clichés and its share of sad, odd or violent turns.
- It reads {context} tokens at most. There is no vector for a later position.
- It loses track of who is who, as the samples show. Losses say nothing about that.
- Its training text is a small part of TinyStories, whose first version alone has {full:,} bytes. We have not measured
  what more steps or more text would bring.
- It must not be used for anything that matters.

## Licence

The weights are under the MIT licence. TinyStories (Eldan & Li 2023), on which they were trained, is under
CDLA-Sharing-1.0.
"""


def loss_rows(results: dict[str, dict[str, Any]]) -> str:
    lines = ["| text | bits per byte | without separators | nats per token | perplexity | stories | tokens |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for name, found in results.items():
        lines.append(
            f"| {name} | {plus_minus(found['bits_per_byte'], 4)} "
            f"| {plus_minus(found['without_separators']['bits_per_byte'], 4)} "
            f"| {plus_minus(found['nats_per_token'], 4)} "
            f"| {found['perplexity']:.2f} | {found['stories']:,} | {found['tokens']:,} |"
        )
    return "\n".join(lines)


def baseline_rows(results: dict[str, dict[str, Any]]) -> str:
    names = ("unigram", "bigram", "trigram")
    lines = [f"| text | {' | '.join(names)} | the model |", "|---|---|---|---|---|"]
    for label, found in results.items():
        figures = " | ".join(f"{found['baselines'][name]:.3f}" for name in names)
        lines.append(f"| {label} | {figures} | {found['nats_per_token']['value']:.3f} |")
    return "\n".join(lines)


def class_rows(summary: dict[str, Any]) -> str:
    lines = ["| class | share of tokens | share of the loss | nats per token |", "|---|---|---|---|"]
    for name, row in summary["classes"].items():
        shares = f"{row['share_of_tokens']:.1%} | {row['share_of_loss']:.1%}"
        lines.append(f"| {name} | {shares} | {plus_minus(row['nats_per_token'], 3)} |")
    return "\n".join(lines)


def quoted(text: str) -> str:
    return "> " + text.replace("<|endoftext|>", "`<|endoftext|>`").replace("\n", "\n>\n> ")


def recipe(train: dict[str, Any]) -> str:
    optimizer = {
        "muon": "Muon for the blocks' matrices and AdamW for everything else",
        "adamw": "AdamW",
    }[train["optimizer"]]
    return (
        f"The optimizer was {optimizer}, at a peak learning rate of {train['lr']:g}, with {train['warmup_steps']} "
        f"steps of warm-up and a linear decay over the last {train['decay_fraction']:.0%}; weight decay "
        f"{train['weight_decay']:g} on matrices, betas {train['beta1']:g} and {train['beta2']:g}, gradients clipped at "
        f"{train['clip']:g}, dropout {train['dropout']:g}, seed {train['seed']}."
    )


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

    out = project_root() / "checkpoints" / "nlm"
    trained = load_checkpoint(arguments.run)
    run = read_json(arguments.run / "config.json")
    notes = arguments.notes.read_text()
    if trained["step"] != run["budget"]["steps"]:
        raise UserError(f"the run is at step {trained['step']} of {run['budget']['steps']}; let it end first")
    tok = trained["tokenizer"]
    shipped = {name: value.astype(np.float16).astype(np.float32) for name, value in trained["params"].items()}
    model = NLM.from_params(trained["config"], shipped)
    texts = {label: (corpus, "report") for label, corpus in (text.split("=", 1) for text in arguments.text)}
    texts["`data/stories.txt`"] = (str(project_root() / "data" / "stories.txt"), "all")
    scores, fit = {}, None
    for label, (where, half) in texts.items():
        source = text_to_score(where, half, tok)
        fit = source.fit if fit is None else fit  # the training text of the first serves all
        scores[label] = score(model, tok, source.stories, fit, progress=True)
    results = {label: scored.summary() for label, scored in scores.items()}
    metrics = {
        label: {
            **{key: found[key]["value"] for key in ("bits_per_byte", "nats_per_token")},
            **{f"error_of_{key}": found[key]["error"] for key in ("bits_per_byte", "nats_per_token")},
            "stories": found["stories"],
        }
        for label, found in results.items()
    }
    save_checkpoint(out, model, tok, step=trained["step"], metrics=metrics)
    corpus, _ = next(iter(texts.values()))
    training_text = [story for file in text_files(corpus, "train") for story in stories(blocks(file))]
    write_words(out / WORDS, by_frequency(training_text))
    # As many stories as are judged by, spread over all of the text: how far the model over-fits.
    some = training_text[:: max(1, len(training_text) // results[next(iter(results))]["stories"])]
    trained_on = score(model, tok, some, progress=True).summary()
    shutil.copy(arguments.run / "log.csv", out / "log.csv")
    write_json(out / "run.json", run)
    checkpoint = load_checkpoint(out)
    write_json(out / "losses.json", {"checkpoint": checkpoint["sha256"], "texts": results})
    write_record(
        project_root() / "runs" / "losses",
        command="python scripts/release.py RUN " + " ".join(f"--text {text}" for text in arguments.text),
        checkpoint=checkpoint["sha256"],
        data={
            "scored": "the reporting half of the validation text; units are its stories, figures are sums",
            "report": Corpus.open(corpus).manifest["maps"]["report"],
        },
        units=next(iter(scores.values())).by_story(),
        training_text={key: trained_on[key] for key in ("stories", "tokens", "nats_per_token", "bits_per_byte")},
    )
    hours = trained["training"]["elapsed"] / 3600
    (out / "README.md").write_text(card(checkpoint, model, run, hours, results, notes))
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
    texts = generate(model, checkpoint["tokenizer"], PROMPTS, max_new_tokens=120, temperature=0.8, seed=SEEDS)
    data = {"training": run["data"]["train"], "validation, choosing half": run["data"]["choose"]}
    return CARD.format(
        parameters=sum(value.numel() for value in model.parameters()),
        layers=config.n_layers,
        heads=config.n_heads,
        width=config.d_model,
        context=config.context_length,
        vocabulary=config.vocab_size,
        sha256=checkpoint["sha256"][:12],
        losses=loss_rows(results),
        baseline_text=first_label,
        **{key: first["baselines"][key] for key in ("uniform", "fitted_on")},
        classes=class_rows(first),
        baselines=baseline_rows(results),
        notes=notes.strip(),
        train_tokens=run["data"]["train"]["tokens"],
        seen=seen,
        passes=seen / run["data"]["train"]["tokens"],
        steps=checkpoint["step"],
        per_step=per_step,
        eval_tokens=train["eval_tokens"],
        recipe=recipe(train),
        precision=train["precision"],
        threads=run["machine"]["threads"],
        system=run["machine"]["system"],
        device={"cpu": "plain CPU", "cuda": "GPU", "mps": "GPU"}[run["machine"].get("device", "cpu")],
        hours=hours,
        resumed=len(run.get("resumed", [])),
        data="\n".join(
            f"| {name} | {entry['stories']:,} | {entry['tokens']:,} | `{entry['sha256']}` |"
            for name, entry in data.items()
        ),
        samples="\n\n---\n\n".join(quoted(text) for text in texts),
        full=TINYSTORIES[0].size,
    )


if __name__ == "__main__":
    with one_line_errors():
        main()
