"""The results as tables of plain text."""

from collections.abc import Sequence
from typing import Any

from benchmarks.measure import Side

PEER_SETTINGS = ("precision", "attention", "micro_batch", "checkpointing")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of aligned text: the first one to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def comparisons(rows: Sequence[dict[str, Any]]) -> str:
    head = ["row", "ours", "peer", "", "ratio", "quartiles", "range", "goal", "stretch", "verdict"]
    body = []
    for row in rows:
        ratio, sign = row["ratio"], "<=" if row["smaller_is_better"] else ">="
        body.append(
            [
                row["row"],
                f"{row['ours']['median']:,.0f}",
                f"{row['peer']['median']:,.0f}",
                row["unit"],
                f"{ratio['median']:.2f}",
                "{:.2f}..{:.2f}".format(*ratio["quartiles"]),
                "{:.2f}..{:.2f}".format(*ratio["range"]),
                f"{sign} {row['goal']:g}",
                f"{sign} {row['stretch']:g}",
                {"missed": "missed", "goal": "goal met", "stretch": "stretch met"}[row["verdict"]],
            ]
        )
    notes = ["The ratio is the median over the rounds; memory: ours / peer, else: peer's time / ours."]
    notes += [f"{row['row']}: {described(row['ours'])} beside {described(row['peer'])}" for row in rows]
    for row in rows:
        if "profile" in row:
            shares = sorted(row["profile"].items(), key=lambda item: -item[1])
            notes.append(f"{row['row']}: our time is {', '.join(f'{kind} {share:.0%}' for kind, share in shares)}")
        if "peer_most_frugal" in row:
            found = row["peer_most_frugal"]
            ours = row["ours"]["median"] * 1e6 / found["peak"]
            settings = {key: value for key, value in found.items() if key in PEER_SETTINGS}
            notes.append(
                f"{row['row']}: beside the peer at its most frugal ({Side('transformers', settings)}, "
                f"{found['peak'] / 1e6:,.0f} MB): ratio {ours:.2f}"
            )
    return table([head, *body]) + "\n\n" + "\n".join(notes)


def markdown(results: dict[str, Any]) -> str:
    """The comparisons as the README's table."""
    lines = ["| | nlm | the peer | | ratio (quartiles) | goal |", "|---|---|---|---|---|---|"]
    for row in results["rows"].values():
        if "ratio" in row:
            low, high = row["ratio"]["quartiles"]
            sign = "at most" if row["smaller_is_better"] else "at least"
            lines.append(
                f"| {row['row']}; {row['peer']['name']} | {row['ours']['median']:,.0f} | {row['peer']['median']:,.0f} "
                f"| {row['unit']} | {row['ratio']['median']:.2f} ({low:.2f} to {high:.2f}) "
                f"| {sign} {row['goal']:g}: {'missed' if row['verdict'] == 'missed' else 'met'} |"
            )
    machine, versions = results["environment"]["machine"], results["environment"]["versions"]
    packages = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    lines += ["", f"On {machine['processor']}, {machine['cores']} cores, with {packages}."]
    lines += [f"\n{line}" for line in shortfalls(list(results["rows"].values()))]
    return "\n".join(lines)


def shortfalls(rows: Sequence[dict[str, Any]]) -> list[str]:
    """For each work whose share of the roofline is known: that, what the goal would take, and where our time goes."""
    compared = {row["row"]: row for row in rows if "ratio" in row}
    works = [work for row in rows for work in row.get("works", []) if work["of"] in compared]
    lines = []
    for work in works:
        row, share = compared[work["of"]], work["share"]["median"]
        shares = sorted(row["profile"].items(), key=lambda item: -item[1])
        lines.append(
            f"{work['of'].capitalize()}: our side reaches {share:.0%} of what this machine does in matrix products "
            f"alone, measured in turn ({work['roofline']['median']:,.0f} GFLOP/s); the goal would take "
            f"{share * row['goal'] / row['ratio']['median']:.0%}. "
            f"Our time goes into {', '.join(f'{kind} ({share:.0%})' for kind, share in shares)}."
        )
    return lines


def described(side: dict[str, Any]) -> str:
    return str(Side(side["name"], side["settings"]))


def growth(row: dict[str, Any]) -> str:
    head = list(row["table"][0])
    body = [[f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in line.values()] for line in row["table"]]
    return f"{row['row']}\n\n" + table([[name.replace("_", " ") for name in head], *body])


def fast_paths(row: dict[str, Any]) -> str:
    head = [row["row"], "beside", "threads", "ratio", "quartiles", "range"]
    body = []
    for path in row["paths"]:
        ratio = path["ratio"]
        spans = ("{:.2f}..{:.2f}".format(*ratio[kind]) for kind in ("quartiles", "range"))
        body.append([path["path"], path["beside"], str(path["threads"]), f"{ratio['median']:.2f}", *spans])
    return table([head, *body]) + "\n\nThe ratio is the plain way's time / the fast path's."


def environment(found: dict[str, Any]) -> str:
    machine, versions = found["machine"], found["versions"]
    allocator = " ".join(f"{name}={value}" for name, value in found["allocator"].items() if value) or "as it is"
    return "\n".join(
        [
            f"{machine['processor']}, {machine['cores']} cores ({' '.join(machine['instructions'])}), "
            f"{machine['memory_gb']:g} GB, {machine['system']}",
            ", ".join(f"{name} {value or 'absent'}" for name, value in versions.items()),
            f"{found['threads']} threads; native kernels: {'yes' if found['native_kernels'] else 'no'}",
            f"allocator: {allocator}",
        ]
    )


def tables(results: dict[str, Any]) -> str:
    """Everything in results.json, for people to read."""
    rows = list(results["rows"].values())
    compared = [row for row in rows if "ratio" in row]
    parts = [environment(results["environment"])]
    if compared:
        parts.append(comparisons(compared))
    parts += ["\n".join(lines)] if (lines := shortfalls(rows)) else []
    parts += [fast_paths(row) for row in rows if "paths" in row]
    parts += [growth(row) for row in rows if "table" in row]
    if len({row["code"] for row in rows}) > 1:
        parts.append("The rows were measured with different states of nlm_core: for a comparison, run all of them.")
    return "\n\n".join(parts)
