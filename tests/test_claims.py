"""A claim is shown in one line, its record travels in the output's metadata, and only listed claims are taken."""

import json
import math
import shutil

import numpy as np
import pytest
from conftest import ROOT
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from nlm_core import claims
from nlm_core.claims import (
    METADATA,
    VERDICTS,
    all_claims,
    claim,
    closing_table,
    judge,
    judge_differences,
    judge_interval,
)
from nlm_core.errors import UserError


@pytest.fixture(autouse=True)
def listed(own_root, monkeypatch):
    (own_root / "book").mkdir()
    shutil.copy(ROOT / "book" / "claims.toml", own_root / "book")
    monkeypatch.setattr(claims, "_recorded", {})
    InteractiveShell.instance()  # `display` needs one to display in
    yield
    InteractiveShell.clear_instance()


def shown(call):
    with capture_output() as captured:
        call()
    (output,) = captured.outputs
    return output


def test_the_line_and_the_record():
    output = shown(
        lambda: claim("pos.zero-norm", 1.8341, interval=(1.5, 2.25), n=512, data="x", verdict="partly", reads="holds")
    )
    assert output.data["text/markdown"] == (
        f"`pos.zero-norm`: **partly**. The post: {all_claims()['pos.zero-norm']['said']} "
        "We measured: 1.83 (95 % interval 1.50 to 2.25; n = 512; x)."
    )
    assert output.data["text/plain"].startswith("pos.zero-norm: partly. The post:")
    record = output.metadata[METADATA]
    assert record["measured"] == "1.83 (95 % interval 1.50 to 2.25; n = 512; x)"
    assert record["by_old_rule"] is None
    assert (record["ours"], record["interval"], record["verdict"], record["reads"]) == (
        1.8341,
        [1.5, 2.25],
        "partly",
        "holds",
    )


def test_an_interval_that_covers_both_sides_can_not_tell():
    def rule(value):
        return judge(value <= 0.59, partly=value <= 0.65)

    assert judge_interval(rule, (0.57, 0.59)) == "holds"
    assert judge_interval(rule, (0.60, 0.65)) == "partly"
    assert judge_interval(rule, (0.66, 0.70)) == "does not hold here"
    assert judge_interval(rule, (0.58, 0.60)) == "can't tell"
    assert judge_interval(rule, tuple(np.array([0.64, 0.66]))) == "can't tell"
    with pytest.raises(UserError, match=r"an interval from nan to 0\.6 says nothing"):
        judge_interval(rule, (math.nan, 0.6))


@pytest.mark.parametrize(
    ("intervals", "verdict"),
    [
        ([(1, 2), (0.1, 3)], "holds"),
        ([(1, 2), (-1, 3)], "partly"),
        ([(-2, -1), (-1, 3)], "does not hold here"),
        ([(-2, -1), (1, 3)], "can't tell"),
        ([(-2, 1), (-1, 3)], "can't tell"),
    ],
)
def test_differences_that_should_all_be_above_0(intervals, verdict):
    assert judge_differences(intervals) == verdict


def test_no_differences_and_no_numbers_earn_no_verdict():
    with pytest.raises(UserError, match="no difference to judge"):
        judge_differences([])
    with pytest.raises(UserError, match=r"from 0\.1 to nan says nothing"):
        judge_differences([(0.1, 0.2), (0.1, math.nan)])


def test_a_broken_list_is_one_line(own_root):
    (own_root / "book" / "claims.toml").write_text("[a\n")
    with pytest.raises(UserError, match="is not a list of claims"):
        all_claims()


def test_numpy_numbers_make_a_plain_record():
    output = shown(lambda: claim("pos.zero-norm", np.float32(1.5), interval=tuple(np.ones(2)), verdict="partly"))
    assert json.loads(json.dumps(output.metadata[METADATA]))["ours"] == 1.5


def test_nothing_to_measure():
    output = shown(lambda: claim("pos.pair.10-500", None, verdict="not applicable"))
    assert "**not applicable**" in output.data["text/markdown"]
    assert "no figure" in output.data["text/markdown"]


def test_what_does_not_apply_has_no_figure_whatever_was_computed():
    output = shown(
        lambda: claim(
            "pos.zero-norm", np.nan, interval=(1, 2), n=5, data="x", verdict="holds", reads="holds", applies=False
        )
    )
    record = output.metadata[METADATA]
    assert (record["ours"], record["interval"], record["n"], record["verdict"]) == (None, None, None, "not applicable")
    assert output.data["text/markdown"].endswith("We measured: no figure.")


def test_where_a_rule_was_changed_after_measuring_the_old_one_is_heard():
    with pytest.raises(UserError, match=r"'pos\.norms' was changed after measuring: give the verdict by the old one"):
        claim("pos.norms", 1.0, verdict="partly")
    output = shown(lambda: claim("pos.norms", 1.0, verdict="partly", by_old_rule="holds"))
    assert output.metadata[METADATA]["by_old_rule"] == "holds"
    shown(lambda: claim("pos.norms", None, verdict="not applicable"))


def test_unknown_claims_and_verdicts_are_refused():
    with pytest.raises(UserError, match=r"there is no claim 'pos\.new'"):
        claim("pos.new", 1.0, verdict="holds")
    holds = {"verdict": "holds"}
    for words in ({"verdict": "yes"}, {**holds, "reads": "yes"}, {**holds, "by_old_rule": "yes"}):
        with pytest.raises(UserError, match="'yes' is not a verdict"):
            claim("pos.nearer", 1.0, **words)


@pytest.mark.parametrize(
    "words",
    [
        {"ours": float("nan")},
        {"ours": float("inf")},
        {"ours": 1.0, "interval": (2.0, 0.0)},
        {"ours": 1.0, "interval": (float("nan"), 2.0)},
    ],
)
def test_what_is_no_measurement_is_refused(words):
    with pytest.raises(UserError, match="is not a measurement"):
        claim("pos.nearer", verdict="holds", **words)


def test_the_closing_table_has_what_was_recorded():
    shown(lambda: claim("pos.pair.10-11", 0.3, verdict="partly"))
    shown(lambda: claim("pos.pair.10-11", 0.8, verdict="holds"))  # a cell that was run again
    shown(lambda: claim("pos.nearer", "-0.8 | -0.3", verdict="partly"))
    rows = shown(lambda: closing_table("pos.nearer", "pos.pair")).data["text/markdown"].splitlines()
    assert len(rows) == 4
    assert rows[2].startswith("| `pos.nearer` | partly |")
    assert r"| -0.8 \| -0.3 |" in rows[2]
    assert rows[3].startswith("| `pos.pair.10-11` | holds |")
    assert "| 0.80 |" in rows[3]
    assert all_claims()["pos.nearer"]["said"] in rows[2]
    assert rows[0].endswith("| expected |")
    shown(lambda: claim("tok.pieces", None, verdict="holds"))
    assert "expected" not in shown(lambda: closing_table("tok.pieces")).data["text/markdown"]  # nothing was


def test_the_closing_table_says_what_is_missing():
    with pytest.raises(UserError, match=r"no claim 'pos\.limit' has been recorded yet"):
        closing_table("pos.limit")


def test_verdicts_of_rules():
    words = [judge(True), judge(np.True_, partly=True), judge(False, partly=np.True_), judge(False)]
    assert words == ["holds", "holds", "partly", "does not hold here"]
    assert set(words) <= set(VERDICTS)
