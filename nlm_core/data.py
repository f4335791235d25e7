"""From text files to memory maps of token ids: a corpus is a folder `data/NAME` with its text and what was made of it.

    data/NAME/train/            text files to learn from
    data/NAME/valid/            text files to judge by
    data/NAME/prepared/         train.bin, choose.bin, report.bin (uint16 ids), tokenizer.json, manifest.json

The validation stories are split by a hash of each story: `choose` serves every choice (recipe, stopping), `report` only
the figures that are published.
"""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

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
from nlm_core.text import SEPARATOR, WHITESPACE, blocks, is_for_reporting, stories
from nlm_core.tokenizer import Tokenizer

SPLITS = ("train", "valid")
MAPS = ("train", "choose", "report")


def corpus_folder(name: str) -> Path:
    """Return `data/NAME`.

    Raises:
        UserError: the name is not a plain folder name.
    """
    if not name.isprintable() or name.startswith(".") or name != Path(name).name or not name or "\\" in name:
        raise UserError(f"{name!r} can't be the name of a corpus; use letters, digits and hyphens")
    return project_root() / "data" / name


def corpus_names() -> list[str]:
    """The corpora that have any text, in alphabetical order."""
    folder = project_root() / "data"
    folders = [path.name for path in folder.glob("*/") if not path.name.startswith(".")]
    return sorted(name for name in folders if any(text_files(name, split) for split in SPLITS))


def stories_of(name: str, split: str) -> Iterator[str]:
    """The stories of a corpus' training ("train") or validation ("valid") text, read as they are asked for."""
    for file in text_files(name, split):
        yield from stories(blocks(file))


def the_corpus(name: str | None) -> str:
    """Return the name, or the only corpus there is.

    Raises:
        UserError: no corpus has that name, or no name was given and there is none or more than one.
    """
    names = corpus_names()
    if name is None and len(names) == 1:
        return names[0]
    if not names:
        raise UserError(
            "there is no text yet; bring some with `nlm data add FILE --split train` or `nlm data download`"
        )
    if name is None:
        raise UserError(f"there is more than one corpus; name one of: {', '.join(names)}")
    corpus_folder(name)
    if name not in names:
        raise UserError(f"there is no corpus {name!r}; there are: {', '.join(names)}")
    return name


def text_files(name: str, split: str) -> list[Path]:
    paths = (corpus_folder(name) / split).glob("*")
    return sorted(path for path in paths if path.is_file() and not path.name.startswith("."))


def require_space(folder: Path, needed: int) -> None:
    """Raise a UserError unless the disk that holds `folder` has `needed` bytes free."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(f"{needed / 1e6:,.2f} MB are needed but only {free / 1e6:,.2f} MB are free in {shown(folder)}")


def add(files: list[Path], split: str, name: str) -> list[Path]:
    """Copy text files into a corpus, after checking all of them.

    Raises:
        UserError: a file is missing, empty, not UTF-8, not copyable, or another one of its name is already there.
    """
    if split not in SPLITS:
        raise UserError(f"the split must be one of {', '.join(SPLITS)}, not {split!r}")
    folder = corpus_folder(name) / split
    targets = [folder / Path(file).name for file in files]
    if len(set(targets)) < len(targets):
        raise UserError("two of the files have the same name; rename one of them")
    for file, target in zip(files, targets, strict=True):
        if target.name.startswith(".") or not target.name.isprintable():
            raise UserError(f"the name {target.name!r} is hidden or has unprintable characters in it; rename it")
        if not readable_file(file).is_file():
            raise UserError(f"{shown(file)} is not a file that can be copied; save its text to one first")
        for _ in blocks(file):
            pass
        if target.exists() and sha256_of(target) != sha256_of(file):
            raise UserError(
                f"{shown(target)} is there already, with other text; rename the new file or delete that one"
            )
        other = next(part for part in SPLITS if part != split)
        for twin in text_files(name, other):
            if sha256_of(twin) == sha256_of(file):
                raise UserError(f"{shown(file)} is the same text as {shown(twin)}: a model must not be judged by it")
    require_space(folder, sum(Path(file).stat().st_size for file in files))
    for file, target in zip(files, targets, strict=True):
        if not target.exists():
            with open(file, "rb") as source, written_whole(target) as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
    return targets


class _Map:
    """A growing file of uint16 ids, with what the manifest says of it."""

    def __init__(self, path: Path):
        self.path, self.file = path, open(path, "wb")
        self.tokens = self.text_bytes = self.stories = 0

    def write(self, ids: np.ndarray, text: str) -> None:
        self.file.write(ids.astype("<u2").tobytes())  # not tofile(), which loses a full disk's error
        self.tokens += len(ids)
        self.text_bytes += len(text.encode())

    def close(self) -> dict[str, Any]:
        self.file.close()
        if self.path.stat().st_size != 2 * self.tokens:
            raise UserError(f"{shown(self.path)} was not written whole; is the disk full?")
        return {
            "stories": self.stories,
            "bytes": self.text_bytes,
            "tokens": self.tokens,
            "sha256": sha256_of(self.path),
        }


def _with_progress(files: list[Path], show: bool) -> Iterator[tuple[Path, Any]]:
    size = sum(file.stat().st_size for file in files)
    with tqdm(total=size, unit="B", unit_scale=True, desc="preparing", disable=None if show else True) as bar:
        for file in files:
            yield file, bar


def _prepared_with(folder: Path) -> str | None:
    """The hash of the tokenizer that made a prepared folder; None where its manifest is missing or damaged."""
    try:
        return str(read_json(folder / "manifest.json")["tokenizer"]["sha256"])
    except (UserError, KeyError, TypeError):
        return None


def tokenizer_of(name: str) -> Path | None:
    """The tokenizer.json with which a corpus was prepared, if it was."""
    path = corpus_folder(name) / "prepared" / "tokenizer.json"
    return path if path.exists() else None


def prepare(name: str, tokenizer: Tokenizer, replace: bool = False, progress: bool = False) -> dict[str, Any]:
    """Encode a corpus' text into memory maps and return the manifest.

    Training text streams through in blocks, so memory stays flat however large the files are; validation text is read
    story by story, and text without separators is one story.

    Raises:
        UserError: the corpus has neither training nor validation text, was prepared with another tokenizer (unless
            `replace`), or the disk is too full.
    """
    folder = corpus_folder(name)
    sources = {split: text_files(name, split) for split in SPLITS}
    if not any(sources.values()):
        raise UserError(f"corpus {name!r} has no text; bring some with `nlm data add FILE --split train --name {name}`")
    target = folder / "prepared"
    if target.exists() and not replace:
        before = _prepared_with(target)
        if before is not None and before != tokenizer.sha256:
            raise UserError(
                f"corpus {name!r} was prepared with another tokenizer ({before[:12]}, not {tokenizer.sha256[:12]}); "
                f"give --tokenizer {shown(target / 'tokenizer.json')}, or --replace to encode everything anew"
            )
    every_file = [file for files in sources.values() for file in files]
    require_space(folder, 2 * sum(file.stat().st_size for file in every_file))
    with folder_written_whole(target) as temporary, contextlib.ExitStack() as stack:
        maps = {part: _Map(temporary / f"{part}.bin") for part in MAPS}
        for part in MAPS:
            stack.callback(maps[part].file.close)
        for file, bar in _with_progress(sources["train"], progress):
            begun = False
            for block, ids in tokenizer.encode_blocks(blocks(file)):
                maps["train"].write(ids, block)
                _, separator, rest = block.rpartition(SEPARATOR)
                maps["train"].stories += block.count(SEPARATOR)
                begun = bool(rest.strip(WHITESPACE)) or (begun and not separator)
                bar.update(len(block.encode()))
            maps["train"].stories += begun
        for file, bar in _with_progress(sources["valid"], progress):
            for story in stories(blocks(file)):
                half = maps["report" if is_for_reporting(story) else "choose"]
                half.write(np.array(tokenizer.encode(story), dtype=np.uint16), story)
                half.stories += 1
                bar.update(len(story.encode()))
        tokenizer.save(temporary / "tokenizer.json")
        manifest = {
            "name": name,
            "tokenizer": {"sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size},
            "files": {
                split: [{"name": f.name, "bytes": f.stat().st_size, "sha256": sha256_of(f)} for f in files]
                for split, files in sources.items()
            },
            "maps": {part: maps[part].close() for part in MAPS},
        }
        write_json(temporary / "manifest.json", manifest)
    return manifest


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus.

    Attributes:
        manifest: what it was made from, and with which tokenizer.
        tokenizer: that tokenizer.
        train, choose, report: (N,) uint16 memory maps; empty where the corpus has no such text.
    """

    manifest: dict[str, Any]
    tokenizer: Tokenizer
    train: np.ndarray
    choose: np.ndarray
    report: np.ndarray

    @classmethod
    def open(cls, name: str) -> "Corpus":
        """Open `data/NAME/prepared`.

        Raises:
            UserError: it was never prepared, its text has changed since, or a map is damaged.
        """
        folder = corpus_folder(name) / "prepared"
        again = f"run `nlm data prepare --name {name}`"
        if not folder.exists():
            raise UserError(f"corpus {name!r} is not prepared; {again}")
        try:
            manifest = read_json(folder / "manifest.json")
        except UserError as error:
            raise UserError(f"{error}; {again}") from None
        try:
            tokenizer_sha256 = manifest["tokenizer"]["sha256"]
            for split in SPLITS:
                before = {entry["name"]: entry["sha256"] for entry in manifest["files"][split]}
                now = {file.name: sha256_of(file) for file in text_files(name, split)}
                if now != before:
                    raise UserError(f"the {split} text of corpus {name!r} has changed since it was prepared; {again}")
            maps = {}
            for part in MAPS:
                path = folder / f"{part}.bin"
                if not path.exists() or sha256_of(path) != manifest["maps"][part]["sha256"]:
                    raise UserError(f"{shown(path)} is damaged; {again}")
                empty = manifest["maps"][part]["tokens"] == 0
                maps[part] = np.zeros(0, "<u2") if empty else np.memmap(path, dtype="<u2", mode="r")
            if manifest["name"] != name:
                raise UserError(f"{shown(folder)} belongs to the corpus {manifest['name']!r}; {again}")
        except (KeyError, TypeError):
            raise UserError(f"{shown(folder / 'manifest.json')} is not a manifest; {again}") from None
        tokenizer = Tokenizer.load(readable_file(folder / "tokenizer.json"))
        if tokenizer.sha256 != tokenizer_sha256:
            raise UserError(f"{shown(folder / 'tokenizer.json')} is not the tokenizer of these maps; {again}")
        return cls(manifest, tokenizer, **maps)
