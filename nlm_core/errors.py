"""The two ways in which a command ends early and says why in one line."""

import contextlib
import sys
from collections.abc import Iterator


class UserError(ValueError):
    """Bad input. The command line prints its one line and exits with code 2, without a traceback."""


class Diverged(RuntimeError):
    """The loss or the gradient stopped being a number. The command line exits with code 1."""


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """For scripts: a UserError becomes one line on standard error and exit code 2."""
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
