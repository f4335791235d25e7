"""Text comes in whole or not at all, and the memory maps hold exactly what the manifest says of them."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from nlm_core import data, text
from nlm_core.data import Corpus, add, corpus_folder, corpus_names, prepare, the_corpus
from nlm_core.errors import UserError
from nlm_core.text import SEPARATOR, blocks, is_for_reporting, stories
from nlm_core.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def other(stories_file) -> Tokenizer:
    return Tokenizer.train([stories_file], vocab_size=300)


@pytest.fixture
def parts(tmp_path, stories_file) -> tuple[Path, Path]:
    """Two files of text, of 20 and 30 stories."""
    found = list(stories(blocks(stories_file)))[:50]
    paths = (tmp_path / "in" / "a.txt", tmp_path / "in" / "b.txt")
    paths[0].parent.mkdir()
    for path, some in zip(paths, (found[:20], found[20:]), strict=True):
        path.write_text("Ein größerer Hund 😀. " + "".join(some))
    return paths


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- names


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/a", "a/", "../a", "a\\b"])
def test_names_that_are_not_plain(name):
    with pytest.raises(UserError, match="can't be the name of a corpus"):
        corpus_folder(name)


@pytest.mark.parametrize("name", ["mine", "TinyStories-2", "Märchen", "a.b", "with space"])
def test_names_that_are_plain(own_root, name):
    assert corpus_folder(name) == own_root / "data" / name


def test_which_corpus_is_meant(own_root, parts):
    with pytest.raises(UserError, match="there is no text yet; bring some with `nlm data add"):
        the_corpus(None)
    add([parts[0]], "train", "one")
    (own_root / "data" / "stories.txt").write_text("not a corpus")
    (own_root / "data" / "empty").mkdir()
    assert the_corpus(None) == the_corpus("one") == "one"
    with pytest.raises(UserError, match="there is no corpus 'two'; there are: one"):
        the_corpus("two")
    add([parts[0]], "valid", "two")
    assert corpus_names() == ["one", "two"]
    assert the_corpus("two") == "two"
    with pytest.raises(UserError, match="more than one corpus; name one of: one, two"):
        the_corpus(None)


# ---- add


def test_adding_copies_the_text(own_root, parts):
    targets = add(list(parts), "train", "mine")
    assert targets == [own_root / "data" / "mine" / "train" / name for name in ("a.txt", "b.txt")]
    assert [target.read_bytes() for target in targets] == [part.read_bytes() for part in parts]
    assert add(list(parts), "train", "mine") == targets


def test_nothing_is_added_if_one_file_is_bad(own_root, parts):
    (own_root / "in" / "bad.txt").write_bytes(b"caf\xe9")
    for bad in ("bad.txt", "none.txt", "."):
        with pytest.raises(UserError):
            add([parts[0], own_root / "in" / bad], "train", "mine")
    assert not (own_root / "data").exists()


def test_another_text_of_the_same_name_is_refused(own_root, parts):
    add([parts[0]], "train", "mine")
    before = snapshot(own_root / "data")
    (own_root / "again").mkdir()
    (own_root / "again" / "a.txt").write_text("Another text.")
    with pytest.raises(UserError, match=r"^data/mine/train/a\.txt is there already, with other text; rename"):
        add([parts[1], own_root / "again" / "a.txt"], "train", "mine")
    assert snapshot(own_root / "data") == before
    with pytest.raises(UserError, match="two of the files have the same name"):
        add([parts[0], own_root / "again" / "a.txt"], "valid", "mine")


def test_what_can_not_be_copied_is_refused(own_root, parts):
    (own_root / "in" / ".hidden.txt").write_text("Once.")
    undecodable = Path(str(own_root / "in" / "M") + "\udce4rchen.txt")
    undecodable.write_text("Once.")
    for file, message in (
        (Path("/dev/null"), "^/dev/null is not a file that can be copied"),
        (own_root / "in" / ".hidden.txt", r"rename it"),
        (undecodable, r"rename it"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            add([file], "train", "mine")
        str(caught.value).encode()
    assert not (own_root / "data").exists()


def test_an_unknown_split(parts):
    with pytest.raises(UserError, match="must be one of train, valid, not 'test'"):
        add([parts[0]], "test", "mine")


def fill_disk(monkeypatch, free: int) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12 - free, free))


def test_a_full_disk_is_noticed_before_anything_is_written(own_root, parts, tokenizer, monkeypatch):
    fill_disk(monkeypatch, parts[0].stat().st_size - 1)
    with pytest.raises(UserError, match=r"MB are needed but only .* MB are free"):
        add([parts[0]], "train", "mine")
    assert not (own_root / "data").exists()
    fill_disk(monkeypatch, parts[0].stat().st_size)
    add([parts[0]], "train", "mine")
    with pytest.raises(UserError, match=r"MB are needed but only .* MB are free"):
        prepare("mine", tokenizer)
    assert [path.name for path in (own_root / "data" / "mine").iterdir()] == ["train"]


# ---- prepare


@pytest.mark.parametrize("block_bytes", [50, 1 << 18])
def test_the_manifest_says_what_is_in_the_maps(own_root, parts, tokenizer, monkeypatch, block_bytes):
    monkeypatch.setattr(text, "BLOCK_BYTES", block_bytes)
    add([parts[0]], "train", "mine")
    add([parts[1]], "valid", "mine")
    manifest = prepare("mine", tokenizer)
    folder = own_root / "data" / "mine" / "prepared"
    assert json.loads((folder / "manifest.json").read_text()) == manifest
    assert manifest["name"] == "mine"
    assert manifest["tokenizer"] == {"sha256": tokenizer.sha256, "vocab_size": 512}

    valid = list(stories([parts[1].read_text()]))
    halves = {
        "train": [parts[0].read_text()],
        "choose": [story for story in valid if not is_for_reporting(story)],
        "report": [story for story in valid if is_for_reporting(story)],
    }
    corpus = Corpus.open("mine")
    for part, found in halves.items():
        raw = (folder / f"{part}.bin").read_bytes()
        ids = getattr(corpus, part)
        assert ids.dtype == np.uint16
        assert tokenizer.decode(ids) == "".join(found)
        assert ids.tolist() == tokenizer.encode("".join(found))
        assert manifest["maps"][part] == {
            "stories": 20 if part == "train" else len(found),
            "bytes": len("".join(found).encode()),
            "tokens": len(ids),
            "sha256": hashlib.sha256(raw).hexdigest(),
        }
    assert len(halves["choose"]) and len(halves["report"])
    for split, part in zip(("train", "valid"), parts, strict=True):
        raw = part.read_bytes()
        entry = {"name": part.name, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        assert manifest["files"][split] == [entry]
    assert corpus.tokenizer.sha256 == tokenizer.sha256


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        (f"One.{SEPARATOR}\nTwo.{SEPARATOR}\n", 2),
        (f"One.{SEPARATOR}\r\nTwo.{SEPARATOR}\r\n\r\n\n", 2),
        (f"One.{SEPARATOR}\nTwo.", 2),
        (f"One.{SEPARATOR}", 1),
        ("One.\nStill one.\n", 1),
    ],
)
def test_stories_are_counted_alike_in_every_split(tmp_path, tokenizer, monkeypatch, raw, count):
    for split, more in (("train", b""), ("valid", b"\n")):  # the same text in both would be refused
        (tmp_path / "text.txt").write_bytes(raw.encode() + more)
        add([tmp_path / "text.txt"], split, "mine")
    for block_bytes in (1, 4, 13, 19, 20, 37, 1000):
        monkeypatch.setattr(text, "BLOCK_BYTES", block_bytes)
        maps = prepare("mine", tokenizer)["maps"]
        assert maps["train"]["stories"] == maps["choose"]["stories"] + maps["report"]["stories"] == count


def test_several_files_follow_each_other_in_the_order_of_their_names(own_root, parts, tokenizer):
    add([parts[1], parts[0]], "train", "mine")
    manifest = prepare("mine", tokenizer)
    assert tokenizer.decode(Corpus.open("mine").train) == parts[0].read_text() + parts[1].read_text()
    assert [entry["name"] for entry in manifest["files"]["train"]] == ["a.txt", "b.txt"]


def test_preparing_twice_gives_the_same_bytes(own_root, parts, tokenizer):
    add([parts[0]], "train", "mine")
    prepare("mine", tokenizer)
    before = snapshot(own_root / "data")
    prepare("mine", tokenizer)
    assert snapshot(own_root / "data") == before


def test_a_corpus_may_lack_a_split(parts, tokenizer):
    add([parts[0]], "train", "mine")
    prepare("mine", tokenizer)
    corpus = Corpus.open("mine")
    assert len(corpus.train) > 0
    assert corpus.choose.shape == corpus.report.shape == (0,)


def test_without_text_there_is_nothing_to_prepare(tokenizer):
    with pytest.raises(UserError, match="corpus 'mine' has no text; bring some with `nlm data add"):
        prepare("mine", tokenizer)


def test_another_tokenizer_needs_replace(own_root, parts, tokenizer, other):
    add([parts[0]], "train", "mine")
    prepare("mine", tokenizer)
    before = snapshot(own_root / "data")
    with pytest.raises(UserError, match=r"prepared with another tokenizer .*data/mine/prepared/tokenizer\.json.*--rep"):
        prepare("mine", other)
    assert snapshot(own_root / "data") == before
    assert prepare("mine", other, replace=True)["tokenizer"]["sha256"] == other.sha256
    assert Corpus.open("mine").tokenizer.sha256 == other.sha256


def test_failing_half_way_leaves_what_was_prepared_before(own_root, parts, tokenizer):
    add(list(parts), "train", "mine")
    prepare("mine", tokenizer)
    prepared = own_root / "data" / "mine" / "prepared"
    before = snapshot(prepared)
    with open(own_root / "data" / "mine" / "train" / "b.txt", "ab") as file:
        file.write(b"\xff")
    with pytest.raises(UserError, match=r"^data/mine/train/b\.txt is not UTF-8"):
        prepare("mine", tokenizer)
    assert snapshot(prepared) == before
    assert sorted(path.name for path in prepared.parent.iterdir()) == ["prepared", "train"]


@pytest.mark.parametrize("manifest", [None, "", "{}", '{"tokenizer": {"sha": 5}}', '{"tokenizer": []}', "[]"])
def test_a_damaged_manifest_is_mended_as_the_message_says(own_root, parts, tokenizer, manifest):
    add([parts[0]], "train", "mine")
    prepare("mine", tokenizer)
    path = own_root / "data" / "mine" / "prepared" / "manifest.json"
    path.unlink()
    if manifest is not None:
        path.write_text(manifest)
    with pytest.raises(UserError, match="run `nlm data prepare --name mine`"):
        Corpus.open("mine")
    prepare("mine", tokenizer)
    assert len(Corpus.open("mine").train) > 0


# ---- open


def test_opening_what_was_not_prepared(parts):
    add([parts[0]], "train", "mine")
    with pytest.raises(UserError, match="corpus 'mine' is not prepared; run `nlm data prepare --name mine`"):
        Corpus.open("mine")


def test_text_that_changed_is_noticed(own_root, parts, tokenizer):
    add([parts[0]], "train", "mine")
    prepare("mine", tokenizer)
    add([parts[1]], "valid", "mine")
    with pytest.raises(UserError, match="the valid text of corpus 'mine' has changed since it was prepared"):
        Corpus.open("mine")
    prepare("mine", tokenizer)
    (own_root / "data" / "mine" / "train" / "a.txt").write_text("Shorter.")
    with pytest.raises(UserError, match="the train text of corpus 'mine' has changed since it was prepared"):
        Corpus.open("mine")


@pytest.mark.parametrize("part", data.MAPS)
def test_a_damaged_map_is_named(own_root, parts, tokenizer, part):
    add([parts[0]], "train", "mine")
    add([parts[1]], "valid", "mine")
    prepare("mine", tokenizer)
    path = own_root / "data" / "mine" / "prepared" / f"{part}.bin"
    raw = path.read_bytes()
    flipped = bytes([raw[0] ^ 1]) + raw[1:]
    for damaged in (flipped, raw[:-2], raw[:-1], b"", None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        with pytest.raises(UserError, match=rf"^data/mine/prepared/{part}\.bin is damaged; run"):
            Corpus.open("mine")
        path.write_bytes(raw)
    assert len(getattr(Corpus.open("mine"), part)) == len(raw) // 2


def test_a_manifest_without_its_tokenizer(own_root, parts, tokenizer, other):
    add([parts[0]], "train", "mine")
    prepare("mine", tokenizer)
    folder = own_root / "data" / "mine" / "prepared"
    other.save(folder / "tokenizer.json")
    with pytest.raises(UserError, match=r"tokenizer\.json is not the tokenizer of these maps"):
        Corpus.open("mine")
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["tokenizer"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"manifest\.json is not a manifest"):
        Corpus.open("mine")


def test_a_map_that_was_not_written_whole_is_noticed(own_root, parts, tokenizer):
    """As when the disk fills up in the middle: here by a limit on the size of files, in a process of its own."""
    add([parts[0]], "valid", "mine")
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "from nlm_core.data import prepare; from nlm_core.tokenizer import Tokenizer; prepare('mine', Tokenizer([]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "File too large" in done.stderr
    assert not (own_root / "data" / "mine" / "prepared").exists()


def test_a_changed_text_of_the_same_length_is_noticed(own_root, parts, tokenizer):
    (target,) = add([parts[0]], "train", "mine")
    prepare("mine", tokenizer)
    target.write_bytes(target.read_bytes().replace(b"the", b"xyz"))
    with pytest.raises(UserError, match="has changed since it was prepared"):
        Corpus.open("mine")


def test_a_linked_folder_stays_a_link(own_root, parts, tokenizer):
    add([parts[0]], "train", "mine")
    elsewhere = own_root / "elsewhere"
    elsewhere.mkdir()
    (own_root / "data" / "mine" / "prepared").symlink_to(elsewhere)
    for _ in range(2):
        prepare("mine", tokenizer)
    assert (own_root / "data" / "mine" / "prepared").is_symlink()
    assert len(Corpus.open("mine").train) > 0


def test_a_pipe_among_the_texts_is_left_alone(own_root, parts, tokenizer):
    add([parts[0]], "train", "mine")
    os.mkfifo(own_root / "data" / "mine" / "train" / "pipe")
    assert [entry["name"] for entry in prepare("mine", tokenizer)["files"]["train"]] == [parts[0].name]
