"""The network, top to bottom: a decoder-only, pre-norm transformer in the manner of GPT-2 (Radford et al. 2019).

Shapes: B batch, T sequence, S cached and new positions, C = d_model, H heads, D = C / H, V vocabulary, L layers.
"""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from nlm_core.attention import attend, causal_attention
from nlm_core.config import ModelConfig
from nlm_core.dropout import Dropout
from nlm_core.errors import UserError
from nlm_core.gelu import gelu

EPS = 1e-5  # of all norms
INIT_STD = 0.02  # of GPT-2's token table and matrices


def sinusoids(T: int, C: int) -> Float[np.ndarray, "T C"]:
    """The fixed table of Vaswani et al. 2017, section 3.5, for positions 0 to T - 1.

    Column 2 i holds sin(position / 10000^(2 i / C)), column 2 i + 1 the cosine of the same angle. Nothing limits T.
    """
    columns = np.arange(C)
    angles = np.arange(T)[:, None] / 10000 ** (columns // 2 * 2 / C)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles))


class KVCache:
    """The keys and values of the tokens read so far, so that each new token costs one position and not the whole text.

    Rows may have different lengths. A row's slots beyond its length hold whatever padding left there: the bias hides
    them, and the row's next tokens overwrite them.

    Attributes:
        lengths: (B,) the number of tokens that each row holds; whoever feeds the model moves it on.
        places: (B, T) the positions of the tokens now being read.
        bias: (B, 1, T, S) 0 where such a token may look, minus infinity elsewhere.
    """

    def __init__(self, model: "NLM", batch: int):
        config = model.config
        shape = (batch, config.n_heads, config.context_length, config.head_size)  # (B, H, S, D)
        self.keys = [model.token_emb.new_zeros(shape) for _ in range(config.n_layers)]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.lengths = torch.zeros(batch, dtype=torch.long, device=model.token_emb.device)

    def begin(self, new: int) -> None:
        """Make ready for `new` more tokens in every row."""
        device = self.lengths.device
        self.places = self.lengths[:, None] + torch.arange(new, device=device)  # (B, T)
        longest = int(self.places.max()) + 1
        hidden = torch.arange(longest, device=device) > self.places[:, None, :, None]  # (B, 1, T, S)
        self.bias = torch.zeros(hidden.shape, dtype=self.keys[0].dtype, device=device).masked_fill_(hidden, -math.inf)

    def extend(
        self, layer: int, k: Float[Tensor, "B H T D"], v: Float[Tensor, "B H T D"]
    ) -> tuple[Float[Tensor, "B H S D"], Float[Tensor, "B H S D"]]:
        """Store a layer's new keys and values at their places; return all that any row holds by now."""
        rows = torch.arange(len(k), device=k.device)[:, None]
        self.keys[layer][rows, :, self.places] = k.transpose(1, 2)  # (B, T, H, D)
        self.values[layer][rows, :, self.places] = v.transpose(1, 2)
        longest = self.bias.shape[-1]
        return self.keys[layer][:, :, :longest], self.values[layer][:, :, :longest]

    def keep(self, rows: Int[Tensor, " K"]) -> None:
        """Drop all rows but these."""
        self.keys = [keys[rows] for keys in self.keys]
        self.values = [values[rows] for values in self.values]
        self.lengths = self.lengths[rows]


class Attention(nn.Module):
    """Every position asks (q) itself and all positions before it what they offer (k), and takes it (v)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.n_heads = config.n_heads
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model)
        self.out = nn.Linear(config.d_model, config.d_model)

    def gather(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        """What the heads take from a whole text, side by side."""
        return causal_attention(self.qkv(x), self.n_heads)

    def forward(self, x: Float[Tensor, "B T C"], layer: int, cache: KVCache | None) -> Float[Tensor, "B T C"]:
        if cache is None:
            return self.out(self.gather(x))
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        y = attend(q, *cache.extend(layer, k, v), cache.bias)
        return self.out(y.transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    """Each position on its own: to four times the width, a non-linearity, and back."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.up = nn.Linear(config.d_model, 4 * config.d_model)
        self.down = nn.Linear(4 * config.d_model, config.d_model)

    def forward(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        return self.down(gelu(self.up(x)))


class Block(nn.Module):
    """Two branches that each read the normalised residual stream and add what they found to it."""

    def __init__(self, config: ModelConfig, dropout: float):
        super().__init__()
        self.attn_norm = nn.LayerNorm(config.d_model, eps=EPS)
        self.attn = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.d_model, eps=EPS)
        self.mlp = MLP(config)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B T C"], layer: int, cache: KVCache | None) -> Float[Tensor, "B T C"]:
        return self.add_mlp(x + self.dropout(self.attn(self.attn_norm(x), layer, cache)))

    def add_mlp(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        """The second branch."""
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class NLM(nn.Module):
    """Token ids in, for each position the logits of the next token out.

    Args:
        config: the shape of the network.
        dropout: probability, in training, on the embedding sum and on each branch.
    """

    def __init__(self, config: ModelConfig, dropout: float = 0.0):
        super().__init__()
        self.config = config
        self.token_emb = nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        shape = (config.context_length, config.d_model)
        if config.positions == "learned":
            self.pos_emb = nn.Parameter(torch.empty(shape))
        else:  # fixed, so not among the weights; the formula is scaled to the size that a learned table begins with
            fixed = math.sqrt(2) * INIT_STD * sinusoids(*shape) if config.positions == "sinusoidal" else np.zeros(shape)
            self.register_buffer("pos_emb", torch.from_numpy(fixed.astype(np.float32)), persistent=False)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(Block(config, dropout) for _ in range(config.n_layers))
        self.final_norm = nn.LayerNorm(config.d_model, eps=EPS)
        self.initialise()

    def initialise(self) -> None:
        """Draw fresh weights: normal with standard deviation 0.02, biases zero, norms one."""
        # Each block adds two branches to the residual stream; this keeps its variance from growing with depth.
        branch_std = INIT_STD / math.sqrt(2 * self.config.n_layers)
        nn.init.normal_(self.token_emb, std=INIT_STD)
        if isinstance(self.pos_emb, nn.Parameter):
            nn.init.normal_(self.pos_emb, std=INIT_STD)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=branch_std if name.endswith(("out", "down")) else INIT_STD)
                nn.init.zeros_(module.bias)

    @classmethod
    def from_checkpoint(cls, path: str | Path | None = None) -> "NLM":
        """Load a trained model, ready for use (float32, no dropout); without a path, as `load_checkpoint` does."""
        from nlm_core.checkpoint import load_checkpoint  # here, since that module imports this one

        checkpoint = load_checkpoint(path)
        return cls.from_params(checkpoint["config"], checkpoint["params"])

    @classmethod
    def from_params(cls, config: ModelConfig, params: dict[str, np.ndarray]) -> "NLM":
        """Make a model of arrays by name, as `load_checkpoint` returns them; ready for use (float32, no dropout)."""
        with torch.device("meta"):  # no fresh weights: drawing them would take time and move the global generator
            model = cls(config)
        # Copies, so that what is done to the model is not done to the arrays.
        copies = {name: torch.tensor(value, dtype=torch.float32) for name, value in params.items()}
        model.load_state_dict(copies, assign=True)
        return model.eval()

    def forward(self, ids: Int[Tensor, "B T"], cache: KVCache | None = None) -> Float[Tensor, "B T V"]:
        """Return the logits of the next token at every position; for the arguments see `read`."""
        return self.unembed(self.read(ids, cache))

    def embed(self, ids: Int[Tensor, "B T"], cache: KVCache | None = None) -> Float[Tensor, "B T C"]:
        """Return the residual stream before the first block: what each token is, plus where it stands."""
        # F.embedding, since the backward pass of token_emb[ids] adds in an order that changes from run to run.
        tok_emb = F.embedding(ids, self.token_emb)  # (B, T, C)
        pos_emb = self.pos_emb[: ids.shape[1]] if cache is None else F.embedding(cache.places, self.pos_emb)
        return self.dropout(tok_emb + pos_emb)

    def unembed(self, x: Float[Tensor, "*B C"]) -> Float[Tensor, "*B V"]:
        """Turn what `read` returned into logits: the output is tied to the token table."""
        return x @ self.token_emb.T

    def read(self, ids: Int[Tensor, "B T"], cache: KVCache | None = None) -> Float[Tensor, "B T C"]:
        """Return the final, normalised residual stream at every position.

        Args:
            ids: the token ids; with a cache, those that follow the tokens already in it.
            cache: keys and values of the tokens before; this call adds its own, the caller then moves `lengths` on.

        Raises:
            UserError: (a ValueError) the text is longer than the context.
        """
        T = ids.shape[1]
        longest = T if cache is None else int(cache.lengths.max()) + T
        if longest > self.config.context_length:
            raise UserError(
                f"{longest} tokens are more than this model's limit of {self.config.context_length} (context_length): "
                "there is no vector for a later position; shorten the text, or feed it in windows"
            )
        if cache is not None:
            cache.begin(T)
        x = self.embed(ids, cache)
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, cache)
        return self.final_norm(x)


def is_patched(part: nn.Module) -> bool:
    """Whether a module has hooks or a replaced method, so that only calling it gives what it does."""
    own = (value for name, value in vars(part).items() if not name.startswith("_"))
    return bool(part._forward_hooks or part._forward_pre_hooks) or any(map(callable, own))


@contextlib.contextmanager
def evaluating(model: NLM) -> Iterator[None]:
    """Within this, dropout is off; then each part of the model is in the mode that it was in, whatever happened."""
    before = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, was_training in before:
            part.training = was_training
