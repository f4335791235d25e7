"""Kernels in C for what PyTorch on a CPU does in more passes, or in more calls, than are needed.

Why: beside the matrix products, a training step of the book's model spends its time in attention, GELU and the loss,
which PyTorch reads from memory and writes to it several times for work that one pass can do. In writing a story, each
operation is so small that calling it costs more than doing it; `decode.c` goes through the whole model in one call,
and `sampling.c` rules out the tokens that can't be chosen.

The C files are compiled at first use, for this very processor (a few seconds, then kept in the user's cache folder, or
in $NLM_CACHE). Where that fails (no C compiler), where NLM_NATIVE=0 is set, within `torch.compile`, and for everything
but float32 and bfloat16 on a CPU, the same functions run as plain PyTorch. With NLM_NATIVE=1 a failure is an error
that says why. The two ways agree to rounding; the tests of each module hold them to it. Only the plain way has
gradients of gradients and works under `torch.func`.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from ctypes import c_int, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from nlm_core.errors import UserError
from nlm_core.files import sha256_of, written_whole

SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC"]
THREADS = (["-fopenmp"], [])  # Apple's compiler has no OpenMP; without it each kernel runs on one thread
# The types of each kernel's arguments; the last one of all is the number of threads.
FUNCTIONS = {
    "attention_forward": [c_int] * 4 + [c_void_p] * 4 + [c_int] * 2,
    "attention_backward": [c_int] * 4 + [c_void_p] * 6 + [c_int] * 2,
    "gelu_forward": [c_int64] + [c_void_p] * 2 + [c_int] * 2,
    "gelu_backward": [c_int64] + [c_void_p] * 3 + [c_int] * 2,
    "cross_entropy": [c_int] * 2 + [c_void_p] * 3 + [c_int] * 3,
    "decode_pack": [c_int] * 2 + [c_void_p] * 3 + [c_int, c_void_p, c_int],
    "decode": [c_int] * 7 + [c_void_p] * 2 + [c_int] * 2 + [c_void_p] * 4 + [c_int],
    "contenders": [c_int] * 2 + [c_void_p] * 6 + [c_int],
}
_lock = threading.Lock()


def _cache_folder() -> Path:
    if chosen := os.environ.get("NLM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nlm"


def _require_own(path: Path) -> None:
    """Raise a PermissionError where somebody else could have put the code that is about to run."""
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path} can be written by others; set NLM_CACHE to a folder of your own")


def _compiler() -> list[str]:
    if chosen := shlex.split(os.environ.get("CC", "")):
        if shutil.which(chosen[0]) is None:
            raise FileNotFoundError(f"CC names {chosen[0]}, which is not there; name another one, or unset CC")
        return chosen
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    raise FileNotFoundError("there is no C compiler; install one, such as gcc")


def _machine(compiler: list[str]) -> bytes:
    """What the compiler knows about itself and this processor, so that machines that share a home do no harm."""
    return _call([*compiler, *FLAGS, "-dM", "-E", "-x", "c", os.devnull])


def _call(command: list[str]) -> bytes:
    """Run a compiler and return what it printed; a ChildProcessError says how it ended."""
    done = subprocess.run(command, capture_output=True, timeout=300)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-2:]
        raise ChildProcessError("; ".join([f"{command[0]} ended with exit status {done.returncode}", *said]))
    return done.stdout


def _build() -> Path:
    """Compile the kernels, unless that was done before; returns the library's file.

    Raises:
        OSError, subprocess.SubprocessError: it can't be done here.
    """
    compiler = _compiler()
    parts = [_machine(compiler), str([compiler, FLAGS, THREADS]).encode(), *(path.read_bytes() for path in SOURCES)]
    target = _cache_folder() / f"kernels-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so"
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _require_own(target.parent)
    digest = target.with_suffix(".sha256")
    if not (target.is_file() and digest.is_file() and digest.read_text() == sha256_of(target)):
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            _compile(compiler, made)
            made.chmod(0o700)
            made.replace(target)  # whole, whoever else builds it at the same moment
        # A damaged library would end the process when it is loaded; what a crash cut short is compiled again.
        with written_whole(digest, "w") as file:
            file.write(sha256_of(target))
    _require_own(target)
    return target


def _compile(compiler: list[str], target: Path) -> None:
    sources = [str(path) for path in SOURCES if path.suffix == ".c"]
    for threads in THREADS:
        with contextlib.suppress(*[ChildProcessError] * (threads is not THREADS[-1])):
            _call([*compiler, *FLAGS, *threads, *sources, "-o", str(target), "-lm"])
            return


def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where there are none.

    Raises:
        UserError: there are none, but NLM_NATIVE=1 asks for them; or NLM_NATIVE is neither 0 nor 1.
    """
    with _lock:  # the first thread compiles, and the others wait for it
        return _library()


@functools.cache
def _library() -> ctypes.CDLL | None:
    wanted = os.environ.get("NLM_NATIVE") or None
    if wanted not in (None, "0", "1"):
        raise UserError(f"NLM_NATIVE is 0 (no kernels), 1 (kernels or an error) or not set, not {wanted!r}")
    if wanted == "0":
        return None
    try:
        kernels = ctypes.CDLL(str(_build()))
    except (OSError, ValueError, RuntimeError, subprocess.SubprocessError) as error:
        if wanted != "1":
            return None
        raise UserError(f"the kernels can't be compiled here: {error}") from None
    for name, kinds in FUNCTIONS.items():
        getattr(kernels, name).argtypes = kinds
    return kernels


def usable(x: Tensor) -> bool:
    """Whether the kernels can work on what `x` is: float32 or bfloat16 on a CPU (they compute in float32)."""
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and not torch.compiler.is_compiling()
        and library() is not None
    )


def run(name: str, *arguments: Tensor | int | None) -> None:
    """Call a kernel, on as many threads as PyTorch uses.

    Args:
        name: of the C function.
        arguments: its arguments but the number of threads. Of a tensor it gets the address; it can't check type and
            size, so the caller has to.

    Raises:
        ValueError: a tensor is not contiguous or not on the CPU.
        MemoryError: the kernel finds no memory for what it keeps meanwhile.
    """
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    if not all(tensor.is_contiguous() and tensor.device.type == "cpu" for tensor in tensors):
        raise ValueError(f"{name} needs contiguous tensors on the CPU")
    addresses = [argument.data_ptr() if isinstance(argument, Tensor) else argument for argument in arguments]
    if getattr(library(), name)(*addresses, torch.get_num_threads()):
        raise MemoryError(f"there is no memory for {name}")


def is_bf16(x: Tensor) -> int:
    """1 for bfloat16, 0 for float32, as the kernels want it."""
    return int(x.dtype == torch.bfloat16)
