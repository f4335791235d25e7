"""A stand-in for the Hugging Face hub that cuts, refuses and lies as real ones do."""

import hashlib
import http.server
from collections.abc import Callable
from pathlib import Path

from nlm_core.download import REVISION, Pin

TRAIN = "".join(f"Story {number}. One day, a dog ran.\n<|endoftext|>\n" for number in range(3000)).encode()
VALID = b"Once upon a time.\n<|endoftext|>\n"
TRAIN_PIN = Pin("TinyStories-train.txt", "train", len(TRAIN), hashlib.sha256(TRAIN).hexdigest())
VALID_PIN = Pin("TinyStories-valid.txt", "valid", len(VALID), hashlib.sha256(VALID).hexdigest())
FOLDER = f"/datasets/roneneldan/TinyStories/resolve/{REVISION}/"
CONTENT = {FOLDER + TRAIN_PIN.file: TRAIN, FOLDER + VALID_PIN.file: VALID}
TARGET = Path("data/tinystories/train/TinyStories-train.txt")
PART = TARGET.with_name(".TinyStories-train.txt.part")

Answer = Callable[[http.server.BaseHTTPRequestHandler, bytes, int], None]


def send(handler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for key, value in headers.items():
        handler.send_header(key.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def serve(handler, content: bytes, first: int, cut: int | None = None) -> None:
    """Answer as the hub does; with `cut`, end the connection after so many bytes."""
    body = content[first:]
    headers = {"Content_Length": str(len(body))}
    if handler.headers["Range"]:
        headers["Content_Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
    send(handler, 206 if handler.headers["Range"] else 200, body[:cut], **headers)


def cut_after(number: int) -> Answer:
    return lambda handler, content, first: serve(handler, content, first, cut=number)


def cut_after_without_ranges(number: int) -> Answer:
    return lambda handler, content, first: send(handler, 200, content[:number], Content_Length=str(len(content)))


def refuse(status: int) -> Answer:
    return lambda handler, content, first: send(handler, status, b"Sorry", Content_Length="5")


def without_ranges(handler, content: bytes, first: int) -> None:
    send(handler, 200, content, Content_Length=str(len(content)))


def range_line(line: str) -> Answer:
    return lambda handler, content, first: send(handler, 206, content[first:], Content_Range=line)


class Hub:
    """A server whose next answers a test writes down; after those it serves well.

    Attributes:
        asked: the (path, Range header) of each request.
    """

    def __init__(self, port: int):
        self.url = f"http://127.0.0.1:{port}"
        self.content = dict(CONTENT)
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str | None]] = []

    def ranges(self) -> list[str | None]:
        return [line for _, line in self.asked]
