"""What all tests share: one thread, a folder of their own, and tiny stand-ins for the real things."""

import atexit
import itertools
import os
import shutil
import tempfile
from pathlib import Path

import matplotlib.font_manager  # noqa: F401  its first import may print that it builds a cache: not in a notebook
import pytest
import torch
from hypothesis import settings

from benchmarks.inputs import Inputs
from nlm_core import native
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
