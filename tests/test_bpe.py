"""The tokenizer from scratch does what a hand does on a few words, and what the library does on the stories."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nlm_core.bpe import BPE, joined
from nlm_core.errors import UserError
from nlm_core.tokenizer import BYTE_CHARACTERS, Tokenizer

LATE_BYTES = {*range(33), *range(127, 161), 173}


@pytest.fixture(scope="module")
def text(stories_file: Path) -> str:
    return stories_file.read_bytes().decode()


@pytest.fixture(scope="module")
def own(text: str) -> BPE:
    return BPE.train(text, 4096)


@pytest.fixture(scope="module")
def library(stories_file: Path) -> Tokenizer:
    return Tokenizer.train([stories_file], 4096)


def test_worked_by_hand() -> None:
    # hug 3 times, hugs once, pug twice: u-g 6 times; then h-ug 4, p-ug 2; then p-ug 2, hug-s 1.
    bpe = BPE.train("hug pug hugs hug pug hug", 259)
    assert bpe.merges == [(b"u", b"g"), (b"h", b"ug"), (b"p", b"ug")]
    assert bpe.encode("hugs pugs") == [257, 115, 32, 258, 115]
    assert bpe.encode("gush") == [103, 117, 115, 104]
    assert bpe.decode([257, 115, 32, 258]) == "hugs pug"


def test_no_pair_reaches_across_pieces() -> None:
    with pytest.raises(UserError, match="vocabulary of 257 only"):
        BPE.train("ab, ab, ab,", 258)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("zb ya", (b"y", b"a")),  # the smallest left id, although zb comes first
        ("yb ya", (b"y", b"a")),  # the same left id: the smallest right id
        ("ya zb zb", (b"z", b"b")),  # the count comes before both
        ("ab cd. ab. cd", (b"a", b"b")),
    ],
)
def test_ties(text: str, first: tuple[bytes, bytes]) -> None:
    assert BPE.train(text, 257).merges == [first]


def test_ties_go_by_id_not_by_spelling() -> None:
    # After zz (twice the count of others), "zz-a" (256, 97) and "b-c" (98, 99) occur once each: 98 is the smaller id.
    assert BPE.train("zza zz bc", 258).merges == [(b"z", b"z"), (b"b", b"c")]


def test_overlaps_are_joined_from_the_left() -> None:
    assert joined([97] * 5, (97, 97), 256) == [256, 256, 97]
    # aaaaa holds (a, a) four times; afterwards (aa, aa) and (aa, a) occur once: a is the smaller right id.
    assert BPE.train("aaaaa", 258).merges == [(b"a", b"a"), (b"aa", b"a")]


def test_counts_survive_changes_to_the_same_word() -> None:
    # Every merge touches the same words, so a count that went stale would show.
    bpe = BPE.train("banana bananas nab", 262)
    recounted = BPE()
    while recounted.vocab_size < 262:
        counts: dict[tuple[int, int], int] = {}
        for word in ("banana", "bananas", "nab"):
            ids = recounted.encode(word)
            for pair in pairwise(ids):
                counts[pair] = counts.get(pair, 0) + 1
        left, right = min(counts, key=lambda pair: (-counts[pair], pair))
        recounted = BPE([*recounted.merges, (recounted.token_bytes[left], recounted.token_bytes[right])])
    assert bpe.merges == recounted.merges


def test_merges_equal_the_librarys(own: BPE, library: Tokenizer) -> None:
    assert len(own.merges) == 3840
    assert own.merges == library.merges
    assert own.token_bytes == library.token_bytes
    assert own.vocab_size == library.vocab_size == 4096


def test_ids_equal_the_librarys_on_the_stories(own: BPE, library: Tokenizer, text: str) -> None:
    ids = own.encode(text)
    assert ids == library.encode(text)
    assert own.decode(ids) == text


@settings(max_examples=200)
@given(st.one_of(st.text(), st.text(alphabet="abeghnorst' .,\n\"“é<|>")))
def test_ids_equal_the_librarys_on_any_text(own: BPE, library: Tokenizer, text: str) -> None:
    ids = own.encode(text)
    assert ids == library.encode(text)
    assert own.decode(ids) == text


def test_merges_equal_the_librarys_on_any_printable_ascii(own_root: Path) -> None:
    file = own_root / "text.txt"

    @settings(max_examples=100)
    @given(st.text(alphabet=st.one_of(st.sampled_from("ab "), st.characters(max_codepoint=126)), min_size=5))
    def check(text: str) -> None:
        text = "".join(c for c in text if c.isprintable() or c in "\t\n\r") + "aab"
        file.write_bytes(text.encode())
        assert BPE.train(text, 258).merges == Tokenizer.train([file], 258).merges

    check()


def test_the_librarys_order_of_bytes_is_as_the_docstring_says() -> None:
    in_its_order = sorted(range(256), key=lambda byte: ord(BYTE_CHARACTERS[byte]))
    assert in_its_order == sorted(range(256), key=lambda byte: (byte in LATE_BYTES, byte))


def test_a_tie_beyond_ascii_goes_the_other_way_in_the_library(own_root: Path) -> None:
    file = own_root / "quote.txt"
    file.write_bytes("“".encode())  # 226, 128, 156: two pairs, once each
    assert BPE.train("“", 257).merges == [(b"\x80", b"\x9c")]
    assert Tokenizer.train([file], 257).merges == [(b"\xe2", b"\x80")]


def test_two_merges_that_spell_the_same_share_an_id() -> None:
    merges = [(b"b", b"c"), (b"a", b"bc"), (b"a", b"b"), (b"ab", b"c"), (b"c", b"d")]
    own = BPE(merges)
    library = Tokenizer([tuple("".join(BYTE_CHARACTERS[b] for b in part) for part in pair) for pair in merges])
    assert own.token_bytes == library.token_bytes
    assert own.vocab_size == 256 + 4
    for text in ("abc", "abcd", "ab", "aabcc"):
        assert own.encode(text) == library.encode(text)


def test_decoding_half_a_character() -> None:
    bpe = BPE()
    assert bpe.decode_bytes([0xC3]) == b"\xc3"
    assert bpe.decode([65, 0xC3]) == "A\ufffd"
    assert bpe.encode("") == []
    assert bpe.decode([]) == ""


def test_the_smallest_vocabulary_has_no_merges() -> None:
    assert BPE.train("a dog", 256).merges == []


@pytest.mark.parametrize(
    ("text", "vocab_size", "message"),
    [
        ("a dog", 255, "vocabulary size 255 is not allowed: give 256"),
        ("", 256, "the text is empty"),
        ("ab", 258, "allows a vocabulary of 257 only; ask for that many or fewer instead of 258"),
        (" \n ", 257, "allows a vocabulary of 256 only"),
        ("a \ud800", 257, "lone surrogate"),
    ],
)
def test_bad_input_to_train(text: str, vocab_size: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        BPE.train(text, vocab_size)


def test_bad_input_to_encode_and_decode() -> None:
    with pytest.raises(UserError, match="lone surrogate"):
        BPE().encode("\udfff")
    for token in (-1, 256):
        with pytest.raises(UserError, match=f"token id {token} is outside the vocabulary of 256"):
            BPE().decode([token])
