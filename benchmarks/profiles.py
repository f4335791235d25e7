"""Where the time of our side goes, so that what a row reaches or misses can be explained."""

import importlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure import seconds
from nlm_core.decode import NativeDecoder, TorchDecoder

# What PyTorch's profiler calls the operations, by what they are for; the rest is "all else".
KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm"),
    "attention": ("_NativeAttention", "_NativeAttentionBackward", "aten::_softmax", "aten::_softmax_backward_data"),
    "GELU": ("_NativeGelu", "_NativeGeluBackward", "aten::gelu", "aten::gelu_backward"),
    "loss": ("_MeanNats", "_MeanNatsBackward"),
    "norms": ("aten::native_layer_norm", "aten::native_layer_norm_backward"),
    "optimizer": ("aten::_fused_adamw_", "aten::linalg_vector_norm"),
}


def step_profile(step: Callable[[], Any]) -> dict[str, float]:
    """Shares of a training step's time by kind of operation, on one thread: the profiler follows no other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step()
        with profile(activities=[ProfilerActivity.CPU]) as found:
            step()
    finally:
        torch.set_num_threads(threads)
    times = {event.key: event.self_cpu_time_total for event in found.key_averages()}
    total = sum(times.values())
    shares = {kind: sum(times.get(name, 0) for name in names) / total for kind, names in KINDS.items()}
    return shares | {"all else": 1 - sum(shares.values())}


def writing_profile(write: Callable[[], Any]) -> dict[str, float]:
    """Shares of the time of writing texts: reading prompts and new tokens, choosing, and all else."""
    spent = {"reading": 0.0, "choosing": 0.0}

    def clocked(work: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def wrapper(*args: Any) -> Any:
            results = []
            spent[kind] += seconds(lambda: results.append(work(*args)))
            return results[0]

        return wrapper

    module = importlib.import_module("nlm_core.generate")  # the package's `generate` is the function
    with mock.patch.object(module, "choose", clocked(module.choose, "choosing")):
        for decoder in (NativeDecoder, TorchDecoder):
            for method in ("__init__", "begin", "step"):
                mock.patch.object(decoder, method, clocked(getattr(decoder, method), "reading")).start()
        try:
            total = seconds(write)
        finally:
            mock.patch.stopall()
    shares = {kind: time / total for kind, time in spent.items()}
    return shares | {"all else": 1 - sum(shares.values())}
