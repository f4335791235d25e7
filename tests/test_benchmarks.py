"""The benchmarks: their arithmetic, their results' form, and that they time nothing before both sides agree.

Everything runs on a tiny model, and no test looks at a time.
"""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch
from conftest import ROOT
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import ablation, generation, growth, measure, memory, peers, run, scoring, training
from benchmarks.inputs import Inputs
from benchmarks.machine import ALLOCATOR, describe, environment_of_children, physical_cores
from benchmarks.measure import Candidate, Goal, Side, alternate, best_of, require_agreement, row, spread
from benchmarks.roofline import step_flops_per_token
from benchmarks.tables import markdown, tables
from nlm_core.config import ModelConfig
from nlm_core.errors import UserError
from nlm_core.model import NLM

SPEED, SMALL = Goal(2, 3), Goal(0.7, 0.5, smaller=True)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")


@pytest.fixture
def quick() -> Inputs:
    return Inputs.quick()


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


# ---- the rows on a tiny model


def tables_of(made: dict) -> str:
    return tables({"environment": describe(), "rows": {made["row"]: made | {"code": "c"}}})


def assert_is_a_row(made: dict, rounds: int) -> None:
    assert json.loads(json.dumps(made)) == made
    assert len(made["ratio"]["rounds"]) == len(made["ours"]["rounds"]) == len(made["peer"]["rounds"]) == rounds
    for side in ("ours", "peer"):
        assert made[side]["settings"]["precision"] in ("float32", "bfloat16")
    if "profile" in made:
        assert sum(made["profile"].values()) == pytest.approx(1)
        assert min(made["profile"].values()) >= 0
    assert any("seconds" in entry or "peak" in entry for entry in made["peer_tried"])
    compared = [found for found in made["agreement"].values() if isinstance(found, dict)]
    assert compared
    assert all(0 <= found["difference"] <= found["tolerance"] for found in compared)
    assert made["row"] in tables_of(made)


def failures(made: dict) -> list[str]:
    return [entry["failed"] for entry in made["peer_tried"] if "failed" in entry]


def test_training(quick):
    made = training.measure_speed(quick)
    assert_is_a_row(made, quick.rounds)
    assert failures(made) == []
    kinds = [(attention, precision) for attention in ("sdpa", "eager") for precision in ("float32", "bfloat16")]
    *product, in_parts = made["peer_tried"]
    assert [(entry["attention"], entry["precision"]) for entry in product] == kinds
    assert in_parts["micro_batch"] == made["ours"]["settings"]["micro_batch"] < quick.batch_size
    assert made["roofline"]["share"] > 0
    assert all(made["profile"][kind] > 0 for kind in ("matrix products", "attention", "GELU", "loss", "optimizer"))
    assert training.PeerSettings(**made["peer"]["settings"]).shown() == made["peer"]["settings"]


def test_memory_is_that_of_the_peer_as_it_is_fastest_and_the_most_frugal_is_beside_it(quick, monkeypatch):
    jobs = []

    def peak(side, inputs, settings=None):
        jobs.append(side)
        if side == "ours":
            return {"peak": 60e6}
        size = 200e6 if settings["compile"] else 100e6
        return {"peak": size / 2 if settings["checkpointing"] else size}

    monkeypatch.setattr(training, "peak_in_fresh_process", peak)
    agreed = {"loss": {"difference": 0.0, "tolerance": 1.0}}
    fastest = training.PeerSettings(compile=True)
    made = training.measure_memory(replace(quick, memory_rounds=7), training.OurTraining(quick), fastest, agreed)
    assert_is_a_row(made, 7)
    assert made["ratio"]["median"] == 0.6
    assert made["verdict"] == "goal"
    assert made["peer"]["settings"]["compile"] is False  # which is smaller here
    assert made["peer_most_frugal"]["checkpointing"] is True
    assert "at its most frugal (transformers (float32, sdpa, checkpointing), 50 MB): ratio 1.20" in tables_of(made)
    assert jobs.count("ours") == 7


@pytest.mark.parametrize("side", ["ours", "peer"])
def test_what_a_process_measures_of_a_training_step(quick, side):
    found = memory.work_of(side, asdict(quick), asdict(training.PeerSettings()) if side == "peer" else None)
    assert found["after_setup"] > 1e8
    assert found["peak"] >= 0
    assert len(found["step_seconds"]) == memory.STEPS


def test_a_training_step_in_parts_and_with_checkpointing_is_the_same_step(quick):
    for changed in ({"micro_batch": 1}, {"micro_batch": 2, "checkpointing": True}):
        peer = training.PeerTraining(quick, training.PeerSettings(**changed))
        training.agreement(training.OurTraining(quick), peer, quick.model(), "float32")


def test_generation(quick):
    for made in generation.measure(quick):
        assert_is_a_row(made, quick.rounds)
        assert failures(made) == []
        assert re.fullmatch(rf"\d of {made['prompts']}", made["agreement"]["equal greedy texts"])
        assert all(made["profile"][kind] > 0 for kind in ("reading", "choosing"))


def test_the_peer_writes_exactly_as_many_tokens_and_draws_by_its_seed(quick):
    settings = generation.PeerSettings("float32", "sdpa", "dynamic", False)
    prompts = [quick.tokenizer.encode(opening) for opening in quick.openings(3)]
    peer = generation.PeerGenerator(quick.model(), prompts, 20, settings)
    assert peer.sample(1).shape == (3, 20)
    assert torch.equal(peer.sample(1), peer.sample(1))
    assert not torch.equal(peer.sample(1), peer.sample(2))


def test_scoring(quick):
    (made, *_) = scoring.measure(quick)
    assert_is_a_row(made, quick.rounds)
    assert failures(made) == []
    assert made["row"] == f"loss of {quick.rounds * quick.score_windows * 64:,} tokens, float32"


def test_the_published_loss_is_of_two_hundred_thousand_tokens():
    inputs = Inputs()
    assert inputs.rounds >= 7
    assert 200_000 <= inputs.rounds * inputs.score_windows * ModelConfig().context_length <= 201_000


def test_ablation(quick):
    pytest.importorskip("transformer_lens", reason="it comes with pip install -e '.[bench]'")
    (made,) = ablation.measure(quick)
    assert_is_a_row(made, quick.rounds)
    assert failures(made) == []
    assert made["heads"] == made["agreement"]["heads compared"] == 8
    assert made["agreement"]["largest cost of a head"] > 1e-2


def test_growth(quick):
    trained, prepared = growth.measure(quick)
    for made in (trained, prepared):
        assert json.loads(json.dumps(made)) == made
        assert made["row"] in tables_of(made)
    ((line,),) = (trained["table"],)
    assert (line["batch_size"], line["context"]) == (2, 64)
    assert min(line["tokens_per_second"], line["peak_mb"], prepared["table"][0]["megabytes_per_second"]) > 0


@pytest.mark.parametrize("size", [1000, 900_000])
def test_the_text_that_grows_is_the_stories_again_and_again(tmp_path, stories_file, size):
    growth.write_stories(tmp_path / "text", size)
    written, stories = (tmp_path / "text").read_bytes(), stories_file.read_bytes()
    assert size - 3000 < len(written) <= size
    assert (3 * stories).startswith(written)
    written.decode("utf-8")


# ---- a planted difference


@pytest.fixture
def wrong(monkeypatch):
    """One matrix of the peer's is not ours."""

    def plant(module, name: str = "gpt2_of") -> None:
        right = getattr(module, name)

        def of(model: NLM, *settings):
            other = NLM.from_params(model.config, {n: p.numpy() for n, p in model.state_dict().items()})
            with torch.no_grad():
                other.blocks[1].mlp.down.weight.mul_(0.5)
            return right(other, *settings)

        monkeypatch.setattr(module, name, of)

    return plant


@pytest.mark.parametrize("module", [training, generation, scoring])
def test_nothing_is_timed_where_the_sides_do_not_agree(module, wrong, quick, monkeypatch):
    wrong(module)
    monkeypatch.setattr(module, "alternate", lambda *_: pytest.fail("was timed"))
    with pytest.raises(UserError, match=r"don't agree: .* differs by .*; nothing was timed"):
        module.measure(quick)


def test_no_ablation_is_timed_where_the_sides_do_not_agree(wrong, quick, monkeypatch):
    pytest.importorskip("transformer_lens", reason="it comes with pip install -e '.[bench]'")
    wrong(ablation, "hooked_of")
    monkeypatch.setattr(ablation, "alternate", lambda *_: pytest.fail("was timed"))
    with pytest.raises(UserError, match=r"the ablations don't agree: .*; nothing was timed"):
        ablation.measure(quick)


def test_another_update_does_not_agree(quick):
    peer = training.PeerTraining(quick, training.PeerSettings())
    peer.optimizer.param_groups[0]["weight_decay"] = 10.0
    with pytest.raises(UserError, match="update of the weights differs"):
        training.agreement(training.OurTraining(quick), peer, quick.model(), "float32")


def test_greedy_texts_may_part_only_where_two_tokens_tie(quick):
    model, prompt = quick.model(), quick.tokenizer.encode("Once")
    with torch.inference_mode():
        order = model(torch.tensor([prompt]))[0, -1].sort(descending=True)
    first, second = order.indices[:2].tolist()
    gap = (order.values[0] - order.values[1]).item()
    assert gap > 0
    found = generation.largest_gap(model, [prompt], [[first, 5]], torch.tensor([[second, 7]]))
    assert found == pytest.approx(gap, rel=1e-4)
    assert generation.largest_gap(model, [prompt], [[first, 5]], torch.tensor([[first, 5]])) == 0
    assert generation.largest_gap(model, [prompt], [[first, 5]], torch.tensor([[first]])) == math.inf


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
    made = row(name, SPEED, (Side("nlm", {}), [1.0]), (Side("peer", {"compile": True}), [2.5]), 10, "tokens/s", {})
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


@pytest.mark.parametrize(("words", "message"), [(["speed"], "no speed; there are"), (["--threads", "0"], "1 or more")])
def test_wrong_arguments_are_named(words, message):
    with pytest.raises(UserError, match=message):
        run.main(words)


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


def test_the_readme_shows_what_was_measured():
    if not run.RESULTS.exists():
        pytest.skip("nothing is published yet")
    assert markdown(json.loads(run.RESULTS.read_text())) in (ROOT / "README.md").read_text()
