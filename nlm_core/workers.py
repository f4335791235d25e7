"""One thread for each core, each with work of its own.

Why: PyTorch shares every single operation out among the cores and waits for the slowest, hundreds of times a step, and
how many cores there are decides in which order it adds. Micro-batches, and windows to be scored, don't depend on each
other, so each core can go through its own from beginning to end. Results come out in the order of the items: what is
made of them depends neither on which thread was faster nor on how many there are. On the two cores of `make bench` that
costs no time and saves hardly any: the gradients of a batch come 1.0 times (0.9 to 1.1) as fast.
"""

import contextlib
import functools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_threads(work: Callable[[Item], Result], items: Sequence[Item], device: torch.device) -> Iterator[Result]:
    """Call `work` on each item; on a CPU for as many at once as PyTorch is set to use threads.

    Args:
        work: may use PyTorch and gradients, must not change what another call reads.
        items: any number of them.
        device: where the work is done; on any but a CPU it is done one by one.

    Yields:
        The results in the order of the items; an exception comes out where its result would.
    """
    threads = torch.get_num_threads()
    workers = min(threads, len(items))
    if device.type != "cpu" or workers < 2:
        yield from map(work, items)
        return
    settings = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def alone(item: Item) -> Result:
        grad, inference = settings  # these belong to a thread
        with torch.inference_mode() if inference else contextlib.nullcontext(), torch.set_grad_enabled(grad):
            return work(item)

    each = threads // workers
    torch.set_num_threads(each)  # also MKL's, which is one number for all
    pool = _pool(workers, each)
    running: deque[Future] = deque()  # few at a time: a result can be as large as the model
    try:
        for item in items:
            running.append(pool.submit(alone, item))
            if len(running) > workers:
                yield running[0].result()
                running.popleft()
        while running:
            yield running[0].result()
            running.popleft()
    finally:  # also when the wait for a result was interrupted: nothing goes on behind the caller's back
        try:
            for future in running:
                future.cancel()
            wait(running)
        finally:
            torch.set_num_threads(threads)


@functools.cache
def _pool(workers: int, each: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "nlm", initializer=lambda: torch.set_num_threads(each))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process has the pools without their threads
