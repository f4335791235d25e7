"""How weights move: Muon for the blocks' matrices, AdamW for everything else, and the learning rate over time.

Muon shares its matrices out among the threads; `make bench` (two cores, AVX2) finds that 1.2 times (0.9 to 1.4) as
fast as sharing out each operation.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nlm_core.config import TrainConfig
from nlm_core.model import NLM
from nlm_core.workers import on_threads

# The quintic of Keller Jordan's Muon: steep at 0, so that small singular values grow fast, at the price of ending
# anywhere between about 0.7 and 1.2 instead of at 1.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrix: Float[Tensor, "rows columns"], steps: int = 5) -> Float[Tensor, "rows columns"]:
    """Bring all singular values of a matrix near 1, keeping its singular vectors: U S V' becomes about U V'.

    Newton-Schulz iteration in float32 (torch's own Muon uses bfloat16, which is slow where the processor has no
    instructions for it).
    """
    a, b, c = NEWTON_SCHULZ
    rows, columns = matrix.shape
    x = matrix.T if rows > columns else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if rows > columns else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised (Jordan et al. 2024), scaled so that AdamW's learning rates fit (Liu et al. 2025).

    Args:
        params: 2-D parameters.
        lr: learning rate; an update has a root mean square of about 0.2 times this.
        momentum: decay rate of the running mean of gradients; used in Nesterov's form.
        weight_decay: decoupled: each step also multiplies the weights by 1 - lr * weight_decay.
    """

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.1):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            for param in params:
                if not self.state[param]:
                    self.state[param]["momentum"] = torch.zeros_like(param)

            def move(param: Tensor, group: dict = group) -> None:
                momentum = self.state[param]["momentum"]
                momentum.lerp_(param.grad, 1 - group["momentum"])
                update = orthogonalise(param.grad.lerp(momentum, group["momentum"]))
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.sub_(update, alpha=group["lr"] * 0.2 * math.sqrt(max(param.shape)))

            if params:
                list(on_threads(move, params, params[0].device))


def make_optimizers(model: NLM, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Share the parameters out: matrices of the blocks decay, the two tables, norms and biases do not."""
    matrices, rest = [], []
    for name, param in model.named_parameters():
        (matrices if name.startswith("blocks.") and param.ndim == 2 else rest).append(param)
    betas = (config.beta1, config.beta2)
    if config.optimizer == "muon":
        return [
            Muon(matrices, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay),
            torch.optim.AdamW(rest, lr=config.lr, betas=betas, weight_decay=0.0, fused=True),
        ]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [torch.optim.AdamW(groups, lr=config.lr, betas=betas, fused=True)]


def state_arrays(model: NLM, optimizers: list[torch.optim.Optimizer]) -> dict[str, np.ndarray]:
    """What the optimizers remember, as arrays named KIND/PARAMETER."""
    names = {param: name for name, param in model.named_parameters()}
    return {
        f"{kind}/{names[param]}": value.cpu().numpy()
        for optimizer in optimizers
        for param, state in optimizer.state.items()
        for kind, value in state.items()
    }


def restore_state(model: NLM, optimizers: list[torch.optim.Optimizer], arrays: dict[str, np.ndarray]) -> None:
    """Give fresh optimizers what `state_arrays` returned."""
    params = dict(model.named_parameters())
    owner = {
        param: optimizer for optimizer in optimizers for group in optimizer.param_groups for param in group["params"]
    }
    for path, value in arrays.items():
        kind, name = path.split("/", 1)
        owner[params[name]].state[params[name]][kind] = torch.from_numpy(value).to(params[name].device)


def learning_rate(config: TrainConfig, step: int, total: int | None) -> float:
    """The learning rate of a step (counted from 0): warm-up, a plateau, then a linear fall to 0 at the end.

    Args:
        config: gives the peak, the warm-up and the length of the fall.
        step: steps done so far.
        total: the length of the run in steps; None while it is not known yet (a budget in minutes).
    """
    factor = min(1.0, (step + 1) / (config.warmup_steps + 1))
    if total is not None and config.decay_fraction > 0:
        factor = min(factor, (total - step) / (total * config.decay_fraction))
    return config.lr * max(0.0, factor)
