"""Row: how much of the speed of matrix products alone our training step and our sweep over heads reach."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.inputs import Inputs
from benchmarks.measure import alternate, say, seconds, spread, timed
from nlm_core.ablate import AT_ONCE, single_heads
from nlm_core.config import ModelConfig

NAME = "share of the matrix products' roofline"


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


def gemm_flops_per_second(config: ModelConfig, tokens: int) -> float:
    """What `torch.mm` reaches on all the products of the weight matrices in a step of so many tokens, in float32."""
    flops = total = 0.0
    for inputs, outputs, count in matrices(config):
        x, w, g = torch.randn(tokens, inputs), torch.randn(inputs, outputs), torch.randn(tokens, outputs)
        for a, b in ((x, w), (g, w.T), (x.T, g)):  # forward, the input's gradient, the weights' gradient
            total += count * fastest_product(a, b)
            flops += count * 2 * tokens * inputs * outputs
    return flops / total


def fastest_product(a: Tensor, b: Tensor) -> float:
    out = torch.mm(a, b)
    return min(seconds(lambda: torch.mm(a, b, out=out)) for _ in range(3))


def share(of: str, config: ModelConfig, tokens: int, flops: float, work: Callable[[int], Any], rounds: int) -> dict:
    """Measure what share of the roofline a piece of work reaches; both in turn, since the machine's speed changes.

    Args:
        of: the row of that work.
        config: of the model.
        tokens: rows of the products.
        flops: that the work of a round needs.
        work: does a round, given its number.
        rounds: how many.
    """
    say(f"    {of}")
    times, rates = alternate(timed(work), lambda _: gemm_flops_per_second(config, tokens), rounds)
    return {
        "of": of,
        "precision": "float32",
        "gflops_per_second": spread([flops / time / 1e9 for time in times]),
        "roofline": spread([rate / 1e9 for rate in rates]),
        "share": spread([flops / time / rate for time, rate in zip(times, rates, strict=True)]),
    }


def measure(inputs: Inputs) -> list[dict[str, Any]]:
    say(NAME)
    from benchmarks import ablation, training  # here, since those know of all peers

    ours = training.OurTraining(inputs, precision="float32")
    model, config = inputs.model(), ours.model.config
    T, heads = config.context_length, single_heads(config)
    step = inputs.batch_size * T
    sweep = inputs.ablation_windows * T * len(heads)
    ours.step(0)
    works = [
        share(training.SPEED, config, step, step * step_flops_per_token(config, T), ours.step, inputs.rounds),
        share(
            ablation.NAME.format(len(heads)),
            config,
            AT_ONCE * T,
            sweep * sweep_flops(config, T),
            lambda number: ablation.our_deltas(model, inputs.windows(number, inputs.ablation_windows), heads),
            inputs.rounds,
        ),
    ]
    return [{"row": NAME, "works": works}]
