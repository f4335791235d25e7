"""The `nlm` command."""

import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from nlm_core import cli_experiments, native
from nlm_core.checkpoint import TOKENIZER, default_checkpoint, load_checkpoint
from nlm_core.cli_experiments import Checkpoint, note
from nlm_core.config import Budget, parse_overrides
from nlm_core.data import add, prepare, the_corpus, tokenizer_of
from nlm_core.distributed import joined
from nlm_core.errors import UserError, one_line_errors
from nlm_core.files import shown
from nlm_core.generate import begin, limit_message, write
from nlm_core.launch import new_run, resume_run
from nlm_core.model import NLM
from nlm_core.sampling import Sampling
from nlm_core.score import score
from nlm_core.source import text_to_score
from nlm_core.tables import info_table, loss_table
from nlm_core.tokenizer import Tokenizer

app = typer.Typer(
    help="Build, train and doubt a small language model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Bring text in and prepare it for training.", no_args_is_help=True)
tokenizer_app = typer.Typer(help="Make a tokenizer.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(tokenizer_app, name="tokenizer")
app.add_typer(cli_experiments.reading_app, name="reading")


def _show_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"nlm {importlib.metadata.version('nlm')}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Build, train and doubt a small language model."""


@data_app.command("add")
def data_add(
    files: Annotated[list[Path], typer.Argument(help="UTF-8 text files.")],
    split: Annotated[str, typer.Option(help="train: text to learn from; valid: text to judge by.")],
    name: Annotated[str, typer.Option(help="The corpus to add to; its folder is data/NAME.")] = "mine",
) -> None:
    """Bring in local text files."""
    for target in add(files, split, name):
        typer.echo(f"{shown(target)}: {target.stat().st_size:,} bytes")


@data_app.command("download")
def data_download(
    name: Annotated[str, typer.Option(help="The corpus to make; its folder is data/NAME.")] = "tinystories",
) -> None:
    """Fetch TinyStories (1.9 GB) from the Hugging Face hub; run it again to go on after an interruption."""
    from nlm_core.download import download

    for target in download(name, progress=True):
        typer.echo(f"{shown(target)}: {target.stat().st_size:,} bytes")


@data_app.command("prepare")
def data_prepare(
    name: Annotated[str | None, typer.Option(help="The corpus; not needed when there is only one.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json. [default: the one it was prepared with, else the shipped one]")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Also when it was prepared with another one.")] = False,
) -> None:
    """Encode a corpus into memory maps of token ids."""
    name = the_corpus(name)
    tokenizer = tokenizer or tokenizer_of(name) or default_checkpoint() / TOKENIZER
    manifest = prepare(name, Tokenizer.load(tokenizer), replace, progress=True)
    for part, entry in manifest["maps"].items():
        typer.echo(f"{part:>7}: {entry['stories']:,} stories, {entry['bytes']:,} bytes, {entry['tokens']:,} tokens")
    if manifest["maps"]["train"]["stories"] == 1:
        note("the training text is one story; if it holds several, put a line <|endoftext|> after each")
    empty = [part for part in ("choose", "report") if not manifest["maps"][part]["tokens"]]
    if manifest["files"]["valid"] and empty:
        note(f"no validation story fell into the half {empty[0]!r}; add more, each with <|endoftext|> after it")


@tokenizer_app.command("train")
def tokenizer_train(
    files: Annotated[list[Path], typer.Argument(help="UTF-8 text files.")],
    out: Annotated[Path, typer.Option(help="Where to write, for example tokenizer.json.")],
    vocab_size: Annotated[int, typer.Option(help="256 bytes and the merges.")] = 4096,
) -> None:
    """Learn a byte-level BPE from text."""
    if out.exists():
        try:
            Tokenizer.load(out)
        except UserError:
            raise UserError(f"{shown(out)} is there already and is no tokenizer; give another --out") from None
    tokenizer = Tokenizer.train(files, vocab_size)
    tokenizer.save(out)
    typer.echo(f"{shown(out)}: {tokenizer.vocab_size:,} tokens")


@app.command()
def train(
    preset: Annotated[str | None, typer.Option(help="nlm (the book's model) or tiny. [default: nlm]")] = None,
    data: Annotated[str | None, typer.Option(help="The corpus; not needed when there is only one.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder. [default: runs/PRESET-CORPUS]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    steps: Annotated[int | None, typer.Option(help="Train for so many steps in all.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Or for so many tokens.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Or for about so many minutes.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, as in lr=0.001; repeatable.")] = None,
) -> None:
    """Train a model."""

    def asked_for() -> tuple[dict[str, Any], Budget | None]:
        given = {"steps": steps, "tokens": tokens, "minutes": minutes}
        budgets = [Budget(unit, value) for unit, value in given.items() if value is not None]
        if len(budgets) > 1:
            raise UserError("give only one of --steps, --tokens and --minutes")
        if resume and preset is not None:
            raise UserError("--resume goes on with the run's own settings; leave out --preset")
        if resume and out is None:
            raise UserError("--resume needs the run's folder: add --out RUN")
        return parse_overrides(settings or []), budgets[0] if budgets else None

    with joined() as team:
        say = typer.echo if team.first else _say_nothing
        overrides, budget = team.attempt(asked_for)
        if resume:
            trainer = resume_run(out, data, overrides, budget, say, team)
        else:
            trainer = new_run(preset or "nlm", data, out, overrides, budget, say, team)
        if trainer.device.type == "cpu":
            _mention_missing_kernels(say)
        processes = f"{team.world_size} processes, " if team.world_size > 1 else ""
        planned = "" if trainer.total is None else f"{trainer.total:,} steps, "
        say(
            f"{sum(p.numel() for p in trainer.model.parameters()):,} parameters, {trainer.config.precision} on "
            f"{trainer.device}, {processes}{planned}into {shown(trainer.folder.path)}"
        )
        last = trainer.run()
        if trainer.stop_signal is not None:
            say(f"stopped after step {trainer.step:,}; go on with: {_resuming(trainer.folder.path, team.world_size)}")
            raise typer.Exit(130)
        say(f"done: {shown(last)}")
        if "validation_loss" in trainer.metrics:
            m = trainer.metrics
            say(f"validation: {m['validation_loss']:.4f} nats per token, {m['bits_per_byte']:.4f} bits per byte")


@app.command()
def loss(
    checkpoint: Checkpoint = None,
    data: Annotated[
        str | None, typer.Option(help="A corpus (its validation text) or a text file. [default: data/stories.txt]")
    ] = None,
    half: Annotated[str, typer.Option(help="Of a corpus: report, choose, or all.")] = "report",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure how well a model predicts a text.

    Prints nats per token, perplexity and bits per byte, by class of token, with standard errors by story.
    """
    _require_folder(checkpoint, "a text to measure goes after --data")
    loaded = load_checkpoint(checkpoint, note)
    source = text_to_score(data, half, loaded["tokenizer"])
    model = NLM.from_params(loaded["config"], loaded["params"])
    summary = score(model, loaded["tokenizer"], source.stories, source.fit, progress=True).summary()
    summary = {"checkpoint": loaded["sha256"], "text": source.name, **summary}
    typer.echo(json.dumps(summary, indent=2) if as_json else loss_table(summary))


@app.command()
def generate(
    checkpoint: Checkpoint = None,
    prompt: Annotated[str, typer.Option(help="How the story begins; - reads it from standard input.")] = (
        "Once upon a time"
    ),
    n: Annotated[int, typer.Option("-n", help="How many stories; story k uses seed SEED + k.")] = 1,
    seed: Annotated[int, typer.Option(help="The same seed writes the same story.")] = 0,
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens to write; every second one is a space.")] = 200,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token; 1: as the model predicts.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens only.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens that hold this share.")] = None,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: words already used become less likely.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this string; repeatable.")] = None,
) -> None:
    """Write stories and print them as they are written."""
    _require_folder(checkpoint, "how a story begins goes after --prompt")
    if not 1 <= n <= 10_000:
        raise UserError(f"-n must be 1 to 10,000, not {n}")
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    if prompt == "-":
        prompt = _standard_input()
    _mention_missing_kernels(note)
    loaded = load_checkpoint(checkpoint, note)
    model = NLM.from_params(loaded["config"], loaded["params"])
    if sys.stdout is not None:  # it is when the shell closed it
        sys.stdout.reconfigure(errors="replace")
    texts = begin(model, loaded["tokenizer"], [prompt] * n, range(seed, seed + n), stop)
    row = shown_characters = 0
    for _ in write(model, loaded["tokenizer"], texts, max_new_tokens, sampling):
        # Many are written at once; one is shown live, and those after it wait for their turn.
        while row < len(texts):
            text = texts[row]
            if n > 1 and shown_characters == 0:
                typer.echo(f"--- seed {text.seed}")
            typer.echo(text.settled[shown_characters:], nl=False)
            shown_characters = len(text.settled)
            if not text.ended:
                break
            typer.echo()
            row, shown_characters = row + 1, 0
    if message := limit_message(texts, model.config.context_length):
        note(message)


app.command()(cli_experiments.evaluate)
app.command("ablate")(cli_experiments.ablate_command)


@app.command()
def info(checkpoint: Checkpoint = None) -> None:
    """Show what a checkpoint is: its sizes, its figures, where it came from."""
    typer.echo(info_table(load_checkpoint(checkpoint, note)))


def main() -> None:
    """Run the command; every foreseen error is one line."""
    with one_line_errors():
        app(prog_name="nlm")


def _require_folder(checkpoint: Path | None, otherwise: str) -> None:
    if checkpoint is not None and not checkpoint.is_dir():
        raise UserError(f"{shown(checkpoint)} is not a folder with a checkpoint; {otherwise}")


def _standard_input() -> str:
    """What was typed or piped in, without the line break at its end."""
    try:
        return "" if sys.stdin is None else sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise UserError("standard input is not UTF-8 text") from None


def _mention_missing_kernels(say: Callable[[str], None]) -> None:
    if native.library() is None and os.environ.get("NLM_NATIVE") != "0":
        say("there are no compiled kernels here, so this is slower than it could be; NLM_NATIVE=1 says why")


def _resuming(folder: Path, processes: int) -> str:
    """The command that goes on with a run; as many processes as before end with the same bits."""
    command = f"train --resume --out {shown(folder)}"
    return f"nlm {command}" if processes == 1 else f"torchrun as before, -m nlm_core {command}"


def _say_nothing(message: str) -> None:
    pass


if __name__ == "__main__":
    main()
