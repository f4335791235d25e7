"""nlm: a small language model, built, trained and doubted."""

from nlm_core.checkpoint import load_checkpoint, save_checkpoint
from nlm_core.config import ModelConfig
from nlm_core.errors import UserError
from nlm_core.generate import generate
from nlm_core.model import NLM
from nlm_core.tokenizer import Tokenizer

__all__ = ["NLM", "ModelConfig", "Tokenizer", "UserError", "generate", "load_checkpoint", "save_checkpoint"]
