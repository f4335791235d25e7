"""The posts' claims: a list whose rules were fixed before measuring, and the one way to record a verdict.

`book/claims.toml` is the list. A notebook calls `claim` once for each claim that it measured. The call shows one line
and leaves its record in that output's metadata, so the executed notebook carries its verdicts, and nothing else is
written.
"""

import tomllib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from IPython.display import Markdown, display

from nlm_core.errors import UserError
from nlm_core.files import project_root, readable_file, shown
from nlm_core.markdown import table

VERDICTS = ("holds", "partly", "does not hold here", "can't tell", "not applicable")
METADATA = "nlm_claim"  # the key of a record in the metadata of a notebook's output

_recorded: dict[str, dict[str, Any]] = {}  # in this process, the latest by id


def all_claims() -> dict[str, dict[str, Any]]:
    """The list: what each claim says, what was expected, and the rule of its verdict, by id.

    Raises:
        UserError: the file is missing or is not TOML.
    """
    path = readable_file(project_root() / "book" / "claims.toml")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{shown(path)} is not a list of claims: {error}") from None


def judge(holds: bool | np.bool_, partly: bool | np.bool_ = False) -> str:
    """The verdict of a rule: "holds", else "partly" where the weaker rule is met, else "does not hold here".

    Raises:
        UserError: a condition is not true or false, but for example nan, which Python would take for true.
    """
    if not all(isinstance(condition, bool | np.bool_) for condition in (holds, partly)):
        raise UserError(f"a rule is met or not: {holds!r} and {partly!r} are not both true or false")
    return "holds" if holds else "partly" if partly else "does not hold here"


def judge_interval(rule: Callable[[float], str], interval: tuple[float, float]) -> str:
    """The verdict of a rule about one figure: what it says of both ends of the interval, else "can't tell".

    The rule must be monotone, better in one direction all along. One about a band, met only in the middle of a wide
    interval, would fail at both ends.

    Raises:
        UserError: an end is not finite.
    """
    low, high = (rule(end) for end in _finite(interval))
    return low if low == high else "can't tell"


def judge_differences(intervals: Iterable[tuple[float, float]]) -> str:
    """The verdict on differences that should all be above 0.

    "holds" where all intervals lie above 0; "partly" where some do and none lies below; "does not hold here" where some
    lie below and none above; else "can't tell".

    Raises:
        UserError: there is no interval, or an end is not finite.
    """
    ends = [_finite(interval) for interval in intervals]
    if not ends:
        raise UserError("there is no difference to judge")
    above, below = [low > 0 for low, _ in ends], [high < 0 for _, high in ends]
    if all(above):
        return "holds"
    if any(above) != any(below):
        return "partly" if any(above) else "does not hold here"
    return "can't tell"


def _finite(interval: tuple[float, float]) -> tuple[float, float]:
    low, high = map(float, interval)
    if not np.isfinite([low, high]).all():
        raise UserError(f"an interval from {low} to {high} says nothing: look for nan or infinity")
    return low, high


def changed_after_measuring(listed: dict[str, Any]) -> bool:
    """Whether the rule of a claim was changed when its verdict was known."""
    return any("after measuring" in line for line in listed.get("changed", []))


def claim(
    id: str,
    ours: float | np.floating | str | None,
    *,
    verdict: str,
    interval: tuple[float | np.floating, float | np.floating] | None = None,
    n: int | str | None = None,
    data: str | None = None,
    form: str = ".2f",
    interval_is: str = "95 % interval",
    reads: str | None = None,
    applies: bool = True,
    by_old_rule: str | None = None,
) -> None:
    """Record what we measured for a claim, and show it in one line.

    It never raises on a verdict: whoever changes a cell sees a new verdict. For the book's own checkpoint, the tests
    compare the lines with the committed ones, and `reads` with the verdict.

    Args:
        id: of the claim, as in `book/claims.toml`.
        ours: the figure that we measured; text where it is more than one number, None where there is none.
        verdict: one of `VERDICTS`, by the claim's rule.
        interval: how far `ours` could have been elsewhere; None where nothing can be resampled.
        n: how many of what: 400 or "400 stories".
        data: what it was measured on.
        form: how numbers are shown, as in an f-string.
        interval_is: what the interval's ends are.
        reads: the verdict for which the text around the call was written.
        applies: false where the checkpoint lacks what the claim is about, such as a recorded run; then there is no
            figure, and the verdict is "not applicable".
        by_old_rule: the verdict by the rule as it was before; asked for where the rule was changed after measuring.

    Raises:
        UserError: the claim is not in the list, there is no such verdict, a number is not finite, or the verdict by
            the old rule is missing.
    """
    if not applies:
        ours, interval, n, data, verdict = None, None, None, None, "not applicable"
        by_old_rule = None
    listed = all_claims()
    if id not in listed:
        raise UserError(
            f"there is no claim {id!r} in book/claims.toml; a claim is listed, with its rule, before it is measured"
        )
    for word in (verdict, *(word for word in (reads, by_old_rule) if word is not None)):
        if word not in VERDICTS:
            raise UserError(f"{word!r} is not a verdict; there are: {', '.join(VERDICTS)}")
    if by_old_rule is None and verdict != "not applicable" and changed_after_measuring(listed[id]):
        raise UserError(
            f"the rule of claim {id!r} was changed after measuring: give the verdict by the old one as well"
        )
    numbers = [*([] if ours is None or isinstance(ours, str) else [ours]), *(interval or ())]
    if not np.isfinite(numbers).all() or (interval is not None and interval[0] > interval[1]):
        raise UserError(f"claim {id!r}: {ours} with the interval {interval} is not a measurement")
    ours_shown = "no figure" if ours is None else ours if isinstance(ours, str) else format(ours, form)
    details = [
        *([] if interval is None else [f"{interval_is} {interval[0]:{form}} to {interval[1]:{form}}"]),
        *([] if n is None else [f"n = {n:,}" if isinstance(n, int) else f"n = {n}"]),
        *([] if data is None else [data]),
    ]
    measured = ours_shown + (f" ({'; '.join(details)})" if details else "")
    record = {
        "id": id,
        "verdict": verdict,
        "ours": ours if ours is None or isinstance(ours, str) else round(float(ours), 6),
        "interval": None if interval is None else [round(float(end), 6) for end in interval],
        "n": n,
        "data": data,
        "measured": measured,
        "reads": reads,
        "by_old_rule": by_old_rule,
    }
    _recorded[id] = record
    line = f"`{id}`: **{verdict}**. The post: {listed[id]['said']} We measured: {measured}."
    display(
        {"text/markdown": line, "text/plain": line.replace("`", "").replace("*", "")},
        raw=True,
        metadata={METADATA: record},
    )


def closing_table(*ids: str) -> None:
    """Show the recorded claims as a table: verdict, what the post said, what we measured, what was expected (if known).

    Args:
        ids: whole ids, or beginnings of ids such as "pos."; in this order.

    Raises:
        UserError: no claim of that name has been recorded by now.
    """
    listed = all_claims()
    rows = []
    for beginning in ids:
        found = [record for id, record in _recorded.items() if id.startswith(beginning)]
        if not found:
            raise UserError(f"no claim {beginning!r} has been recorded yet: run the cells above first")
        for record in found:
            entry = listed[record["id"]]
            rows.append([f"`{record['id']}`", record["verdict"], entry["said"], record["measured"], entry["expected"]])
    heads = ["claim", "verdict", "the post said", "we measured", "expected"]
    if not any(row[-1] for row in rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    display(Markdown(table(heads, rows)))
