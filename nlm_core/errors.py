"""The two ways in which a command ends early and says why in one line."""

import contextlib
import sys
from collections.abc import Iterator
from typing import NoReturn

NO_MEMORY = "this does not fit into memory; choose a smaller model, context or batch"


class UserError(ValueError):
    """Bad input. The command line prints its one line and exits with code 2, without a traceback."""


class Diverged(RuntimeError):
    """The loss or the gradient stopped being a number. The command line exits with code 1."""


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """For commands and scripts: every foreseen error becomes one line on standard error, and an exit code."""
    try:
        yield
    except UserError as error:
        _leave(str(error), 2)
    except Diverged as error:
        _leave(str(error), 1)
    except MemoryError:
        _leave(NO_MEMORY, 2)
    except OSError as error:
        _leave(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 2)
    except RuntimeError as error:
        # PyTorch has no class of its own for a CPU's memory.
        if "can't allocate memory" not in str(error) and type(error).__name__ != "OutOfMemoryError":
            raise
        _leave(NO_MEMORY, 2)
    except KeyboardInterrupt:
        _leave("interrupted", 130)


def _leave(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
