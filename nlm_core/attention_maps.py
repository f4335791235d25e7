"""Where heads look: the attention weights of a trained model, and what they have in common over many texts.

A weight says where a head took something from, not what it took, nor whether that mattered (Jain & Wallace 2019).

Shapes: L layers, H heads, T tokens; row t of a (T, T) map holds the weights of token t on tokens 0 to t.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Float

from nlm_core.errors import UserError
from nlm_core.model import NLM, evaluating


@torch.inference_mode()
def attention_weights(model: NLM, ids: Sequence[int]) -> Float[np.ndarray, "L H T T"]:
    """The weights that every head gives to each token, for one text.

    Args:
        model: a model; dropout is off while this runs.
        ids: of the text, not more than the context.

    Raises:
        UserError: the text is empty or longer than the context.
    """
    config = model.config
    if not 1 <= len(ids) <= config.context_length:
        raise UserError(f"attention maps need 1 to {config.context_length} tokens, not {len(ids)}")
    T = len(ids)
    hidden = torch.ones(T, T, dtype=torch.bool, device=model.token_emb.device).triu(1)
    maps = []
    with evaluating(model):
        x = model.embed(torch.tensor([list(ids)], device=model.token_emb.device))
        for layer, block in enumerate(model.blocks):
            q, k, _ = block.attn.qkv(block.attn_norm(x)).view(T, 3, config.n_heads, -1).permute(1, 2, 0, 3)  # (H, T, D)
            scores = q @ k.transpose(-2, -1) / config.head_size**0.5  # (H, T, T)
            maps.append(scores.masked_fill(hidden, -torch.inf).softmax(dim=-1))
            x = block(x, layer, None)
    return torch.stack(maps).cpu().numpy()


def looks(weights: Float[np.ndarray, "L H T T"], skip: int = 16, back: int = 4) -> dict[str, Float[np.ndarray, "L H"]]:
    """Mean weights on the token itself, on those just before it, and on the text's first token.

    Args:
        weights: of one text.
        skip: first tokens whose own weights are left out, since there "just before" and "the first" are the same.
        back: how many tokens back to look.

    Returns:
        "0 back" (the token itself), "1 back" and so on, and "first".

    Raises:
        UserError: the text is too short for that.
    """
    T = weights.shape[-1]
    if skip >= T or back >= skip:
        raise UserError(f"a text of {T} tokens is too short to skip {skip} of them and look {back} back")
    found = {
        f"{distance} back": np.diagonal(weights, -distance, 2, 3)[..., skip - distance :].mean(axis=-1)
        for distance in range(back + 1)
    }
    return {**found, "first": weights[:, :, skip:, 0].mean(axis=-1)}


def looks_of(
    model: NLM, texts: Iterable[Sequence[int]], skip: int = 16, back: int = 4
) -> dict[str, Float[np.ndarray, "S L H"]]:
    """`looks` of S texts."""
    each = [looks(attention_weights(model, ids), skip, back) for ids in texts]
    return {name: np.stack([one[name] for one in each]) for name in each[0]}
