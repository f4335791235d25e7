"""Muon is torch's Muon in float32; every parameter is in one group; the learning rate rises, stays, and falls."""

import itertools
import math

import pytest
import torch

from nlm_core.config import ModelConfig, TrainConfig
from nlm_core.model import NLM
from nlm_core.optim import Muon, learning_rate, make_optimizers, orthogonalise

SHAPES = [(16, 64), (64, 16), (32, 32), (16, 64), (1, 8)]
SETTINGS = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.3}


def run(make, steps: int = 6) -> list[torch.Tensor]:
    """Weights after some steps on random gradients."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    optimizer = make(params)
    for _ in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator) * 10 ** float(
                torch.randn(1, generator=generator)
            )
        optimizer.step()
    return [param.detach() for param in params]


def torch_muon(params):
    return torch.optim.Muon(params, **SETTINGS, nesterov=True, adjust_lr_fn="match_rms_adamw")


def test_muon_is_torch_s_muon_up_to_bfloat16():
    before = run(torch_muon, steps=0)
    for ours, theirs, start in zip(run(lambda p: Muon(p, **SETTINGS)), run(torch_muon), before, strict=True):
        assert (ours - theirs).norm() < 0.02 * (theirs - start).norm()


def test_muon_is_torch_s_muon_in_float32(monkeypatch):
    # torch's iteration rounds to bfloat16 in its first line and nowhere else.
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.clone())
    for ours, theirs in zip(run(lambda p: Muon(p, **SETTINGS)), run(torch_muon), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_muon_leaves_alone_what_has_no_gradient():
    with_gradient, without = (torch.nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    with_gradient.grad = torch.eye(4)
    Muon([with_gradient, without], **SETTINGS).step()
    assert torch.equal(without, torch.ones(4, 4))
    assert not torch.equal(with_gradient, torch.ones(4, 4))


def test_muon_s_update_has_the_size_that_it_promises():
    param = torch.nn.Parameter(torch.zeros(64, 256))
    param.grad = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    Muon([param], lr=0.01, weight_decay=0.0).step()
    assert param.square().mean().sqrt().item() == pytest.approx(0.2 * 0.01, rel=0.25)


@pytest.mark.parametrize("shape", [(32, 32), (16, 64), (64, 16)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_orthogonalise_brings_singular_values_near_one_and_keeps_the_vectors(shape, scale):
    generator = torch.Generator().manual_seed(0)
    size = min(shape)
    left = torch.linalg.qr(torch.randn(shape[0], size, generator=generator)).Q
    right = torch.linalg.qr(torch.randn(shape[1], size, generator=generator)).Q
    result = orthogonalise(scale * left @ torch.diag(torch.logspace(-1, 0, size)) @ right.T)
    found = left.T @ result @ right
    inside = found.diagonal()
    assert inside.min() > 0.6
    assert inside.max() < 1.3
    assert (found - torch.diag(inside)).abs().max() < 1e-4


def test_orthogonalise_leaves_zeros_alone():
    assert torch.equal(orthogonalise(torch.zeros(4, 4)), torch.zeros(4, 4))


# ---- who moves what


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_every_parameter_is_in_exactly_one_group(optimizer):
    model = NLM(ModelConfig(vocab_size=64, context_length=16, d_model=16, n_layers=2, n_heads=2))
    optimizers = make_optimizers(model, TrainConfig(optimizer=optimizer, weight_decay=0.25))
    groups = [(type(o).__name__, group) for o in optimizers for group in o.param_groups]
    found = [id(param) for _, group in groups for param in group["params"]]
    assert sorted(found) == sorted(id(param) for param in model.parameters())
    decayed = {id(param) for _, group in groups if group["weight_decay"] for param in group["params"]}
    by_muon = {id(param) for kind, group in groups if kind == "Muon" for param in group["params"]}
    matrices = {
        id(module.weight) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and name
    }
    assert decayed == matrices
    assert {group["weight_decay"] for _, group in groups} == {0.25, 0.0}
    assert by_muon == (matrices if optimizer == "muon" else set())
    assert all(group["lr"] == TrainConfig().lr for _, group in groups)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_step_moves_every_parameter_and_lowers_the_loss(optimizer):
    torch.manual_seed(0)
    model = NLM(ModelConfig(vocab_size=64, context_length=16, d_model=16, n_layers=2, n_heads=2))
    optimizers = make_optimizers(model, TrainConfig(optimizer=optimizer))
    ids = torch.randint(0, 64, (4, 17))
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    losses = []
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        losses.append(loss.item())
        loss.backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
    assert losses[-1] < losses[0] - 0.1
    assert [name for name, param in model.named_parameters() if torch.equal(param, before[name])] == []


# ---- the learning rate


CONFIG = TrainConfig(lr=0.5, warmup_steps=10, decay_fraction=0.25)


def test_it_rises_stays_and_falls():
    rates = [learning_rate(CONFIG, step, 200) for step in range(200)]
    assert 0 < rates[0] < rates[9] < 0.5
    differences = [after - before for before, after in itertools.pairwise(rates)]
    assert differences[:10] == pytest.approx([0.5 / 11] * 10)
    assert rates[10:151] == [0.5] * 141
    assert differences[150:] == pytest.approx([-0.5 / 50] * 49)
    assert rates[-1] == pytest.approx(0.01)
    assert learning_rate(CONFIG, 200, 200) == 0
    assert learning_rate(CONFIG, 300, 200) == 0


def test_without_a_known_end_it_stays():
    assert [learning_rate(CONFIG, step, None) for step in (10, 1000, 10**9)] == [0.5] * 3
    assert learning_rate(CONFIG, 4, None) == learning_rate(CONFIG, 4, 200)


def test_without_decay_it_stays_to_the_end():
    config = TrainConfig(lr=0.5, warmup_steps=0, decay_fraction=0.0)
    assert [learning_rate(config, step, 50) for step in range(50)] == [0.5] * 50


@pytest.mark.parametrize("total", [1, 2, 5, 12])
def test_a_run_shorter_than_its_warm_up_still_moves(total):
    rates = [learning_rate(CONFIG, step, total) for step in range(total)]
    assert all(0 < rate <= 0.5 and math.isfinite(rate) for rate in rates)
