"""The record of endings is what `repetition.endings` says of each story."""

import pytest

from nlm_core import NLM, UserError, save_checkpoint
from nlm_core.config import ModelConfig
from nlm_core.data import add, prepare
from nlm_core.records import read_record
from nlm_core.repetition import endings
from nlm_core.source import text_to_score


@pytest.fixture
def record(script):
    return script("endings")["main"]


def make(own_root, tokenizer, text):
    for split in ("train", "valid"):
        (own_root / f"{split}.txt").write_text(f"{split}. " + text)
        add([own_root / f"{split}.txt"], split, "short")
    prepare("short", tokenizer)
    model = NLM(ModelConfig(vocab_size=512, context_length=64, d_model=16, n_layers=1, n_heads=2))
    save_checkpoint(own_root / "checkpoints" / "nlm", model, tokenizer, step=0)


def test_each_story(record, own_root, tokenizer):
    lines = "".join(f"A dog {n} ran. It sat.\n<|endoftext|>\n" for n in range(12)) + "No end\n<|endoftext|>\n"
    make(own_root, tokenizer, lines)
    record(["short"])
    model = NLM.from_checkpoint(own_root / "checkpoints" / "nlm")
    found = [endings(model, tokenizer, story) for story in text_to_score("short", "report", tokenizer).stories]
    kept = read_record("endings")
    assert kept.units["at the end"].tolist() == pytest.approx([one.at_end for one in found if one], rel=1e-6)
    assert kept.units["elsewhere"].tolist() == pytest.approx([one.elsewhere.mean() for one in found if one], rel=1e-6)


def test_no_usable_story(record, own_root, tokenizer):
    make(own_root, tokenizer, "".join(f"No end {n}\n<|endoftext|>\n" for n in range(12)))
    with pytest.raises(UserError, match="no story of 'short' ends with a sentence"):
        record(["short"])
