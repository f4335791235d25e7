"""The rows of the benchmarks on a tiny model: none times anything before both sides agree. No test looks at a time."""

import json
import math
import re
from dataclasses import asdict, replace

import pytest
import torch
from bench_rows import assert_is_a_row, failures, tables_of

from benchmarks import ablation, fast_paths, generation, growth, memory, roofline, scoring, tables, training
from benchmarks.inputs import Inputs
from benchmarks.machine import describe
from benchmarks.measure import spread
from nlm_core import native
from nlm_core.config import ModelConfig
from nlm_core.errors import UserError
from nlm_core.model import NLM

pytestmark = pytest.mark.usefixtures("peers_offline")


def test_training(quick):
    made = training.measure_speed(quick)
    assert_is_a_row(made, quick.rounds)
    assert failures(made) == []
    kinds = [(attention, precision) for attention in ("sdpa", "eager") for precision in ("float32", "bfloat16")]
    *product, in_parts = made["peer_tried"]
    assert [(entry["attention"], entry["precision"]) for entry in product] == kinds
    assert in_parts["micro_batch"] == made["ours"]["settings"]["micro_batch"] < quick.batch_size
    assert all(made["profile"][kind] > 0 for kind in ("matrix products", "attention", "GELU", "loss", "optimizer"))
    assert training.PeerSettings(**made["peer"]["settings"]).shown() == made["peer"]["settings"]


def test_memory_is_that_of_the_peer_as_it_is_fastest_and_the_most_frugal_is_beside_it(quick, monkeypatch):
    jobs = []

    def peak(side, inputs, settings=None):
        jobs.append(side)
        if side == "ours":
            return {"peak": 60e6, "step_seconds": [9, 1]}
        size = 200e6 if settings["compile"] else 100e6
        checkpointing = settings["checkpointing"]
        return {"peak": size / 2 if checkpointing else size, "step_seconds": [9, 4 if checkpointing else 2]}

    monkeypatch.setattr(training, "peak_in_fresh_process", peak)
    agreed = {"loss": {"difference": 0.0, "tolerance": 1.0}}
    fastest = training.PeerSettings(compile=True)
    made = training.measure_memory(replace(quick, memory_rounds=7), training.OurTraining(quick), fastest, agreed)
    assert_is_a_row(made, 7)
    assert made["ratio"]["median"] == 0.6
    assert made["verdict"] == "goal"
    assert made["peer"]["settings"]["compile"] is False  # which is smaller here
    assert made["peer_most_frugal"]["checkpointing"] is True
    assert "(transformers (float32, sdpa, checkpointing)) it needs 50 MB, the ratio is 1.20" in tables_of(made)
    assert "its step takes 2.0 times as long" in tables_of(made)
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


def test_the_roofline(quick):
    (made,) = roofline.measure(quick)
    assert json.loads(json.dumps(made)) == made
    assert [work["of"] for work in made["works"]] == [training.SPEED, ablation.NAME.format(8)]
    for work in made["works"]:
        rates = zip(work["gflops_per_second"]["rounds"], work["roofline"]["rounds"], strict=True)
        assert work["share"]["rounds"] == pytest.approx([ours / products for ours, products in rates])


def test_what_the_goal_would_take_stands_beside_the_share(quick):
    """A goal of twice the ratio that was reached takes twice the share."""
    ours = {"settings": {"precision": "float32"}}
    row = {
        "row": "work",
        "ours": ours,
        "goal": 4.0,
        "ratio": {"median": 2.0},
        "profile": {"products": 0.25, "else": 0.75},
    }
    share = spread([0.5, 0.6, 0.65])
    works = [{"of": name, "precision": "float32", "share": share} for name in ("work", "not compared")]
    (line,) = tables.shortfalls([row, {"row": "roofline", "works": works}])
    assert "reaches 60% of" in line
    assert "(3 rounds in turn, 50% to 65%); the goal would take 120%." in line
    assert "our time goes into else (75%), products (25%)." in line
    ours["settings"]["precision"] = "bfloat16"
    assert tables.shortfalls([row, {"row": "roofline", "works": works}]) == []


@pytest.fixture
def kernels():
    if native.library() is None:
        pytest.skip("the kernels can't be compiled here")


@pytest.mark.usefixtures("kernels")
def test_fast_paths(quick):
    (made,) = fast_paths.measure(quick)
    assert json.loads(json.dumps(made)) == made
    assert made["row"] in tables_of(made)
    assert len(made["paths"]) == 9
    for path in made["paths"]:
        ours, plain = path["rounds"]["fast"], path["rounds"]["plain"]
        assert path["ratio"]["rounds"] == [b / a for a, b in zip(ours, plain, strict=True)]
        assert len(ours) == quick.rounds
        assert 0 <= path["agreement"]["numbers"]["difference"] <= fast_paths.TOLERANCE
        assert path["path"] in tables_of(made)


def test_without_kernels_there_is_no_fast_path_to_measure(quick, monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)
    with pytest.raises(UserError, match="can't be compiled here"):
        fast_paths.measure(quick)


def test_a_fast_path_that_is_wrong_is_not_timed(quick):
    ones = torch.ones(3)
    path = fast_paths.FastPath("step", "twice", "once", lambda: [2 * ones], lambda: [ones])
    with pytest.raises(UserError, match=r"^the two ways of twice don't agree: .* nothing was timed$"):
        fast_paths.compare(path, quick)


def test_growth(quick):
    trained, prepared = growth.measure(quick)
    for made in (trained, prepared):
        assert json.loads(json.dumps(made)) == made
        assert made["row"] in tables_of(made)
        rows = {made["row"]: made | {"code": "c", "measured": "2026-01-01"}}
        assert tables.grown(made) in tables.remarks({"environment": describe(), "rows": rows})
    ((line,),) = (trained["table"],)
    assert (line["batch_size"], line["context"]) == (2, 64)
    assert min(line["tokens_per_second"], line["peak_mb"], prepared["table"][0]["megabytes_per_second"]) > 0


def test_growth_in_words():
    table = [(1, 3.14, 20), (10, 4, 21), (1000, 5, 22)]
    keys = ("megabytes", "megabytes_per_second", "peak_mb")
    prepared = {"table": [dict(zip(keys, line, strict=True)) for line in table]}
    expected = "3.1, 4.0 and 5.0 MB a second where there are 1, 10 and 1,000 MB of it, with 20, 21 and 22 MB"
    assert expected in tables.grown(prepared)
    keys = ("batch_size", "context", "tokens_per_second", "peak_mb")
    trained = {"table": [dict(zip(keys, line, strict=True)) for line in [(1, 64, 900, 50), (8, 64, 2000, 60)]]}
    assert "from 900 tokens a second (1 window of 64) to 2,000 tokens a second (8 windows of 64)" in tables.grown(
        trained
    )


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


def another_decay(peer):
    peer.optimizer.param_groups[0]["weight_decay"] = 1.0


def another_beta2(peer):
    for group in peer.optimizer.param_groups:
        group["betas"] = (0.9, 0.9)


def another_batch(peer):
    batches = peer.batches
    peer.batches = lambda number: batches(number + 1)


@pytest.mark.parametrize("change", [another_decay, another_beta2, another_batch])
def test_other_steps_do_not_agree(quick, change):
    sides = training.OurTraining(quick), training.PeerTraining(quick, training.PeerSettings())
    training.agreement(*sides, quick.model(), "float32", training.AGREEING_STEPS)
    peer = training.PeerTraining(quick, training.PeerSettings())
    change(peer)
    with pytest.raises(UserError, match=r"(loss|update of the weights) differs"):
        training.agreement(training.OurTraining(quick), peer, quick.model(), "float32", training.AGREEING_STEPS)


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
