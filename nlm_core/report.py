"""What the command line shows of a loss and of a checkpoint, and which text a loss is measured on."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nlm_core.data import Corpus, corpus_folder, corpus_names, text_files, the_corpus
from nlm_core.errors import UserError
from nlm_core.files import project_root, readable_file, shown
from nlm_core.text import blocks, is_for_reporting, stories
from nlm_core.tokenizer import Tokenizer

HALVES = ("report", "choose", "all")


@dataclass(frozen=True)
class Source:
    """A text to score.

    Attributes:
        name: for people.
        stories: the text.
        fit: training tokens for the n-gram baselines, if there are any that fit the tokenizer.
    """

    name: str
    stories: Iterable[str]
    fit: np.ndarray | None = None


def text_to_score(data: str | None, half: str, tokenizer: Tokenizer) -> Source:
    """Find the text that `--data` means: a corpus' validation stories, or a file.

    Args:
        data: the name of a corpus or a file; None means the original stories that ship with the project.
        half: of a corpus' validation stories: "report", "choose" or "all".
        tokenizer: the model's.

    Raises:
        UserError: there is no such corpus or file, or it has no validation text.
    """
    if half not in HALVES:
        raise UserError(f"--half must be one of {', '.join(HALVES)}, not {half!r}")
    if data is None:
        data = str(project_root() / "data" / "stories.txt")
    if data not in corpus_names():
        if not Path(data).exists() and Path(data).name == data and "." not in data:
            the_corpus(data)  # it looks like a name: say which there are
        return Source(shown(data), stories(blocks(readable_file(data))))
    files = text_files(data, "valid")
    if not files:
        raise UserError(f"{data!r} has no validation text; add some: nlm data add FILE --split valid --name {data}")
    chosen = (
        story
        for file in files
        for story in stories(blocks(file))
        if half == "all" or is_for_reporting(story) == (half == "report")
    )
    fit = None
    if (corpus_folder(data) / "prepared").exists():
        corpus = Corpus.open(data)
        fit = corpus.train if corpus.tokenizer.sha256 == tokenizer.sha256 else None
    part = "all" if half == "all" else f"the {'reporting' if half == 'report' else 'choosing'} half"
    return Source(f"{data}, validation, {part}", chosen, fit)


def _plus_minus(figure: dict[str, float | None] | None, digits: int) -> str:
    if figure is None:
        return "-"
    if figure["error"] is None:
        return f"{figure['value']:.{digits}f}"
    return f"{figure['value']:.{digits}f} ± {figure['error']:.{digits}f}"


def loss_table(summary: dict[str, Any]) -> str:
    """Lay out what `Score.summary` returned."""
    lines = [
        f"text            {summary['text']}",
        f"                {summary['stories']:,} stories, {summary['tokens']:,} tokens, {summary['bytes']:,} bytes",
        f"bits per byte   {_plus_minus(summary['bits_per_byte'], 4)}",
        f"nats per token  {_plus_minus(summary['nats_per_token'], 4)}",
        f"perplexity      {summary['perplexity']:.3f}",
        "",
        f"{'class of token':<16}{'tokens':>10}{'share':>8}{'of the loss':>13}   nats per token",
    ]
    for name, row in summary["classes"].items():
        lines.append(
            f"{name:<16}{row['tokens']:>10,}{row['share_of_tokens']:>8.1%}{row['share_of_loss']:>13.1%}"
            f"   {_plus_minus(row['nats_per_token'], 4)}"
        )
    baselines = summary["baselines"]
    lines += ["", "for comparison, nats per token:"]
    lines += ["  " + ", ".join(f"{name} {baselines[name]:.3f}" for name in ("uniform", "unigram", "bigram"))]
    lines += [f"  (counts from {baselines['fitted_on']}; after ± stands the standard error, with stories as units)"]
    return "\n".join(lines)


def info_table(checkpoint: dict[str, Any]) -> str:
    """Lay out what `load_checkpoint` returned."""
    config, params = checkpoint["config"], checkpoint["params"]
    tables = sum(params[name].size for name in ("token_emb", "pos_emb"))
    total = sum(value.size for value in params.values())
    lines = [
        f"checkpoint      {shown(checkpoint['path'])}",
        f"sha256          {checkpoint['sha256']}",
        f"parameters      {total:,}, of them {tables:,} ({tables / total:.1%}) in the two embedding tables",
        f"shape           {config.n_layers} layers x {config.n_heads} heads, d_model {config.d_model}, "
        f"context {config.context_length}, vocabulary {config.vocab_size}",
        f"step            {checkpoint['step']:,}",
    ]
    for heading in ("metrics", "training"):
        lines += [f"{heading}:"] if checkpoint[heading] else []
        lines += [f"  {key:<22}{value}" for key, value in checkpoint[heading].items()]
    return "\n".join(lines)
