"""What this machine can do: which device, which precision, and a note of both for the record."""

import contextlib
import os
import platform
from importlib.metadata import version

import torch

from nlm_core import native
from nlm_core.errors import UserError


def pick_device(wanted: str) -> torch.device:
    """Turn "auto" into the best device there is.

    Raises:
        UserError: the wanted device is not there.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        wanted = next(name for name in ("cuda", "mps", "cpu") if there[name])
    if not there[wanted]:
        raise UserError(f"this machine has no {wanted} device that PyTorch can use; choose device=cpu or device=auto")
    return torch.device(wanted)


def fast_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices in hardware; without that it is slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16"))
    return False


def pick_precision(wanted: str, device: torch.device) -> str:
    """Turn "auto" into "bfloat16" where that is fast, else "float32"."""
    if wanted != "auto":
        return wanted
    return "bfloat16" if fast_bfloat16(device) else "float32"


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager:
    """The context in which forward passes run in that precision; weights stay float32.

    Raises:
        UserError: it is neither "float32" nor "bfloat16".
    """
    if precision not in ("float32", "bfloat16"):
        raise UserError(f"precision must be float32 or bfloat16, not {precision!r}")
    if precision == "float32":
        return contextlib.nullcontext()
    # No cache: all threads of a process would share it, and each weight is used once in a pass.
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


def describe() -> dict[str, str | int]:
    """Machine and versions, for a run's record."""
    return {
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "numpy", "tokenizers")},
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "kernels": "none" if native.library() is None else "compiled",
    }
