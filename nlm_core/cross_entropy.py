"""From the final residual stream to the loss, without ever holding all logits.

Why: the logits of a batch of 8 windows are 67 MB, their softmax and its gradient as much again, written and read
several times. Here the rows go through the output in chunks that stay in the cache, and the gradient, softmax minus
one-hot, takes the logits' place at once, as in Liger Kernel (Hsu et al. 2024). It is there for the memory; with the
product that makes the logits, `make bench` (one thread, AVX2) finds it 1.0 times (0.9 to 1.3) as fast as PyTorch's.

Shapes: N rows, C = d_model, V vocabulary.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from nlm_core import native

CHUNK = 512  # rows; their logits take 8 MB with a vocabulary of 4096


def token_nats(x: Float[Tensor, "N C"], table: Float[Tensor, "V C"], targets: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Minus the natural logarithm of each target's probability; no gradient.

    Args:
        x: what `NLM.read` returned, rows below each other.
        table: the token table, which is also the output.
        targets: the ids to be predicted.

    Returns:
        At least float32, whatever the precision of the product.
    """
    _require_match(x, targets)
    with torch.no_grad():
        parts = zip(x.split(CHUNK), targets.split(CHUNK), strict=True)
        return torch.cat([_nats(part @ table.T, wanted, gradient=False) for part, wanted in parts])


def mean_nats(x: Float[Tensor, "N C"], table: Float[Tensor, "V C"], targets: Int[Tensor, " N"]) -> Float[Tensor, ""]:
    """The mean of `token_nats`, for training: it has a gradient. In autocast the products are in its precision."""
    _require_match(x, targets)
    dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    return _MeanNats.apply(x, table, targets, dtype)


class _MeanNats(torch.autograd.Function):
    """The gradient is computed beside the loss, while the logits are there."""

    @staticmethod
    def forward(ctx, x: Tensor, table: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            low = table.to(dtype)
            dx = torch.empty_like(x)
            dtable = torch.zeros_like(table, dtype=torch.promote_types(table.dtype, torch.float32))
            nats = dtable.new_zeros(())
            for first in range(0, len(x), CHUNK):
                here = slice(first, first + CHUNK)
                part = x[here].to(dtype)
                slopes = part @ low.T  # (n, V), the logits
                nats += _nats(slopes, targets[here], gradient=True).sum()
                dx[here] = slopes @ low
                if dtype == dtable.dtype:
                    dtable.addmm_(slopes.T, part)
                else:
                    dtable += slopes.T @ part
        ctx.save_for_backward(dx, dtable.to(table.dtype))
        ctx.rows = len(x)
        return nats / len(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dx, dtable = ctx.saved_tensors
        return dx * (dy / ctx.rows), dtable * (dy / ctx.rows), None, None


def _require_match(x: Tensor, targets: Tensor) -> None:
    """Raise a ValueError unless each row has a target, a whole number: the kernel can't see that itself."""
    if targets.shape != x.shape[:1] or targets.is_floating_point() or targets.dtype == torch.bool:
        raise ValueError(f"{len(targets)} targets of {targets.dtype} can't belong to {len(x)} rows")


def _nats(logits: Float[Tensor, "n V"], targets: Int[Tensor, " n"], gradient: bool) -> Float[Tensor, " n"]:
    """Each row's loss; with `gradient` the logits become its gradient."""
    targets = targets.long().contiguous()
    if native.usable(logits):
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < logits.shape[1]:
            raise IndexError("a target is outside of the vocabulary")
        nats = logits.new_empty(len(logits), dtype=torch.float32)
        native.run("cross_entropy", *logits.shape, logits, targets, nats, int(gradient), native.is_bf16(logits))
        return nats
    log_probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
    nats = -log_probabilities.gather(1, targets[:, None])[:, 0]
    if gradient:
        logits.copy_(log_probabilities.exp())
        logits[torch.arange(len(targets), device=targets.device), targets] -= 1
    return nats
