"""The loss in both of its forms equals PyTorch's."""

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import TypeCheckError

from nlm_core.cross_entropy import CHUNK, mean_nats, token_nats


def example(N, C, V, dtype=torch.float32):
    torch.manual_seed(N)
    x, table = torch.randn(N, C, dtype=dtype), torch.randn(V, C, dtype=dtype)
    return x, table, torch.randint(0, V, (N,))


def test_large_logits_keep_their_differences(form):
    x, table = torch.tensor([[2e7], [-3e6]]), torch.tensor([[1.0], [1.0], [-1.0]])
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    targets = torch.tensor([1, 2])
    loss = mean_nats(ours, table, targets)
    expected = F.cross_entropy(theirs @ table.double().T, targets)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected.float())
    torch.testing.assert_close(ours.grad, theirs.grad.float())


@pytest.mark.parametrize(("rows", "targets"), [(10, 7), (7, 10), (CHUNK + 1, CHUNK), (CHUNK, CHUNK + 1), (0, 1)])
@pytest.mark.parametrize("loss", [mean_nats, token_nats])
def test_each_row_has_a_target(form, loss, rows, targets):
    with pytest.raises((ValueError, TypeCheckError)):
        loss(torch.zeros(rows, 4), torch.zeros(3, 4), torch.zeros(targets, dtype=torch.long))


@pytest.mark.parametrize("loss", [mean_nats, token_nats])
def test_a_target_is_a_whole_number(form, loss):
    with pytest.raises((ValueError, TypeCheckError)):
        loss(torch.zeros(2, 4), torch.zeros(3, 4), torch.tensor([0.9, 1.0]))


def test_pytorchs_default_type_does_not_matter(form):
    x, table, targets = example(5, 8, 67)
    expected = token_nats(x, table, targets)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(token_nats(x, table, targets), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_bfloat16_model_s_loss_is_added_up_in_float32(form):
    x, table, targets = example(8 * CHUNK, 4, 67, torch.bfloat16)
    expected = token_nats(x, table, targets).mean()
    assert mean_nats(x, table, targets).item() == pytest.approx(expected.item(), rel=1e-3)


@pytest.mark.parametrize("change", [lambda ids: ids.repeat_interleave(2)[::2], torch.Tensor.int])
def test_targets_of_any_layout_and_kind_of_integer(form, change):
    x, table, targets = example(2 * CHUNK + 1, 8, 67)
    assert torch.equal(token_nats(x, table, change(targets)), token_nats(x, table, targets))


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
