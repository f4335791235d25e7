"""What the command line shows of a loss and of a checkpoint."""

from typing import Any

from nlm_core.files import shown


def plus_minus(figure: dict[str, float | None] | None, digits: int) -> str:
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
        f"bits per byte   {plus_minus(summary['bits_per_byte'], 4)}",
        f"nats per token  {plus_minus(summary['nats_per_token'], 4)}",
        f"perplexity      {summary['perplexity']:.3f}",
        f"without the separators: {plus_minus(summary['without_separators']['bits_per_byte'], 4)} bits per byte",
        "",
        f"{'class of token':<16}{'tokens':>10}{'share':>8}{'of the loss':>13}   nats per token",
    ]
    for name, row in summary["classes"].items():
        lines.append(
            f"{name:<16}{row['tokens']:>10,}{row['share_of_tokens']:>8.1%}{row['share_of_loss']:>13.1%}"
            f"   {plus_minus(row['nats_per_token'], 4)}"
        )
    baselines = summary["baselines"]
    lines += ["", "for comparison, nats per token:"]
    lines += ["  " + ", ".join(f"{name} {baselines[name]:.3f}" for name in ("uniform", "unigram", "bigram", "trigram"))]
    lines += [f"  (counts from {baselines['fitted_on']}; after ± stands the standard error, with stories as units)"]
    return "\n".join(lines)


def info_table(checkpoint: dict[str, Any]) -> str:
    """Lay out what `load_checkpoint` returned."""
    config, params = checkpoint["config"], checkpoint["params"]
    tables = sum(params[name].size for name in ("token_emb", "pos_emb") if name in params)
    total = sum(value.size for value in params.values())
    positions = "" if config.positions == "learned" else f", positions: {config.positions}"
    lines = [
        f"checkpoint      {shown(checkpoint['path'])}",
        f"sha256          {checkpoint['sha256']}",
        f"parameters      {total:,}, of them {tables:,} ({tables / total:.1%}) in the embedding tables",
        f"shape           {config.n_layers} layers x {config.n_heads} heads, d_model {config.d_model}, "
        f"context {config.context_length}, vocabulary {config.vocab_size}{positions}",
        f"step            {checkpoint['step']:,}",
    ]
    for heading in ("metrics", "training"):
        lines += [f"{heading}:"] if checkpoint[heading] else []
        lines += [f"  {key:<20}  {_in_words(value)}" for key, value in checkpoint[heading].items()]
    return "\n".join(lines)


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_in_words(part)}" for key, part in value.items())
    return f"{value:.4f}" if isinstance(value, float) else str(value)
