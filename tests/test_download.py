"""Downloads from a hub on this machine that cuts, refuses and lies as real ones do."""

import contextlib
import errno
import fcntl
import hashlib
import http.server
import io
import re
import shutil
import socket
import sys
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub import (
    FOLDER,
    PART,
    TARGET,
    TRAIN,
    TRAIN_PIN,
    VALID,
    VALID_PIN,
    Answer,
    Hub,
    cut_after,
    cut_after_without_ranges,
    range_line,
    refuse,
    send,
    serve,
    without_ranges,
)

from nlm_core import cli
from nlm_core import download as module
from nlm_core.data import corpus_names, text_files
from nlm_core.download import ATTEMPTS, TINYSTORIES, Pin, download
from nlm_core.errors import UserError


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            line = self.headers["Range"]
            hub.asked.append((self.path, line))
            answer = hub.answers.pop(0) if hub.answers else serve
            if self.path not in hub.content:
                answer = refuse(404)
            with contextlib.suppress(ConnectionError):
                answer(self, hub.content.get(self.path, b""), int(line[6:-1]) if line else 0)

        def log_message(self, *args) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    hub = Hub(server.server_port)
    use(hub.url, monkeypatch)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()


def use(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(variable, "127.0.0.1")


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def fetch(waits: list[float]) -> Callable[..., list[Path]]:
    """`download` of the training file alone, noting instead of spending the waits."""

    def call(*pins: Pin) -> list[Path]:
        return download("tinystories", pins or (TRAIN_PIN,), waits.append)

    return call


def message_of(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_both_files_arrive(hub: Hub, fetch, waits: list[float]) -> None:
    paths = fetch(TRAIN_PIN, VALID_PIN)
    assert [path.read_bytes() for path in paths] == [TRAIN, VALID]
    assert paths == [*text_files("tinystories", "train"), *text_files("tinystories", "valid")]
    assert hub.asked == [(FOLDER + TRAIN_PIN.file, None), (FOLDER + VALID_PIN.file, None)]
    assert waits == []
    assert not list(Path("data").rglob(".*"))


def test_what_is_there_is_checked_and_kept(hub: Hub, fetch) -> None:
    fetch(TRAIN_PIN)
    before = TARGET.stat()
    fetch(TRAIN_PIN, VALID_PIN)
    assert [path for path, _ in hub.asked] == [FOLDER + TRAIN_PIN.file, FOLDER + VALID_PIN.file]
    assert (TARGET.stat().st_ino, TARGET.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("text", [b"My own.", TRAIN[:-1] + b"!"])
def test_another_text_under_the_final_name_is_left_alone(hub: Hub, fetch, text: bytes) -> None:
    TARGET.parent.mkdir(parents=True)
    TARGET.write_bytes(text)
    assert "is there already, with other text; rename or delete it" in message_of(fetch)
    assert TARGET.read_bytes() == text
    assert hub.asked == []


def test_a_redirect_keeps_the_range(hub: Hub, fetch) -> None:
    hub.content["/cdn/file"] = TRAIN

    def redirect(handler, content: bytes, first: int) -> None:
        send(handler, 302, b"", Location=f"{hub.url}/cdn/file", Content_Length="0")

    hub.answers = [redirect, cut_after(1000), redirect]
    assert fetch()[0].read_bytes() == TRAIN
    own = FOLDER + TRAIN_PIN.file
    assert hub.asked == [(own, None), ("/cdn/file", None), (own, "bytes=1000-"), ("/cdn/file", "bytes=1000-")]


def test_a_cut_connection_goes_on_in_the_same_call(hub: Hub, fetch, waits: list[float]) -> None:
    hub.answers = [cut_after(1000), refuse(503), refuse(429), cut_after(500)]
    assert fetch()[0].read_bytes() == TRAIN
    assert hub.ranges() == [None, "bytes=1000-", "bytes=1000-", "bytes=1000-", "bytes=1500-"]
    assert waits == [1, 1, 2, 1]


def test_cuts_that_bring_something_do_not_use_up_the_attempts(hub: Hub, fetch) -> None:
    hub.answers = [cut_after(100)] * 3 * ATTEMPTS
    assert fetch()[0].read_bytes() == TRAIN


def test_an_interrupted_download_goes_on_in_the_next_call(hub: Hub, fetch, waits: list[float]) -> None:
    hub.answers = [cut_after(70_000), *[refuse(502)] * ATTEMPTS]
    message = message_of(fetch)
    assert "answers 502 (Bad Gateway); 0.1 MB are kept; run the same command again" in message
    assert "nlm data add FILE --split train --name tinystories" in message
    assert waits == [1, 1, 2, 4, 8]
    assert PART.read_bytes() == TRAIN[:70_000]
    assert text_files("tinystories", "train") == []
    hub.asked.clear()
    assert fetch()[0].read_bytes() == TRAIN
    assert hub.ranges() == ["bytes=70000-"]


def test_ctrl_c_keeps_what_has_come(hub: Hub, fetch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    hub.answers = [cut_after(1000)]
    with pytest.raises(KeyboardInterrupt):
        download("tinystories", [TRAIN_PIN], interrupt)
    assert PART.read_bytes() == TRAIN[:1000]
    assert fetch()[0].read_bytes() == TRAIN
    assert hub.ranges() == [None, "bytes=1000-"]


def test_a_hub_without_ranges_starts_over(hub: Hub, fetch) -> None:
    hub.answers = [cut_after(1000), without_ranges]
    assert fetch()[0].read_bytes() == TRAIN
    assert hub.ranges() == [None, "bytes=1000-"]


def test_a_hub_that_starts_over_for_ever_is_given_up(hub: Hub, fetch) -> None:
    hub.answers = [cut_after_without_ranges(1500), cut_after_without_ranges(1000)] * 50
    assert "ended the connection early" in message_of(fetch)
    assert len(hub.asked) == 1 + ATTEMPTS


@pytest.mark.parametrize(
    "answer",
    [
        refuse(416),
        range_line(f"bytes 999-{len(TRAIN) - 1}/{len(TRAIN)}"),
        range_line(f"bytes 1001-{len(TRAIN) - 1}/*"),
        range_line("lines 1-2"),
        range_line(""),
    ],
)
def test_another_part_than_asked_for_starts_over(hub: Hub, fetch, answer: Answer) -> None:
    hub.answers = [cut_after(1000), answer]
    assert fetch()[0].read_bytes() == TRAIN
    assert hub.ranges() == [None, "bytes=1000-", None]


def test_a_range_that_does_not_tell_the_size_will_do(hub: Hub, fetch) -> None:
    hub.answers = [cut_after(1000), range_line(f"bytes 1000-{len(TRAIN) - 1}/*")]
    assert fetch()[0].read_bytes() == TRAIN
    assert hub.ranges() == [None, "bytes=1000-"]


def test_an_answer_in_chunks_will_do_and_can_be_cut(hub: Hub, fetch) -> None:
    def cut_chunk(handler, content: bytes, first: int) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.close_connection = True
        send(handler, 200, b"3e8\r\n" + content[:1000] + b"\r\n3e8\r\n", Transfer_Encoding="chunked")

    hub.answers = [cut_chunk]
    assert fetch()[0].read_bytes() == TRAIN
    assert hub.ranges() == [None, "bytes=1000-"]


def test_the_wrong_size_is_seen_before_anything_is_written(hub: Hub, fetch) -> None:
    hub.content[FOLDER + TRAIN_PIN.file] = TRAIN + b"!"
    message = message_of(fetch)
    assert f"has {len(TRAIN) + 1:,} bytes instead of {len(TRAIN):,}" in message
    assert "nlm data add FILE --split train --name tinystories" in message
    assert not Path("data/tinystories").exists()
    assert corpus_names() == []


def test_the_wrong_size_of_the_rest_keeps_what_has_come(hub: Hub, fetch) -> None:
    hub.answers = [cut_after(1000), range_line("bytes 1000-1999/2000")]
    assert "has 2,000 bytes instead of" in message_of(fetch)
    assert PART.stat().st_size == 1000


def test_too_many_bytes_without_a_word_of_it(hub: Hub, fetch) -> None:
    hub.answers = [lambda handler, content, first: send(handler, 200, content + b"More.")]
    assert f"has more than {len(TRAIN):,} bytes" in message_of(fetch)
    assert not PART.exists()


def test_a_wrong_hash_leaves_nothing(hub: Hub, fetch) -> None:
    changed = TRAIN.replace(b"dog", b"cat", 1)
    hub.content[FOLDER + TRAIN_PIN.file] = changed
    message = message_of(fetch)
    assert f"has sha256 {hashlib.sha256(changed).hexdigest()} instead of {TRAIN_PIN.sha256}" in message
    assert "several public projects that agree" in message
    assert not Path("data/tinystories").exists()


def test_a_whole_partial_file_is_checked_without_asking(hub: Hub, fetch) -> None:
    PART.parent.mkdir(parents=True)
    PART.write_bytes(TRAIN)
    assert fetch()[0].read_bytes() == TRAIN
    assert hub.asked == []


def test_a_partial_file_that_is_too_long_starts_over(hub: Hub, fetch) -> None:
    PART.parent.mkdir(parents=True)
    PART.write_bytes(TRAIN + b"!")
    assert fetch()[0].read_bytes() == TRAIN
    assert hub.ranges() == [None]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_is_final(hub: Hub, fetch, waits: list[float], status: int) -> None:
    hub.answers = [refuse(status)]
    message = message_of(fetch)
    assert f"answers {status} (" in message
    assert f"{hub.url}{FOLDER}{TRAIN_PIN.file}" in message
    assert "nlm data add FILE" in message
    assert waits == []
    assert len(hub.asked) == 1


def test_a_connection_without_any_answer(hub: Hub, fetch) -> None:
    hub.answers = [lambda handler, content, first: None]
    assert fetch()[0].read_bytes() == TRAIN


def test_no_network(fetch, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    use(f"http://127.0.0.1:{port}/", monkeypatch)
    message = message_of(fetch)
    assert f"127.0.0.1:{port} can't be reached (" in message
    assert "run the same command again" in message
    assert "nlm data add FILE" in message
    assert "kept" not in message
    assert waits == [1, 2, 4, 8]
    assert not Path("data/tinystories").exists()


def test_an_endpoint_that_is_no_url(fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    use("huggingface.co", monkeypatch)
    assert message_of(fetch) == "HF_ENDPOINT is 'huggingface.co'; it must begin with https:// or http://"


@pytest.mark.parametrize("endpoint", ["", "https://huggingface.co", "https://huggingface.co/"])
def test_where_the_hub_is(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    use(endpoint, monkeypatch)
    url = module._Job(TINYSTORIES[0], "tinystories").url
    assert url == f"https://huggingface.co{FOLDER}TinyStories-train.txt"


def test_a_disk_that_is_too_full(hub: Hub, fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(len(TRAIN) - 1000))
    assert "MB are needed but only" in message_of(fetch)
    assert hub.asked == []
    PART.parent.mkdir(parents=True)
    PART.write_bytes(TRAIN[:1000])
    fetch()  # what has come already is not needed again


def test_a_disk_that_becomes_full_is_not_taken_for_the_network(
    hub: Hub, fetch, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk(io.FileIO):
        def write(self, data) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "open", lambda path, mode: io.BufferedWriter(FullDisk(path, mode)), raising=False)
    with pytest.raises(OSError, match="No space left"):
        fetch()
    assert waits == []
    assert len(hub.asked) == 1


def test_two_downloads_at_once(hub: Hub, fetch) -> None:
    PART.parent.mkdir(parents=True)
    with open(PART, "ab") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert "another process is downloading data/tinystories/train/TinyStories-train.txt" in message_of(fetch)
        assert hub.asked == []
    assert fetch()[0].read_bytes() == TRAIN


@pytest.mark.parametrize("end", [lambda: PART.rename(TARGET), PART.unlink])
def test_the_other_download_ends_while_the_lock_is_taken(
    hub: Hub, fetch, monkeypatch: pytest.MonkeyPatch, end: Callable[[], object]
) -> None:
    lock = fcntl.flock

    def late_lock(file, how: int) -> None:
        end()
        lock(file, how)

    PART.parent.mkdir(parents=True)
    PART.write_bytes(TRAIN)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", late_lock)
        assert "another process is downloading" in message_of(fetch)
    assert fetch()[0].read_bytes() == TRAIN


def test_a_corpus_of_another_name(hub: Hub) -> None:
    assert download("other", [VALID_PIN]) == [Path("data/other/valid/TinyStories-valid.txt").resolve()]
    with pytest.raises(UserError, match="can't be the name of a corpus"):
        download("../other", [VALID_PIN])


def test_the_pins_are_whole() -> None:
    assert [(pin.file, pin.split, pin.size) for pin in TINYSTORIES] == [
        ("TinyStories-train.txt", "train", 1_924_281_556),
        ("TinyStories-valid.txt", "valid", 19_447_282),
    ]
    assert all(re.fullmatch("[0-9a-f]{64}", pin.sha256) for pin in TINYSTORIES)


def run_command(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["nlm", "data", "download"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_the_command(hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "download", lambda name, progress: download(name, [TRAIN_PIN, VALID_PIN]))
    assert run_command(monkeypatch) == 0
    assert capsys.readouterr().out == (
        f"data/tinystories/train/TinyStories-train.txt: {len(TRAIN):,} bytes\n"
        f"data/tinystories/valid/TinyStories-valid.txt: {len(VALID):,} bytes\n"
    )


def test_the_commands_error_is_one_line(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.content.clear()
    assert run_command(monkeypatch) == 2
    assert re.fullmatch(r"error: .* answers 404 \(Not Found\) .*\n", capsys.readouterr().err)
