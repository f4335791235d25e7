"""Ctrl-C and SIGTERM as a wish that the training loop can ask for, instead of an exception at any line."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Interrupt:
    """Remembers that a stop was asked for.

    Attributes:
        signal: the number of the signal that asked for it, if one did.
    """

    def __init__(self, twice_raises: bool = True):
        """Make one that listens to nothing yet.

        Args:
            twice_raises: whether a second signal raises KeyboardInterrupt. A person who asks twice wants out at once.
                A launcher passes on a signal that its processes may have had already, and ends those that take too
                long itself.
        """
        self.signal: int | None = None
        self._twice_raises = twice_raises

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within this, the signals are remembered (in the main thread; Python allows it in no other)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {name: signal.signal(name, self._on_signal) for name in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for name, handler in handlers.items():
                signal.signal(name, handler)

    def _on_signal(self, number: int, frame: Any) -> None:
        if self.signal is not None and self._twice_raises:
            raise KeyboardInterrupt
        self.signal = number
