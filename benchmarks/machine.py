"""What a benchmark ran on: machine, versions, threads, allocator, and the code of the package."""

import ast
import hashlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers import require
from nlm_core import native

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "numpy", "tokenizers", "transformers", "transformer-lens")

# By default glibc gives large buffers back to the system as soon as they are free, and each step faults them in anew:
# up to half of a training step's time, for either side. With these it keeps them.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "100000000",
}


def physical_cores() -> int:
    """The cores that this process may use; a second thread on the same core does not speed up matrix products."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    psutil = require("psutil")
    return min(psutil.cpu_count(logical=False) or usable, usable)


def environment_of_children(threads: int) -> dict[str, str]:
    """The environment in which both sides run: the same threads and allocator, and no network."""
    return {
        **os.environ,
        **ALLOCATOR,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "true",
        "WANDB_MODE": "disabled",
    }


def processor() -> str:
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe() -> dict[str, Any]:
    """The environment of a run, JSON-ready; two runs in the same environment give equal descriptions."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "machine": {
            "processor": processor(),
            "cores": physical_cores(),
            "instructions": sorted(
                key
                for key, has in torch.cpu.get_capabilities().items()
                if has is True and key.startswith(("avx", "amx", "fma", "asimd", "sve", "bf16"))
            ),
            "memory_gb": round(require("psutil").virtual_memory().total / 1e9, 1),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": versions,
        "threads": torch.get_num_threads(),
        "native_kernels": native.library() is not None,
        "allocator": {name: os.environ.get(name) for name in ALLOCATOR},
    }


def commit() -> str | None:
    """The commit of git, with "-dirty" behind it where files differ from it; None without git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def code_hash() -> str:
    """A hash over the code of the package and of the benchmarks, so that figures of different code can be told apart.

    Comments and docstrings of Python are left out: to say in one what was measured must not change it.
    """
    digest = hashlib.sha256()
    for path in sorted(path for folder in ("nlm_core", "benchmarks") for path in (ROOT / folder).rglob("*")):
        if path.suffix in (".py", ".c", ".h"):
            source = path.read_text(encoding="utf-8")
            digest.update(
                f"{path.relative_to(ROOT)}\0{without_words(source) if path.suffix == '.py' else source}".encode()
            )
    return digest.hexdigest()[:12]


def without_words(source: str) -> str:
    """What Python makes of a source, without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)
