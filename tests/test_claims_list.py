"""The list of claims is complete in form: what was said, what was expected, and the rule, for each."""

import re
import tomllib
from pathlib import Path

TEXT = (Path(__file__).resolve().parent.parent / "book" / "claims.toml").read_text(encoding="utf-8")
CLAIMS = tomllib.loads(TEXT)  # fails where an id stands twice
TEXTS = {"source", "said", "value", "expected", "statistic", "unit", "rule"}
NEVER_EMPTY = TEXTS - {"value", "expected"}


def test_ids_are_well_formed_and_a_table_each():
    assert CLAIMS
    for id in CLAIMS:
        assert re.fullmatch(r"(tok|emb|pos|train|eval|abl)(\.[a-z0-9]+(-[a-z0-9]+)*)+", id), id
    # Quoted keys: an unquoted dot would make tables within tables.
    assert len(CLAIMS) == len(re.findall(r"^\[", TEXT, flags=re.MULTILINE))


def test_every_claim_has_exactly_the_keys_that_the_list_explains():
    for id, claim in CLAIMS.items():
        assert set(claim) - {"changed"} == TEXTS | {"quoted"}, id
        assert isinstance(claim["quoted"], bool), id
        assert all(isinstance(claim[key], str) for key in TEXTS), id
        assert all(claim[key] for key in NEVER_EMPTY), id
        # A changed rule says when and why.
        assert all(re.match(r"\d{4}-\d{2}-\d{2}: .{10}", line) for line in claim.get("changed", [])), id


def test_a_changed_rule_says_whether_that_was_before_measuring():
    for id, claim in CLAIMS.items():
        for line in claim.get("changed", []):
            assert ("after measuring" in line) != ("before measuring" in line), id


def test_texts_are_single_clean_lines():
    for id, claim in CLAIMS.items():
        for key in TEXTS:
            assert claim[key] == " ".join(claim[key].split()), (id, key)
        assert re.fullmatch(r"post \d+|the series", claim["source"]), id
        assert re.match(r"$|the author: |the reasoning: ", claim["expected"]), id


def test_the_eight_pairs_of_positions_name_a_cosine():
    pairs = {id: claim for id, claim in CLAIMS.items() if id.startswith("pos.pair.")}
    assert len(pairs) == 8
    for id, claim in pairs.items():
        first, second = map(int, id.removeprefix("pos.pair.").split("-"))
        assert 0 <= first < second < 512
        assert -1 <= float(claim["value"]) <= 1
        assert f"Positions {first} and {second} (distance {second - first})" in claim["said"]
        assert claim["value"] in claim["said"]


def test_no_line_is_longer_than_120_characters():
    assert [line for line in TEXT.splitlines() if len(line) > 120] == []
