"""A file or folder appears whole or not at all, and the project is found from wherever one works."""

import hashlib
import os
from pathlib import Path

import pytest

import nlm_core
from nlm_core.errors import UserError
from nlm_core.files import (
    folder_written_whole,
    project_root,
    read_json,
    readable_file,
    sha256_of,
    shown,
    write_json,
    written_whole,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- one file


def test_a_file_takes_its_name_only_at_the_end(tmp_path):
    target = tmp_path / "new" / "file.txt"
    with written_whole(target, "w") as file:
        file.write("Grüße")
        file.flush()
        assert not target.exists()
    assert target.read_bytes() == "Grüße".encode()
    assert names(target.parent) == ["file.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
@pytest.mark.parametrize("old", [None, b"old"])
def test_an_error_leaves_the_old_file_and_no_temporary_one(tmp_path, error, old):
    target = tmp_path / "file.bin"
    if old is not None:
        target.write_bytes(old)
    with pytest.raises(error), written_whole(target) as file:
        file.write(b"half of the n")
        file.flush()
        raise error
    assert names(tmp_path) == ([] if old is None else ["file.bin"])
    assert old is None or target.read_bytes() == old


def test_a_file_can_not_take_the_name_of_a_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    reached = False
    with pytest.raises(UserError, match=r"^folder is a folder"), written_whole(tmp_path / "folder"):
        reached = True
    assert not reached
    assert names(tmp_path) == ["folder"]


# ---- a folder


def make_old(path: Path) -> Path:
    path.mkdir()
    (path / "old.txt").write_text("old")
    return path


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    target = make_old(tmp_path / "folder")
    with folder_written_whole(target) as folder:
        (folder / "new.txt").write_text("new")
        assert names(target) == ["old.txt"]
    assert names(tmp_path) == ["folder"]
    assert names(target) == ["new.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_an_error_inside_leaves_the_old_folder(tmp_path, error):
    target = make_old(tmp_path / "folder")
    with pytest.raises(error), folder_written_whole(target) as folder:
        (folder / "new.txt").write_text("new")
        raise error
    assert names(tmp_path) == ["folder"]
    assert names(target) == ["old.txt"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("failing", [1, 2])
def test_an_error_while_names_change_leaves_the_old_folder(tmp_path, monkeypatch, error, failing):
    target = make_old(tmp_path / "folder")
    calls = []
    replace = Path.replace

    def fails_once(self, other):
        calls.append(self)
        if len(calls) == failing:
            raise error
        return replace(self, other)

    monkeypatch.setattr(Path, "replace", fails_once)
    with pytest.raises(error), folder_written_whole(target) as folder:
        (folder / "new.txt").write_text("new")
    assert names(tmp_path) == ["folder"]
    assert names(target) == ["old.txt"]


def test_a_folder_can_not_take_the_name_of_a_file(tmp_path):
    (tmp_path / "notes.txt").write_text("dear diary")
    with pytest.raises(UserError, match=r"^notes\.txt is a file"), folder_written_whole(tmp_path / "notes.txt"):
        pass
    assert names(tmp_path) == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "dear diary"


NOBODY = (1 << 31) - 1  # more than any process id


@pytest.mark.parametrize("there", [True, False])
def test_what_a_killed_process_left_is_cleared_away_but_never_the_only_copy(tmp_path, there):
    make_old(tmp_path / f".folder.{NOBODY}.old")
    (tmp_path / f".folder.{NOBODY}.tmp").mkdir()
    (tmp_path / f".folder.{os.getppid()}.tmp").mkdir()
    if there:
        make_old(tmp_path / "folder")
    with pytest.raises(ValueError), folder_written_whole(tmp_path / "folder"):
        raise ValueError
    assert names(tmp_path) == [f".folder.{os.getppid()}.tmp", "folder"]
    assert names(tmp_path / "folder") == ["old.txt"]


def test_hidden_files_of_other_programs_stay(tmp_path):
    others = [".a.txt.20260101123000.tmp", ".a.txt.².tmp", ".a.txt.swp.tmp", ".a.txt.tmp"]
    for name in others:
        (tmp_path / name).touch()
    with written_whole(tmp_path / "a.txt", "w") as file:
        file.write("text")
    assert names(tmp_path) == sorted([*others, "a.txt"])


# ---- reading


def test_what_is_not_a_readable_file(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name, message in (
        ("empty", "empty is empty"),
        ("folder", "folder is a folder; give a file"),
        ("loop", "loop does not exist"),
        ("dangling", "dangling does not exist"),
        ("missing", "missing does not exist"),
        ("empty/inside", "empty/inside does not exist"),
        ("a\0b", "a\0b does not exist"),
    ):
        with pytest.raises(UserError) as caught:
            readable_file(name)
        assert str(caught.value) == message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path):
    (tmp_path / "secret").write_text("text")
    (tmp_path / "secret").chmod(0)
    with pytest.raises(UserError, match=r"^secret can't be read"):
        readable_file("secret")


def test_a_pipe_can_be_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert readable_file("pipe") == Path("pipe")


def test_json_there_and_back(tmp_path):
    value = {"name": "Grüße 😀", "numbers": [1, 2.5, None, True], "nested": {"": {}}}
    write_json(tmp_path / "value.json", value)
    assert read_json(tmp_path / "value.json") == value


@pytest.mark.parametrize(
    "raw",
    [b"{", b"\xff", b'{"a": 1} x', b"[" * 100_000, b'{"a": ' + b"1" * 5000 + b"}", "{}".encode("utf-16")],
    ids=["open", "not-utf8", "trailing", "deep", "long-number", "utf16"],
)
def test_what_is_not_json(tmp_path, raw):
    (tmp_path / "bad.json").write_bytes(raw)
    with pytest.raises(UserError, match=r"^bad\.json is not valid JSON$"):
        read_json("bad.json")


def test_json_that_is_not_an_object(tmp_path):
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(UserError, match=r"^list\.json does not hold a JSON object$"):
        read_json("list.json")


def test_sha256_of_a_file_of_many_blocks(tmp_path):
    raw = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(raw)
    assert sha256_of(tmp_path / "file") == hashlib.sha256(raw).hexdigest()


# ---- where things are


def test_paths_are_shown_relative_to_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert shown(tmp_path / "work" / "a" / "b.txt") == "a/b.txt"
    assert shown("a/b.txt") == "a/b.txt"
    assert shown("../b.txt") == "../b.txt"
    assert shown(tmp_path / "work") == "."
    assert shown(tmp_path / "other") == str(tmp_path / "other")


def test_the_root_is_what_the_environment_says(tmp_path, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setenv("NLM_ROOT", str(tmp_path / "elsewhere"))
    assert project_root() == tmp_path / "elsewhere"


def test_the_root_is_the_nearest_folder_with_checkpoints(tmp_path, monkeypatch):
    monkeypatch.delenv("NLM_ROOT")
    for folder in ("project/checkpoints", "project/book/figures", "project/copy/checkpoints", "project/copy/book"):
        (tmp_path / folder).mkdir(parents=True)
    for here, root in (
        ("project", "project"),
        ("project/book/figures", "project"),
        ("project/copy", "project/copy"),
        ("project/copy/book", "project/copy"),
        ("project/checkpoints", "project"),
    ):
        monkeypatch.chdir(tmp_path / here)
        assert project_root() == tmp_path / root


def test_the_root_is_not_a_run_although_that_has_checkpoints_too(tmp_path, monkeypatch):
    monkeypatch.delenv("NLM_ROOT")
    run = tmp_path / "runs" / "tiny"
    (run / "checkpoints" / "step-00000001").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    for here in (run, run / "checkpoints", run / "checkpoints" / "step-00000001"):
        monkeypatch.chdir(here)
        assert project_root() == tmp_path


@pytest.mark.parametrize("value", [None, ""])
def test_the_root_is_else_the_parent_of_the_package(tmp_path, monkeypatch, value):
    monkeypatch.delenv("NLM_ROOT")
    if value is not None:
        monkeypatch.setenv("NLM_ROOT", value)
    if any((folder / "checkpoints").is_dir() for folder in tmp_path.parents):
        pytest.skip("the folder of temporary files lies within a project")
    assert project_root() == Path(nlm_core.__file__).resolve().parent.parent
