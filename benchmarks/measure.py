"""Fair comparisons: two sides in turn, the ratio of each round, and a peer that may choose its best setting first.

The machine's speed changes from minute to minute, for both sides alike. So a comparison is a list of rounds; in each
both sides run, one right after the other, and the result is the median of the rounds' ratios with their spread.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nlm_core.errors import UserError

HOPELESS = 2.5  # a setting so many times slower than the best is not tried again, nor compiled


def say(text: str) -> None:
    """Tell the person who waits what is being done."""
    print(text, file=sys.stderr, flush=True)


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternate(
    ours: Callable[[int], float], peer: Callable[[int], float], rounds: int
) -> tuple[list[float], list[float]]:
    """Run both sides in each round, the other one first every second time; return what they report, by round.

    Args:
        ours, peer: do the work of a round, given its number, and return what it cost (seconds, or bytes).
        rounds: how many.
    """
    found: dict[str, list[float]] = {"ours": [], "peer": []}
    for number in range(rounds):
        order = [("ours", ours), ("peer", peer)]
        for side, work in order if number % 2 == 0 else reversed(order):
            found[side].append(work(number))
    return found["ours"], found["peer"]


def timed(work: Callable[[int], Any]) -> Callable[[int], float]:
    """Turn the work of a round into one that returns its seconds."""
    return lambda number: seconds(lambda: work(number))


def spread(values: Sequence[float]) -> dict[str, Any]:
    """The median of some values, their quartiles (interpolated between values), their extremes, and the values."""
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {
        "median": float(median),
        "quartiles": [float(low), float(high)],
        "range": [min(values), max(values)],
        "rounds": list(values),
    }


@dataclass(frozen=True)
class Goal:
    """What a row is to reach.

    Attributes:
        goal, stretch: ratios.
        smaller: whether the ratio is ours over the peer's and small is good (memory); else the peer's over ours (time).
    """

    goal: float
    stretch: float
    smaller: bool = False

    def ratios(self, ours: Sequence[float], peer: Sequence[float]) -> list[float]:
        return [a / b if self.smaller else b / a for a, b in zip(ours, peer, strict=True)]

    def verdict(self, ratio: float) -> str:
        """Which of the two a ratio reaches: "stretch", "goal" or "missed"."""
        for name, wanted in (("stretch", self.stretch), ("goal", self.goal)):
            if (ratio <= wanted) if self.smaller else (ratio >= wanted):
                return name
        return "missed"


@dataclass(frozen=True)
class Side:
    """One side of a row.

    Attributes:
        name: the library.
        settings: how it ran; the precision is among them.
    """

    name: str
    settings: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.name} ({shown(self.settings)})"


def shown(settings: dict[str, Any]) -> str:
    """Settings in as few words as possible: a word stands for itself, and so does what is switched on."""
    words = []
    for key, value in settings.items():
        if value is True:
            words.append(key)
        elif value:
            words.append(value if isinstance(value, str) else f"{key} {value}")
    return ", ".join(words)


def row(
    name: str,
    goal: Goal,
    ours: tuple[Side, Sequence[float]],
    peer: tuple[Side, Sequence[float]],
    amount: float,
    unit: str,
    agreement: dict[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """Make a row of the results.

    Args:
        name: of the row.
        goal: what it is to reach.
        ours, peer: each side, and what each round cost it.
        amount, unit: what a round's cost is turned into: for times, `amount` of `unit` over the seconds; for memory,
            the cost over `amount` in `unit`.
        agreement: what was compared before, with differences and tolerances.
        more: whatever else belongs to the row, JSON-ready.
    """
    ratio = spread(goal.ratios(ours[1], peer[1]))
    sides = {
        which: {
            "name": side.name,
            "settings": side.settings,
            "median": statistics.median(cost / amount if goal.smaller else amount / cost for cost in costs),
            "rounds": list(costs),
        }
        for which, (side, costs) in (("ours", ours), ("peer", peer))
    }
    return {
        "row": name,
        "goal": goal.goal,
        "stretch": goal.stretch,
        "smaller_is_better": goal.smaller,
        "ratio": ratio,
        "verdict": goal.verdict(ratio["median"]),
        "unit": unit,
        "cost": "bytes" if goal.smaller else "seconds",
        **sides,
        "agreement": agreement,
        **more,
    }


def require_agreement(what: str, differences: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """Return the differences with their tolerances, unless one is exceeded.

    Args:
        what: which two things are compared.
        differences: by name, the largest difference found and the tolerance.

    Raises:
        UserError: a difference is larger than its tolerance, or not a number.
    """
    for name, (difference, tolerance) in differences.items():
        if not difference <= tolerance:
            raise UserError(
                f"{what} don't agree: {name} differs by {difference:.3g}, more than {tolerance:g}; nothing was timed"
            )
    return {name: {"difference": d, "tolerance": tolerance} for name, (d, tolerance) in differences.items()}


@dataclass
class Candidate:
    """A setting that the peer may be at its best in.

    Attributes:
        settings: what is shown and recorded.
        build: makes the work to be timed: checks that its output agrees, warms it up, and returns it.
        outcome: what came of it.
    """

    settings: dict[str, Any]
    build: Callable[[], Callable[[], Any]]
    outcome: dict[str, Any] = field(default_factory=dict)

    def key(self, **changed: Any) -> tuple:
        """The settings, or those that differ in what is given, as something to look up."""
        return tuple(sorted((self.settings | changed).items()))

    def __str__(self) -> str:
        return shown(self.settings)


def best_of(candidates: Iterable[Candidate], trials: int) -> tuple[Candidate, list[dict[str, Any]]]:
    """Try each setting, and return the fastest one and a record of all.

    A setting is judged by its fastest trial, since whatever else the machine does only ever makes it slower. A setting
    that fails is recorded with its error, and so is a bfloat16 output that does not agree; a float32 output that does
    not agree ends the comparison. Time is saved where the result is clear (see `why_not`, and `HOPELESS`): then the
    record says so.

    Args:
        candidates: with float32 before bfloat16, and those to be compiled last.
        trials: of each.

    Raises:
        UserError: no setting works, or a float32 output does not agree.
    """
    found: list[Candidate] = []
    best = math.inf
    for candidate in candidates:
        reason = why_not(candidate, found)
        found.append(candidate)
        if reason:
            candidate.outcome["skipped"] = reason
            continue
        say(f"    trying {candidate}")
        try:
            work = candidate.build()
            fastest = seconds(work)
            for _ in range(trials - 1):
                if fastest < HOPELESS * best:
                    fastest = min(fastest, seconds(work))
        except Exception as error:  # what the peer can't do in one setting is no error of the comparison
            if isinstance(error, UserError) and candidate.settings.get("precision") != "bfloat16":
                raise
            lines = str(error).strip().splitlines() or [type(error).__name__]
            candidate.outcome["failed"] = lines[0]
            say(f"      failed: {lines[0]}")
            continue
        candidate.outcome["seconds"] = fastest
        best = min(best, fastest)
    worked = [candidate for candidate in found if "seconds" in candidate.outcome]
    if not worked:
        raise UserError(f"the peer works in none of its settings; the first said: {found[0].outcome['failed']}")
    fastest_one = min(worked, key=lambda candidate: candidate.outcome["seconds"])
    return fastest_one, [candidate.settings | candidate.outcome for candidate in found]


def why_not(candidate: Candidate, found: Sequence[Candidate]) -> str | None:
    """Why a setting need not be tried, given those that were; None where it must be.

    It is not compiled if without compilation it was `HOPELESS` beside the best of those without. And bfloat16 is left
    once it was `HOPELESS` beside float32 in otherwise equal settings: the processor has no instructions for it.
    """
    measured = {other.key(): other.outcome["seconds"] for other in found if "seconds" in other.outcome}
    if candidate.settings.get("compile"):
        plain = [
            other.outcome["seconds"] for other in found if not other.settings["compile"] and other.key() in measured
        ]
        own = measured.get(candidate.key(compile=False), 0.0)
        if plain and own > HOPELESS * min(plain):
            return f"without compilation it was {own / min(plain):.1f} times slower than the best"
    if candidate.settings.get("precision") == "bfloat16":
        for other in found:
            if other.settings["precision"] == "bfloat16" and other.key() in measured:
                factor = measured[other.key()] / measured.get(other.key(precision="float32"), math.inf)
                if factor > HOPELESS:
                    return f"bfloat16 was {factor:.1f} times slower than float32 with {other}"
    return None
