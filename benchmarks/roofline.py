"""How much of what the processor's matrix products can do a piece of work reaches."""

from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import seconds
from nlm_core.config import ModelConfig
from nlm_core.hardware import fast_bfloat16


def matrices(config: ModelConfig) -> list[tuple[int, int, int]]:
    """The model's weight matrices as (inputs, outputs, how many of them); the last one makes the logits."""
    C, L = config.d_model, config.n_layers
    return [(C, 3 * C, L), (C, C, L), (C, 4 * C, L), (4 * C, C, L), (C, config.vocab_size, 1)]


def step_flops_per_token(config: ModelConfig, T: int) -> float:
    """Floating-point operations that a training step needs for each token (a multiplication and an addition are two).

    A matrix of n weights costs 2 n forward, 2 n for the gradient of its input, and 2 n for its own: with the matrices
    of the L blocks (12 C^2 weights each) and the tied output (V C),

        6 (12 L C^2 + V C)

    Attention costs 2 C for each key that a query sees and 2 C for its value, backward twice as much; under the causal
    mask a query sees (T + 1) / 2 keys on average:

        6 L C (T + 1)

    Norms, GELU, softmax, the optimizer and anything that is computed a second time count as nothing.
    """
    weights = sum(inputs * outputs * count for inputs, outputs, count in matrices(config))
    return 6 * weights + 6 * config.n_layers * config.d_model * (T + 1)


def sweep_flops(config: ModelConfig, T: int) -> float:
    """Floating-point operations that ablating one head needs for each token, in a sweep over all heads.

    A block costs 24 C^2 for its weights and 2 C (T + 1) for attention, forward only. An ablated head of layer l needs
    the MLP of that layer (16 C^2), the L - 1 - l blocks behind it, the output (2 V C), and its own contribution
    (2 D C). The clean pass is shared by all L H heads.
    """
    C, L, H = config.d_model, config.n_layers, config.n_heads
    block, output = 24 * C**2 + 2 * C * (T + 1), 2 * config.vocab_size * C
    alone = 16 * C**2 + (L - 1) / 2 * block + output + 2 * config.head_size * C
    return alone + (L * block + output) / (L * H)


def gemm_flops_per_second(config: ModelConfig, tokens: int, dtype: torch.dtype, trials: int) -> float:
    """What `torch.mm` reaches on all the products of the weight matrices in a step of so many tokens, together."""
    flops = total = 0.0
    for inputs, outputs, count in matrices(config):
        x, w = torch.randn(tokens, inputs, dtype=dtype), torch.randn(inputs, outputs, dtype=dtype)
        g = torch.randn(tokens, outputs, dtype=dtype)
        for a, b in ((x, w), (g, w.T), (x.T, g)):  # forward, the input's gradient, the weights' gradient
            total += count * fastest_product(a, b, trials)
            flops += count * 2 * tokens * inputs * outputs
    return flops / total


def fastest_product(a: Tensor, b: Tensor, trials: int) -> float:
    out = torch.mm(a, b)
    return min(seconds(lambda: torch.mm(a, b, out=out)) for _ in range(3 * trials))


def roofline(
    config: ModelConfig, tokens: int, flops: float, precision: str, per_second: float, trials: int
) -> dict[str, Any]:
    """Measure the roofline of the model's matrix products, and the share of it that a piece of work reaches.

    Args:
        config: of the model.
        tokens: rows of the products, however the work divides them.
        flops: that a unit of the work needs.
        precision: of the work.
        per_second: units.
        trials: how often each product is measured, in threes; the fastest counts.
    """
    dtypes = [torch.float32] + [torch.bfloat16] * fast_bfloat16(torch.device("cpu"))
    rates = {str(d).removeprefix("torch."): gemm_flops_per_second(config, tokens, d, trials) for d in dtypes}
    rate = rates.get(precision, rates["float32"])
    return {
        "gemm_gflops_per_second": {precision: rate / 1e9 for precision, rate in rates.items()},
        "megaflops": flops / 1e6,
        "gflops_per_second": per_second * flops / 1e9,
        "share": per_second * flops / rate,
        "share_per_unit_a_second": flops / rate,
    }
