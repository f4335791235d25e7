"""What all tests share: one thread, a folder of their own, and tiny stand-ins for the real things."""

from pathlib import Path

import pytest
import torch

from nlm_core.config import ModelConfig
from nlm_core.model import NLM
from nlm_core.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
STORIES = ROOT / "data" / "stories.txt"


@pytest.fixture(autouse=True)
def own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees or touches the project's own data, runs or checkpoints unless it names them."""
    monkeypatch.setenv("NLM_ROOT", str(tmp_path))
    monkeypatch.delenv("NLM_CHECKPOINT", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([STORIES], vocab_size=512)


@pytest.fixture
def tiny_model() -> NLM:
    torch.manual_seed(0)
    return NLM(ModelConfig(vocab_size=512, context_length=32, d_model=16, n_layers=2, n_heads=2)).eval()
