"""Every foreseen error of a command or a script is one line and an exit code."""

import errno

import pytest

from nlm_core.errors import Diverged, UserError, one_line_errors


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("there is no such run"), 2, "there is no such run"),
        (Diverged("the loss is nan at step 3"), 1, "the loss is nan at step 3"),
        (OSError(errno.ENOSPC, "No space left on device", "log.csv"), 2, "No space left on device: log.csv"),
        (MemoryError(), 2, "this does not fit into memory; choose a smaller model, context or batch"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            2,
            "this does not fit into memory; choose a smaller model, context or batch",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_one_line(error, code, line, capsys):
    with pytest.raises(SystemExit) as left, one_line_errors():
        raise error
    assert left.value.code == code
    assert capsys.readouterr().err == f"error: {line}\n"


def test_what_nobody_foresaw_keeps_its_traceback():
    with pytest.raises(RuntimeError, match="shapes"), one_line_errors():
        raise RuntimeError("shapes do not match")
