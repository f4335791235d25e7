"""GELU in both of its forms equals PyTorch's."""

import pytest
import torch
import torch.nn.functional as F

from nlm_core.gelu import gelu


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


def test_far_below_zero_its_slope_is_nothing(form):
    """A wrong slope there would be finite and go unnoticed."""
    x = torch.tensor([-1e3, -1e9, -1e15] * 6, requires_grad=True)
    gelu(x).sum().backward()
    assert (x.grad == 0).all()
    assert gelu(torch.tensor([-torch.inf] * 17)).isnan().all()  # as PyTorch's
