"""What all tests share: one thread, a folder of their own, and tiny stand-ins for the real things."""

import atexit
import io
import itertools
import os
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.font_manager  # noqa: F401  its first import may print that it builds a cache: not in a notebook
import pytest
import torch
from hypothesis import settings

from benchmarks.inputs import Inputs
from nlm_core import cli, native
from nlm_core.config import ModelConfig
from nlm_core.data import Corpus, add, prepare
from nlm_core.model import NLM
from nlm_core.text import blocks, stories
from nlm_core.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
STORIES = ROOT / "data" / "stories.txt"

# The same examples on every machine, and no database of failures beside the tests; a busy machine is not a failure.
settings.register_profile("nlm", derandomize=True, database=None, deadline=None)
settings.load_profile("nlm")

# Everything here is tiny: a second thread would only wait for the first.
torch.set_num_threads(1)

# The kernels are compiled anew, and for this run alone.
if "NLM_CACHE" not in os.environ:
    os.environ["NLM_CACHE"] = tempfile.mkdtemp(prefix="nlm-tests-")
    atexit.register(shutil.rmtree, os.environ["NLM_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True)
def own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees or touches the project's own data, runs or checkpoints unless it names them."""
    monkeypatch.setenv("NLM_ROOT", str(tmp_path))
    monkeypatch.delenv("NLM_CHECKPOINT", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def stories_file() -> Path:
    return STORIES


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([STORIES], vocab_size=512)


@pytest.fixture
def tiny_model() -> NLM:
    torch.manual_seed(0)
    return NLM(ModelConfig(vocab_size=512, context_length=32, d_model=16, n_layers=2, n_heads=2)).eval()


@pytest.fixture
def sharp_model(tiny_model: NLM) -> NLM:
    """With large weights, so that heads look somewhere and predictions are far from uniform."""
    torch.manual_seed(1)
    with torch.no_grad():
        for param in tiny_model.parameters():
            param.normal_(std=0.3)
    return tiny_model


@pytest.fixture
def corpus(own_root: Path, tokenizer: Tokenizer) -> Corpus:
    """A prepared corpus "stories" of 60 stories to learn from and 20 to judge by."""
    text = list(itertools.islice(stories(blocks(STORIES)), 80))
    for split, part in (("train", text[:60]), ("valid", text[60:])):
        source = own_root / f"{split}.txt"
        source.write_text("".join(part))
        add([source], split, "stories")
    prepare("stories", tokenizer)
    return Corpus.open("stories")


@pytest.fixture
def peers_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the benchmarks' peers from the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")


@pytest.fixture
def quick() -> Inputs:
    """The benchmarks on a tiny model."""
    return Inputs.quick()


@pytest.fixture(params=["kernels", "plain"])
def form(request, monkeypatch):
    """Once with the compiled kernels, once without."""
    if request.param == "plain":
        monkeypatch.setattr(native, "usable", lambda x: False)
    else:
        assert native.library() is not None
    return request.param


class Utf8Output(io.StringIO):
    """Captured output that can be reconfigured, as a terminal's can."""

    def reconfigure(self, **_) -> None:
        pass


@pytest.fixture
def nlm(monkeypatch):
    """Run the command in this process; returns the exit code, standard output and standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        out, err = Utf8Output(), Utf8Output()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["nlm", *map(str, words)])
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            try:
                cli.main()
                code = 0
            except SystemExit as leaving:
                code = leaving.code or 0
        return code, out.getvalue(), err.getvalue()

    return run


@pytest.fixture
def script(monkeypatch):
    """Load scripts/NAME.py, with other constants where they would take too long; returns its names."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))

    def load(name: str, **constants: object) -> dict[str, Any]:
        found = runpy.run_path(str(ROOT / "scripts" / f"{name}.py"))
        assert constants.keys() <= found.keys(), f"{name}.py has no such constants"
        found["main"].__globals__.update(constants)
        return found

    return load


@pytest.fixture
def mine(own_root: Path, stories_file: Path) -> Path:
    """A text file of a reader's own."""
    path = own_root / "mine.txt"
    path.write_text(stories_file.read_text()[:40_000])
    return path


def refused(result: tuple[int, str, str], *words: str) -> None:
    code, _, err = result
    assert code == 2, err
    assert "Traceback" not in err
    message = err.strip().splitlines()[-1]
    for word in words:
        assert word in message, message
