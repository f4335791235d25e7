"""Where the time of our side goes, so that what a row reaches or misses can be explained."""

import contextlib
import importlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.measure import seconds
from nlm_core import native
from nlm_core.decode import NativeDecoder, TorchDecoder

# What PyTorch's profiler calls the operations, and we our kernels, by what they are for; the rest is "all else".
KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm"),
    "attention": ("attention_forward", "attention_backward", "aten::_softmax", "aten::_softmax_backward_data"),
    "GELU": ("gelu_forward", "gelu_backward", "aten::gelu", "aten::gelu_backward"),
    "loss": ("cross_entropy", "aten::_log_softmax"),
    "norms": ("aten::native_layer_norm", "aten::native_layer_norm_backward"),
    "optimizer": ("aten::_fused_adamw_", "aten::linalg_vector_norm"),
}


def step_profile(step: Callable[[], Any]) -> dict[str, float]:
    """Shares of the time of a step by kind of operation, on one thread: the profiler follows no other."""

    def named(name: str, *arguments: Any, run: Callable[..., None] = native.run) -> None:
        with record_function(name):
            run(name, *arguments)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step()
        with mock.patch.object(native, "run", named), profile(activities=[ProfilerActivity.CPU]) as found:
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
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(module, "choose", clocked(module.choose, "choosing")))
        for decoder in (NativeDecoder, TorchDecoder):
            for method in ("__init__", "begin", "step"):
                clock = clocked(getattr(decoder, method), "reading")
                patches.enter_context(mock.patch.object(decoder, method, clock))
        total = seconds(write)
    shares = {kind: time / total for kind, time in spent.items()}
    return shares | {"all else": 1 - sum(shares.values())}
