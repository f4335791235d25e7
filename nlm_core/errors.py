"""The two ways in which a command ends early and says why in one line."""


class UserError(ValueError):
    """Bad input. The command line prints its one line and exits with code 2, without a traceback."""


class Diverged(RuntimeError):
    """The loss or the gradient stopped being a number. The command line exits with code 1."""
