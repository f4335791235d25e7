"""Attention: every position takes from itself and from those before it what it asks for.

Three ways to the same numbers, beside PyTorch's own on GPUs. `attend` is the equation. `causal_attend` does it in
blocks of rows, on any device and in any precision. The kernel in `native/attention.c`, for CPUs, never writes the
square of probabilities to memory, and its gradient computes them anew. `make bench` (one thread, AVX2; the range of 7
rounds in brackets): with its gradient it is 2.2 times (2.0 to 2.3) as fast as PyTorch's
`scaled_dot_product_attention`; the blocks, which a CPU without the kernel takes, 1.2 times (1.0 to 1.5).

Shapes: B batch, T sequence, S keys, C = d_model, H heads, D = C / H.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from nlm_core import native

ROWS = 128  # query rows that attention handles at once


def attend(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H S D"],
    v: Float[Tensor, "B H S D"],
    bias: Float[Tensor, "*B T S"],
) -> Float[Tensor, "B H T D"]:
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1): softmax(q k' / sqrt(D) + bias) v."""
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)  # (B, H, T, S)
    return scores.add_(bias).softmax(dim=-1) @ v


def causal_attend(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H T D"], v: Float[Tensor, "B H T D"]
) -> Float[Tensor, "B H T D"]:
    """Attention in which every position sees itself and those before it.

    Done for 128 rows at a time against the keys that they can see: that skips most of the hidden half of the square.
    """
    T = q.shape[2]
    bias = torch.full((T, T), -math.inf, dtype=q.dtype, device=q.device).triu(1)
    parts = []
    for start in range(0, T, ROWS):
        end = min(start + ROWS, T)
        parts.append(attend(q[:, :, start:end], k[:, :, :end], v[:, :, :end], bias[start:end, :end]))
    return torch.cat(parts, dim=2)


def causal_attention(qkv: Float[Tensor, "B T three_C"], n_heads: int) -> Float[Tensor, "B T C"]:
    """As `causal_attend`, from queries, keys and values side by side to all heads' results side by side.

    Args:
        qkv: for each position the queries of all heads, then the keys, then the values.
        n_heads: H.
    """
    if qkv.shape[-1] % (3 * n_heads):
        raise ValueError(f"{qkv.shape[-1]} numbers are not queries, keys and values of {n_heads} heads")
    if native.usable(qkv):
        return _NativeAttention.apply(qkv, n_heads)
    B, T, _ = qkv.shape
    q, k, v = qkv.view(B, T, 3, n_heads, -1).permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
    if qkv.device.type == "cuda":
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        y = causal_attend(q, k, v)
    return y.transpose(1, 2).reshape(B, T, -1)


class _NativeAttention(torch.autograd.Function):
    """The compiled kernel and its gradient (Dao et al. 2022)."""

    @staticmethod
    def forward(ctx, qkv: Tensor, n_heads: int) -> Tensor:
        qkv = qkv.contiguous()
        B, T, C = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        y, (top, log_sum) = qkv.new_empty(B, T, C), qkv.new_empty(2, B, n_heads, T, dtype=torch.float32)
        ctx.sizes = (B, T, n_heads, C // n_heads)
        native.run("attention_forward", *ctx.sizes, qkv, y, top, log_sum, native.is_bf16(qkv))
        ctx.save_for_backward(qkv, y, top, log_sum)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None]:
        qkv, y, top, log_sum = ctx.saved_tensors
        dqkv = torch.empty_like(qkv)
        native.run("attention_backward", *ctx.sizes, qkv, y, dy.contiguous(), top, log_sum, dqkv, native.is_bf16(qkv))
        return dqkv, None
