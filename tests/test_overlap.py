"""The leakage check finds a shared run of words wherever it stands, and nothing else."""

import runpy
import sys

from conftest import ROOT


def test_a_story_inside_another_is_found(own_root, monkeypatch, capsys):
    separator = "\n<|endoftext|>\n"
    train, valid = own_root / "train.txt", own_root / "valid.txt"
    # The first story lies in the middle of a longer one, with other capitals and punctuation.
    train.write_text("Long ago, THE DOG RAN; to the old mill! And slept." + separator)
    valid.write_text("The dog ran to the old mill." + separator + "A cat sat on the old mill." + separator)
    script = str(ROOT / "scripts" / "overlap.py")
    for words, expected in ((7, "1 of 2"), (3, "2 of 2"), (8, "0 of 2")):
        monkeypatch.setattr(sys, "argv", [script, str(train), str(valid), "--words", str(words)])
        runpy.run_path(script, run_name="__main__")
        assert capsys.readouterr().out.startswith(f"valid.txt: {expected} stories share a run of {words} words")
