"""Byte-level byte-pair encoding: the `tokenizers` library's speed, with ids that can be explained.

Ids 0 to 255 are the bytes themselves, so id 32 is the space; id 256 is the first merge, id 257 the second, and so on.
There are no special tokens: the separator between stories is text like any other. `nlm_core.bpe` is the same algorithm
from scratch.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import SupportsIndex

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from nlm_core.errors import UserError
from nlm_core.files import read_json, shown, written_whole
from nlm_core.text import blocks

_WORD = r"0-9A-Za-z\x{80}-\x{1FFF}\x{2070}-\x{10FFFF}"
_SPACE = r" \t\n\r\x0b\x0c"
PATTERN = f"[{_SPACE}]|[{_WORD}]+|[^{_SPACE}{_WORD}]+"  # `nlm_core.text.PIECE` in the library's syntax
BLOCKS_AT_ONCE = 16
LARGEST_VOCABULARY = 1 << 16  # prepared text is stored as 16-bit ids


def _byte_characters() -> list[str]:
    """The printable character by which the library writes each byte (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in characters:
            characters[byte] = chr(256 + len(characters) - len(printable))
    return [characters[byte] for byte in range(256)]


BYTE_CHARACTERS = _byte_characters()
_BYTE_OF = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def _library_tokenizer(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


class Tokenizer:
    """Text to ids and back.

    Attributes:
        token_bytes: the bytes that each id stands for.
        merges: the pairs of byte strings that were joined, in the order in which they were learned.
    """

    def __init__(self, merges: list[tuple[str, str]]) -> None:
        """Build from the merges, written with the library's characters, in rank order."""
        vocabulary = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
        for left, right in merges:
            # Two different merges can spell the same token; the library gives them one id, and so do we.
            vocabulary.setdefault(left + right, len(vocabulary))
        self._library = _library_tokenizer(vocabulary, merges)
        self._encode = self._library.encode
        self.token_bytes = [bytes(_BYTE_OF[character] for character in token) for token in vocabulary]
        self.merges = [tuple(bytes(_BYTE_OF[c] for c in part) for part in pair) for pair in merges]
        self.sha256 = hashlib.sha256(json.dumps(merges).encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        return len(self.token_bytes)

    @classmethod
    def train(cls, files: Iterable[str | Path], vocab_size: int = 4096) -> "Tokenizer":
        """Learn the merges from UTF-8 text files. The result does not depend on the number of threads.

        Raises:
            UserError: the vocabulary is smaller than the 256 bytes, too large for 16-bit ids, or larger than the text
                has pairs to merge; or a file can't be read.
        """
        if not 256 <= vocab_size <= LARGEST_VOCABULARY:
            raise UserError(
                f"vocabulary size {vocab_size:,} is not allowed: give 256 (the bytes alone) to {LARGEST_VOCABULARY:,}"
            )
        library = _library_tokenizer({}, [])
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
        library.train_from_iterator((block for file in files for block in blocks(file)), trainer)
        merges = [tuple(pair) for pair in json.loads(library.to_str())["model"]["merges"]]
        tokenizer = cls(merges)
        if tokenizer.vocab_size < vocab_size:
            raise UserError(
                f"the text allows a vocabulary of {tokenizer.vocab_size:,} only; "
                f"ask for that many or fewer instead of {vocab_size:,}, or give more text"
            )
        return tokenizer

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer that `save` wrote.

        Raises:
            UserError: the file is missing or is not an nlm tokenizer.
        """
        content = read_json(path)
        try:
            tokenizer = cls([(left, right) for left, right in content["model"]["merges"]])
            same = all(
                part(content) == part(json.loads(tokenizer._library.to_str()))
                # Only what decides about ids: a later release of the library may write more than today's.
                for part in (
                    lambda file: (file["model"]["type"], file["model"]["vocab"]),
                    lambda file: [step["type"] for step in file["pre_tokenizer"]["pretokenizers"]],
                    lambda file: file["pre_tokenizer"]["pretokenizers"][0]["pattern"],
                    lambda file: (file["added_tokens"], file["normalizer"], file["post_processor"]),
                )
            )
        except Exception:  # whatever a foreign file makes the library raise, the answer is the same
            same = False
        if not same:
            raise UserError(
                f"{shown(path)} is not an nlm tokenizer, or is damaged; make one with `nlm tokenizer train`"
            )
        return tokenizer

    def save(self, path: str | Path) -> None:
        """Write the `tokenizers` library's JSON format; nothing is left behind if writing fails."""
        with written_whole(path, "w") as file:
            file.write(self._library.to_str(pretty=True))
            file.write("\n")

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text.

        Raises:
            UserError: the text holds a lone surrogate, which UTF-8 can't encode.
        """
        try:
            return self._encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError):
            if not isinstance(text, str):
                raise
            at = next(place for place, character in enumerate(text) if "\ud800" <= character <= "\udfff")
            raise UserError(
                f"character {at} is a lone surrogate (U+{ord(text[at]):04X}), which is not text: UTF-8 can't encode it"
            ) from None

    def encode_blocks(self, text_blocks: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield blocks of text, each cut after whitespace, with their ids as uint16 arrays, on all threads."""
        text_blocks = iter(text_blocks)
        while batch := list(itertools.islice(text_blocks, BLOCKS_AT_ONCE)):
            for block, encoding in zip(batch, self._library.encode_batch_fast(batch), strict=True):
                yield block, np.array(encoding.ids, dtype=np.uint16)

    def decode_bytes(self, ids: Iterable[SupportsIndex]) -> bytes:
        """Return the exact bytes of some ids.

        Raises:
            UserError: an id is outside the vocabulary.
        """
        ids, size = [int(token) for token in ids], self.vocab_size
        for token in ids:
            if not 0 <= token < size:
                raise UserError(f"token id {token} is outside the vocabulary of {size} (0 to {size - 1})")
        return b"".join(self.token_bytes[token] for token in ids)

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Return the text of some ids; bytes that are not whole UTF-8 characters become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")
