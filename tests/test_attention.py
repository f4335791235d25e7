"""Attention is one function in three forms: the equation, the blocks, the kernel. Float64 and the equation decide."""

import pytest
import torch
import torch.nn.functional as F

from nlm_core.attention import causal_attention

SIZES = [(1, 1, 1, 1), (1, 7, 2, 4), (3, 100, 2, 20), (2, 129, 3, 48), (1, 257, 1, 64), (2, 512, 8, 32)]


def example(B, T, H, D, dtype=torch.float32):
    torch.manual_seed(T)
    return torch.randn(B, T, 3 * H * D, dtype=dtype), torch.randn(B, T, H * D, dtype=dtype)


def by_the_equation(qkv, n_heads):
    """Softmax over the whole square, in float64."""
    B, T, _ = qkv.shape
    q, k, v = qkv.double().view(B, T, 3, n_heads, -1).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2).reshape(B, T, -1)


def with_gradient(function, qkv, dy, *rest):
    qkv = qkv.clone().requires_grad_()
    y = function(qkv, *rest)
    y.backward(dy.to(y.dtype))
    return y.detach(), qkv.grad


@pytest.mark.parametrize(("B", "T", "H", "D"), SIZES)
def test_the_kernel_equals_the_equation_in_float32(B, T, H, D):
    qkv, dy = example(B, T, H, D)
    y, gradient = with_gradient(causal_attention, qkv, dy, H)
    expected, expected_gradient = with_gradient(by_the_equation, qkv, dy, H)
    torch.testing.assert_close(y, expected.float(), rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(gradient, expected_gradient.float(), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize(("B", "T", "H", "D"), SIZES)
def test_without_kernels_it_equals_the_equation_in_float64(B, T, H, D):
    qkv, dy = example(B, T, H, D, torch.float64)
    y, gradient = with_gradient(causal_attention, qkv, dy, H)
    expected, expected_gradient = with_gradient(by_the_equation, qkv, dy, H)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-11)


def test_the_kernel_agrees_with_pytorch_where_scores_are_extreme():
    qkv, dy = example(1, 70, 2, 8)
    qkv *= 60  # scores of thousands: all of a row's weight lies on one key
    y, gradient = with_gradient(causal_attention, qkv, dy, 2)
    expected, expected_gradient = with_gradient(by_the_equation, qkv, dy, 2)
    torch.testing.assert_close(y, expected.float(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(gradient, expected_gradient.float(), rtol=1e-2, atol=1e-2)


def test_bfloat16_goes_through_the_kernel_and_comes_back():
    """To the precision of bfloat16, 8 bits."""
    qkv, dy = example(2, 40, 2, 16)
    y, gradient = with_gradient(causal_attention, qkv.bfloat16(), dy, 2)
    expected, expected_gradient = with_gradient(by_the_equation, qkv.bfloat16(), dy.bfloat16(), 2)
    assert y.dtype == gradient.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected.bfloat16(), rtol=0.01, atol=0.01)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("place", [0, 5, 38])
def test_nothing_looks_ahead(place):
    qkv, _ = example(1, 40, 2, 8)
    other = qkv.clone()
    other[:, place + 1 :] *= 1e6
    y, y_other = causal_attention(qkv, 2), causal_attention(other, 2)
    assert torch.equal(y[:, : place + 1], y_other[:, : place + 1])
    assert not torch.isclose(y[:, place + 1 :], y_other[:, place + 1 :]).any()


def test_what_is_not_a_number_does_not_vanish():
    qkv, dy = example(1, 40, 2, 8)
    qkv[:, 20, 3] = torch.nan  # in a query of head 0
    y, gradient = with_gradient(causal_attention, qkv, dy, 2)
    assert y[0, 20, :8].isnan().all()
    assert gradient[0, 20, :8].isnan().all()
    assert not y[0, :, 8:].isnan().any()


def test_a_text_of_the_batch_does_not_depend_on_the_others_or_on_the_threads():
    qkv, dy = example(5, 65, 2, 8)
    alone = with_gradient(causal_attention, qkv[3:4], dy[3:4], 2)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            together = with_gradient(causal_attention, qkv, dy, 2)
        finally:
            torch.set_num_threads(1)
        for one, all_ in zip(alone, together, strict=True):
            torch.testing.assert_close(all_[3:4], one, rtol=0, atol=0)


def test_a_width_that_heads_can_not_share_is_refused(form):
    with pytest.raises(ValueError, match="30 numbers are not queries, keys and values of 3 heads"):
        causal_attention(torch.zeros(1, 4, 30), 3)


def test_inputs_that_are_not_contiguous():
    def strided(x):
        apart = torch.stack([x, x], dim=2)[:, :, 1]
        assert not apart.is_contiguous()
        return causal_attention(apart, 2)

    qkv, dy = example(2, 30, 2, 8)
    for one, other in zip(with_gradient(strided, qkv, dy), with_gradient(causal_attention, qkv, dy, 2), strict=True):
        assert torch.equal(one, other)


def test_it_equals_pytorchs_own():
    qkv, _ = example(2, 60, 3, 8)
    q, k, v = qkv.view(2, 60, 3, 3, 8).permute(2, 0, 3, 1, 4)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 60, -1)
    torch.testing.assert_close(causal_attention(qkv, 3), expected, rtol=1e-5, atol=2e-6)
