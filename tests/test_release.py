"""The release script: what it writes is a checkpoint, and its card says what was measured."""

import json

import pytest
from conftest import ROOT, STORIES

from nlm_core import UserError, load_checkpoint
from nlm_core.config import Budget
from nlm_core.data import add, prepare
from nlm_core.launch import new_run
from nlm_core.metrics import read_words, words_of
from nlm_core.records import read_record
from nlm_core.tables import info_table


@pytest.mark.filterwarnings("ignore:.* stopped at 32 tokens")
def test_release_of_a_tiny_run(script, corpus, own_root, capsys):
    settings = {"context_length": 32, "d_model": 16, "n_heads": 2, "device": "cpu", "precision": "float32"}
    new_run("tiny", "stories", own_root / "run", settings, Budget("steps", 4), say=lambda _: None).run()
    (own_root / "data" / "stories.txt").write_text(STORIES.read_text()[:5000])
    notes = own_root / "notes.md"
    notes.write_text("From the test's own text.")
    (own_root / "checkpoints").mkdir()
    script("release")["main"]([str(own_root / "run"), "--text", "V1=stories", "--notes", str(notes)])

    released = load_checkpoint(own_root / "checkpoints" / "nlm")
    assert released["step"] == 4
    losses = json.loads((released["path"] / "losses.json").read_text())
    assert losses["checkpoint"] == released["sha256"]
    card = (released["path"] / "README.md").read_text()
    figures = losses["texts"]["V1"]
    assert "bits per byte {value:.4f} ± {error:.4f}, nats".format(**figures["bits_per_byte"]) in info_table(released)
    measured = figures["bits_per_byte"]
    assert f"{measured['value']:.4f} ± {measured['error']:.4f}" in card
    assert released["sha256"][:12] in card
    assert "From the test's own text." in card
    assert (released["path"] / "log.csv").read_text() == (own_root / "run" / "log.csv").read_text()
    capsys.readouterr()

    record = read_record("losses")
    assert record.results["checkpoint"] == released["sha256"]
    found = losses["texts"]["V1"]
    assert record.units["nats"].sum() / record.units["tokens"].sum() == pytest.approx(found["nats_per_token"]["value"])
    spaces = found["classes"]["space"]
    assert record.units["space tokens"].sum() == spaces["tokens"]
    mean = record.units["space nats"].sum() / record.units["space tokens"].sum()
    assert mean == pytest.approx(spaces["nats_per_token"]["value"])
    assert record.results["training_text"]["stories"] >= 7
    words = read_words(released["path"] / "words.txt")
    assert words.keys() == set(words_of((own_root / "train.txt").read_text()))


@pytest.mark.filterwarnings("ignore:.* stopped at 32 tokens")
def test_a_release_that_fails_leaves_the_one_before_and_says_why(script, corpus, own_root, monkeypatch):
    settings = {"context_length": 32, "d_model": 16, "n_heads": 2, "device": "cpu", "precision": "float32"}
    run = (
        new_run("tiny", "stories", own_root / "run", settings, Budget("steps", 4), say=lambda _: None)
        .run()
        .parent.parent
    )
    (own_root / "data" / "stories.txt").write_text(STORIES.read_text()[:5000])
    notes = own_root / "notes.md"
    notes.write_text("Notes.")
    before = own_root / "checkpoints" / "nlm" / "README.md"
    before.parent.mkdir(parents=True)
    before.write_text("the one before")
    main = script("release")["main"]

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setitem(main.__globals__, "card", fail)
    with pytest.raises(KeyboardInterrupt):
        main([str(run), "--text", "V1=stories", "--notes", str(notes)])
    assert [file.name for file in before.parent.iterdir()] == ["README.md"]

    add([own_root / "data" / "stories.txt"], "train", "other")
    add([own_root / "train.txt"], "valid", "other")
    prepare("other", corpus.tokenizer)
    with pytest.raises(UserError, match=r"run was not trained on the corpus of the first --text, 'other'"):
        main([str(run), "--text", "V1=other", "--notes", str(notes)])
    with pytest.raises(UserError, match="is not the folder of a training run"):
        main([str(ROOT / "checkpoints" / "golden"), "--text", "V1=stories", "--notes", str(notes)])
    notes.write_bytes(b"\xff")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        main([str(run), "--text", "V1=stories", "--notes", str(notes)])


def test_the_words_of_the_training_text_ship():
    words = read_words(ROOT / "checkpoints" / "nlm" / "words.txt")
    assert {"once", "upon", "dog", "the"} <= words.keys()
    assert len(words) > 5000
    assert "flumbo" not in words


def test_the_shipped_card_says_what_was_measured():
    folder = ROOT / "checkpoints" / "nlm"
    losses, card = json.loads((folder / "losses.json").read_text()), (folder / "README.md").read_text()
    shipped = load_checkpoint(folder)
    assert losses["checkpoint"] == shipped["sha256"]
    assert shipped["sha256"][:12] in card
    assert len(losses["texts"]) == 3
    for label, found in losses["texts"].items():
        (row,) = [line for line in card.splitlines() if line.startswith(f"| {label} |") and "±" in line]
        for figure in (found["bits_per_byte"], found["without_separators"]["bits_per_byte"], found["nats_per_token"]):
            assert f"{figure['value']:.4f} ± {figure['error']:.4f}" in row
        assert shipped["metrics"][label]["bits_per_byte"] == found["bits_per_byte"]["value"]
