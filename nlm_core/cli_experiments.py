"""The commands that examine a model: `nlm evaluate`, `nlm ablate`, `nlm reading`; `nlm_core.cli` has the others."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from nlm_core.ablate import MODES, ablate, single_heads
from nlm_core.checkpoint import load_checkpoint
from nlm_core.data import text_files
from nlm_core.errors import UserError
from nlm_core.evaluate import POSTS, PROMPTS, SETTINGS, evaluate_generation, read_prompts, settings_named
from nlm_core.files import sha256_of, shown
from nlm_core.heads import judge_heads
from nlm_core.matrix import to_units, write_matrix
from nlm_core.metrics import WORDS
from nlm_core.model import NLM
from nlm_core.reading import KEY, QUESTIONS, SHEET, scores, write_sheet
from nlm_core.records import write_record
from nlm_core.source import beginning_of, text_to_score, words_and_copies, words_beside
from nlm_core.tables import generation_table, heads_table

TEXTS = "texts.jsonl.gz"

Checkpoint = Annotated[Path | None, typer.Argument(help="A checkpoint or a run's folder. [default: the shipped one]")]
Out = Annotated[Path | None, typer.Option(help="A folder to write the results to, such as runs/NAME.")]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Seed = Annotated[int, typer.Option(help="Of what is drawn at random.")]
Prompts = Annotated[
    Path | None, typer.Option(help="How texts begin: a text file, one in a line. [default: ten prompts]")
]
Seeds = Annotated[int, typer.Option(help="How many texts for each prompt and setting.")]
Length = Annotated[int, typer.Option(help="The length of each text; every second token is a space.")]


def evaluate(
    checkpoint: Checkpoint = None,
    prompts: Prompts = None,
    seeds: Seeds = 1,
    setting: Annotated[
        list[str] | None,
        typer.Option(help=f"A temperature, or one of {', '.join(SETTINGS)}; repeatable. [default: {', '.join(POSTS)}]"),
    ] = None,
    max_new_tokens: Length = 200,
    data: Annotated[
        str | None,
        typer.Option(
            help="The corpus trained on: counts copies from it, and words that it lacks (needs memory for all of it)."
        ),
    ] = None,
    out: Out = None,
    as_json: AsJSON = False,
) -> None:
    """Write texts under several settings, and count repetition, variety, endings, names and made-up words.

    Without options these are the forty texts of the posts: ten prompts at four temperatures. Of P prompts, counted from
    0, the text of prompt p and seed s is what `nlm generate --seed` writes with s x P + p.
    """
    if max_new_tokens < 1:
        raise UserError(f"--max-new-tokens must be 1 or more, not {max_new_tokens}")
    _require_usable(out)
    _seeds(seeds)
    settings = settings_named(setting or POSTS)
    beginnings = list(PROMPTS) if prompts is None else read_prompts(prompts)
    loaded = load_checkpoint(checkpoint, note)
    known, copies = words_and_copies(data) if data is not None else (words_beside(loaded["path"]), None)
    if known is None:
        note("made-up words and carry-over are left out: --data CORPUS says which text the model was trained on")
    cut = _cut_by_context(loaded, beginnings, max_new_tokens)
    _make(out)
    found = evaluate_generation(
        NLM.from_params(loaded["config"], loaded["params"]),
        loaded["tokenizer"],
        beginnings,
        settings,
        _seeds(seeds),
        max_new_tokens,
        known,
        copies,
        progress=True,
    )
    summary: dict[str, Any] = {
        "checkpoint": loaded["sha256"],
        "settings": {name: dataclasses.asdict(sampling) for name, sampling in settings.items()},
        "prompts": beginnings,
        "prompts_cut_by_context": cut,
        "seeds": list(range(seeds)),
        "max_new_tokens": max_new_tokens,
        "metrics": found.summary(),
    }
    typer.echo(json.dumps(summary, indent=2) if as_json else generation_table(found))
    note("book/glossary.md explains what is counted")
    if out is not None:
        _require_usable(out)  # another command may have been quicker
        write_matrix(out / TEXTS, found)
        options = {"--prompts": prompts and shown(prompts), "--seeds": seeds, "--setting": list(settings)}
        options |= {"--max-new-tokens": max_new_tokens, "--data": data, "--out": shown(out)}
        write_record(
            out,
            command=command_of("evaluate", checkpoint, options),
            data={"texts": sha256_of(out / TEXTS), "units": "prompts", **_words_from(data, loaded["path"])},
            units=to_units(found),
            **summary,
        )
        note(f"written to {shown(out)}")


def ablate_command(
    checkpoint: Checkpoint = None,
    mode: Annotated[str, typer.Option(help=f"What a head is replaced by: {', '.join(MODES)}.")] = "zero",
    data: Annotated[
        str | None, typer.Option(help="A corpus (its validation text) or a text file. [default: data/stories.txt]")
    ] = None,
    half: Annotated[str, typer.Option(help="Of a corpus: report, choose, or all.")] = "report",
    tokens: Annotated[int, typer.Option(help="About how much of the text to use, in whole stories; 0: all.")] = 20_000,
    seed: Seed = 0,
    out: Out = None,
    as_json: AsJSON = False,
) -> None:
    """Measure what each attention head is worth: how much the loss rises without it, with confidence intervals."""
    _require_usable(out)
    _require_seed(seed)
    loaded = load_checkpoint(checkpoint, note)
    source = text_to_score(data, half, loaded["tokenizer"])
    text = beginning_of(source, loaded["tokenizer"], tokens)
    if text.stories[-1] == 0:
        takes = f"--tokens {tokens} takes one story of" if 0 < tokens <= len(text.ids) else "there is one story in"
        raise UserError(f"{takes} {source.name}; intervals need two or more, with <|endoftext|> after each")
    model = NLM.from_params(loaded["config"], loaded["params"])
    config = model.config
    _make(out)
    losses = ablate(model, text.ids, single_heads(config), mode, text.stories, seed=seed, progress=True)
    heads = judge_heads(losses, config.n_heads)
    summary: dict[str, Any] = {
        "checkpoint": loaded["sha256"],
        "mode": mode,
        "text": source.name,
        "stories": int((losses.targets > 0).sum()),
        "tokens": len(text.ids) - 1,
        **{name: np.round(value, 6).tolist() for name, value in dataclasses.asdict(heads).items()},
    }
    typer.echo(json.dumps(summary, indent=2) if as_json else heads_table(heads, summary))
    if out is not None:
        _require_usable(out)
        names = [f"L{layer}H{head}" for layer in range(config.n_layers) for head in range(config.n_heads)]
        units = {"tokens": losses.targets, "clean": losses.clean}
        units |= {name: losses.deltas[:, number] for number, name in enumerate(names)}
        options = {"--mode": mode, "--data": data, "--half": half, "--tokens": tokens, "--seed": seed}
        write_record(
            out,
            command=command_of("ablate", checkpoint, {**options, "--out": shown(out)}),
            data={
                "text": source.name,
                "ids": text.sha256,
                "units": "stories; figures are sums of nats",
            },
            units=units,
            **summary,
        )
        note(f"written to {shown(out)}")


reading_app = typer.Typer(help="Let people judge stories without knowing how they were written.", no_args_is_help=True)


@reading_app.command("sheet")
def reading_sheet(
    out: Annotated[Path, typer.Option(help="A folder for sheet.csv and key.json.")],
    checkpoint: Checkpoint = None,
    prompts: Prompts = None,
    seeds: Seeds = 1,
    setting: Annotated[
        list[str] | None,
        typer.Option(help=f"A temperature, or one of {', '.join(SETTINGS)}; repeatable. [default: 0.8, 1.2]"),
    ] = None,
    max_new_tokens: Length = 200,
    seed: Seed = 0,
) -> None:
    """Write stories in random order into a table that hides their settings, with columns for a reader's answers."""
    _require_usable(out)
    _require_seed(seed)
    beginnings = list(PROMPTS) if prompts is None else read_prompts(prompts)
    loaded = load_checkpoint(checkpoint, note)
    _cut_by_context(loaded, beginnings, max_new_tokens)
    _make(out)
    found = evaluate_generation(
        NLM.from_params(loaded["config"], loaded["params"]),
        loaded["tokenizer"],
        beginnings,
        settings_named(setting or ("0.8", "1.2")),
        _seeds(seeds),
        max_new_tokens,
        progress=True,
    )
    write_sheet(out, found, seed)
    for name, (question, *_) in QUESTIONS.items():
        typer.echo(f"{name}: {question}")
    typer.echo(
        f"fill in {shown(out / SHEET)}, and leave {shown(out / KEY)} closed; then: nlm reading score {shown(out)}"
    )


@reading_app.command("score")
def reading_score(
    folder: Annotated[Path, typer.Argument(help="The folder with key.json.")],
    sheets: Annotated[
        list[Path] | None, typer.Argument(help="Filled sheets. [default: the folder's sheet.csv]")
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Say how readers' answers differ between settings, with 95 % intervals over prompts."""
    found = scores(folder / KEY, sheets or [folder / SHEET])
    typer.echo(json.dumps(found.summary(), indent=2) if as_json else generation_table(found))


def _words_from(corpus: str | None, checkpoint: Path) -> dict[str, Any]:
    """Which text made-up words were judged by."""
    if corpus is not None:
        return {"corpus": corpus, "train": {file.name: sha256_of(file) for file in text_files(corpus, "train")}}
    return {"words": sha256_of(checkpoint / WORDS)} if (checkpoint / WORDS).exists() else {}


def _seeds(count: int) -> range:
    if not 1 <= count <= 10_000:
        raise UserError(f"--seeds must be 1 to 10,000, not {count}")
    return range(count)


def _require_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise UserError(f"--seed must be from 0 to 2^63 - 1, not {seed}")


def _cut_by_context(loaded: dict[str, Any], prompts: Sequence[str], max_new_tokens: int) -> int:
    """How many prompts leave too little room for their texts in the model's context; says so if any do."""
    T = loaded["config"].context_length
    cut = sum(len(loaded["tokenizer"].encode(prompt)) + max_new_tokens > T for prompt in prompts)
    if cut:
        note(
            f"after {cut} of {len(prompts)} prompts there is no room for {max_new_tokens} tokens: this model reads {T} "
            "at most, so these texts end sooner"
        )
    return cut


def command_of(name: str, checkpoint: Path | None, options: dict[str, Any]) -> list[str]:
    """The words that make a record again; options without a value are left out."""
    words = ["nlm", name, *([shown(checkpoint)] if checkpoint else [])]
    for option, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            words += [] if one is None else [option, str(one)]
    return words


def _require_usable(out: Path | None) -> None:
    """Results of minutes are not written over others."""
    if out is None:
        return
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise UserError(f"the name {str(out)!r} is not UTF-8; give another --out") from None
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{shown(out)} is there already; move it away, or give another --out")


def _make(out: Path | None) -> None:
    """Make the folder before the work: minutes of it must not end at a name that can't be used."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)


def note(message: str) -> None:
    typer.echo(message, err=True)
