"""Kernels in C for the parts of a training step where PyTorch on a CPU loses most of its time.

Why: of a step of the book's model, only the matrix products come near what the processor can do. Attention, GELU and
the loss read and write memory several times for work that one pass can do; `attention.c` and `pointwise.c` do it in
one. `benchmarks/` compares whole steps with those of other libraries.

The C files are compiled at first use, for this very processor (a few seconds, then kept in the user's cache folder, or
in $NLM_CACHE). Where that fails (no C compiler, no OpenMP), where NLM_NATIVE=0 is set, and for everything but float32
and bfloat16 on a CPU, the same functions run as plain PyTorch. With NLM_NATIVE=1 a failure is an error that says why.
The two ways agree to rounding; `tests/test_attention.py`, `test_pointwise.py` and `test_decode.py` hold them to it.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from ctypes import c_int, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from nlm_core.errors import UserError

SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC"]
FUNCTIONS = {
    "attention_forward": [c_int] * 4 + [c_void_p] * 3 + [c_int],
    "attention_backward": [c_int] * 4 + [c_void_p] * 5 + [c_int],
    "gelu_forward": [c_int64] + [c_void_p] * 2 + [c_int],
    "gelu_backward": [c_int64] + [c_void_p] * 3 + [c_int],
    "cross_entropy": [c_int] * 2 + [c_void_p] * 3 + [c_int] * 2,
    "decode_pack": [c_int] * 2 + [c_void_p] * 3 + [c_int, c_void_p],
    "decode": [c_int] * 7 + [c_void_p] * 2 + [c_int] * 2 + [c_void_p] * 4,
    "contenders": [c_int] * 2 + [c_void_p] * 6,
}


def _cache_folder() -> Path:
    if chosen := os.environ.get("NLM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nlm"


def _processor() -> str:
    """What -march=native depends on, so that a home folder shared by several machines does no harm."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "".join(line for line in lines[:40] if line.startswith(("model name", "flags")))
    except OSError:
        return platform.processor() + platform.machine()


def _build() -> Path:
    """Compile the kernels, unless that was done before; returns the library's file.

    Raises:
        OSError, subprocess.SubprocessError: it can't be done here.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise FileNotFoundError("there is no C compiler")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=60).stdout
    parts = [version, _processor().encode(), " ".join(FLAGS).encode(), *(path.read_bytes() for path in SOURCES)]
    target = _cache_folder() / f"kernels-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            sources = [str(path) for path in SOURCES if path.suffix == ".c"]
            subprocess.run(
                [compiler, *FLAGS, *sources, "-o", str(made), "-lm"], capture_output=True, check=True, timeout=300
            )
            made.replace(target)  # whole, whoever else builds it at the same moment
    return target


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where there are none.

    Raises:
        UserError: there are none, but NLM_NATIVE=1 asks for them.
    """
    wanted = os.environ.get("NLM_NATIVE")
    if wanted == "0":
        return None
    try:
        kernels = ctypes.CDLL(str(_build()))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        if wanted != "1":
            return None
        said = getattr(error, "stderr", None) or b""
        lines = [str(error), *(line for line in said.decode(errors="replace").splitlines() if "error" in line)]
        raise UserError(f"the kernels can't be compiled here: {'; '.join(lines[:2])}") from None
    for name, kinds in FUNCTIONS.items():
        function = getattr(kernels, name)
        function.argtypes, function.restype = kinds, None
    return kernels


def usable(x: Tensor) -> bool:
    """Whether the kernels can work on what `x` is: float32 or bfloat16 on a CPU (they compute in float32)."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16) and library() is not None


def half(x: Tensor) -> int:
    """What tells a kernel in which of the two `x` is."""
    return int(x.dtype == torch.bfloat16)
