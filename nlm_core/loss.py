"""How well a model predicts text: nats per target, and what follows from them."""

import math

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor
from tqdm import tqdm

from nlm_core.cross_entropy import token_nats
from nlm_core.errors import UserError
from nlm_core.hardware import autocast
from nlm_core.model import NLM, evaluating
from nlm_core.workers import on_threads


@torch.no_grad()
def stream_nats(
    model: NLM,
    ids: Integer[np.ndarray, " N"],
    batch_size: int = 2,
    precision: str = "float32",
    progress: bool = False,
) -> Float[np.ndarray, " N-1"]:
    """Score a stream of tokens: minus the natural logarithm of each token's probability, given those before it.

    The stream is cut into windows of `context_length` inputs; window i predicts tokens i T + 1 to (i + 1) T. So every
    token but the first is predicted exactly once, from 1 to T tokens of context.

    Args:
        model: in training or evaluation mode; dropout is off while this runs.
        ids: the stream.
        batch_size: windows at a time, for each thread.
        precision: "float32" or "bfloat16" (the logarithms are taken in float32 either way).
        progress: show a bar while standard error is a terminal.

    Raises:
        UserError: fewer than two tokens, or an id outside the vocabulary.
    """
    require_scorable(ids, model.config.vocab_size)
    device = model.token_emb.device
    batches = stream_windows(ids, model.config.context_length, batch_size)
    scored = on_threads(lambda windows: _window_nats(model, windows, device, precision), batches, device)
    bar = tqdm(scored, desc="scoring", total=len(batches), leave=False, disable=None if progress else True)
    with evaluating(model):
        return np.concatenate(list(bar))


def require_scorable(ids: Integer[np.ndarray, " N"], vocab_size: int) -> None:
    """Raise a UserError unless a model of this vocabulary can score the stream."""
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise UserError(f"a text to score is a row of whole numbers, not {ids.ndim} dimensions of {ids.dtype}")
    if len(ids) < 2:
        raise UserError("a text needs at least two tokens to be scored")
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise UserError("the text was encoded with another tokenizer: it has ids outside the model's vocabulary")


def stream_windows(stream: Integer[np.ndarray, " N"], context_length: int, batch_size: int) -> list[Int[Tensor, "_ _"]]:
    """Cut a stream into batches of windows, each window with its last target: (B, T + 1); the last may be shorter."""
    tokens = torch.from_numpy(stream.astype(np.int64))
    whole = (len(tokens) - 1) // context_length
    batches = list(tokens.unfold(0, context_length + 1, context_length).split(batch_size)) if whole else []
    rest = tokens[None, whole * context_length :]
    return [*batches, rest] if rest.shape[1] > 1 else batches


def _window_nats(model: NLM, batch: Int[Tensor, "B W"], device: torch.device, precision: str) -> np.ndarray:
    batch = batch.to(device)  # (B, T + 1)
    with autocast(device, precision):
        nats = token_nats(model.read(batch[:, :-1]).flatten(0, 1), model.token_emb, batch[:, 1:].flatten())
    return nats.cpu().numpy()


def bits_per_byte(nats: float, target_bytes: int) -> float:
    """The one figure that compares across tokenizers: total nats / ln 2 / UTF-8 bytes of the targets."""
    return nats / math.log(2) / target_bytes
