"""The text of the model card: all figures come from what a release measured and from the run's own record."""

from typing import Any

from nlm_core import NLM, generate
from nlm_core.download import TINYSTORIES
from nlm_core.markdown import table
from nlm_core.tables import plus_minus

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

{data}

## What it writes

At temperature 0.8, seeds 0 and 1, cut after 120 tokens, not chosen among others:

{samples}

## Limits

- It knows nothing but TinyStories' world, and repeats its clichés and its share of sad, odd or violent turns.
- It reads {context} tokens at most. There is no vector for a later position.
- It loses track of who is who, as the samples show. Losses say nothing about that.
- Its training text is a small part of TinyStories, whose first version alone has {full:,} bytes. We have not
  measured what more text would bring.
- It must not be used for anything that matters.

## Licence

The weights are under the MIT licence. TinyStories (Eldan & Li 2023), on which they were trained, is under
CDLA-Sharing-1.0.
"""


def loss_rows(results: dict[str, dict[str, Any]]) -> str:
    rows = [
        [
            name,
            plus_minus(found["bits_per_byte"], 4),
            plus_minus(found["without_separators"]["bits_per_byte"], 4),
            plus_minus(found["nats_per_token"], 4),
            f"{found['perplexity']:.2f}",
            f"{found['stories']:,}",
            f"{found['tokens']:,}",
        ]
        for name, found in results.items()
    ]
    heads = ["text", "bits per byte", "without separators", "nats per token", "perplexity", "stories", "tokens"]
    return table(heads, rows)


def baseline_rows(results: dict[str, dict[str, Any]]) -> str:
    names = ("unigram", "bigram", "trigram")
    rows = [
        [label, *(f"{found['baselines'][name]:.3f}" for name in names), f"{found['nats_per_token']['value']:.3f}"]
        for label, found in results.items()
    ]
    return table(["text", *names, "the model"], rows)


def class_rows(summary: dict[str, Any]) -> str:
    rows = [
        [name, f"{row['share_of_tokens']:.1%}", f"{row['share_of_loss']:.1%}", plus_minus(row["nats_per_token"], 3)]
        for name, row in summary["classes"].items()
    ]
    return table(["class", "share of tokens", "share of the loss", "nats per token"], rows)


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
        data=table(
            ["text", "stories", "tokens", "token ids, sha256"],
            [
                [name, f"{entry['stories']:,}", f"{entry['tokens']:,}", f"`{entry['sha256']}`"]
                for name, entry in data.items()
            ],
        ),
        samples="\n\n---\n\n".join(quoted(text) for text in texts),
        full=TINYSTORIES[0].size,
    )
