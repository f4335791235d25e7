"""The results as tables of plain text."""

from collections.abc import Sequence
from typing import Any

from benchmarks.measure import Side

# "none": of a model so small that its figures mean nothing
VERDICTS = {"missed": "missed", "goal": "goal met", "stretch": "stretch met", "none": "-"}
PEER_SETTINGS = ("precision", "attention", "micro_batch", "checkpointing")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of aligned text: the first one to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def shares(row: dict[str, Any]) -> str:
    """Where our time goes, the most first."""
    return ", ".join(
        f"{kind} ({share:.0%})" for kind, share in sorted(row["profile"].items(), key=lambda item: -item[1])
    )


def comparisons(rows: Sequence[dict[str, Any]], everything: Sequence[dict[str, Any]]) -> str:
    """The comparisons and notes on them; `everything` are all rows, some of which explain a comparison."""
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
                VERDICTS[row["verdict"]],
            ]
        )
    notes = ["The ratio is the median over the rounds; memory: ours / peer, else: peer's time / ours."]
    notes += [f"{row['row']}: {described(row['ours'])} beside {described(row['peer'])}" for row in rows]
    explained = {work["of"] for row in everything for work in row.get("works", [])}
    for row in rows:
        if "profile" in row and row["row"] not in explained:
            notes.append(f"{row['row']}: our time is {shares(row)}")
        if "peer_most_frugal" in row:
            notes.append(frugal(row))
    return table([head, *body]) + "\n\n" + "\n".join(notes)


def frugal(row: dict[str, Any]) -> str:
    """The memory row beside the peer's most frugal setting, whatever time that takes."""
    found = row["peer_most_frugal"]
    ours = row["ours"]["median"] * 1e6 / found["peak"]
    settings = {key: value for key, value in found.items() if key in PEER_SETTINGS}
    steps = [min(entry["step_seconds"]) for entry in (found, *row["peer_tried"]) if "step_seconds" in entry]
    return (
        f"{row['row']}: the peer runs as it is fastest. At its most frugal ({Side('transformers', settings)}) it needs "
        f"{found['peak'] / 1e6:,.0f} MB, the ratio is {ours:.2f}, and its step takes {steps[0] / min(steps):.1f} times "
        "as long."
    )


def markdown(results: dict[str, Any]) -> str:
    """The comparisons as the README's table."""
    lines = ["| | peer | nlm | the peer | | ratio (range) | goal |", "|---|---|---|---|---|---|---|"]
    compared = [row for row in results["rows"].values() if "ratio" in row]
    for row in compared:
        low, high = row["ratio"]["range"]
        sign = "at most" if row["smaller_is_better"] else "at least"
        cells = [row["row"], row["peer"]["name"], f"{row['ours']['median']:,.0f}", f"{row['peer']['median']:,.0f}"]
        cells += [row["unit"], f"{row['ratio']['median']:.2f} ({low:.2f} to {high:.2f})"]
        cells.append(f"{sign} {row['goal']:g}: {'missed' if row['verdict'] == 'missed' else 'met'}")
        lines.append(f"| {' | '.join(cells)} |")
        if "peer_most_frugal" in row:
            peak = row["peer_most_frugal"]["peak"] / 1e6
            cells = ["the same, beside the peer at its most frugal", *cells[1:3], f"{peak:,.0f}", row["unit"]]
            lines.append(f"| {' | '.join(cells)} | {row['ours']['median'] / peak:.2f} | |")
    return "\n".join(lines)


def remarks(results: dict[str, Any]) -> str:
    """What belongs to that table, as a list: settings, what was missed and why, growth, the machine."""
    compared = [row for row in results["rows"].values() if "ratio" in row]
    lines = [f"- {row['row']}: {described(row['ours'])} beside {described(row['peer'])}" for row in compared]
    lines += [f"- {frugal(row)}" for row in compared if "peer_most_frugal" in row]
    lines += [f"- {line}" for line in shortfalls(list(results["rows"].values()))]
    lines += [f"- {grown(row)}" for row in results["rows"].values() if "table" in row]
    machine, versions = results["environment"]["machine"], results["environment"]["versions"]
    packages = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    note = mixed(list(results["rows"].values()))
    lines.append(f"- On {machine['processor']}, {machine['cores']} cores, with {packages}.{f' {note}' if note else ''}")
    return "\n".join(lines)


def mixed(rows: Sequence[dict[str, Any]]) -> str | None:
    """What to say where the rows are not of one state of the code."""
    if len({row["code"] for row in rows}) == 1:
        return None
    days = sorted(row["measured"][:10] for row in rows)
    when = f"on {days[0]}" if days[0] == days[-1] else f"between {days[0]} and {days[-1]}"
    return f"The rows were measured {when}, with different states of the code."


def shortfalls(rows: Sequence[dict[str, Any]]) -> list[str]:
    """For each work whose share of the roofline is known: that, what the goal would take, and where our time goes."""
    compared = {row["row"]: row for row in rows if "ratio" in row}
    works = [work for row in rows for work in row.get("works", []) if work["of"] in compared]
    lines = []
    for work in works:
        row, share = compared[work["of"]], work["share"]["median"]
        if row["ours"]["settings"]["precision"] != work["precision"]:
            continue  # another roofline
        lines.append(
            f"{work['of']}: our side reaches {share:.0%} of the speed of PyTorch's matrix products alone "
            f"({len(work['share']['rounds'])} rounds in turn, {{:.0%}} to {{:.0%}}); the goal would take ".format(
                *work["share"]["range"]
            )
            + f"{share * row['goal'] / row['ratio']['median']:.0%}. On one thread our time goes into "
            f"{shares(row)}."
        )
    return lines


def described(side: dict[str, Any]) -> str:
    return str(Side(side["name"], side["settings"]))


def grown(row: dict[str, Any]) -> str:
    """The two ends of what grows, as a sentence."""
    table = row["table"]
    if "megabytes" in table[0]:
        sizes, speeds, peaks = (
            listed([f"{line[key]:,.{digits}f}" for line in table])
            for key, digits in (("megabytes", 0), ("megabytes_per_second", 1), ("peak_mb", 0))
        )
        return (
            f"Text (the same 400 stories again and again, one process each) is prepared at {speeds} MB a second where "
            f"there are {sizes} MB of it, with {peaks} MB of memory above set-up."
        )
    slowest, fastest = (choose(table, key=lambda line: line["tokens_per_second"]) for choose in (min, max))
    smallest, largest = (choose(table, key=lambda line: line["peak_mb"]) for choose in (min, max))
    speeds = [f"{line['tokens_per_second']:,.0f} tokens a second ({sizes_of(line)})" for line in (slowest, fastest)]
    peaks = [f"{line['peak_mb']:,.0f} MB ({sizes_of(line)})" for line in (smallest, largest)]
    return (
        f"Training does from {' to '.join(speeds)}, and a step needs from {' to '.join(peaks)}; each was measured in "
        "one process, in two steps."
    )


def sizes_of(line: dict[str, Any]) -> str:
    windows = "1 window" if line["batch_size"] == 1 else f"{line['batch_size']} windows"
    return f"{windows} of {line['context']}"


def listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


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
        parts.append(comparisons(compared, rows))
    parts += ["\n".join(lines)] if (lines := shortfalls(rows)) else []
    parts += [fast_paths(row) for row in rows if "paths" in row]
    parts += [growth(row) for row in rows if "table" in row]
    if note := mixed(rows):
        parts.append(note)
    return "\n\n".join(parts)
