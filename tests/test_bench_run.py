"""Running the benchmarks: what is missing is named, results are merged and printed, the published ones are whole."""

import importlib
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from bench_rows import assert_is_a_row
from conftest import ROOT
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import ablation, fast_paths, generation, memory, peers, run, scoring, training
from benchmarks.inputs import Inputs
from benchmarks.machine import ALLOCATOR, describe, environment_of_children, physical_cores, without_words
from benchmarks.measure import Goal, Side, row, spread
from benchmarks.roofline import step_flops_per_token, sweep_flops
from benchmarks.tables import markdown, tables
from nlm_core import native
from nlm_core.ablate import ablate, single_heads
from nlm_core.config import ModelConfig
from nlm_core.errors import UserError
from nlm_core.model import NLM

REAL_RUN_FAMILY = run.run_family
pytestmark = pytest.mark.usefixtures("peers_offline")


# ---- a missing peer


@pytest.mark.parametrize(("family", "package"), [("scoring", "transformers"), ("ablation", "transformer_lens")])
def test_a_missing_peer_is_named_before_anything_runs(family, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(run, "run_family", lambda *_: pytest.fail("ran"))
    with pytest.raises(UserError, match=rf"^{package} is not installed; .*pip install -e '\.\[bench\]'$"):
        run.main([family])


def test_the_peers_are_those_that_the_extra_installs():
    extra = re.search(r"^bench = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE | re.DOTALL)[1]
    assert {name.replace("_", "-") for name in run.PEERS.values()} <= set(re.findall(r'"([\w-]+)==', extra))


# ---- running


def fake_rows(name: str) -> dict:
    made = row(name, Goal(2, 3), (Side("nlm", {}), [1.0]), (Side("peer", {"compile": True}), [2.5]), 10, "tokens/s", {})
    return {"environment": describe(), "rows": {name: made | {"code": "c", "measured": "now"}}}


def test_results_are_merged_and_printed(tmp_path, monkeypatch, capsys):
    peers.require("transformers")
    monkeypatch.setattr(run, "run_family", lambda family, quick, threads: fake_rows(f"row of {family}"))
    path = tmp_path / "results.json"
    run.main(["scoring", "--results", str(path)])
    run.main(["generation", "--results", str(path)])
    assert list(json.loads(path.read_text())["rows"]) == ["row of scoring", "row of generation"]
    capsys.readouterr()
    run.main(["--show", "--results", str(path)])
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if line.startswith("row of scoring  ")]
    assert line.split()[3:] == "10 4 tokens/s 2.50 2.50..2.50 2.50..2.50 >= 2 >= 3 goal met".split()
    assert "nlm () beside peer (compile)" in shown


def test_rows_of_another_environment_are_dropped(capsys):
    before, new = fake_rows("a"), fake_rows("b")
    assert list(run.merged(before, new)["rows"]) == ["a", "b"]
    before["environment"] = before["environment"] | {"threads": 99}
    assert list(run.merged(before, new)["rows"]) == ["b"]
    assert "1 rows of another environment are dropped" in capsys.readouterr().err


def test_rows_of_different_code_are_not_one_comparison():
    results = run.merged(fake_rows("a"), fake_rows("b"))
    assert "different states" not in tables(results)
    results["rows"]["b"]["code"] = "d"
    assert "different states" in tables(results)


def test_the_code_is_told_apart_by_what_it_does():
    code = 'def f():\n    """{}"""\n    return {}  # {}\n'
    assert without_words(code.format("a", 1, "b")) == without_words(code.format("c", 1, "d"))
    assert without_words(code.format("a", 1, "b")) != without_words(code.format("a", 2, "b"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["speed"], "no speed; there are"),
        (["--threads", "0"], "1 or more"),
        (["--show", "scoring"], "leave out the families and --quick"),
        (["--show", "--results", "nowhere.json"], "nowhere.json does not exist"),
    ],
)
def test_wrong_arguments_are_named(words, message):
    with pytest.raises(UserError, match=message):
        run.main(words)


@pytest.mark.parametrize("content", ["{}", '{"rows": {}}', '{"environment": {}, "rows": []}'])
def test_what_is_no_results_file_stays_and_nothing_is_measured(content, tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    path.write_text(content)
    monkeypatch.setattr(run, "run_family", lambda *_: pytest.fail("ran"))
    with pytest.raises(UserError, match="holds no results of benchmarks"):
        run.main(["scoring", "--results", str(path)])
    assert path.read_text() == content
    with pytest.raises(UserError, match="folder"):
        run.main(["scoring", "--results", str(tmp_path)])


def test_quick_figures_are_not_judged(capsys, monkeypatch):
    monkeypatch.setattr(run, "run_family", lambda *_: fake_rows("a"))
    run.main(["--quick", "scoring"])
    assert capsys.readouterr().out.startswith(
        "A tiny model and two rounds: the code ran, and the figures mean nothing."
    )
    made = REAL_RUN_FAMILY("scoring", quick=True, threads=1)
    assert {row["verdict"] for row in made["rows"].values()} == {"none"}


def test_a_family_runs_in_a_process_with_the_settings_of_both_sides():
    made = run.run_family("scoring", quick=True, threads=1)
    assert made["environment"]["threads"] == 1
    assert made["environment"]["allocator"] == ALLOCATOR
    (found, *_) = made["rows"].values()
    assert_is_a_row(found, Inputs.quick().rounds)


def test_a_family_that_fails_is_an_error(monkeypatch):
    monkeypatch.setattr(run.sys, "executable", "/bin/false")
    with pytest.raises(UserError, match=r"rows of scoring were not measured \(exit code 1\)"):
        run.run_family("scoring", quick=True, threads=1)


def test_the_threads_are_the_cores():
    assert environment_of_children(3)["OMP_NUM_THREADS"] == "3"
    assert 1 <= physical_cores() <= os.cpu_count()


# ---- memory and the roofline


def test_a_peak_is_what_lies_above_set_up():
    held = bytearray(30_000_000)  # before, so not part of the peak
    found = memory.peak_of(lambda: bytearray(b"x") * 100_000_000)
    assert 95e6 < found["peak"] < 125e6
    assert found["after_setup"] > len(held)


@pytest.mark.parametrize(
    ("stderr", "why"), [("warning\nerror: no such thing\n", "error: no such thing"), ("", "exit code 2")]
)
def test_a_process_that_fails_says_why(monkeypatch, stderr, why):
    done = subprocess.CompletedProcess([], 2, stdout="", stderr=stderr)
    monkeypatch.setattr(memory.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(UserError, match=rf"^a process of benchmarks\.memory failed: {why}$"):
        memory.in_fresh_process("benchmarks.memory", side="ours")


def test_the_flops_of_a_step_are_those_that_torch_counts():
    config = ModelConfig(vocab_size=50, context_length=16, d_model=12, n_layers=3, n_heads=2)
    gpt2 = peers.gpt2_of(NLM(config)).train()
    ids = torch.zeros(2, 16, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        gpt2(input_ids=ids, use_cache=False).logits.sum().backward()
    # GPT-2's written-out attention computes the hidden half of the square as well: T keys instead of (T + 1) / 2.
    whole_square = 6 * 3 * 12 * (2 * 16 - (16 + 1))
    assert counter.get_total_flops() / ids.numel() == step_flops_per_token(config, 16) + whole_square
    assert step_flops_per_token(ModelConfig(), 512) == pytest.approx(72.4e6, rel=1e-3)


def test_the_flops_of_a_sweep_are_those_that_torch_counts(monkeypatch):
    monkeypatch.setattr(native, "usable", lambda x: False)
    config = ModelConfig(vocab_size=50, context_length=16, d_model=12, n_layers=3, n_heads=2)
    with FlopCounterMode(display=False) as counter:
        ablate(NLM(config), np.arange(17), single_heads(config))
    # Without kernels attention computes the hidden half of the square as well, for each head in the layers behind it.
    whole_square = 2 * 12 * (2 * 16 - (16 + 1)) * ((3 - 1) / 2 + 1 / 2)
    picking = 2 * 2 * 12  # of the heads' contributions, by a product with zeros and ones
    assert counter.get_total_flops() / 16 / 6 == pytest.approx(sweep_flops(config, 16) + whole_square + picking)


# ---- what is published


def test_published_results_are_whole():
    if not run.RESULTS.exists():
        pytest.skip("nothing is published yet")
    results = json.loads(run.RESULTS.read_text())
    compared = {name: found for name, found in results["rows"].items() if "ratio" in found}
    expected = [training.SPEED, training.MEMORY, generation.ONE, generation.MANY.format(40)]
    assert {*expected, scoring.NAME.format(200_704, "float32"), ablation.NAME.format(96)} <= set(compared)
    for found in compared.values():
        assert len(found["ratio"]["rounds"]) >= 7
        goal = Goal(found["goal"], found["stretch"], found["smaller_is_better"])
        ratios = goal.ratios(found["ours"]["rounds"], found["peer"]["rounds"])
        assert found["ratio"] == spread(ratios)
        assert found["verdict"] == goal.verdict(found["ratio"]["median"])
    assert results["environment"]["allocator"] == ALLOCATOR


def test_docstrings_say_what_was_measured():
    """Of every fast path, in the module that holds it."""
    if not run.RESULTS.exists():
        pytest.skip("nothing is published yet")
    rows = json.loads(run.RESULTS.read_text())["rows"]
    said = [(path["module"], path["ratio"]) for path in rows[fast_paths.NAME]["paths"]]
    said.append(("ablate", rows[ablation.NAME.format(96)]["ratio"]))
    for module, ratio in said:
        doc = " ".join(importlib.import_module(f"nlm_core.{module}").__doc__.split())
        low, high = ratio["range"]
        wanted = f"{ratio['median']:.1f} times ({low:.1f} to {high:.1f})"
        assert wanted in doc, f"{module}: {wanted}"


def test_the_readme_shows_what_was_measured():
    if not run.RESULTS.exists():
        pytest.skip("nothing is published yet")
    assert markdown(json.loads(run.RESULTS.read_text())) in (ROOT / "README.md").read_text()
