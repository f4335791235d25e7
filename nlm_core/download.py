"""TinyStories from the Hugging Face hub: a cut connection costs seconds, and a file that has changed is noticed.

A download goes into a hidden file beside its target, `.NAME.part`, which no other command takes for text. It gets its
final name once size and sha256 are right; until then, this or a later call asks the hub for the missing bytes only.
"""

import contextlib
import fcntl
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from huggingface_hub import hf_hub_url
from tqdm import tqdm

from nlm_core.data import corpus_folder, require_space
from nlm_core.errors import UserError
from nlm_core.files import sha256_of, shown, sync_folder

REPOSITORY = "roneneldan/TinyStories"
REVISION = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
ATTEMPTS = 5  # in a row that bring nothing new, with waits of 1, 2, 4 and 8 seconds between them
TIMEOUT = 30.0  # seconds of silence
CHUNK = 1 << 18


@dataclass(frozen=True)
class Pin:
    """A file of the data set, as it must be.

    Attributes:
        size: bytes.
    """

    file: str
    split: str
    size: int
    sha256: str


TINYSTORIES = (
    Pin(
        file="TinyStories-train.txt",
        split="train",
        size=1_924_281_556,
        sha256="c5cf5e22ff13614e830afbe61a99fbcbe8bcb7dd72252b989fa1117a368d401f",
    ),
    Pin(
        file="TinyStories-valid.txt",
        split="valid",
        size=19_447_282,
        sha256="94e431816c4cce81ff71e4408ff8d3bda9a42e8d2663986697c3954288cb38b4",
    ),
)


class _CutError(Exception):
    """An answer failed or ended early in a way that the next one need not; the message says what the hub did."""


@dataclass(frozen=True)
class _Job:
    """One file and where it goes."""

    pin: Pin
    name: str

    @property
    def target(self) -> Path:
        return corpus_folder(self.name) / self.pin.split / self.pin.file

    @property
    def part(self) -> Path:
        return self.target.with_name(f".{self.pin.file}.part")

    @property
    def url(self) -> str:
        endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        if not endpoint.startswith(("https://", "http://")):
            raise UserError(f"HF_ENDPOINT is {endpoint!r}; it must begin with https:// or http://")
        return hf_hub_url(
            REPOSITORY, self.pin.file, repo_type="dataset", revision=REVISION, endpoint=endpoint.rstrip("/")
        )

    @property
    def by_hand(self) -> str:
        return f"bring a copy with `nlm data add FILE --split {self.pin.split} --name {self.name}`"

    def bytes_kept(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def is_done(self) -> bool:
        if not self.target.exists():
            return False
        if self.target.stat().st_size != self.pin.size or sha256_of(self.target) != self.pin.sha256:
            raise UserError(
                f"{shown(self.target)} is there already, with other text; rename or delete it, then run this again"
            )
        return True

    def not_the_pinned(self, found: str) -> UserError:
        return UserError(
            f"{self.pin.file} from {urlsplit(self.url).netloc} has {found}, and was not kept; run the same command "
            "again, and if this comes back, the hub's file has changed since nlm was written (its size and sha256 were "
            f"taken from several public projects that agree): {self.by_hand}"
        )


def download(
    name: str = "tinystories",
    pins: Sequence[Pin] = TINYSTORIES,
    wait: Callable[[float], None] = time.sleep,
    progress: bool = False,
) -> list[Path]:
    """Bring the pinned files into a corpus, from $HF_ENDPOINT or the hub itself, and return where they lie.

    Files that are there already are checked and kept.

    Args:
        wait: called with the seconds to pass before another attempt.

    Raises:
        UserError: the hub can't be reached or has another file, the disk is too full, a target is taken by another
            text, or another process is downloading it.
    """
    jobs = [_Job(pin, name) for pin in pins]
    missing = [job for job in jobs if not job.is_done()]
    require_space(corpus_folder(name), sum(max(0, job.pin.size - job.bytes_kept()) for job in missing))
    for job in missing:
        with _opened_alone(job) as file:
            _receive(job, file, wait, progress)
            file.flush()
            os.fsync(file.fileno())
            if (found := sha256_of(job.part)) != job.pin.sha256:
                _start_over(file)
                raise job.not_the_pinned(f"sha256 {found} instead of {job.pin.sha256}")
            job.part.replace(job.target)
            sync_folder(job.target.parent)
    return [job.target for job in jobs]


@contextlib.contextmanager
def _opened_alone(job: _Job) -> Iterator[BinaryIO]:
    """Open the partial file for this process alone; the lock goes with the process, however it ends."""
    job.part.parent.mkdir(parents=True, exist_ok=True)
    taken = UserError(f"another process is downloading {shown(job.target)}; wait for it to end")
    with open(job.part, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        if os.fstat(file.fileno()).st_nlink == 0:  # the other process has just given up and removed it
            raise taken
        try:
            if job.target.exists():  # the other process has just ended well
                raise taken
            yield file
        finally:
            file.flush()
            if job.bytes_kept() == 0:
                job.part.unlink(missing_ok=True)
                # A folder without text in it would count as a corpus.
                with contextlib.suppress(OSError):
                    job.target.parent.rmdir()
                    job.target.parent.parent.rmdir()


def _receive(job: _Job, file: BinaryIO, wait: Callable[[float], None], progress: bool) -> None:
    """Append to the partial file until it has the size that it must have."""
    if file.tell() > job.pin.size:
        _start_over(file)
    furthest, failures = file.tell(), 0
    host = urlsplit(job.url).netloc
    with tqdm(
        total=job.pin.size, unit="B", unit_scale=True, desc=job.pin.file, disable=None if progress else True
    ) as bar:
        while file.tell() < job.pin.size:
            try:
                _receive_once(job, file, bar)
            except _CutError as error:
                # A hub that starts over each time and never gets further must not keep us busy for ever.
                failures = 0 if file.tell() > furthest else failures + 1
                furthest = max(furthest, file.tell())
                if failures == ATTEMPTS:
                    kept = f" {file.tell() / 1e6:,.1f} MB are kept;" if file.tell() else ""
                    raise UserError(
                        f"{job.pin.file}: {host} {error};{kept} run the same command again to go on, or {job.by_hand}"
                    ) from None
                wait(2.0 ** max(0, failures - 1))


def _receive_once(job: _Job, file: BinaryIO, bar: tqdm) -> None:
    """Append what one answer brings.

    Raises:
        _CutError: the answer failed or ended early.
        UserError: the hub refuses, or has another file.
    """
    with _ask(job, file) as response:
        first, total = _extent(response)
        if total not in (None, job.pin.size):
            raise job.not_the_pinned(f"{total:,} bytes instead of {job.pin.size:,}")
        if first != file.tell():
            _start_over(file)
            if first != 0:
                raise _CutError("sends another part of the file than it was asked for")
        bar.n = file.tell()
        bar.refresh()
        while file.tell() < job.pin.size:
            chunk = _read(response)
            if file.tell() + len(chunk) > job.pin.size:
                _start_over(file)
                raise job.not_the_pinned(f"more than {job.pin.size:,} bytes")
            file.write(chunk)
            bar.update(len(chunk))


def _ask(job: _Job, file: BinaryIO) -> HTTPResponse:
    """Ask for the bytes that the partial file lacks; redirects are followed."""
    request = urllib.request.Request(job.url, headers={"User-Agent": "nlm"})
    if file.tell():
        request.add_header("Range", f"bytes={file.tell()}-")
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        answer = f"answers {error.code} ({error.reason})"
        if error.code == 416:
            _start_over(file)
            raise _CutError(answer) from None
        if error.code in (408, 429) or error.code >= 500:
            raise _CutError(answer) from None
        raise UserError(
            f"{urlsplit(job.url).netloc} {answer} to {job.url}; check HF_ENDPOINT if you set it, or {job.by_hand}"
        ) from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise _CutError(f"can't be reached ({str(reason) or type(error).__name__})") from None


def _read(response: HTTPResponse) -> bytes:
    try:
        chunk = response.read1(CHUNK)
    except (OSError, HTTPException) as error:
        raise _CutError(f"cut the connection ({str(error) or type(error).__name__})") from None
    if not chunk:
        raise _CutError("ended the connection early")
    return chunk


def _extent(response: HTTPResponse) -> tuple[int, int | None]:
    """The file's byte with which an answer begins, and the size of the whole file where the answer says it."""
    if response.status != 206:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdigit() else None
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if match is None:
        return -1, None
    first, total = match.groups()
    return int(first), int(total) if total.isdigit() else None


def _start_over(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()
