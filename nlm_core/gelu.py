"""GELU in one pass on a CPU, by a kernel whose exponential works on a whole vector at a time.

`make bench` (one thread, AVX2): with its gradient it is 3.3 times (1.3 to 3.4) as fast as PyTorch's.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from nlm_core import native


def gelu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """GPT-2's GELU (Hendrycks & Gimpel 2016, the tanh form): x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    if native.usable(x):
        return _NativeGelu.apply(x)
    return F.gelu(x, approximate="tanh")


class _NativeGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        native.run("gelu_forward", x.numel(), x, y, native.is_bf16(x))
        ctx.save_for_backward(x)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        dy, dx = dy.contiguous(), torch.empty_like(x)
        native.run("gelu_backward", x.numel(), x, dy, dx, native.is_bf16(x))
        return dx
