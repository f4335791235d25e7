"""Reading on while writing: what the model made of a text so far is kept, so that only each new token is read.

Two ways with one interface. `TorchDecoder` is the model with its `KVCache`, on any device and in any precision. The
kernel in `native/decode.c` goes through all layers in one call. For one text, most of its work is to read all weights
from memory; it reads them as float16 if each is exactly such a number, as in the shipped checkpoint, so nothing is
lost. Its numbers for a text depend neither on the other texts nor on the number of threads, to the last bit.

Shapes: B texts, K of them that go on, T new tokens of each, V vocabulary, S the most tokens that a text can have.
"""

import ctypes
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nlm_core import native
from nlm_core.dropout import Dropout
from nlm_core.errors import UserError
from nlm_core.model import MLP, NLM, Attention, Block, KVCache

KNOWN = {NLM, Block, Attention, MLP, Dropout, nn.LayerNorm, nn.Linear, nn.ModuleList}


def decoder_for(model: NLM, longest: int) -> "TorchDecoder | NativeDecoder":
    """Return what reads for `model` here.

    Args:
        model: a model in evaluation mode.
        longest: the most tokens that any text will have.
    """
    return NativeDecoder(model, longest) if _is_plain(model) else TorchDecoder(model)


def _is_plain(model: NLM) -> bool:
    """Whether the kernel knows all that the model does: no part is replaced, and nothing is hooked to one."""
    weights = [*model.parameters(), *model.buffers()]
    if not all(native.usable(weight) and weight.dtype == torch.float32 for weight in weights):
        return False
    parts = list(model.modules())
    return {type(part) for part in parts} <= KNOWN and not any(
        part._forward_hooks or part._forward_pre_hooks for part in parts
    )


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
        self.kernels = native.library()
        self.columns = self._constant("decode_columns")
        self.longest = longest
        self.room = self._padded(longest)  # S
        self.config = model.config
        self.f16 = self._constant("decode_f16")  # whether the kernel can read float16
        if not self._pack(model) and self.f16:
            self.f16 = 0
            self._pack(model)

    def _constant(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.kernels, name).value

    def _padded(self, size: int) -> int:
        return -(-size // self.columns) * self.columns

    def _pack(self, model: NLM) -> bool:
        """Make the table of weights, the kernel's struct `Weights`; returns whether all are what they were."""
        matrices = [(model.token_emb, None)]
        vectors = [model.token_emb, model.pos_emb, model.final_norm.weight, model.final_norm.bias]
        for block in model.blocks:
            matrices += [(m.weight, m.bias) for m in (block.attn.qkv, block.attn.out, block.mlp.up, block.mlp.down)]
            vectors += [p for norm in (block.attn_norm, block.mlp_norm) for p in (norm.weight, norm.bias)]
        self.vectors = [vector.detach().contiguous() for vector in vectors]  # which also keeps their memory
        sizes = [self._padded(len(weight)) * (weight.shape[1] + 1) for weight, _ in matrices]
        packed = torch.empty(sum(sizes), dtype=torch.float16 if self.f16 else torch.float32)
        self.packed = packed.split(sizes)
        inexact = ctypes.c_int(0)
        for (weight, bias), packed in zip(matrices, self.packed, strict=True):
            weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
            self.kernels.decode_pack(
                *weight.shape,
                weight.data_ptr(),
                None if bias is None else bias.data_ptr(),
                packed.data_ptr(),
                self.f16,
                ctypes.addressof(inexact),
            )
        v, m = iter(self.vectors), iter(self.packed)
        table = [next(v), next(v), next(v), next(v), next(m)]  # token_emb, pos_emb, final_norm, the output
        for _ in model.blocks:  # attn_norm, qkv, out, mlp_norm, up, down
            table += [next(v), next(v), next(m), next(m), next(v), next(v), next(m), next(m)]
        self.table = torch.tensor([part.data_ptr() for part in table])
        return not inexact.value

    def begin(self, prompts: Sequence[Sequence[int]]) -> Float[Tensor, "B V"]:
        """As `TorchDecoder.begin`; reads one prompt after the other, so that none needs padding."""
        config, sliver = self.config, self.columns // 2
        head = self.room * (config.head_size + -(-config.head_size // sliver) * sliver)  # keys, values
        self.batch = len(prompts)
        self.cache = torch.empty(config.n_layers * self.batch * config.n_heads * head, dtype=torch.float32)
        self.rows = torch.arange(self.batch)
        self.lengths = torch.zeros(self.batch, dtype=torch.long)
        logits = []
        for row, prompt in enumerate(prompts):
            one = slice(row, row + 1)
            logits.append(self._read(self.rows[one], self.lengths[one], torch.tensor([prompt])))
        return torch.cat(logits)

    def step(self, kept: list[int], tokens: Int[Tensor, " K"]) -> Float[Tensor, "K V"]:
        """As `TorchDecoder.step`."""
        if len(kept) < len(self.rows):
            self.rows, self.lengths = self.rows[kept], self.lengths[kept]
        return self._read(self.rows, self.lengths, tokens[:, None])

    def _read(
        self, rows: Int[Tensor, " K"], lengths: Int[Tensor, " K"], tokens: Int[Tensor, "K T"]
    ) -> Float[Tensor, "K V"]:
        """Read new tokens of the texts in these rows of the cache, and count them in `lengths`."""
        if int(lengths.max()) + tokens.shape[1] > self.longest:
            raise UserError(f"a text is longer than the {self.longest} tokens that this decoder was made for")
        config, tokens = self.config, tokens.contiguous()
        logits = torch.empty(len(rows), self._padded(config.vocab_size), dtype=torch.float32)
        self.kernels.decode(
            config.n_layers,
            config.d_model,
            config.n_heads,
            config.vocab_size,
            self.room,
            self.batch,
            self.f16,
            self.table.data_ptr(),
            self.cache.data_ptr(),
            *tokens.shape,
            rows.data_ptr(),
            lengths.data_ptr(),
            tokens.data_ptr(),
            logits.data_ptr(),
        )
        lengths += tokens.shape[1]
        return logits[:, : config.vocab_size]
