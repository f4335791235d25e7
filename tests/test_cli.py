"""The command line as a person meets it: what it prints, what it returns, and how it says no."""

import io
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from conftest import ROOT, refused

from nlm_core import cli
from nlm_core.data import Corpus

GOLDEN = ROOT / "checkpoints" / "golden"
TINY = ["--set", "context_length=32", "--set", "d_model=16", "--set", "n_heads=2", "--set", "device=cpu"]


def test_from_a_text_file_to_stories(nlm, mine, own_root, stories_file):
    """What a stranger does with a text of their own."""
    code, out, _ = nlm("data", "add", mine, "--split", "train")
    assert code == 0
    assert "mine.txt: 40,000 bytes" in out
    other = own_root / "other.txt"
    other.write_text(stories_file.read_text()[40_000:60_000])
    assert nlm("data", "add", other, "--split", "valid", "--name", "mine")[0] == 0
    code, out, _ = nlm("tokenizer", "train", mine, "--out", "tok.json", "--vocab-size", "400")
    assert (code, "400 tokens" in out) == (0, True)
    code, out, err = nlm("data", "prepare", "--tokenizer", "tok.json")
    assert code == 0
    assert "train:" in out
    assert err == ""
    code, out, _ = nlm("train", "--preset", "tiny", "--steps", "6", "--out", "run", *TINY)
    assert code == 0
    assert "parameters, float32 on cpu, 6 steps, into run" in out
    assert "bits per byte" in out
    code, out, _ = nlm("train", "--resume", "--out", "run", "--steps", "9")
    assert code == 0
    assert "going on from step 6" in out
    code, out, _ = nlm("info", "run")
    assert code == 0
    assert "step            9" in out
    code, out, _ = nlm("generate", "run", "--prompt", "The dog", "-n", "2", "--max-new-tokens", "8", "--seed", "4")
    assert code == 0
    first, second = out.split("--- seed 5\n")
    assert first.startswith("--- seed 4\nThe dog")
    assert second.startswith("The dog")
    alone = nlm("generate", "run", "--prompt", "The dog", "--max-new-tokens", "8", "--seed", "5")[1]
    assert alone == second
    code, out, _ = nlm("loss", "run", "--data", "mine", "--half", "all")
    assert code == 0
    assert "counts from the training text" in out


def test_preparing_again_keeps_the_corpus_own_tokenizer(nlm, mine, own_root, stories_file):
    assert nlm("data", "add", mine, "--split", "train")[0] == 0
    assert nlm("tokenizer", "train", mine, "--out", "tok.json", "--vocab-size", "300")[0] == 0
    assert nlm("data", "prepare", "--tokenizer", "tok.json")[0] == 0
    (own_root / "other.txt").write_text(stories_file.read_text()[40_000:60_000])
    assert nlm("data", "add", own_root / "other.txt", "--split", "valid")[0] == 0
    assert nlm("data", "prepare")[0] == 0
    assert Corpus.open("mine").tokenizer.vocab_size == 300
    refused(nlm("data", "prepare", "--tokenizer", GOLDEN / "tokenizer.json"), "give --tokenizer data/mine/prepared/")


def test_text_in_one_piece_is_pointed_out(nlm, own_root):
    (own_root / "one.txt").write_text("Once upon a time there was a text in one piece. " * 9)
    assert nlm("data", "add", own_root / "one.txt", "--split", "train", "--name", "one")[0] == 0
    code, _, err = nlm("data", "prepare", "--name", "one", "--tokenizer", GOLDEN / "tokenizer.json")
    assert code == 0
    assert "the training text is one story; if it holds several, put a line <|endoftext|> after each" in err
    code, out, _ = nlm("loss", GOLDEN, "--data", own_root / "one.txt")
    assert code == 0
    assert "unigram" not in out


def test_a_prompt_from_standard_input(nlm, monkeypatch):
    words = ["generate", GOLDEN, "--max-new-tokens", "5", "--prompt"]
    expected = nlm(*words, "The dog\nsaid")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The dog\nsaid\n")))
    assert nlm(*words, "-") == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    refused(nlm(*words, "-"), "standard input is not UTF-8 text")
    monkeypatch.setattr(sys, "stdin", None)  # as where the shell closed it
    refused(nlm(*words, "-"), "a prompt is empty")


def test_loss_of_a_file_as_json(nlm, mine):
    code, out, _ = nlm("loss", GOLDEN, "--data", mine, "--json")
    summary = json.loads(out)
    assert code == 0
    assert summary["text"] == "mine.txt"
    assert 1 < summary["bits_per_byte"]["value"] < 4
    assert summary["baselines"]["fitted_on"] == "the other half of the same stories"


def test_the_limit_of_the_context_is_said(nlm):
    code, out, err = nlm("generate", GOLDEN, "--prompt", "The dog", "--max-new-tokens", "500")
    assert code == 0
    assert out.startswith("The dog")
    assert "stopped at 64 tokens" in err


def test_stopped_by_ctrl_c_and_resumed(mine, own_root, nlm):
    """A real process, a real SIGINT: it saves, leaves with 130, and says how to go on."""
    nlm("data", "add", mine, "--split", "train")
    nlm("tokenizer", "train", mine, "--out", "tok.json", "--vocab-size", "300")
    nlm("data", "prepare", "--tokenizer", "tok.json")
    command = [sys.executable, "-m", "nlm_core", "train", "--preset", "tiny", "--steps", "1000000", "--out", "run"]
    with subprocess.Popen(
        [*command, *TINY, "--set", "log_every=1"], stdout=subprocess.PIPE, text=True, cwd=own_root
    ) as process:
        first_line = process.stdout.readline()
        log = own_root / "run" / "log.csv"
        while not (log.exists() and log.read_text().count("\n") > 3):
            assert process.poll() is None
            os.sched_yield()
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait() == 130
    assert "parameters" in first_line
    assert "go on with: nlm train --resume --out run" in rest
    step = int(rest.split("stopped after step ")[1].split(";")[0].replace(",", ""))
    assert (own_root / "run" / "checkpoints" / f"step-{step:08d}").is_dir()
    code, out, _ = nlm("train", "--resume", "--out", "run", "--steps", step + 2)
    assert code == 0
    assert f"going on from step {step:,}" in out


def test_a_diverging_run_exits_with_1(nlm, mine):
    nlm("data", "add", mine, "--split", "train")
    nlm("tokenizer", "train", mine, "--out", "tok.json", "--vocab-size", "300")
    nlm("data", "prepare", "--tokenizer", "tok.json")
    code, _, err = nlm(
        "train", "--preset", "tiny", "--steps", "50", "--out", "run", *TINY, "--set", "optimizer=adamw",
        "--set", "lr=1e30", "--set", "warmup_steps=0",
    )  # fmt: skip
    assert code == 1
    assert "the loss is" in err
    assert "Traceback" not in err


def test_bad_input_is_one_line_and_exit_code_2(nlm, mine, own_root):
    refused(nlm("data", "add", "nowhere.txt", "--split", "train"), "nowhere.txt does not exist")
    refused(nlm("data", "add", own_root, "--split", "train"), "is a folder")
    (own_root / "empty.txt").write_bytes(b"")
    refused(nlm("data", "add", "empty.txt", "--split", "train"), "empty.txt is empty")
    (own_root / "latin.txt").write_bytes("café".encode("latin-1") * 10)
    refused(nlm("data", "add", "latin.txt", "--split", "train"), "not UTF-8")
    refused(nlm("data", "add", mine, "--split", "test"), "train, valid")
    refused(nlm("data", "add", mine, "--split", "train", "--name", "../x"), "can't be the name")
    assert not (own_root / "data").exists()
    refused(nlm("data", "prepare", "--tokenizer", GOLDEN / "tokenizer.json"), "no text yet")
    refused(nlm("train"), "no text yet")
    refused(nlm("tokenizer", "train", mine, "--out", "t.json", "--vocab-size", "255"), "255")
    refused(nlm("tokenizer", "train", mine, "--out", "t.json", "--vocab-size", "60000"), "text allows a vocabulary of")
    assert not (own_root / "t.json").exists()
    nlm("data", "add", mine, "--split", "train")
    refused(nlm("train"), "not prepared")
    nlm("data", "prepare", "--tokenizer", GOLDEN / "tokenizer.json")
    refused(nlm("train", "--data", "nothing"), "no corpus 'nothing'", "mine")
    refused(nlm("train", "--preset", "huge"), "unknown preset 'huge'", "tiny")
    refused(nlm("train", "--set", "colour=red"), "'colour'")
    refused(nlm("train", "--set", "lr"), "KEY=VALUE")
    refused(nlm("train", "--set", "lr=fast"), "lr must be a number")
    refused(nlm("train", "--set", "d_model=250"), "250 is not divisible by n_heads 8")
    refused(nlm("train", "--set", "context_length=100000"), "fewer than one window")
    refused(nlm("train", "--steps", "5", "--tokens", "5"), "only one of")
    refused(nlm("train", "--steps", "0"), "--steps must be above 0")
    refused(nlm("train", "--resume"), "--out")
    refused(nlm("train", "--resume", "--out", "nowhere"), "no run to resume")
    assert not (own_root / "runs").exists()
    refused(nlm("info", "nowhere"), "nowhere is not a folder")
    refused(nlm("loss", "mine.txt"), "mine.txt is not a folder with a checkpoint; a text to measure goes after --data")
    refused(nlm("info", own_root), "not an nlm checkpoint")
    refused(nlm("generate", GOLDEN, "--temperature", "-1"), "temperature")
    refused(nlm("generate", GOLDEN, "--top-p", "0"), "top_p")
    refused(nlm("generate", GOLDEN, "-n", "0"), "-n must be")
    refused(nlm("generate", "Once upon a time"), "--prompt")
    refused(nlm("generate", GOLDEN, "--prompt", ""), "empty")
    refused(nlm("generate", GOLDEN, "--prompt", "word " * 100), "reads 64 at most")
    refused(nlm("loss", GOLDEN, "--data", "nowhere.txt"), "nowhere.txt does not exist")
    refused(nlm("loss", GOLDEN, "--data", "nowhere"), "no corpus 'nowhere'")
    refused(nlm("loss", GOLDEN, "--data", "mine"), "has no validation text")
    refused(nlm("loss", GOLDEN, "--half", "best"), "--half must be one of")


def test_full_disk(nlm, mine, own_root, monkeypatch):
    nlm("data", "add", mine, "--split", "train")
    nlm("data", "prepare", "--tokenizer", GOLDEN / "tokenizer.json")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refused(nlm("train", "--preset", "tiny", "--steps", "2", "--out", "run", *TINY), "No space left on device")
    assert not list((own_root / "run").glob("*.json"))
    assert nlm("train", "--preset", "tiny", "--steps", "2", "--out", "run", *TINY)[0] == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_folder(nlm, mine, own_root):
    nlm("data", "add", mine, "--split", "train")
    nlm("data", "prepare", "--tokenizer", GOLDEN / "tokenizer.json")
    (own_root / "locked").mkdir(mode=0o500)
    refused(nlm("train", "--preset", "tiny", "--out", "locked/run", *TINY), "ermission denied")


def test_output_into_a_closed_pipe_ends_silently():
    command = f"{sys.executable} -m nlm_core generate {GOLDEN} -n 30 --max-new-tokens 50 | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert (done.stdout[:1], done.stderr) == ("-", "")


def test_help_of_every_command(nlm):
    for words in ([], ["data"], ["tokenizer"], ["train"], ["loss"], ["generate"], ["info"], ["data", "download"]):
        code, out, _ = nlm(*words, "--help")
        assert code == 0
        assert "Usage: nlm" in out


def test_version(nlm):
    code, out, _ = nlm("--version")
    assert code == 0
    assert re.fullmatch(r"nlm \d+\.\d+\.\d+\n", out)


def test_training_a_tokenizer_never_replaces_a_text(nlm, mine):
    before = mine.read_bytes()
    refused(nlm("tokenizer", "train", mine, "--vocab-size", "300", "--out", mine), "mine.txt is there already")
    assert mine.read_bytes() == before
    for size in ("300", "310"):  # an older tokenizer may be replaced
        assert nlm("tokenizer", "train", mine, "--vocab-size", size, "--out", "tok.json")[0] == 0


def test_text_to_judge_by_must_not_be_the_text_to_learn_from(nlm, mine):
    assert nlm("data", "add", mine, "--split", "train")[0] == 0
    refused(nlm("data", "add", mine, "--split", "valid"), "is the same text as data/mine/train/mine.txt")


def test_absurd_settings_are_refused_before_any_work(nlm, mine):
    nlm("data", "add", mine, "--split", "train")
    nlm("data", "prepare", "--tokenizer", GOLDEN / "tokenizer.json")
    refused(nlm("train", "--set", "d_model=1000000"), "nlm is made for small models")
    refused(nlm("train", "--set", "n_layers=100000000"), "n_layers must be 1 to")
    refused(nlm("train", "--set", "batch_size=1000000000"), "batch_size must be at most")
    refused(nlm("train", "--set", "lr=1e300"), "lr must be")
    refused(nlm("train", "--minutes", "1e308"), "at most 1e15")
    refused(nlm("train", "--steps", "1" + "0" * 400), "at most 1e15")
    refused(nlm("generate", GOLDEN, "-n", "3000000"), "1 to 10,000")
    refused(nlm("generate", GOLDEN, "--stop", "a\udcff"), "surrogate")
    refused(nlm("generate", GOLDEN, "--repetition-penalty", "1e-300"), "repetition_penalty")


def test_how_to_go_on_is_said_for_one_process_and_for_several(own_root):
    assert cli._resuming(own_root / "run", 1) == "nlm train --resume --out run"
    assert cli._resuming(own_root / "run", 2) == "torchrun as before, -m nlm_core train --resume --out run"


@pytest.mark.parametrize(("setting", "said"), [("0", False), (None, True)])
def test_missing_kernels_are_mentioned_unless_they_are_not_wanted(nlm, setting, said, monkeypatch):
    monkeypatch.setattr(cli.native, "library", lambda: None)
    monkeypatch.delenv("NLM_NATIVE", raising=False)
    if setting is not None:
        monkeypatch.setenv("NLM_NATIVE", setting)
    code, _, err = nlm("generate", GOLDEN, "--max-new-tokens", "2")
    assert (code, "no compiled kernels" in err) == (0, said)
