"""How raw text is read and cut: into blocks, into stories, and into the pieces that no token ever crosses."""

import codecs
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from nlm_core.errors import UserError
from nlm_core.files import readable_file, shown

SEPARATOR = "<|endoftext|>"

# Explicit code points, since \s and \p{L} differ between regular-expression engines and Unicode versions.
WHITESPACE = " \t\n\r\x0b\x0c"
_WORD = "0-9A-Za-z\x80-\u1fff\u2070-\U0010ffff"
PIECE = re.compile(f"(?P<space>[{WHITESPACE}])|(?P<word>[{_WORD}]+)|(?P<other>[^{WHITESPACE}{_WORD}]+)")

BLOCK_BYTES = 1 << 16
LONGEST_WORD_BYTES = 16 << 20


def pieces(text: str) -> list[str]:
    """Cut text into single whitespace characters, runs of word characters, and runs of anything else.

    >>> pieces('A dog, "so big".')
    ['A', ' ', 'dog', ',', ' ', '"', 'so', ' ', 'big', '".']
    """
    return [match.group() for match in PIECE.finditer(text)]


def blocks(path: str | Path) -> Iterator[str]:
    """Yield a UTF-8 file's text in blocks of about 64 KiB, each cut after a whitespace character.

    Since whitespace characters are pieces of their own, the blocks' tokens are the whole text's tokens.

    Raises:
        UserError: the file is missing, empty, not UTF-8, or has a "word" of more than 16 MiB.
    """
    path = readable_file(path)
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest = ""
    done = 0
    with open(path, "rb") as file:
        while True:
            raw = file.read(BLOCK_BYTES)
            try:
                rest += decoder.decode(raw, final=not raw)
            except UnicodeDecodeError as error:
                offset = max(0, done + error.start - (len(error.object) - len(raw)))
                raise UserError(f"{shown(path)} is not UTF-8 text (near byte {offset:,}); convert it first") from None
            done += len(raw)
            if not raw:
                break
            cut = max(rest.rfind(character) for character in WHITESPACE) + 1
            if cut:
                yield rest[:cut]
                rest = rest[cut:]
            elif len(rest) > LONGEST_WORD_BYTES:
                raise UserError(f"{shown(path)} has no space or newline in 16 MiB: is it text?")
    if rest:
        yield rest


def stories(text_blocks: Iterable[str]) -> Iterator[str]:
    """Yield the stories of a text, each with its separator and the whitespace after it.

    The stories joined are the text. Text without any separator is one story. A separator has no whitespace in it, so no
    block of `blocks` ends inside one; but the whitespace after it may go on in the next block.
    """
    story: list[str] = []
    ended = False
    for block in text_blocks:
        *bodies, rest = block.split(SEPARATOR)
        for segment in [*(body + SEPARATOR for body in bodies), rest]:
            begins = segment.lstrip(WHITESPACE)
            if ended and begins:
                yield "".join(story) + segment[: len(segment) - len(begins)]
                story, segment, ended = [], begins, False
            story.append(segment)
            ended = ended or segment.endswith(SEPARATOR)
    if last := "".join(story):
        yield last


def is_for_reporting(story: str) -> bool:
    """Whether a validation story belongs to the half that reports; the other half is for choices.

    The half follows from a hash of the story's words alone, so it does not depend on the file or its order.
    """
    words = " ".join(story.replace(SEPARATOR, " ").split())
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).digest()[0] % 2 == 1
