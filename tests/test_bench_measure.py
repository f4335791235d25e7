"""How the benchmarks compare: the ratio within a round, its spread, and a peer that may choose its best setting."""

import math

import pytest

from benchmarks import measure
from benchmarks.measure import Candidate, Goal, Side, alternate, best_of, require_agreement, row, spread
from nlm_core.errors import UserError

SPEED, SMALL = Goal(2, 3), Goal(0.7, 0.5, smaller=True)


# ---- arithmetic


def test_the_spread_of_some_values():
    found = spread([4.0, 1.0, 2.0, 3.0, 10.0])
    assert found["median"] == 3.0
    assert found["quartiles"] == [2.0, 4.0]
    assert found["range"] == [1.0, 10.0]
    assert found["rounds"] == [4.0, 1.0, 2.0, 3.0, 10.0]
    assert spread([2.0])["quartiles"] == [2.0, 2.0]


def test_a_ratio_is_taken_within_each_round():
    ours, peer = [1.0, 2.0, 4.0], [3.0, 4.0, 20.0]
    assert SPEED.ratios(ours, peer) == [3.0, 2.0, 5.0]
    assert SMALL.ratios([1.0, 2.0], [2.0, 8.0]) == [0.5, 0.25]
    made = row("r", SPEED, (Side("a", {}), ours), (Side("b", {}), peer), 100, "tokens/s", {})
    assert made["ratio"]["median"] == 3.0  # the ratio of the medians would be 2
    assert made["verdict"] == "stretch"
    assert (made["ours"]["median"], made["peer"]["median"]) == (50.0, 25.0)
    made = row("m", SMALL, (Side("a", {}), [6e6]), (Side("b", {}), [10e6]), 1e6, "MB", {})
    assert (made["ours"]["median"], made["peer"]["median"], made["verdict"]) == (6.0, 10.0, "goal")


@pytest.mark.parametrize(
    ("goal", "ratio", "verdict"),
    [
        (SPEED, 1.99, "missed"),
        (SPEED, 2.0, "goal"),
        (SPEED, 3.0, "stretch"),
        (SMALL, 0.71, "missed"),
        (SMALL, 0.7, "goal"),
        (SMALL, 0.5, "stretch"),
    ],
)
def test_verdicts(goal, ratio, verdict):
    assert goal.verdict(ratio) == verdict


def test_both_sides_run_in_each_round_and_take_turns_in_being_first():
    order = []

    def side(name: str, cost: float):
        def work(number: int) -> float:
            order.append((number, name))
            return cost + number

        return work

    assert alternate(side("ours", 10.0), side("peer", 20.0), 3) == ([10, 11, 12], [20, 21, 22])
    assert order == [(0, "ours"), (0, "peer"), (1, "peer"), (1, "ours"), (2, "ours"), (2, "peer")]


def test_agreement_is_required():
    found = require_agreement("the sides", {"loss": (0.5, 0.5)})
    assert found == {"loss": {"difference": 0.5, "tolerance": 0.5}}
    for difference in (0.51, math.nan, math.inf):
        with pytest.raises(UserError, match="the sides don't agree: loss differs by"):
            require_agreement("the sides", {"loss": (difference, 0.5)})


# ---- the peer's best setting


@pytest.fixture
def clock(monkeypatch) -> list[str]:
    """Work is a list of seconds that it takes, one after the other; returns the names of what was run."""
    ran = []

    def seconds(work):
        name, costs = work
        ran.append(name)
        return costs.pop(0)

    monkeypatch.setattr(measure, "seconds", seconds)
    return ran


def candidate(name: str, *costs: float, compiled: bool = False) -> Candidate:
    return Candidate({"kind": name, "compile": compiled}, lambda: (name + "!" * compiled, list(costs)))


def failing(name: str, message: str) -> Candidate:
    def build():
        raise RuntimeError(message)

    return Candidate({"kind": name, "compile": False}, build)


def test_the_best_setting_is_the_one_with_the_fastest_trial(clock):
    best, tried = best_of([candidate("a", 2.0, 3.0), candidate("b", 4.0, 1.0), failing("c", "no\nway")], 2)
    assert best.settings == {"kind": "b", "compile": False}
    assert [entry.get("seconds") for entry in tried] == [2.0, 1.0, None]
    assert tried[2] == {"kind": "c", "compile": False, "failed": "no"}


def test_a_setting_without_hope_gets_one_trial_and_is_not_compiled(clock):
    plain = [candidate("a", 1.0, 1.0), candidate("slow", 10.0, 0.1), candidate("b", 2.0, 2.0)]
    compiled = [candidate(name, 0.2, 0.2, compiled=True) for name in ("a", "slow", "b")]
    best, tried = best_of([*plain, *compiled], 2)
    assert best.settings == {"kind": "a", "compile": True}
    assert clock == ["a", "a", "slow", "b", "b", "a!", "a!", "b!", "b!"]
    assert "10.0 times slower" in tried[4]["skipped"]


def test_bfloat16_is_left_where_it_is_without_hope(clock):
    def of(kind: str, precision: str, cost: float) -> Candidate:
        return Candidate({"kind": kind, "precision": precision}, lambda: (f"{kind} {precision}", [cost]))

    costs = {"a": (1.0, 2.0), "b": (1.0, 5.0), "c": (1.0, 0.1)}
    pairs = [(of(kind, "float32", slow), of(kind, "bfloat16", fast)) for kind, (slow, fast) in costs.items()]
    best, tried = best_of([setting for pair in pairs for setting in pair], 1)
    assert clock == ["a float32", "a bfloat16", "b float32", "b bfloat16", "c float32"]
    assert tried[-1]["skipped"] == "bfloat16 was 5.0 times slower than float32 with b, bfloat16"
    assert best.outcome == {"seconds": 1.0}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_only_a_bfloat16_output_may_fail_to_agree(clock, precision):
    def build():
        raise UserError("they don't agree")

    right = Candidate({"kind": "a", "precision": "float32"}, lambda: ("a", [1.0]))
    settings = [right, Candidate({"kind": "b", "precision": precision}, build)]
    if precision == "float32":
        with pytest.raises(UserError, match=r"^they don't agree$"):
            best_of(settings, 1)
    else:
        assert best_of(settings, 1)[1][1]["failed"] == "they don't agree"


def test_a_peer_that_works_in_no_setting_is_an_error(clock):
    with pytest.raises(UserError, match="none of its settings; the first said: one"):
        best_of([failing("a", "one"), failing("b", "two")], 3)
