"""Reading on while writing: what the model made of a text so far is kept, so that only each new token is read.

Two ways with one interface. `TorchDecoder` is the model with its `KVCache`, on any device and in any precision. The
kernel in `native/decode.c` goes through all layers in one call. For one text, most of its work is to read all weights
from memory; it reads them as float16 if each is exactly such a number, as in the shipped checkpoint, so nothing is
lost. `make bench` (two cores, AVX2): the kernel reads 10.3 times (9.2 to 12.9) as fast for one text and 2.9 times (2.3
to 3.1) as fast for 40. Its numbers for a text depend neither on the other texts nor on the number of threads, to the
last bit.

Shapes: B texts, K of them that go on, T new tokens of each, V vocabulary, S the most tokens that a text can have.
"""

import ctypes
import functools
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nlm_core import native
from nlm_core.config import ModelConfig
from nlm_core.errors import UserError
from nlm_core.model import NLM, KVCache, is_patched

CPU = torch.device("cpu")  # by name, since PyTorch's default device can be another


def decoder_for(model: NLM, longest: int) -> "TorchDecoder | NativeDecoder":
    """Return what reads for `model` here.

    Args:
        model: a model in evaluation mode.
        longest: the most tokens that any text will have.
    """
    return NativeDecoder(model, longest) if _is_plain(model) else TorchDecoder(model)


def _is_plain(model: NLM) -> bool:
    """Whether the kernel knows all that the model does: float32, of the usual shapes, nothing replaced or hooked."""
    weights = [*model.parameters(), *model.buffers()]
    if not all(native.usable(weight) and weight.dtype == torch.float32 for weight in weights):
        return False
    usual = _usual(model.config)
    return (
        _structure(model) == _structure(usual)
        and [weight.shape for weight in weights] == [weight.shape for weight in (*usual.parameters(), *usual.buffers())]
        and all(block.attn.n_heads == model.config.n_heads for block in model.blocks)
        and not nn.modules.module._has_any_global_hook()
        and not any(map(is_patched, model.modules()))
    )


@functools.cache
def _usual(config: ModelConfig) -> NLM:
    with torch.device("meta"):  # shapes without memory
        return NLM(config)


def _structure(model: NLM) -> list[tuple[str, type, float | None]]:
    return [(name, type(part), getattr(part, "eps", None)) for name, part in model.named_modules()]


class TorchDecoder:
    """The model and its cache."""

    def __init__(self, model: NLM):
        self.model = model
        self.device = model.token_emb.device

    def begin(self, prompts: Sequence[Sequence[int]]) -> Float[Tensor, "B V"]:
        """Read the prompts, padded to the longest; return the logits of what may follow each."""
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        padded = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long, device=self.device)
        for row, prompt in enumerate(prompts):
            padded[row, : len(prompt)] = torch.tensor(prompt)
        self.cache = KVCache(self.model, len(prompts))
        x = self.model.read(padded, self.cache)  # (B, T, C)
        self.cache.lengths = lengths
        return self.model.unembed(x[torch.arange(len(prompts), device=self.device), lengths - 1])

    def step(self, kept: list[int], tokens: Int[Tensor, " K"]) -> Float[Tensor, "K V"]:
        """Go on with these of the texts alone, each with a token more; return the logits of what may follow.

        Args:
            kept: in ascending order, their places among the texts that went on in the step before.
            tokens: theirs.
        """
        if len(kept) < len(self.cache.lengths):
            self.cache.keep(torch.tensor(kept, device=self.device))
        x = self.model.read(tokens[:, None].to(self.device), self.cache)  # (K, 1, C)
        self.cache.lengths = self.cache.lengths + 1
        return self.model.unembed(x[:, 0])


class NativeDecoder:
    """The kernel. It takes the weights as they are when the decoder is made, and arranges them as it wants them."""

    def __init__(self, model: NLM, longest: int):
        self.columns = self._constant("decode_columns")
        self.longest = min(longest, model.config.context_length)
        self.room = self._padded(self.longest)  # S
        self.config = model.config
        self.f16 = self._constant("decode_f16")  # whether the kernel can read float16
        if not self._pack(model) and self.f16:
            self.f16 = 0
            self._pack(model)

    def _constant(self, name: str) -> int:
        return ctypes.c_int.in_dll(native.library(), name).value

    def _padded(self, size: int) -> int:
        return -(-size // self.columns) * self.columns

    def _pack(self, model: NLM) -> bool:
        """Make the kernel's struct `Weights`, member by member; returns whether all weights are what they were."""
        self.kept: list[Tensor] = []  # the memory that the struct points to
        inexact = torch.zeros((), dtype=torch.int32, device=CPU)

        def vector(weight: Tensor) -> int:
            self.kept.append(weight.detach().contiguous())
            return self.kept[-1].data_ptr()

        def norm(part: nn.LayerNorm) -> list[int]:
            return [vector(part.weight), vector(part.bias)]

        def matrix(weight: Tensor, bias: Tensor | None = None) -> int:
            size = self._padded(len(weight)) * (weight.shape[1] + 1)
            packed = torch.empty(size, dtype=torch.float16 if self.f16 else torch.float32, device=CPU)
            weight, bias = weight.detach().contiguous(), None if bias is None else bias.detach().contiguous()
            native.run("decode_pack", *weight.shape, weight, bias, packed, self.f16, inexact)
            self.kept.append(packed)
            return packed.data_ptr()

        def linear(part: nn.Linear) -> int:
            return matrix(part.weight, part.bias)

        table = [vector(model.token_emb), vector(model.pos_emb), *norm(model.final_norm), matrix(model.token_emb)]
        for block in model.blocks:
            table += [*norm(block.attn_norm), linear(block.attn.qkv), linear(block.attn.out)]
            table += [*norm(block.mlp_norm), linear(block.mlp.up), linear(block.mlp.down)]
        self.table = torch.tensor(table, device=CPU)
        return not inexact

    def begin(self, prompts: Sequence[Sequence[int]]) -> Float[Tensor, "B V"]:
        """As `TorchDecoder.begin`; reads one prompt after the other, so that none needs padding."""
        config, sliver = self.config, self.columns // 2
        head = self.room * (config.head_size + -(-config.head_size // sliver) * sliver)  # keys, values
        self.batch = len(prompts)
        size = config.n_layers * self.batch * config.n_heads * head
        self.cache = torch.empty(size, dtype=torch.float32, device=CPU)
        self.rows = torch.arange(self.batch, device=CPU)
        self.lengths = torch.zeros(self.batch, dtype=torch.long, device=CPU)
        logits = []
        for row, prompt in enumerate(prompts):
            one = slice(row, row + 1)
            tokens = torch.tensor([prompt], dtype=torch.long, device=CPU)
            logits.append(self._read(self.rows[one], self.lengths[one], tokens))
        return torch.cat(logits)

    def step(self, kept: list[int], tokens: Int[Tensor, " K"]) -> Float[Tensor, "K V"]:
        """As `TorchDecoder.step`."""
        if sorted(set(kept)) != list(kept) or not set(kept) <= set(range(len(self.rows))):
            raise ValueError(f"places among {len(self.rows)} texts, in ascending order, are wanted, not {kept}")
        if len(tokens) != len(kept):
            raise ValueError(f"{len(kept)} texts need a token each, not {len(tokens)}")
        if len(kept) < len(self.rows):
            self.rows, self.lengths = self.rows[kept], self.lengths[kept]
        return self._read(self.rows, self.lengths, tokens[:, None])

    def _read(
        self, rows: Int[Tensor, " K"], lengths: Int[Tensor, " K"], tokens: Int[Tensor, "K T"]
    ) -> Float[Tensor, "K V"]:
        """Read new tokens of the texts in these rows of the cache, and count them in `lengths`."""
        if not tokens.numel():
            raise UserError("a text needs at least one token")
        if int(lengths.max()) + tokens.shape[1] > self.longest:
            raise UserError(f"a text is longer than the {self.longest} tokens that this decoder was made for")
        config, tokens = self.config, tokens.long().contiguous()
        if not 0 <= int(tokens.min()) <= int(tokens.max()) < config.vocab_size:
            raise UserError(f"a token id is outside the vocabulary of {config.vocab_size:,}")
        logits = torch.empty(len(rows), self._padded(config.vocab_size), dtype=torch.float32, device=CPU)
        native.run(
            "decode",
            config.n_layers,
            config.d_model,
            config.n_heads,
            config.vocab_size,
            self.room,
            self.batch,
            self.f16,
            self.table,
            self.cache,
            *tokens.shape,
            rows,
            lengths,
            tokens,
            logits,
        )
        lengths += tokens.shape[1]
        return logits[:, : config.vocab_size]
