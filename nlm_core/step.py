"""One step of training: the gradients of a batch's micro-batches, added up, and the update that follows from them.

A step depends on the weights, the optimizers' state, the batch, and on two numbers: which step it is and which number
each micro-batch has. So whoever computes a micro-batch, and when, gets the same gradient, dropout included.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nlm_core.config import TrainConfig
from nlm_core.cross_entropy import mean_nats
from nlm_core.dropout import keyed
from nlm_core.errors import Diverged
from nlm_core.hardware import autocast
from nlm_core.model import NLM
from nlm_core.optim import learning_rate
from nlm_core.workers import on_threads


def loss_of(model: NLM, part: Int[Tensor, "b W"], precision: str) -> Float[Tensor, ""]:
    """The mean loss of one micro-batch in nats per token.

    Args:
        model: in training mode where dropout is wanted.
        part: windows of T + 1 ids on the model's device: T inputs and, shifted by one, T targets.
        precision: of the forward pass, "float32" or "bfloat16"; the loss is taken in float32 either way.
    """
    with autocast(part.device, precision):
        return mean_nats(model.read(part[:, :-1]).flatten(0, 1), model.token_emb, part[:, 1:].flatten())


def accumulate_gradients(
    model: NLM,
    parts: Sequence[Int[Tensor, "b W"]],
    config: TrainConfig,
    step: int,
    numbers: Iterable[int] | None = None,
) -> float:
    """Add the gradient of the batch's mean loss to the parameters' `grad`, one micro-batch at a time.

    Args:
        model: in training mode where dropout is wanted.
        parts: all micro-batches of the batch, of one size, each as in `loss_of`; on any device.
        config: gives the seed and the precision, which must not be "auto".
        step: steps done before this one; with the seed and a micro-batch's number it keys that one's dropout.
        numbers: of the micro-batches to do here; None means all of them.

    Returns:
        What these micro-batches contribute to the batch's mean loss, in nats per token; all of them: that loss.
    """
    device, params = model.token_emb.device, list(model.parameters())

    def gradients(number: int) -> tuple[Sequence[Tensor], float]:
        with keyed(_mix(config.seed, step, number), device):
            loss = loss_of(model, parts[number].to(device), config.precision) / len(parts)
        return torch.autograd.grad(loss, params), loss.item()

    numbers = list(range(len(parts)) if numbers is None else numbers)
    loss_sum = 0.0
    # Compiled blocks stay in this thread: PyTorch does not promise that they can be called from several.
    # In the order of the numbers, whichever comes first: so the sums don't depend on the threads.
    for more, loss in map(gradients, numbers) if config.compile else on_threads(gradients, numbers, device):
        loss_sum += loss
        if params[0].grad is None:
            for param, gradient in zip(params, more, strict=True):
                param.grad = gradient
        else:
            torch._foreach_add_([param.grad for param in params], more)
    return loss_sum


def update(
    model: NLM,
    optimizers: Sequence[torch.optim.Optimizer],
    config: TrainConfig,
    step: int,
    total: int | None,
    loss: float,
) -> None:
    """Clip the gradients, move the weights by them, and forget them.

    Args:
        model: holds the gradients of the whole batch.
        optimizers: what `make_optimizers` made for the model.
        config: gives the learning rate's course and the largest gradient norm.
        step: steps done before this one.
        total: the length of the run in steps; None while it is not known.
        loss: of the batch.

    Raises:
        Diverged: the loss or the gradient's norm is not a finite number; the weights stay as they were.
    """
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip or math.inf).item()
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise Diverged(f"the loss is {loss} (gradient norm {norm}) at step {step + 1:,}")
    rate = learning_rate(config, step, total)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _mix(*numbers: int) -> int:
    """One 63-bit seed from several numbers."""
    text = "/".join(map(str, numbers))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
