"""The `nlm` command."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from nlm_core.errors import UserError

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


@data_app.command("add")
def data_add(
    files: Annotated[list[Path], typer.Argument(help="UTF-8 text files.")],
    split: Annotated[str, typer.Option(help="train: text to learn from; valid: text to judge by.")],
    name: Annotated[str, typer.Option(help="The corpus to add to; its folder is data/NAME.")] = "mine",
) -> None:
    """Bring in local text files."""
    from nlm_core.data import add
    from nlm_core.files import shown

    for target in add(files, split, name):
        typer.echo(f"{shown(target)}: {target.stat().st_size:,} bytes")


@data_app.command("prepare")
def data_prepare(
    name: Annotated[str | None, typer.Option(help="The corpus; not needed when there is only one.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json; the shipped one if left out.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Also when it was prepared with another one.")] = False,
) -> None:
    """Encode a corpus into memory maps of token ids."""
    from nlm_core.checkpoint import TOKENIZER, default_checkpoint
    from nlm_core.data import prepare, the_corpus
    from nlm_core.tokenizer import Tokenizer

    name = the_corpus(name)
    manifest = prepare(name, Tokenizer.load(tokenizer or default_checkpoint() / TOKENIZER), replace, progress=True)
    for part, entry in manifest["maps"].items():
        typer.echo(f"{part:>7}: {entry['stories']:,} stories, {entry['bytes']:,} bytes, {entry['tokens']:,} tokens")


@tokenizer_app.command("train")
def tokenizer_train(
    files: Annotated[list[Path], typer.Argument(help="UTF-8 text files.")],
    out: Annotated[Path, typer.Option(help="Where to write, for example tokenizer.json.")],
    vocab_size: Annotated[int, typer.Option(help="256 bytes and the merges.")] = 4096,
) -> None:
    """Learn a byte-level BPE from text."""
    from nlm_core.files import shown
    from nlm_core.tokenizer import Tokenizer

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
    from nlm_core.config import parse_overrides
    from nlm_core.files import shown
    from nlm_core.launch import new_run, resume_run
    from nlm_core.train import Budget

    given = {"steps": steps, "tokens": tokens, "minutes": minutes}
    budgets = [Budget(unit, value) for unit, value in given.items() if value is not None]
    if len(budgets) > 1:
        raise UserError("give only one of --steps, --tokens and --minutes")
    budget = budgets[0] if budgets else None
    overrides = parse_overrides(settings or [])
    if resume:
        if preset is not None:
            raise UserError("--resume goes on with the run's own settings; leave out --preset")
        if out is None:
            raise UserError("--resume needs the run's folder: add --out RUN")
        trainer = resume_run(out, data, overrides, budget, typer.echo)
    else:
        trainer = new_run(preset or "nlm", data, out, overrides, budget, typer.echo)
    typer.echo(
        f"{sum(p.numel() for p in trainer.model.parameters()):,} parameters, {trainer.config.precision} on "
        f"{trainer.device}, into {shown(trainer.folder.path)}"
    )
    last = trainer.run(resume)
    if trainer.stop_signal is not None:
        typer.echo(
            f"stopped after step {trainer.step:,}; go on with: nlm train --resume --out {shown(trainer.folder.path)}"
        )
        raise typer.Exit(130)
    typer.echo(f"done: {shown(last)}")
    if "validation_loss" in trainer.metrics:
        m = trainer.metrics
        typer.echo(f"validation: {m['validation_loss']:.4f} nats per token, {m['bits_per_byte']:.4f} bits per byte")


def main() -> None:
    """Run the command; every foreseen error is one line and exit code 2."""
    try:
        app()
    except UserError as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 2)
    except KeyboardInterrupt:
        _fail("interrupted", 130)


def _fail(message: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
