"""Peak memory of one piece of work, in a process of its own.

    python -m benchmarks.memory '{"side": "ours", "inputs": {...}}'

The child sets up (imports, model, optimizer, batch), then measures how far the work raises the resident size above what
it is by then, and prints that as JSON.
"""

import contextlib
import dataclasses
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs
from benchmarks.machine import ROOT
from benchmarks.measure import seconds
from benchmarks.peers import require
from nlm_core.errors import UserError, one_line_errors

STEPS = 3


def peak_of(work: Callable[[], Any]) -> dict[str, Any]:
    """Do the work; return how many bytes its peak lies above the resident size before, and that size.

    Linux can forget the highest size so far; elsewhere a higher peak during set-up would hide that of the work.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before = require("psutil").Process().memory_info().rss
    work()
    return {"peak": max(0, highest_resident_size() - before), "after_setup": before}


def highest_resident_size() -> int:
    """In bytes, since the process began or since Linux was told to forget."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def peak_in_fresh_process(side: str, inputs: Inputs, settings: dict[str, Any] | None = None, **job: Any) -> dict:
    """Run three training steps of "ours" or of the "peer" in a new process.

    Args:
        side: which.
        inputs: sizes and model.
        settings: of the peer.
        job: for ours, another `batch_size` or `context`.

    Returns:
        The peak in bytes above set-up, the size after set-up, and the seconds of each step.

    Raises:
        UserError: the process failed.
    """
    return in_fresh_process("benchmarks.memory", side=side, inputs=dataclasses.asdict(inputs), settings=settings, **job)


def in_fresh_process(module: str, **job: Any) -> dict[str, Any]:
    """Run `python -m MODULE JOB` from the root, and return the JSON that it prints last.

    Raises:
        UserError: the process failed.
    """
    done = subprocess.run([sys.executable, "-m", module, json.dumps(job)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"a process of {module} failed: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def work_of(side: str, inputs: dict, settings: dict | None, **job: Any) -> dict[str, Any]:
    from benchmarks.training import OurTraining, PeerSettings, PeerTraining  # here, since that module imports this one

    sizes = Inputs(**inputs)
    training = PeerTraining(sizes, PeerSettings(**settings)) if side == "peer" else OurTraining(sizes, **job)
    training.batches(0)
    times: list[float] = []

    def steps() -> None:
        for number in range(STEPS):
            times.append(seconds(lambda number=number: training.step(number)))

    return peak_of(steps) | {"step_seconds": times}


if __name__ == "__main__":
    with one_line_errors():
        print(json.dumps(work_of(**json.loads(sys.argv[1]))))
