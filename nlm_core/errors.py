"""The one exception that means "you can mend this": a single line that says what is wrong and what to do."""


class UserError(ValueError):
    """Bad input. The command line prints its one line and exits with code 2, without a traceback."""
