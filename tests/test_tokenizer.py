"""Text to ids and back without loss; the ids can be explained, and the `tokenizers` library agrees with them."""

import copy
import json
import os
import subprocess
import sys

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from nlm_core import text as text_module
from nlm_core.errors import UserError
from nlm_core.text import PIECE, SEPARATOR, pieces
from nlm_core.tokenizer import PATTERN, Tokenizer

SNIPPETS = [SEPARATOR, "<|", "\r\n", "\r", "\n", " ", "\x0b", "\x00", " the dog", "naïve", "😀", "\u2028", "字", "—"]
TEXTS = st.lists(st.one_of(st.text(max_size=5), st.sampled_from(SNIPPETS))).map("".join)


@pytest.fixture(scope="module")
def full(stories_file) -> Tokenizer:
    return Tokenizer.train([stories_file], vocab_size=4096)


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(path)
    return path


# ---- there and back


@given(TEXTS)
def test_round_trip(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode_bytes(ids) == text.encode()


def test_round_trip_of_every_character(tokenizer):
    for plane in (0, 1, 2, 3, 14, 16):  # the others have no characters, or only private ones
        text = "".join(chr(code) for code in range(plane << 16, (plane + 1) << 16) if not 0xD800 <= code <= 0xDFFF)
        assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()


@pytest.mark.parametrize("text", ["", "e" * 10_000, "\x00" * 10_000, " " * 10_000, SEPARATOR * 1000, "\r\n" * 1000])
def test_round_trip_of_repetition(full, text):
    assert full.decode(full.encode(text)) == text


@given(st.text(), st.characters(categories=["Cs"]), st.text())
def test_a_lone_surrogate_is_named(tokenizer, before, surrogate, after):
    with pytest.raises(UserError, match=rf"^character {len(before)} is a lone surrogate \(U\+{ord(surrogate):04X}\)"):
        tokenizer.encode(before + surrogate + after)


def test_bytes_that_are_not_whole_characters_decode_to_the_replacement_character(tokenizer):
    assert tokenizer.decode([0x61, 0xC3, 0x62]) == "a\ufffdb"
    assert tokenizer.decode_bytes([0x61, 0xC3, 0x62]) == b"a\xc3b"


@pytest.mark.parametrize("token", [-1, 512, 10**9])
def test_ids_outside_the_vocabulary_are_named(tokenizer, token):
    with pytest.raises(UserError, match=rf"token id {token} is outside the vocabulary of 512 \(0 to 511\)"):
        tokenizer.decode([65, token])


# ---- what the ids mean


def test_the_first_ids_are_the_bytes_and_merges_follow_in_rank_order(full):
    assert full.vocab_size == len(full.token_bytes) == 4096
    assert full.token_bytes[:256] == [bytes([byte]) for byte in range(256)]
    joined = [left + right for left, right in full.merges]
    assert list(dict.fromkeys(joined)) == full.token_bytes[256:]
    for rank, pair in enumerate(full.merges):
        assert all(part in full.token_bytes[: 256 + rank] for part in pair)


def test_no_token_crosses_a_piece_and_none_is_special(full, stories_file):
    assert all(len(token) == 1 for token in full.token_bytes if set(token) & set(b" \t\n\r\x0b\x0c"))
    assert full._library.get_added_tokens_decoder() == {}
    text = stories_file.read_text()[:20_000]
    assert full.encode(text) == [token for piece in pieces(text) for token in full.encode(piece)]


def test_words_of_the_posts_and_the_separator(full):
    for text, most in ((" dog", 1), (" man", 1), (" bites", 2)):
        space, *parts = full.encode(text)
        assert space == 32
        assert len(parts) <= most
        assert full.decode(parts) == text[1:]
    assert [full.token_bytes[token] for token in full.encode(SEPARATOR)] == [b"<|", b"endoftext", b"|>"]


def classes_of(characters: str) -> str:
    """A text in which it matters for each character which class it belongs to."""
    return "".join(f"a{character}a!{character}! " for character in characters)


@given(TEXTS)
@example(classes_of("".join(map(chr, range(0x3000)))))
@example(classes_of("\ud7ff\ue000\uffff\U00010000\U0010ffff"))
def test_our_regular_expression_is_the_librarys(text):
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated").pre_tokenize_str(text)
    assert [(piece, start) for piece, (start, _) in split] == [(m.group(), m.start()) for m in PIECE.finditer(text)]


# ---- training


def test_training_does_not_depend_on_threads(stories_file, full, tmp_path):
    full.save(tmp_path / "all.json")
    program = "import sys; from nlm_core import Tokenizer; Tokenizer.train(sys.argv[1:2], 4096).save(sys.argv[2])"
    command = [sys.executable, "-c", program, str(stories_file), str(tmp_path / "one.json")]
    one_thread = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    subprocess.run(command, env=os.environ | one_thread, check=True)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "all.json").read_bytes()


def test_training_on_two_files_is_training_on_both_texts(stories_file, tmp_path):
    text = stories_file.read_text()
    half = text.index(SEPARATOR, len(text) // 2)
    (tmp_path / "a.txt").write_text(text[:half] + "\n")
    (tmp_path / "b.txt").write_text("\n" + text[half:])
    (tmp_path / "ab.txt").write_text(text[:half] + "\n\n" + text[half:])
    both = Tokenizer.train([tmp_path / "a.txt", tmp_path / "b.txt"], 600)
    assert both.merges == Tokenizer.train([tmp_path / "ab.txt"], 600).merges


@pytest.mark.parametrize("size", [-1, 0, 255, 65_537])
def test_vocabulary_sizes_that_are_not_allowed(stories_file, size):
    with pytest.raises(UserError, match=rf"vocabulary size {size:,} is not allowed: give 256 .* to 65,536"):
        Tokenizer.train([stories_file], size)


def test_the_smallest_vocabulary_is_the_bytes(stories_file):
    tokenizer = Tokenizer.train([stories_file], 256)
    assert tokenizer.merges == []
    assert tokenizer.encode("naïve dog") == list("naïve dog".encode())


def test_a_text_too_small_for_the_vocabulary_says_how_far_it_goes(tmp_path):
    (tmp_path / "small.txt").write_text("abab abab")
    with pytest.raises(UserError, match="allows a vocabulary of 258 only"):
        Tokenizer.train([tmp_path / "small.txt"], 300)
    assert Tokenizer.train([tmp_path / "small.txt"], 258).merges == [(b"a", b"b"), (b"ab", b"ab")]


# ---- files of text


def test_a_file_is_encoded_as_its_whole_text_whatever_the_block(tokenizer, stories_file, tmp_path, monkeypatch):
    text = stories_file.read_text()[:3000] + "Ein größeres Tier\r\n😀字\r\n\x00"
    (tmp_path / "text.txt").write_bytes(text.encode())
    for block_bytes in (1, 7, 100, 1 << 18):
        monkeypatch.setattr(text_module, "BLOCK_BYTES", block_bytes)
        arrays = [ids for _, ids in tokenizer.encode_blocks(text_module.blocks(tmp_path / "text.txt"))]
        assert {array.dtype.str for array in arrays} == {"<u2"}
        assert [token for array in arrays for token in array.tolist()] == tokenizer.encode(text)


def test_encoding_a_missing_file(tokenizer, tmp_path):
    with pytest.raises(UserError, match=r"none\.txt does not exist"):
        next(tokenizer.encode_blocks(text_module.blocks(tmp_path / "none.txt")))


# ---- the file of a tokenizer


def test_saving_and_loading(tokenizer, saved, tmp_path):
    again = Tokenizer.load(saved)
    assert (again.token_bytes, again.merges, again.sha256) == (
        tokenizer.token_bytes,
        tokenizer.merges,
        tokenizer.sha256,
    )
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == saved.read_bytes()


@given(TEXTS)
def test_the_library_reads_the_saved_file_and_agrees(tokenizer, saved, text):
    library = tokenizers.Tokenizer.from_file(str(saved))
    ids = library.encode(text).ids
    assert ids == tokenizer.encode(text)
    assert library.decode(ids) == text


def test_two_merges_that_spell_one_token_share_its_id():
    tokenizer = Tokenizer([("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")])
    assert tokenizer.token_bytes[256:] == [b"ab", b"bc", b"abc"]
    assert tokenizer.decode(tokenizer.encode("abc bc ab")) == "abc bc ab"


def test_the_hash_is_that_of_the_merges(tokenizer, stories_file):
    assert Tokenizer.train([stories_file], 512).sha256 == tokenizer.sha256
    assert Tokenizer.train([stories_file], 511).sha256 != tokenizer.sha256


def changed(content, *path_and_value):
    content = copy.deepcopy(content)
    *path, last, value = path_and_value
    place = content
    for key in path:
        place = place[key]
    place[last] = value
    return content


@pytest.mark.parametrize(
    "change",
    [
        ("model", "merges", 0, ["zz", "a"]),
        ("model", "merges", 0, ["", ""]),
        ("model", "merges", 0, ["字", "a"]),
        ("model", "merges", 0, ["\ud800", "a"]),
        ("model", "merges", 0, ["a"]),
        ("model", "merges", 0, [1, 2]),
        ("model", "merges", []),
        ("model", "merges", 5),
        ("model", "vocab", "a", 7),
        ("model", "type", "WordPiece"),
        ("model", None),
        ("added_tokens", [{"id": 512, "content": SEPARATOR, "special": True}]),
        ("pre_tokenizer", None),
        ("normalizer", {"type": "NFC"}),
    ],
)
def test_a_changed_file_is_refused(saved, tmp_path, change):
    content = changed(json.loads(saved.read_text()), *change)
    (tmp_path / "changed.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"^changed\.json is not an nlm tokenizer, or is damaged"):
        Tokenizer.load(tmp_path / "changed.json")


def test_a_tokenizer_of_another_kind_is_refused(tmp_path):
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "foreign.json"))
    with pytest.raises(UserError, match=r"^foreign\.json is not an nlm tokenizer"):
        Tokenizer.load(tmp_path / "foreign.json")


@pytest.mark.parametrize("length", [0, 1, 100, -2])
def test_a_truncated_file_is_refused(saved, tmp_path, length):
    (tmp_path / "cut.json").write_bytes(saved.read_bytes()[:length])
    with pytest.raises(UserError, match=r"^cut\.json"):
        Tokenizer.load(tmp_path / "cut.json")


def test_saving_leaves_nothing_behind_when_it_fails(tokenizer, saved, tmp_path, monkeypatch):
    target = tmp_path / "tokenizer.json"
    target.write_text("old")

    class Broken:
        def to_str(self, pretty):
            raise OSError("the disk is full")

    broken = copy.copy(tokenizer)
    monkeypatch.setattr(broken, "_library", Broken())
    with pytest.raises(OSError, match="the disk is full"):
        broken.save(target)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    assert target.read_text() == "old"
