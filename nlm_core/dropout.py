"""Dropout whose masks are a function of a key, so that a micro-batch has the same ones wherever it is computed.

PyTorch's own draws from a generator that all threads of a process share; this one from the thread's own.
"""

import contextlib
import threading
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

_here = threading.local()


@contextlib.contextmanager
def keyed(seed: int, device: torch.device) -> Iterator[None]:
    """Within this, the masks that this thread draws follow from the seed; else they come from PyTorch's generator."""
    _here.generator = torch.Generator(device).manual_seed(seed)
    try:
        yield
    finally:
        _here.generator = None


class Dropout(nn.Module):
    """In training, sets numbers to 0 with probability p and divides the others by 1 - p (Srivastava et al. 2014)."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if not self.training or self.p == 0:
            return x
        mask = torch.empty_like(x).bernoulli_(1 - self.p, generator=getattr(_here, "generator", None))
        return x * mask.div_(1 - self.p)
