"""Byte-pair encoding from scratch: the algorithm of `nlm_core.tokenizer`, to be read in one sitting.

Ids 0 to 255 are the bytes. Training looks for the pair of neighbours that occurs most often, joins it everywhere into a
token with the next free id, and starts again; no pair reaches across the pieces of `nlm_core.text`. Of pairs that occur
equally often, the one with the smallest left id wins, then the one with the smallest right id (Sennrich et al. 2016,
"Neural Machine Translation of Rare Words with Subword Units", on bytes as in GPT-2).

The `tokenizers` library has the same rule, but orders single bytes by the code points of `BYTE_CHARACTERS`: there,
0-32, 127-160 and 173 come after all other bytes. So both learn the same merges from printable ASCII and whitespace.
They can part where a tie hangs on one of those bytes and a larger byte that is not among them: in text with control
characters, or beyond ASCII, since 128-160 and 173 are common in UTF-8 (the curly quote is 226, 128, 156). Given the
same merges, both encode any text alike.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

from nlm_core.errors import UserError
from nlm_core.text import pieces

Pair = tuple[int, int]


def piece_bytes(text: str) -> list[bytes]:
    """Cut a text into the UTF-8 bytes of its pieces.

    Raises:
        UserError: the text holds a lone surrogate, which UTF-8 can't encode.
    """
    try:
        return [piece.encode() for piece in pieces(text)]
    except UnicodeEncodeError:
        raise UserError("the text holds a lone surrogate, which UTF-8 can't encode; remove it first") from None


def joined(ids: list[int], pair: Pair, token: int) -> list[int]:
    """Replace each occurrence of a pair by a token, from left to right.

    >>> joined([97, 97, 97, 98], (97, 97), 256)
    [256, 97, 98]
    """
    result = []
    at = 0
    while at < len(ids):
        if tuple(ids[at : at + 2]) == pair:
            result.append(token)
            at += 2
        else:
            result.append(ids[at])
            at += 1
    return result


class BPE:
    """Text to ids and back.

    Attributes:
        merges: the pairs of byte strings that were joined, in the order in which they were learned.
        token_bytes: the bytes that each id stands for.
    """

    def __init__(self, merges: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Start from the bytes and the given merges, in rank order."""
        self.merges: list[tuple[bytes, bytes]] = []
        self.token_bytes = [bytes([byte]) for byte in range(256)]
        self._id_of = {token: byte for byte, token in enumerate(self.token_bytes)}
        self._rank_and_token: dict[Pair, tuple[int, int]] = {}
        for left, right in merges:
            self._add((self._id_of[left], self._id_of[right]))

    @property
    def vocab_size(self) -> int:
        return len(self.token_bytes)

    def _add(self, pair: Pair) -> int:
        """Append a merge and return the id of the token that it makes."""
        left, right = (self.token_bytes[token] for token in pair)
        # Two merges can spell the same bytes, as in (a, bc) and (ab, c): they share one id.
        token = self._id_of.setdefault(left + right, len(self.token_bytes))
        if token == len(self.token_bytes):
            self.token_bytes.append(left + right)
        self._rank_and_token[pair] = (len(self.merges), token)
        self.merges.append((left, right))
        return token

    @classmethod
    def train(cls, text: str, vocab_size: int) -> "BPE":
        """Learn merges until there are `vocab_size` tokens.

        Raises:
            UserError: the text is empty or has a lone surrogate, or the vocabulary is smaller than the 256 bytes or
                larger than the text has pairs to merge.
        """
        if vocab_size < 256:
            raise UserError(f"vocabulary size {vocab_size:,} is not allowed: give 256 (the bytes alone) or more")
        if not text:
            raise UserError("the text is empty; give some to learn from")
        bpe = cls()
        how_often = Counter(piece_bytes(text))
        words = [list(word) for word in how_often]
        frequencies = list(how_often.values())
        counts: Counter[Pair] = Counter()
        words_with: defaultdict[Pair, set[int]] = defaultdict(set)

        def count(number: int, sign: int) -> None:
            """Add a word's pairs to the counts (sign 1), or take them away (sign -1)."""
            for pair in pairwise(words[number]):
                counts[pair] += sign * frequencies[number]
                if counts[pair] == 0:
                    del counts[pair]
                if sign == 1:
                    words_with[pair].add(number)

        for number in range(len(words)):
            count(number, 1)
        while bpe.vocab_size < vocab_size:
            if not counts:
                raise UserError(
                    f"the text allows a vocabulary of {bpe.vocab_size:,} only; "
                    f"ask for that many or fewer instead of {vocab_size:,}, or give more text"
                )
            highest = max(counts.values())
            best = min(pair for pair, times in counts.items() if times == highest)
            token = bpe._add(best)
            # The index may name words that no longer hold the pair; those stay as they are.
            for number in words_with.pop(best):
                count(number, -1)
                words[number] = joined(words[number], best, token)
                count(number, 1)
        return bpe

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text: in each piece, the pair that was learned first is joined first.

        Raises:
            UserError: the text holds a lone surrogate, which UTF-8 can't encode.
        """
        cut = piece_bytes(text)
        encoded = {piece: self._encode_piece(piece) for piece in set(cut)}
        return [token for piece in cut for token in encoded[piece]]

    def _encode_piece(self, piece: bytes) -> list[int]:
        ids = list(piece)
        while True:
            known = [
                (*self._rank_and_token[pair], at)
                for at, pair in enumerate(pairwise(ids))
                if pair in self._rank_and_token
            ]
            if not known:
                return ids
            _, token, at = min(known)
            ids[at : at + 2] = [token]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the exact bytes of some ids.

        Raises:
            UserError: an id is outside the vocabulary.
        """
        ids = list(ids)
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise UserError(f"token id {token} is outside the vocabulary of {self.vocab_size:,}")
        return b"".join(self.token_bytes[token] for token in ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of some ids; bytes that are not whole UTF-8 characters become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")
