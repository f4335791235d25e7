"""What the command line shows: a loss, generated texts, heads, a checkpoint."""

from typing import Any

from nlm_core.files import shown
from nlm_core.heads import Heads
from nlm_core.matrix import Matrix


def plus_minus(figure: dict[str, float | None] | None, digits: int) -> str:
    """A figure of `Score.summary` with its standard error, if it has one; "-" for none."""
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
    lines += ["  " + ", ".join(f"{name} {value:.3f}" for name, value in baselines.items() if name != "fitted_on")]
    lines += [f"  (counts from {baselines['fitted_on']}; after ± stands the standard error, with stories as units)"]
    return "\n".join(lines)


def generation_table(found: Matrix) -> str:
    """Lay out the means of generated texts: a row for each metric, a column for each setting."""
    rows = [["", *found.settings]]
    for metric, settings in found.summary().items():
        counted = next(iter(settings.values()))["prompts"]
        rows.append([metric if counted == len(found.prompts) else f"{metric} ({counted} prompts)"])
        for one in settings.values():
            ends = "" if one["interval"] is None else " ({:.2f} to {:.2f})".format(*one["interval"])
            rows[-1].append(f"{one['mean']:.2f}{ends}")
    note = f"means over {len(found.prompts)} prompts unless said, texts for each: {len(found.seeds)}; "
    note += "95 % intervals, prompts resampled"
    return "\n".join([*_aligned(rows), "", note])


def heads_table(heads: Heads, summary: dict[str, Any], top: int = 10) -> str:
    """Lay out what each head is worth: the most important ones, all of them by layer, and how they are spread.

    Args:
        heads: the figures.
        summary: what was measured: text, stories, tokens and mode.
        top: how many heads have a row of their own.
    """
    L, H = heads.deltas.shape
    lines = [
        f"text    {summary['text']}",
        f"        {summary['stories']:,} stories, {summary['tokens']:,} tokens, {heads.clean:.4f} nats per token",
        f"mode    {summary['mode']}: the rise of the loss without a head, in nats per token",
        "",
    ]
    rows = [["layer", "head", "rise", "95 % interval", "p (Holm)"]]
    for layer, head in heads.ranked()[:top]:
        ends = f"{heads.low[layer, head]:+.4f} to {heads.high[layer, head]:+.4f}"
        p = f"{heads.p[layer, head]:.4f}"
        rows.append([str(layer), str(head), f"{heads.deltas[layer, head]:+.4f}", ends, p])
    lines += [*_aligned(rows), ""]
    rows = [["layer", *(f"head {head}" for head in range(H))]]
    rows += [[str(layer), *(f"{value:+.4f}" for value in heads.deltas[layer])] for layer in range(L)]
    lines += [*_aligned(rows), ""]
    counts = heads.counts()
    lines.append(
        f"{counts['above']} of {L * H} heads help, {counts['below']} harm; for {counts['unclear']} we can't tell"
    )
    if L * H * 2.0 ** (1 - summary["stories"]) > 0.05:  # the smallest p that all signs alike can have, corrected
        lines.append(f"({summary['stories']} stories are too few to tell of any: take more text)")
    if top < L * H and heads.deltas.sum() > 0:  # else it is no share of anything
        lines.append(f"the first {top} hold {heads.share_of_top(top):.0%} of the sum of all rises")
    return "\n".join(lines)


def _aligned(rows: list[list[str]]) -> list[str]:
    """Lines with the first column to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


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
        # The sums of a line of the log that was not written yet are for a resumed run alone.
        shown_keys = [key for key in checkpoint[heading] if not key.startswith("loss_")]
        lines += [f"  {key:<20}  {_in_words(checkpoint[heading][key])}" for key in shown_keys]
    return "\n".join(lines)


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        errors = {key: f" ± {_in_words(value[f'error_of_{key}'])}" for key in value if f"error_of_{key}" in value}
        return ", ".join(
            f"{key.replace('_', ' ')} {_in_words(part)}{errors.get(key, '')}"
            for key, part in value.items()
            if not key.startswith("error_of_")
        )
    return f"{value:.4f}" if isinstance(value, float) else str(value)
