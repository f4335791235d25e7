"""Make checkpoints/golden: a model small enough to commit, whose losses and greedy text are exact tests.

    python scripts/make_golden.py

It trains for about a minute, on data/stories.txt alone. Weights differ a little from machine to machine; what the tests
check is that the committed weights give the committed figures.
"""

import json
import os
import shutil
import tempfile
from itertools import islice
from pathlib import Path

import torch

from nlm_core import NLM, Tokenizer, generate, load_checkpoint, save_checkpoint
from nlm_core.config import Budget, preset
from nlm_core.data import Corpus, add, prepare
from nlm_core.errors import one_line_errors
from nlm_core.files import write_json
from nlm_core.runfolder import RunFolder
from nlm_core.score import score
from nlm_core.text import blocks, stories
from nlm_core.train import Trainer

ROOT = Path(__file__).resolve().parent.parent
STORIES = ROOT / "data" / "stories.txt"
OUT = ROOT / "checkpoints" / "golden"
SCORED = 20  # stories
PROMPTS = ["Once upon a time", "The dog", "Lily and Ben"]
NEW_TOKENS = 40

CARD = """# The golden checkpoint

A tiny model for exact tests: {parameters:,} parameters, trained for {steps} steps on `data/stories.txt` by
`scripts/make_golden.py`. It is no use for anything else; its stories are babble.

`expected.json` holds its losses on the first {scored} of those stories and its greedy texts, computed in float64 from
the float16 weights beside it. `tests/test_golden.py` computes them again.
"""


def train(folder: Path) -> Path:
    os.environ["NLM_ROOT"] = str(folder)
    add([STORIES], "train", "stories")
    prepare("stories", Tokenizer.train([STORIES], vocab_size=512))
    corpus = Corpus.open("stories")
    shape = {"context_length": 64, "d_model": 64, "n_layers": 2, "n_heads": 4}
    model_config, config = preset("tiny", 512, {**shape, "precision": "float32", "device": "cpu"})
    return Trainer(RunFolder(folder / "run"), corpus, model_config, config, Budget("steps", 500)).run()


def measure(path: Path) -> dict:
    checkpoint = load_checkpoint(path)
    model = NLM.from_checkpoint(path).double()
    tok = checkpoint["tokenizer"]
    texts = generate(model, tok, PROMPTS, max_new_tokens=NEW_TOKENS, temperature=0)
    summary = score(model, tok, islice(stories(blocks(STORIES)), SCORED)).summary()
    return {
        "checkpoint": checkpoint["sha256"],
        "scored_stories": SCORED,
        "new_tokens": NEW_TOKENS,
        "greedy": dict(zip(PROMPTS, texts, strict=True)),
        "loss": summary,
    }


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = load_checkpoint(train(Path(folder)))
    model = NLM.from_params(run["config"], run["params"])
    if OUT.exists():
        shutil.rmtree(OUT)
    save_checkpoint(OUT, model, run["tokenizer"], step=run["step"], metrics={})
    expected = measure(OUT)
    write_json(OUT / "expected.json", expected)
    parameters = sum(value.numel() for value in model.parameters())
    (OUT / "README.md").write_text(
        CARD.format(parameters=parameters, steps=run["step"], scored=SCORED), encoding="utf-8"
    )
    print(json.dumps(expected, indent=2))


if __name__ == "__main__":
    with one_line_errors():
        main()
