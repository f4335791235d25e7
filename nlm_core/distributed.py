"""The same training by several processes, on one machine or on many, as `torchrun` starts them.

Each process holds the whole model and computes its share of a batch's micro-batches; the gradients are added up, and
each process makes the same update. The first process alone reads and writes the run's folder, evaluates, and speaks.
What it decides, the others are told.
"""

import contextlib
import datetime
import hashlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from nlm_core.errors import Diverged, UserError
from nlm_core.model import NLM
from nlm_core.optim import restore_state, state_arrays

Result = TypeVar("Result")

# How long the others wait while the first evaluates or writes. A process that ends is noticed at once.
PATIENCE = datetime.timedelta(days=1)


class Lost(UserError):
    """Another process ended, so this one can't go on."""


class SaidByTheFirst(Exception):
    """The first process raises a `UserError` now, which the others need not repeat."""


class Team:
    """The processes that train together. A team of one waits for nobody and sends nothing.

    Every process calls the same methods in the same order; where one stays away, the others wait. So the work that is
    given to `attempt` and `broadcast` must not call them itself.

    Attributes:
        rank, world_size: which process this is, of how many.
        first: whether it is the one that speaks and writes.
    """

    def __init__(self, rank: int = 0, world_size: int = 1):
        self.rank, self.world_size = rank, world_size
        self.first = rank == 0
        self._gradients: Any = None  # the group that adds gradients; None: the one that does the rest, too

    # ---- what is done together

    def attempt(self, work: Callable[[], Result]) -> Result:
        """Do what may fail on one machine alone; if it does, every process leaves, and the first says why.

        Raises:
            UserError: in the first process; `SaidByTheFirst` in the others.
        """
        if self.world_size == 1:
            return work()
        result = error = None
        try:
            result = work()
        except UserError as raised:
            error = str(raised) if self.first else f"{raised} (says process {self.rank} on {socket.gethostname()})"
        if messages := [message for message in self._gather(error) if message is not None]:
            self._leave(messages[0])
        return result

    def broadcast(self, work: Callable[[], Result]) -> Result:
        """Call `work` in the first process only, and give its result to all; a UserError ends every process."""
        if self.world_size == 1:
            return work()
        results = [self.attempt(lambda: work() if self.first else None)]
        with _together():
            dist.broadcast_object_list(results)
        return results[0]

    def any(self, here: bool) -> bool:
        """Whether it is so in any process; all get the same answer."""
        if self.world_size == 1:
            return here
        count = torch.tensor(int(here))
        with _together():
            dist.all_reduce(count)
        return count.item() > 0

    def barrier(self) -> None:
        """Go on when every process has come here."""
        if self.world_size > 1:
            with _together():
                dist.barrier()

    # ---- training

    def use(self, device: torch.device) -> None:
        """Get ready to add up gradients on this kind of device.

        Raises:
            UserError: this machine has fewer GPUs than processes, or PyTorch can't join devices of this kind.
        """
        if self.world_size == 1:
            return

        def check() -> None:
            if device.type not in ("cpu", "cuda"):
                raise UserError(f"several processes can't train on {device.type}; choose device=cpu")
            if device.type == "cuda" and _number_here() >= (gpus := torch.cuda.device_count()):
                raise UserError(
                    f"there are more processes than GPUs: set --nproc-per-node to at most {gpus}, or choose device=cpu"
                )

        self.attempt(check)
        if device.type == "cuda":
            with _together():
                self._gradients = dist.new_group(backend="nccl")

    def require_work_for_all(self, batch_size: int, micro_batch_size: int) -> None:
        """Raise a UserError if some process would have no micro-batch to compute."""
        if self.world_size > (parts := batch_size // micro_batch_size):
            fitting = [size for size in range(1, batch_size + 1) if batch_size % size == 0]
            largest = max((size for size in fitting if batch_size // size >= self.world_size), default=None)
            raise UserError(
                f"{self.world_size} processes are too many for a batch_size of {batch_size} and a micro_batch_size of "
                f"{micro_batch_size}: start at most {parts}, or a new run with --set "
                + (f"batch_size={self.world_size} or more" if largest is None else f"micro_batch_size={largest}")
            )

    def begin_alike(self, model: NLM, optimizers: list[torch.optim.Optimizer], step: int) -> int:
        """Give every process the first one's weights, optimizers' state and step; return the step."""
        if self.world_size == 1:
            return step

        def mine() -> tuple[int, dict, dict]:
            params = {name: value.cpu().numpy() for name, value in model.state_dict().items()}
            return step, params, state_arrays(model, optimizers)

        step, params, state = self.broadcast(mine)
        if not self.first:
            model.load_state_dict({name: torch.from_numpy(value) for name, value in params.items()})
            restore_state(model, optimizers, state)
        return step

    def share(self, count: int) -> range:
        """Return the numbers of the micro-batches that this process computes, of `count`."""
        return range(self.rank, count, self.world_size)

    def all_reduce_gradients(self, model: NLM, loss: float) -> float:
        """Add every process's gradients, and return the sum of their shares of the loss.

        All goes in one buffer, so the order of the sums is fixed: a repeated run has the same bits.
        """
        if self.world_size == 1:
            return loss
        gradients = [param.grad for param in model.parameters()]
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), gradients[0].new_tensor([loss])])
        with _together():
            dist.all_reduce(flat, group=self._gradients)
        for gradient, part in zip(gradients, flat[:-1].split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
        return flat[-1].item()

    def require_equal_weights(self, model: NLM) -> None:
        """Raise a UserError (as `attempt` does) unless the weights are the same, to the last bit, everywhere."""
        if self.world_size == 1:
            return
        digest = hashlib.sha256()
        for param in model.parameters():
            digest.update(param.detach().cpu().numpy().tobytes())
        digests = self._gather(digest.digest())
        if others := [rank for rank, other in enumerate(digests) if other != digests[0]]:
            self._leave(
                f"process {others[0]} has other weights than process 0, so they were not saved; the last checkpoint "
                "stays. Are all processors of one kind, with the same versions of everything?"
            )

    # ---- below the surface

    def _gather(self, value: Any) -> list[Any]:
        values = [None] * self.world_size
        with _together():
            dist.all_gather_object(values, value)
        return values

    def _leave(self, message: str) -> None:
        raise UserError(message) if self.first else SaidByTheFirst


def _number_here() -> int:
    """Which process of this machine this is, counted from 0."""
    return int(os.environ["LOCAL_RANK"])


@contextlib.contextmanager
def joined() -> Iterator[Team]:
    """The processes that `torchrun` started, as a team; without it, or with one process, a team of one.

    An error that all know of ends the others quietly, with exit code 1, after the first process has said it.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or not (dist.is_available() and dist.is_torchelastic_launched()):
        yield Team()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(_number_here() % torch.cuda.device_count())
    dist.init_process_group("gloo", timeout=PATIENCE)
    team = Team(dist.get_rank(), size)
    try:
        yield team
    except (SaidByTheFirst, Diverged):
        if team.first:
            raise
        # The launcher ends the rest as soon as one has ended, so this one stays until the first has spoken and left.
        with contextlib.suppress(RuntimeError):
            dist.barrier()
        sys.exit(1)
    except Lost:
        if team.first:
            raise
        sys.exit(1)
    dist.destroy_process_group()


@contextlib.contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise Lost(
            "another process of this run has ended or can't be reached, so all end; "
            "if it said why, that stands above or on its machine. The last checkpoint stays"
        ) from error
