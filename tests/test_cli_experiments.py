"""`nlm evaluate` and `nlm ablate` on a model of a reader's own: another context, shape and vocabulary."""

import json
import re
import shlex

import numpy as np
import pytest
from conftest import ROOT, STORIES, refused

from nlm_core import NLM, Tokenizer, load_checkpoint, save_checkpoint
from nlm_core.ablate import ablate, single_heads
from nlm_core.checkpoint import TOKENIZER
from nlm_core.config import ModelConfig
from nlm_core.data import add
from nlm_core.matrix import read_matrix
from nlm_core.metrics import WORDS, by_frequency, write_words
from nlm_core.records import read_record
from nlm_core.score import tokens_of
from nlm_core.text import blocks, stories

GOLDEN = ROOT / "checkpoints" / "golden"


@pytest.fixture
def own_model(own_root, tokenizer):
    """A checkpoint with two layers of two heads and a context of 64."""
    model = NLM(ModelConfig(vocab_size=512, context_length=64, d_model=16, n_layers=2, n_heads=2))
    save_checkpoint(own_root / "own", model, tokenizer, step=0)
    return own_root / "own"


@pytest.fixture
def text(own_root):
    """Ten short stories."""
    path = own_root / "ten.txt"
    path.write_text("".join(f"{story}<|endoftext|>\n" for story in STORIES.read_text().split(".")[:10]))
    return path


def test_evaluate_writes_a_table_and_a_record(nlm, own_model, own_root):
    prompts = own_root / "my prompts.txt"  # a name that a shell would take for two
    prompts.write_text("Once\n\nThe dog\nOnce\n")
    words = ["evaluate", own_model, "--prompts", prompts, "--seeds", "2", "--setting", "greedy", "--setting", "0.9"]
    code, out, err = nlm(*words, "--max-new-tokens", "8", "--out", own_root / "runs" / "mine")
    assert code == 0, err
    assert "means over 2 prompts unless said, texts for each: 2" in out
    assert "greedy" in out.splitlines()[0]
    record = read_record("mine")
    assert record.results["checkpoint"] == load_checkpoint(own_model)["sha256"]
    assert record.results["prompts"] == ["Once", "The dog"]
    assert record.results["settings"]["0.9"]["temperature"] == 0.9
    found = read_matrix(own_root / "runs" / "mine" / "texts.jsonl.gz")
    assert np.shape(found.texts) == (2, 2, 2)
    assert np.allclose(record.units["repeated-2, 0.9"], found.by_prompt("repeated-2")[1])
    assert record.results["metrics"]["words"]["greedy"]["mean"] == pytest.approx(found.means("words")[0])

    # The command in the record makes the same texts.
    again = shlex.split(record.results["command"])[1:]
    again[again.index("--out") + 1] = "again"
    assert nlm(*again)[0] == 0
    assert read_matrix(own_root / "again" / "texts.jsonl.gz").texts == found.texts

    refused(nlm(*words, "--out", own_root / "runs" / "mine"), "is there already", "another --out")


def test_evaluate_knows_the_words_beside_a_checkpoint_or_of_a_corpus(nlm, own_model, own_root, mine):
    quick = ["evaluate", own_model, "--setting", "1.0", "--max-new-tokens", "20", "--json"]
    assert "made-up words" not in json.loads(nlm(*quick)[1])["metrics"]
    write_words(own_model / WORDS, by_frequency([STORIES.read_text()]))
    beside = json.loads(nlm(*quick)[1])["metrics"]
    assert "made-up words" in beside
    assert "longest copy" not in beside
    add([mine], "train", "mine")
    from_corpus = json.loads(nlm(*quick, "--data", "mine")[1])["metrics"]
    assert {"made-up words", "longest copy"} <= set(from_corpus)


def test_ablate_writes_a_table_and_a_record(nlm, own_model, own_root, text):
    words = ["ablate", own_model, "--data", text, "--tokens", "0"]
    code, out, err = nlm(*words, "--out", own_root / "runs" / "mine")
    assert code == 0, err
    assert re.search(r"\d of 4 heads help, \d harm; for \d we can't tell", out)
    record = read_record("mine")
    checkpoint = load_checkpoint(own_model)
    tokens = tokens_of(checkpoint["tokenizer"], stories(blocks(text)))
    model = NLM.from_params(checkpoint["config"], checkpoint["params"])
    losses = ablate(model, tokens.ids, single_heads(model.config), stories=tokens.stories)
    assert np.allclose(record.units["L1H0"], losses.deltas[:, 2], atol=1e-6)
    assert record.results["stories"] == 10
    assert record.results["tokens"] == len(tokens.ids) - 1
    expected = losses.deltas.sum(axis=0) / losses.targets.sum()
    assert np.allclose(np.ravel(record.results["deltas"]), expected, atol=1e-5)
    refused(nlm(*words, "--out", own_root / "runs" / "mine"), "is there already")


@pytest.mark.parametrize("mode", ["zero", "mean", "resample"])
def test_ablate_in_every_mode_on_whole_stories(nlm, mode):
    code, out, err = nlm("ablate", GOLDEN, "--data", STORIES, "--tokens", "2500", "--mode", mode, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["mode"] == mode
    assert found["stories"] >= 2
    tokenizer = Tokenizer.load(GOLDEN / TOKENIZER)
    lengths = [len(tokenizer.encode(story)) for story in list(stories(blocks(STORIES)))[: found["stories"]]]
    assert found["tokens"] == sum(lengths) - 1  # whole stories
    assert sum(lengths[:-1]) < 2500 <= sum(lengths)


def test_bad_input_is_one_line(nlm, own_model, own_root, text):
    empty = own_root / "empty.txt"
    empty.write_text("\n\n")
    refused(nlm("evaluate", own_model, "--prompts", empty), "no prompts")
    refused(nlm("evaluate", own_model, "--prompts", own_root / "no.txt"), "no.txt")
    refused(nlm("evaluate", own_model, "--setting", "warm"), "no setting 'warm'", "greedy")
    refused(nlm("evaluate", own_model, "--seeds", "0"), "--seeds")
    refused(nlm("evaluate", own_model, "--max-new-tokens", "0"), "--max-new-tokens")
    refused(nlm("evaluate", own_model, "--data", "nothing"), "no corpus 'nothing'")
    add([text], "valid", "judged")
    refused(nlm("evaluate", own_model, "--data", "judged"), "no training text")
    refused(nlm("ablate", own_model, "--data", text, "--mode", "half"), "mode", "zero, mean, resample")
    refused(nlm("ablate", own_model, "--data", text, "--tokens", "-1"), "--tokens")
    refused(nlm("ablate", own_model, "--out", text), "is there already")
    refused(nlm("evaluate", own_model, "--data", "", "--out", own_root / "out"), "there is no corpus ''")
    refused(nlm("evaluate", own_model, "--out", own_root / "sur\udcff"), "is not UTF-8")
    one = own_root / "one.txt"
    one.write_text("One story only.")
    refused(nlm("ablate", own_model, "--data", one), "there is one story in", "two or more")
    refused(nlm("ablate", own_model, "--data", text, "--tokens", "5"), "--tokens 5 takes one story of")
    for words in (["ablate", own_model], ["reading", "sheet", own_model, "--out", own_root / "out"]):
        refused(nlm(*words, "--seed", "-1"), "--seed must be from 0")
    assert not (own_root / "out").exists()


def test_a_folder_that_can_not_be_made_is_refused_before_the_work(nlm, own_model, text, monkeypatch):
    for work in ("ablate", "evaluate_generation"):
        monkeypatch.setattr(f"nlm_core.cli_experiments.{work}", lambda *_, **__: pytest.fail("it worked for nothing"))
    refused(nlm("ablate", own_model, "--data", text, "--out", text / "x"), "Not a directory")
    refused(nlm("evaluate", own_model, "--out", text / "x"), "Not a directory")


def test_results_of_a_quicker_command_are_not_written_over(nlm, own_model, own_root, text, monkeypatch):
    out, real = own_root / "out", ablate

    def meanwhile(*arguments, **options):
        (out / "results.json").write_text("theirs")
        return real(*arguments, **options)

    monkeypatch.setattr("nlm_core.cli_experiments.ablate", meanwhile)
    code, shown, err = nlm("ablate", own_model, "--data", text, "--out", out)
    assert code == 2
    assert "is there already" in err
    assert "heads help" in shown  # the work was not for nothing
    assert (out / "results.json").read_text() == "theirs"


def test_what_a_table_lacks_is_said(nlm, own_model, text):
    _, out, err = nlm("evaluate", own_model, "--setting", "1.0", "--max-new-tokens", "64")
    assert "made-up words" not in out
    assert "made-up words and carry-over are left out: --data CORPUS" in err
    assert "after 10 of 10 prompts there is no room for 64 tokens: this model reads 64 at most" in err
    assert "few to tell" not in nlm("ablate", own_model, "--data", text)[1]
    assert (
        "(3 stories are too few to tell of any: take more text)"
        in nlm("ablate", own_model, "--data", text, "--tokens", "70")[1]
    )
