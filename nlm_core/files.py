"""Where the project's files lie, and how to write one so that nobody ever sees half of it."""

import contextlib
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from nlm_core.errors import UserError


def project_root() -> Path:
    """The folder that holds `checkpoints/`, `data/` and `runs/`.

    It is $NLM_ROOT, else the working directory or the nearest of its parents that holds `checkpoints/` and is not the
    folder of a training run, else the package's parent: so notebooks find it from `book/`, from the top, and from a
    copy of the book elsewhere.
    """
    if root := os.environ.get("NLM_ROOT"):
        return Path(root)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "checkpoints").is_dir() and not (folder / "config.json").exists():
            return folder
    return Path(__file__).resolve().parent.parent


def shown(path: str | Path) -> str:
    """A path as a person would type it: without the working directory."""
    with contextlib.suppress(ValueError):
        return str((Path.cwd() / path).relative_to(Path.cwd()))
    return str(path)


def readable_file(path: str | Path) -> Path:
    """Return `path` if it is a readable file with something in it.

    Raises:
        UserError: it is missing, a folder, empty, or not readable.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{shown(path)} is a folder; give a file")
    if not path.exists():
        raise UserError(f"{shown(path)} does not exist")
    if not os.access(path, os.R_OK):
        raise UserError(f"{shown(path)} can't be read; check its permissions")
    if path.is_file() and path.stat().st_size == 0:
        raise UserError(f"{shown(path)} is empty")
    return path


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, so that a rename survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hidden_name(path: Path, ending: str) -> Path:
    """Where this process works on `path`; what killed processes left there is removed, the only copy put back."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.{ending}"):
        owner = leftover.name.split(".")[-2]
        if not owner.isdecimal() or _is_alive(int(owner)):
            continue
        if ending == "old" and not path.exists():
            leftover.replace(path)
        else:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}.{ending}")


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass  # somebody else's; not a process at all
    return True


@contextlib.contextmanager
def written_whole(path: str | Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path` that takes its name only when the block ends without an error."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{shown(path)} is a folder; give the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _hidden_name(path, "tmp")
    try:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def digest_of(content: dict[str, Any]) -> str:
    """The sha256 of a JSON object, however it is laid out; what it says under "sha256" itself does not count."""
    canonical = json.dumps({key: value for key, value in content.items() if key != "sha256"}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def write_json(path: str | Path, value: Any) -> None:
    with written_whole(path, "w") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def read_json(path: str | Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        UserError: the file is missing, or is not a JSON object.
    """
    path = readable_file(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise UserError(f"{shown(path)} is not valid JSON") from None
    if not isinstance(value, dict):
        raise UserError(f"{shown(path)} does not hold a JSON object")
    return value


@contextlib.contextmanager
def folder_written_whole(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that takes the name `path` only when the block ends without an error.

    A folder already there is replaced; it stays as it was if anything fails. (A process that is killed between the two
    renames leaves neither; the runs of `nlm_core.train` therefore write each checkpoint under a name of its own.)
    """
    if Path(path).exists() and not Path(path).is_dir():
        raise UserError(f"{shown(path)} is a file; give the name of a folder")
    path = Path(path).resolve()  # a link stays, and what it points to is replaced
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = _hidden_name(path, "tmp"), _hidden_name(path, "old")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.iterdir():
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
        sync_folder(temporary)
        try:
            if path.exists():
                path.replace(old)
            temporary.replace(path)
        except BaseException:  # Ctrl-C too: between these two lines nothing has the name
            if old.exists() and not path.exists():
                old.replace(path)
            raise
        sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if path.exists():  # else the old folder is all there is
            shutil.rmtree(old, ignore_errors=True)
