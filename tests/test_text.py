"""Text is cut into pieces, blocks and stories; nothing is lost, and no cut depends on where a block ends."""

import itertools
import random
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nlm_core import text as module
from nlm_core.errors import UserError
from nlm_core.text import SEPARATOR, WHITESPACE, blocks, is_for_reporting, pieces, stories

SNIPPETS = [SEPARATOR, "<|", "|>", "\r\n", "\r", "\n", " ", "\x0b", "\x00", "dog", "naïve", "😀", "\u2028", "字", "—"]
TEXTS = st.lists(st.one_of(st.text(max_size=5), st.sampled_from(SNIPPETS))).map("".join)


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Read bytes through `blocks`, with blocks of a given size."""
    path = tmp_path_factory.mktemp("text") / "text.txt"

    def read(raw: bytes, block_bytes: int = module.BLOCK_BYTES) -> list[str]:
        path.write_bytes(raw)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "BLOCK_BYTES", block_bytes)
            return list(blocks(path))

    return read


# ---- pieces


@given(TEXTS)
def test_pieces_are_the_text_and_alternate_in_kind(text):
    found = pieces(text)
    assert "".join(found) == text
    kinds = ["space" if p in WHITESPACE else "word" if pieces(p + "a") == [p + "a"] else "other" for p in found]
    for kind, following in itertools.pairwise(kinds):
        assert kind == "space" or kind != following


@pytest.mark.parametrize(
    ("character", "kind"),
    [
        *((character, "space") for character in " \t\n\r\x0b\x0c"),
        *((character, "word") for character in "09AZaz\x80\x85\xa0ß\u1fff\u2070字\u3000\ufeff😀\U0010ffff"),
        *((character, "other") for character in "\x00\x1c\x1f!/:@[`{~\x7f\u2000\u2019\u2028\u206f"),
    ],
)
def test_the_class_of_each_border_character(character, kind):
    whole = {"space": ["a", character, "a"], "word": [f"a{character}a"], "other": ["a", character, "a"]}
    assert pieces(f"a{character}a") == whole[kind]
    assert pieces(f"!{character}!") == ([f"!{character}!"] if kind == "other" else ["!", character, "!"])
    assert len(pieces(character * 2)) == (2 if kind == "space" else 1)


# ---- blocks


@given(TEXTS.filter(bool), st.integers(1, 20))
@example("a\r\n\r\n", 2)
def test_blocks_are_the_text_cut_after_whitespace_only(read, text, block_bytes):
    found = read(text.encode(), block_bytes)
    assert "".join(found) == text
    assert all(block[-1] in WHITESPACE for block in found[:-1])
    assert [piece for block in found for piece in pieces(block)] == pieces(text)


@given(st.binary(min_size=1, max_size=30), st.integers(1, 9))
@example(b"fine \xe2\x82", 3)
@example(b"\xff\xfea\x00", 1)
def test_bytes_that_are_not_utf8_are_named_by_their_place(read, raw, block_bytes):
    try:
        expected = raw.decode()
    except UnicodeDecodeError as error:
        with pytest.raises(UserError, match=rf"not UTF-8 text \(near byte {error.start}\)"):
            read(raw, block_bytes)
    else:
        assert "".join(read(raw, block_bytes)) == expected


def test_a_file_without_whitespace_is_refused(read, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_WORD_BYTES", 100)
    assert read(b"a" * 90 + b" ", 16) == ["a" * 90 + " "]
    with pytest.raises(UserError, match="no space or newline"):
        read(b"a" * 200, 16)


def test_missing_empty_and_folder(tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    for name, message in (("none.txt", "does not exist"), ("empty.txt", "is empty"), ("folder", "is a folder")):
        with pytest.raises(UserError, match=f"^{name} {message}"):
            list(blocks(tmp_path / name))


# ---- stories


@given(TEXTS.filter(bool), st.integers(1, 20))
@example(f"one{SEPARATOR}\r\ntwo{SEPARATOR}\r\n", 17)
@example(f"one{SEPARATOR}\n\n", 17)
def test_stories_are_the_text_however_it_is_cut_into_blocks(read, text, block_bytes):
    found = list(stories(read(text.encode(), block_bytes)))
    assert found == list(stories([text]))
    assert "".join(found) == text
    assert len(found) == 1 + len(re.findall(rf"{re.escape(SEPARATOR)}[{WHITESPACE}]*(?=[^{WHITESPACE}])", text))


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r", "", "\n\n", " \n"])
@pytest.mark.parametrize("end", ["", SEPARATOR, "newline"])
def test_each_story_keeps_its_separator_and_the_whitespace_after_it(read, newline, end):
    end = SEPARATOR + newline if end == "newline" else end
    text = f"One dog.{SEPARATOR}{newline}Two dogs.{SEPARATOR}{newline}Three dogs.{end}"
    expected = [f"One dog.{SEPARATOR}{newline}", f"Two dogs.{SEPARATOR}{newline}", f"Three dogs.{end}"]
    for block_bytes in range(1, len(text) + 1):
        assert list(stories(read(text.encode(), block_bytes))) == expected


def test_text_without_separators_is_one_story(read):
    assert list(stories(read(b"Once upon a time.\nThe end.\n", 4))) == ["Once upon a time.\nThe end.\n"]


def test_the_halves_depend_on_the_words_alone(stories_file):
    found = list(stories(blocks(stories_file)))
    reported = [is_for_reporting(story) for story in found]
    assert 0.4 < sum(reported) / len(found) < 0.6

    random.Random(0).shuffle(found)
    assert sorted(reported) == sorted(map(is_for_reporting, found))
    for story in found[:50]:
        words = story.removesuffix(f"{SEPARATOR}\n").split()
        half = is_for_reporting(story)
        assert {is_for_reporting(joint.join(words)) for joint in (" ", "\n\n", "\r\n")} == {half}
        assert is_for_reporting("  " + " ".join(words) + f"\r\n{SEPARATOR}") == half


def test_the_halves_never_change():
    # A story that moved to the other half would have served both for choosing and for reporting.
    names = ("Tom", "Lily", "Max", "Anna", "Ben", "Mia")
    assert [name for name in names if is_for_reporting(f"{name} ran.")] == ["Tom", "Ben"]
