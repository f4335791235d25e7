"""Ablating heads takes away what they add and nothing else, and the shared work changes no number."""

import copy
import inspect
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jaxtyping import TypeCheckError
from torch import Tensor

import nlm_core.ablate
import nlm_core.loss
from nlm_core.ablate import Losses, ablate, contributions, donors, gather, single_heads
from nlm_core.config import ModelConfig
from nlm_core.dropout import Dropout
from nlm_core.errors import UserError
from nlm_core.loss import stream_nats
from nlm_core.model import NLM
from nlm_core.stats import ratio_interval

T, L, H, D, V = 6, 3, 2, 4, 30
CONFIG = ModelConfig(vocab_size=V, context_length=T, d_model=H * D, n_layers=L, n_heads=H)
# Eight windows, the last of them shorter; windows and stories end at different places.
IDS = np.random.default_rng(0).integers(V, size=7 * T + 3 + 1).astype(np.uint16)
STORIES = np.repeat(np.arange(12), 4)[: len(IDS)]
SETS = [{(0, 0), (0, 1)}, {(2, 1)}, set(), {(1, 0), (2, 1)}, {(0, 1), (1, 1), (2, 0)}, {(1, 1), (1, 0), (2, 0), (2, 1)}]


@pytest.fixture
def model() -> NLM:
    """A float64 model whose heads all matter, with biases and norms that aren't trivial."""
    torch.manual_seed(0)
    model = NLM(CONFIG).double().eval()
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn_like(param) * 0.4)
    return model


# ---- the plain way: the whole model for each window and each ablation, with z swapped by a mask


def plain(model: NLM, ids: Tensor, heads: set, rs: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Logits of one window (T, V), and the z of each layer (H, T, D) before anything is swapped in it."""
    x = model.token_emb[ids] + model.pos_emb[: len(ids)]
    zs = []
    for layer, block in enumerate(model.blocks):
        qkv = F.linear(block.attn_norm(x), block.attn.qkv.weight, block.attn.qkv.bias)
        q, k, v = (part.view(len(ids), H, D).transpose(0, 1) for part in qkv.split(H * D, dim=-1))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        zs.append(z.clone())
        for head in range(H):
            if (layer, head) in heads:
                z[head] = rs[layer][head, : len(ids)]
        x = x + F.linear(z.transpose(0, 1).flatten(1), block.attn.out.weight, block.attn.out.bias)
        hidden = F.gelu(F.linear(block.mlp_norm(x), block.mlp.up.weight, block.mlp.up.bias), approximate="tanh")
        x = x + F.linear(hidden, block.mlp.down.weight, block.mlp.down.bias)
    return model.final_norm(x) @ model.token_emb.T, zs


@torch.no_grad()
def plain_nats(model: NLM, ids: np.ndarray, heads: set, mode: str, lenders: np.ndarray) -> np.ndarray:
    stream = torch.from_numpy(ids.astype(np.int64))
    windows = [stream[start : start + T + 1] for start in range(0, len(ids) - 1, T)]
    clean = [plain(model, window[:-1], set(), [])[1] for window in windows]
    mean = [torch.zeros(H, T, D, dtype=torch.float64) for _ in range(L)]
    for layer in range(L):
        for place in range(T):
            there = [zs[layer][:, place] for zs in clean if zs[layer].shape[1] > place]
            if there:
                mean[layer][:, place] = torch.stack(there).mean(0)
    nats = []
    for number, window in enumerate(windows):
        if mode == "zero":
            rs = [torch.zeros(H, T, D)] * L
        else:
            rs = mean if mode == "mean" else clean[lenders[number]]
        logits, _ = plain(model, window[:-1], heads, rs)
        nats.append(F.cross_entropy(logits, window[1:], reduction="none"))
    return torch.cat(nats).numpy()


def by_target(ids: np.ndarray) -> np.ndarray:
    """Groups of one token each, so that no error can hide in a sum; the first token, no target, is nobody's."""
    return np.arange(len(ids)) - 1 + (np.arange(len(ids)) == 0)


@pytest.mark.parametrize("mode", ["zero", "mean", "resample"])
@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_every_loss_is_that_of_the_plain_way(model, mode, batch_size):
    ablations = [*single_heads(CONFIG), *SETS]
    losses = ablate(model, IDS, ablations, mode, STORIES, by_target(IDS), seed=5, batch_size=batch_size)
    lenders = donors(STORIES, T, seed=5)
    np.testing.assert_allclose(losses.clean, stream_nats(model, IDS), rtol=0, atol=1e-9)
    for heads, nats in zip(ablations, losses.ablated.T, strict=True):
        np.testing.assert_allclose(nats, plain_nats(model, IDS, heads, mode, lenders), rtol=0, atol=1e-9)
        changed = np.abs(nats - losses.clean).max()
        assert changed > 0.01 if heads else changed == 0


@pytest.mark.parametrize(
    ("mode", "length"),
    [*(("zero", length) for length in (2, T, T + 1, T + 2, 3 * T + 1)), ("mean", 2 * T + 1), ("mean", 3 * T - 1)],
)
def test_texts_of_any_length(model, mode, length):
    losses = ablate(model, IDS[:length], SETS, mode, groups=by_target(IDS[:length]), batch_size=2)
    for heads, nats in zip(SETS, losses.ablated.T, strict=True):
        np.testing.assert_allclose(nats, plain_nats(model, IDS[:length], heads, mode, np.array([])), rtol=0, atol=1e-9)


def test_how_many_run_at_once_changes_nothing(model, monkeypatch):
    ablations = [*single_heads(CONFIG), *SETS]
    together = ablate(model, IDS, ablations, "mean")
    for at_once in (1, 3):
        monkeypatch.setattr("nlm_core.ablate.AT_ONCE", at_once)
        np.testing.assert_allclose(ablate(model, IDS, ablations, "mean").ablated, together.ablated, rtol=1e-12)


# ---- what a head is


@torch.no_grad()
def test_the_heads_and_the_bias_sum_to_what_attention_adds(model):
    x = torch.randn(2, T, H * D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for block in model.blocks:
        added = contributions(block, gather(block, x))
        assert added.shape == (H, 2, T, H * D)
        whole = block.attn(block.attn_norm(x), 0, None)
        torch.testing.assert_close(added.sum(0) + block.attn.out.bias, whole, rtol=0, atol=1e-12)
        assert (added.flatten(1).std(1) > 0.1).all()


@pytest.mark.parametrize(("layer", "head"), [(0, 0), (1, 1), (2, 0)])
@torch.no_grad()
def test_ablating_a_head_takes_away_what_it_adds_and_nothing_else(model, layer, head):
    without = copy.deepcopy(model)
    without.blocks[layer].attn.out.weight[:, head * D : (head + 1) * D] = 0
    x = torch.randn(2, T, H * D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before, after = (contributions(m.blocks[layer], gather(m.blocks[layer], x)) for m in (model, without))
    for other in range(H):
        assert torch.equal(after[other], torch.zeros_like(x) if other == head else before[other])
    # The engine's ablation is that very model, and in that model there is nothing left to ablate, whatever the mode.
    expected = stream_nats(without, IDS)
    losses = ablate(model, IDS, [{(layer, head)}], groups=by_target(IDS))
    np.testing.assert_allclose(losses.ablated[:, 0], expected, rtol=0, atol=1e-9)
    for mode in ("zero", "mean", "resample"):
        again = ablate(without, IDS, [{(layer, head)}], mode, STORIES)
        np.testing.assert_allclose(again.deltas, 0, rtol=0, atol=1e-9)


def test_single_heads_come_layer_by_layer():
    assert single_heads(CONFIG) == [{(0, 0)}, {(0, 1)}, {(1, 0)}, {(1, 1)}, {(2, 0)}, {(2, 1)}]


# ---- the modes


def test_where_all_windows_are_equal_the_mean_changes_nothing(model):
    ids = np.append(np.tile(IDS[:T], 4), IDS[T])
    ablations = [*single_heads(CONFIG), *SETS]
    np.testing.assert_allclose(ablate(model, ids, ablations, "mean", batch_size=2).deltas, 0, rtol=0, atol=1e-9)
    assert (np.abs(ablate(model, ids, ablations, "zero").deltas[0, : L * H]) > 1e-3).all()


def test_a_donor_reads_no_story_that_the_receiver_reads_or_predicts():
    rng = np.random.default_rng(0)
    stories = np.repeat(np.arange(60), rng.integers(1, 12, size=60))
    stories = stories[: (len(stories) - 1) // T * T + 4]  # the last window is shorter
    windows = math.ceil((len(stories) - 1) / T)
    whole = (len(stories) - 1) // T
    lent = set()
    for seed in range(50):
        drawn = donors(stories, T, seed)
        assert len(drawn) == windows == whole + 1
        for window, donor in enumerate(drawn):
            own = stories[window * T : (window + 1) * T + 1]
            assert not set(own) & set(stories[donor * T : (donor + 1) * T])
        lent |= set(drawn)
    assert lent == set(range(whole))  # every full window lends to some other, the shorter one never


def test_a_window_may_get_any_donor_that_shares_no_story():
    stories = np.repeat(np.arange(4), T)[: 3 * T + 1]  # a story for each window, its last target in the next
    drawn = np.array([donors(stories, T, seed) for seed in range(40)])
    assert [set(column) for column in drawn.T] == [{2}, {0}, {0, 1}]


def test_donors_and_losses_repeat_by_seed(model):
    assert (donors(STORIES, T, 1) == donors(STORIES, T, 1)).all()
    assert (donors(STORIES, T, 1) != donors(STORIES, T, 2)).any()
    one, same, other = (ablate(model, IDS, [{(1, 0)}], "resample", STORIES, seed=seed).ablated for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


# ---- what comes back


def test_losses_are_sums_by_story_ready_for_intervals(model):
    targets = stream_nats(model, IDS)
    losses = ablate(model, IDS, SETS[:3], stories=STORIES)
    expected = [targets[STORIES[1:] == story].sum() for story in range(12)]
    np.testing.assert_allclose(losses.clean, expected, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(losses.targets, np.bincount(STORIES[1:]))
    assert losses.ablated.shape == losses.deltas.shape == (12, 3)
    np.testing.assert_array_equal(losses.deltas[:, 0], losses.ablated[:, 0] - losses.clean)
    np.testing.assert_array_equal(losses.ablated[:, 2], losses.clean)  # the empty set
    low, high = ratio_interval(losses.deltas, losses.targets, draws=50)
    assert low.shape == high.shape == (3,)


def test_other_groups_and_none(model):
    whole = ablate(model, IDS, SETS)
    halves = ablate(model, IDS, SETS, stories=STORIES, groups=STORIES % 2)
    assert whole.ablated.shape == (1, len(SETS)) and whole.targets == [len(IDS) - 1]
    assert halves.ablated.shape == (2, len(SETS))
    np.testing.assert_allclose(halves.ablated.sum(0), whole.ablated[0], rtol=1e-12)


def test_a_first_story_of_one_token_has_no_target(model):
    losses = ablate(model, IDS[:4], [{(0, 0)}], stories=np.array([0, 1, 1, 1]))
    assert losses.targets.tolist() == [0, 3]
    assert losses.clean[0] == losses.ablated[0, 0] == 0


@pytest.mark.parametrize("ablations", [[], [set()]])
def test_nothing_to_ablate(model, ablations):
    losses = ablate(model, IDS, ablations, "mean", STORIES)
    assert losses.deltas.shape == (12, len(ablations))
    assert not losses.deltas.any()


# ---- the work


@pytest.mark.parametrize("batch_size", [1, 4])
def test_no_layer_before_an_ablation_runs_for_it(model, batch_size):
    rows = [0] * L
    for layer, block in enumerate(model.blocks):

        def count(module, inputs, layer=layer):
            rows[layer] += len(inputs[0])

        block.mlp.register_forward_pre_hook(count)
    ablate(model, IDS, [*single_heads(CONFIG), {(1, 0), (2, 0)}, set()], batch_size=batch_size)
    windows = 8
    assert rows == [windows * (1 + H), windows * (1 + 2 * H + 1), windows * (1 + 3 * H + 1)]


# ---- precision, mode of the model, errors


def test_float32_and_bfloat16_are_close(model):
    exact = ablate(model, IDS, SETS, "mean")
    single = ablate(model.float(), IDS, SETS, "mean")
    np.testing.assert_allclose(single.ablated, exact.ablated, rtol=1e-5)
    half = ablate(model, IDS, SETS, "mean", precision="bfloat16")
    np.testing.assert_allclose(half.ablated, exact.ablated, rtol=0.02)
    assert (half.ablated != single.ablated).all()
    assert half.clean.sum() == pytest.approx(stream_nats(model, IDS, precision="bfloat16").sum(), rel=1e-3)


def test_dropout_has_no_part_and_the_mode_is_kept(model):
    expected = ablate(model, IDS, SETS)
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.5
    model.train()
    assert (model(torch.zeros(1, 4, dtype=torch.long)) != model(torch.zeros(1, 4, dtype=torch.long))).any()
    np.testing.assert_array_equal(ablate(model, IDS, SETS).ablated, expected.ablated)
    assert model.training


@pytest.mark.parametrize("work", [stream_nats, lambda model, ids: ablate(model, ids, SETS)])
def test_each_part_s_mode_is_kept_where_the_work_is_interrupted(model, work, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    for module in (nlm_core.loss, nlm_core.ablate):
        monkeypatch.setattr(module, "token_nats", interrupted)
    model.train()
    model.blocks[1].eval()
    before = [part.training for part in model.modules()]
    with pytest.raises(KeyboardInterrupt):
        work(model, IDS)
    assert [part.training for part in model.modules()] == before


@pytest.mark.parametrize("changes", [{"ids": IDS + 0.7}, {"groups": STORIES / 2}, {"ids": IDS[None]}])
def test_what_is_no_row_of_whole_numbers_is_refused(model, changes):
    """By jaxtyping in the tests, and by ourselves elsewhere."""
    for function in (ablate, inspect.unwrap(ablate)):
        with pytest.raises((UserError, TypeCheckError)):
            function(**{"model": model, "ids": IDS, "ablations": SETS} | changes)


@pytest.mark.parametrize("part", ["", "blocks.1", "blocks.0.attn"])
def test_hooks_that_would_not_be_called_are_refused(model, part):
    model.get_submodule(part).register_forward_hook(lambda part, given, y: 0 * y)
    with pytest.raises(UserError, match="hooks on a block or its attention would have no effect"):
        ablate(model, IDS, SETS)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"ids": IDS[:1]}, "at least two tokens"),
        ({"ids": np.append(IDS[1:], V)}, "another tokenizer"),
        ({"ids": IDS.astype(int) - 1}, "another tokenizer"),
        ({"groups": STORIES - 1}, "`groups` must be whole numbers from 0"),
        ({"precision": "float17"}, "precision must be float32 or bfloat16, not 'float17'"),
        ({"mode": "mean", "ids": IDS[: 2 * T], "stories": STORIES[: 2 * T]}, "mean mode needs two full windows of 6"),
        ({"mode": "random"}, "mode must be one of zero, mean, resample, not 'random'"),
        ({"mode": "resample", "stories": None}, "must know the story of each token"),
        ({"stories": STORIES[1:]}, "`stories` must have one number for each of the 46 tokens, not 45"),
        ({"groups": STORIES[1:]}, "`groups` must have one number"),
        ({"batch_size": 0}, "batch_size must be 1 or more"),
        (
            {"ablations": [{(0, 0)}, {(L, 0)}]},
            "no head 0 in layer 3: this model's layers are 0 to 2, their heads 0 to 1",
        ),
        ({"ablations": [{(0, H)}]}, "no head 2 in layer 0"),
        ({"ablations": [{(-1, 0)}]}, "no head 0 in layer -1"),
        ({"mode": "resample", "stories": STORIES[::-1]}, "in order"),
        ({"mode": "resample", "stories": STORIES // 6}, r"no donor for window 3: .* its stories \(0 to 1\)"),
        ({"mode": "resample", "ids": IDS[:T], "stories": STORIES[:T]}, "no donor for window 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(model, changes, complaint):
    arguments = {"ids": IDS, "ablations": SETS, "mode": "zero", "stories": STORIES} | changes
    with pytest.raises(UserError, match=complaint) as error:
        ablate(model, **arguments)
    assert "\n" not in str(error.value)


def test_no_bar_unless_a_terminal_wants_it(model, capfd):
    assert isinstance(ablate(model, IDS, SETS, "mean", progress=True), Losses)
    assert capfd.readouterr().err == ""


def test_the_number_of_threads_changes_no_bit(model):
    one = ablate(model, IDS, single_heads(CONFIG), "resample", STORIES)
    torch.set_num_threads(3)
    try:
        three = ablate(model, IDS, single_heads(CONFIG), "resample", STORIES)
    finally:
        torch.set_num_threads(1)
    assert np.array_equal(one.ablated, three.ablated)
    assert np.array_equal(one.clean, three.clean)
