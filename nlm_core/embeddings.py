"""What a token table holds: which words lie near each other.

Shapes: N words, C = d_model.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, Num

from nlm_core.errors import UserError
from nlm_core.stats import permutation_p
from nlm_core.tokenizer import Tokenizer

# Words that are used alike, chosen before looking at any vector. Each is one token of the book's tokenizer.
GROUPS = {
    "animals": "dog cat bird rabbit bear fox frog duck fish mouse squirrel lion",
    "names": "Lily Tom Ben Tim Mia Sara Max Anna Lucy Sue Jack Sam",
    "feelings": "happy sad scared angry excited proud sorry tired worried surprised curious lonely",
    "verbs of motion": "ran walked jumped flew went climbed swam hopped danced fell came rolled",
    "food": "cake apple bread cheese soup cookie pie milk juice candy honey banana",
}
# More words to follow over the training: other kinds of nouns, and words that hold sentences together.
OTHERS = """red blue green yellow mom dad sister brother grandma baby park garden house forest room school tree river
ball doll car truck toy box book said asked smiled told the a and he she it they to was in but"""


def words_by_group() -> list[tuple[str, str]]:
    """Each word of `GROUPS` with its group."""
    return [(word, group) for group, words in GROUPS.items() for word in words.split()]


def ids_of(tokenizer: Tokenizer, words: Sequence[str]) -> Int[np.ndarray, " N"]:
    """The token of each word.

    Raises:
        UserError: a word is more than one token, so the token table has no vector for it.
    """
    ids = [tokenizer.encode(word) for word in words]
    split = [word for word, found in zip(words, ids, strict=True) if len(found) != 1]
    if split:
        raise UserError(f"this tokenizer cuts {', '.join(split)} into pieces: there is no one vector for such a word")
    return np.array([found[0] for found in ids])


def vectors_of(table: Float[np.ndarray, "V C"], tokenizer: Tokenizer, words: Sequence[str]) -> Float[np.ndarray, "N C"]:
    """The vector of each word: its row of the token table, or the mean of its rows where it is several tokens.

    The book's tokenizer has one token for each word of this module; another one may cut some into pieces.
    """
    return np.stack([table[tokenizer.encode(word)].astype(np.float64).mean(axis=0) for word in words])


def within_against_between(
    similarity: Float[np.ndarray, "N N"], groups: Sequence[str], draws: int = 9_999, seed: int = 0
) -> tuple[float, float, float]:
    """Whether words of one group are more alike than words of different groups.

    Args:
        similarity: the cosine of every pair of words.
        groups: of each word.
        draws: permutations; pairs that share a word are not independent, so words are shuffled (Mantel 1967).
        seed: of the permutations.

    Returns:
        The mean cosine of pairs within a group, that of pairs between groups, and the one-sided p-value of their
        difference: how often groups drawn at random differ as much.
    """
    same = np.array(groups)[:, None] == np.array(groups)
    pairs = np.triu_indices(len(groups), 1)
    values = similarity[pairs]

    def gap(same: Bool[np.ndarray, "N N"]) -> float:
        within = same[pairs]
        return float(values[within].mean() - values[~within].mean())

    def shuffled(rng: np.random.Generator) -> float:
        order = rng.permutation(len(groups))
        return gap(same[np.ix_(order, order)])

    within = same[pairs]
    p = permutation_p(gap(same), shuffled, draws=draws, seed=seed, tail="greater")
    return float(values[within].mean()), float(values[~within].mean()), p


def nearest_in_group(
    similarity: Float[np.ndarray, "N N"], groups: Sequence[str], draws: int = 9_999, seed: int = 0
) -> tuple[float, float]:
    """Whether a word's nearest neighbour, among N words, is one of its own group.

    Args:
        similarity: the cosine of every pair of words.
        groups: of each word.
        draws: permutations of the groups.
        seed: of the permutations.

    Returns:
        The share of words of which that is true, and its one-sided p-value.
    """
    others = np.where(np.eye(len(groups), dtype=bool), -np.inf, similarity)
    names, nearest = np.array(groups), others.argmax(axis=1)

    def share(names: np.ndarray) -> float:
        return float((names[nearest] == names).mean())

    p = permutation_p(share(names), lambda rng: share(rng.permutation(names)), draws=draws, seed=seed, tail="greater")
    return share(names), p


def without_trend(similarity: Float[np.ndarray, "N N"], places: Num[np.ndarray, " N"]) -> Float[np.ndarray, "N N"]:
    """Cosines less what a straight line explains by how far apart two words are on some scale, such as frequency.

    Args:
        similarity: the cosine of every pair of words.
        places: of each word on that scale.
    """
    distance = np.abs(places[:, None] - places)
    pairs = np.triu_indices(len(places), 1)
    slope, start = np.polyfit(distance[pairs], similarity[pairs], 1)
    return similarity - (slope * distance + start)


def neighbours(
    similarity: Float[np.ndarray, "N N"], words: Sequence[str], word: str, count: int = 5
) -> list[tuple[str, float]]:
    """The words whose vectors point most nearly the same way as a word's, with their cosines.

    Raises:
        ValueError: the word is not among the words.
    """
    at = list(words).index(word)
    order = [place for place in np.argsort(-similarity[at], kind="stable") if place != at]
    return [(words[place], float(similarity[at, place])) for place in order[:count]]
