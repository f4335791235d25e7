"""Whether stories make sense is for people to say: a sheet to read without knowing which setting wrote what.

sheet.csv    texts in random order, with empty columns for a reader's answers
key.json     which setting wrote which text, and a hash of each; to be opened after reading

Both come from a `Matrix` of texts. `scores` joins filled sheets with the key.
"""

import csv
import hashlib
from pathlib import Path

import numpy as np
from jaxtyping import Float

from nlm_core.errors import UserError
from nlm_core.files import read_json, readable_file, shown, write_json, written_whole
from nlm_core.matrix import KEYS, Matrix
from nlm_core.text import SEPARATOR

SHEET, KEY = "sheet.csv", "key.json"
# The columns of answers: what they ask, the least and the most.
QUESTIONS = {
    "characters": ("Do the characters stay who they are? 0: no, 1: yes", 0, 1),
    "arc": ("Is there a beginning, a middle and an end? 0: no, 1: yes", 0, 1),
    "sense": ("Does the story make sense? 1: none, 5: throughout", 1, 5),
}


def write_sheet(folder: Path, found: Matrix, seed: int = 0) -> None:
    """Write a sheet with all texts of a matrix in random order, each up to its separator, and its key.

    Args:
        folder: must not hold a sheet yet: someone may have filled it.
        found: the texts.
        seed: of the order.

    Raises:
        UserError: the folder holds a sheet.
    """
    for name in (SHEET, KEY):
        if (folder / name).exists():
            raise UserError(f"{shown(folder / name)} is there already; give another folder")
    entries = [
        (setting, prompt, str(number), found.texts[n][p][s])
        for n, setting in enumerate(found.settings)
        for p, prompt in enumerate(found.prompts)
        for s, number in enumerate(found.seeds)
    ]
    order = np.random.default_rng(seed).permutation(len(entries))
    folder.mkdir(parents=True, exist_ok=True)
    key = {}
    with written_whole(folder / SHEET, "w") as file:
        writer = csv.writer(file)
        writer.writerow(["text", *QUESTIONS, "story"])
        for number, place in enumerate(order, 1):
            *names, text = entries[place]
            story = (names[1] + text).partition(SEPARATOR)[0]
            writer.writerow([number, *[""] * len(QUESTIONS), story])
            key[str(number)] = {**dict(zip(KEYS, names, strict=True)), "story": _hash(story)}
    write_json(folder / KEY, {"questions": {name: text for name, (text, *_) in QUESTIONS.items()}, "texts": key})


def scores(key: Path, sheets: list[Path]) -> Matrix:
    """Join filled sheets with their key: a matrix whose metrics are the answers, with a mean over readers.

    A text that a reader left out counts for the others. A setting's prompts and seeds are those of the key.

    Raises:
        UserError: a sheet does not belong to the key, has an answer outside its range, or none at all; or no prompt was
            answered under every setting.
    """
    try:
        texts = read_json(key)["texts"]
        hashes = {number: entry["story"] for number, entry in texts.items()}
        settings, prompts, seeds = (sorted({entry[name] for entry in texts.values()}) for name in KEYS)
        seed_numbers = [int(seed) for seed in seeds]
        if not texts:
            raise ValueError
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{shown(key)} is not the key of a reading sheet") from None
    shape = (len(settings), len(prompts), len(seeds))
    sums = {name: np.zeros(shape) for name in QUESTIONS}
    counts = {name: np.zeros(shape) for name in QUESTIONS}
    for sheet in sheets:
        for number, (story, answers) in _answers(sheet).items():
            # The number alone would join a sheet with any key, and a sheet of which one column was sorted.
            if hashes.get(number) != _hash(story):
                raise UserError(f"{shown(sheet)}, text {number}: its story is not that of {shown(key)}")
            entry = texts[number]
            place = (settings.index(entry["setting"]), prompts.index(entry["prompt"]), seeds.index(entry["seed"]))
            for name, value in answers.items():
                sums[name][place] += value
                counts[name][place] += 1
    metrics = {name: _means(sums[name], counts[name]) for name in QUESTIONS}
    empty = [[[""] * len(seeds) for _ in prompts] for _ in settings]
    found = Matrix(settings, prompts, seed_numbers, empty, metrics)
    if not found.summary():
        raise UserError("no prompt has answers under every setting, so there is nothing to compare")
    return found


def _hash(story: str) -> str:
    """Of the words: spreadsheets save line breaks in their own way."""
    return hashlib.sha256(" ".join(story.split()).encode()).hexdigest()[:16]


def _means(sums: Float[np.ndarray, "N P S"], counts: Float[np.ndarray, "N P S"]) -> Float[np.ndarray, "N P S"]:
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def _answers(sheet: Path) -> dict[str, tuple[str, dict[str, int]]]:
    """The stories and answers of one reader, by the number of the text; those without an answer are left out."""
    try:
        with open(readable_file(sheet), newline="", encoding="utf-8-sig") as file:  # spreadsheets add a byte-order mark
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error):
        raise UserError(f"{shown(sheet)} can't be read; save it as CSV in UTF-8") from None
    columns = ["text", *QUESTIONS, "story"]
    if not rows or not set(columns) <= rows[0].keys():
        raise UserError(f"{shown(sheet)} is not a reading sheet: its columns are to be {', '.join(columns)}")
    found: dict[str, tuple[str, dict[str, int]]] = {}
    for row in rows:
        given = {name: row[name].strip() for name in QUESTIONS if row[name] and row[name].strip()}
        for name, answer in given.items():
            _, least, most = QUESTIONS[name]
            if answer not in map(str, range(least, most + 1)):
                raise UserError(f"{shown(sheet)}, text {row['text']}: {name} is {least} to {most}, not {answer!r}")
        if given and row["text"] in found:
            raise UserError(f"{shown(sheet)} has answers for text {row['text']} twice")
        if given:
            found[row["text"]] = row["story"] or "", {name: int(answer) for name, answer in given.items()}
    if not found:
        raise UserError(f"{shown(sheet)} has no answers yet")
    return found
