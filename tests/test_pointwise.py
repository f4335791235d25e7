"""GELU and the loss in their fast forms equal PyTorch's."""

import pytest
import torch
import torch.nn.functional as F

from nlm_core import native
from nlm_core.cross_entropy import CHUNK, mean_nats, token_nats
from nlm_core.gelu import gelu


@pytest.fixture(params=["kernels", "plain"])
def form(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(native, "usable", lambda x: False)
    else:
        assert native.library() is not None
    return request.param


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5, 64), (1000, 33)])
def test_gelu_equals_pytorchs(form, shape):
    torch.manual_seed(0)
    x, dy = 4 * torch.randn(shape), torch.randn(shape)
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    y, expected = gelu(ours), F.gelu(theirs, approximate="tanh")
    y.backward(dy)
    expected.backward(dy.double())
    torch.testing.assert_close(y, expected.float(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.grad, theirs.grad.float(), rtol=1e-5, atol=1e-5)


def test_gelu_of_extremes(form):
    x = torch.tensor([-1000.0, -100.0, -0.0, 0.0, 100.0, 1000.0, torch.nan] * 3, requires_grad=True)
    y = gelu(x)
    y.sum().backward()
    torch.testing.assert_close(y, torch.tensor([0.0, 0, 0, 0, 100, 1000, torch.nan] * 3), equal_nan=True)
    torch.testing.assert_close(x.grad, torch.tensor([0, 0, 0.5, 0.5, 1, 1, torch.nan] * 3), equal_nan=True)


def example(N, C, V, dtype=torch.float32):
    torch.manual_seed(N)
    x, table = torch.randn(N, C, dtype=dtype), torch.randn(V, C, dtype=dtype)
    return x, table, torch.randint(0, V, (N,))


@pytest.mark.parametrize(("N", "C", "V"), [(1, 4, 1), (5, 8, 3), (CHUNK, 16, 100), (2 * CHUNK + 1, 8, 67)])
def test_the_loss_and_its_gradients_equal_pytorchs(form, N, C, V):
    x, table, targets = example(N, C, V)
    ours = [x.clone().requires_grad_(), table.clone().requires_grad_()]
    theirs = [x.double().requires_grad_(), table.double().requires_grad_()]
    loss = mean_nats(*ours, targets)
    expected = F.cross_entropy(theirs[0] @ theirs[1].T, targets, reduction="none")
    (3 * loss).backward()
    (3 * expected.mean()).backward()
    torch.testing.assert_close(loss, expected.mean().float(), rtol=1e-6, atol=1e-6)
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, reference.grad.float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(token_nats(x, table, targets), expected.float(), rtol=1e-5, atol=3e-6)


def test_float64_stays_float64():
    x, table, targets = example(40, 8, 30, torch.float64)
    loss = mean_nats(x.requires_grad_(), table, targets)
    loss.backward()
    expected = F.cross_entropy(x @ table.T, targets)
    assert loss.dtype == token_nats(x, table, targets).dtype == torch.float64
    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0)


def test_in_autocast_the_products_are_in_bfloat16_and_the_loss_is_not(form):
    """Against float32: to the precision of bfloat16, 8 bits."""
    x, table, targets = example(300, 16, 50)
    exact = [x.clone().requires_grad_(), table.clone().requires_grad_()]
    rounded = [x.clone().requires_grad_(), table.clone().requires_grad_()]
    mean_nats(*exact, targets).backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = mean_nats(*rounded, targets)
        nats = token_nats(x, table, targets)
    loss.backward()
    assert loss.dtype == nats.dtype == torch.float32
    assert 0 < abs(nats - token_nats(x, table, targets)).max() < 0.1
    for one, other in zip(exact, rounded, strict=True):
        assert (one.grad - other.grad).norm() < 0.02 * one.grad.norm()


@pytest.mark.parametrize("bad", [-1, 30])
def test_a_target_outside_of_the_vocabulary_is_an_error_and_no_wild_read(bad):
    x, table, targets = example(4, 8, 30)
    targets[2] = bad
    with pytest.raises(IndexError, match="outside of the vocabulary"):
        token_nats(x, table, targets)


def test_a_loss_that_is_not_a_number_stays_none():
    x, table, targets = example(4, 8, 30)
    x[1] = torch.nan
    nats = token_nats(x, table, targets)
    assert nats.isnan().tolist() == [False, True, False, False]
