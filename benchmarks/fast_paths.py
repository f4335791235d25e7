"""Row: each fast path of nlm alone, beside the plain way to the same numbers, at the sizes of the book's model.

The kernels run on one thread, as they do in training, where each core has a micro-batch to itself.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.inputs import Inputs
from benchmarks.measure import alternate, require_agreement, say, seconds, spread
from benchmarks.training import OurTraining
from nlm_core import native, optim, step
from nlm_core.attention import causal_attention
from nlm_core.cross_entropy import mean_nats
from nlm_core.decode import NativeDecoder, TorchDecoder
from nlm_core.errors import UserError
from nlm_core.gelu import gelu
from nlm_core.optim import Muon
from nlm_core.sampling import Sampling, choose

NAME = "fast paths of nlm"
MICRO_BATCH = 2  # windows
SDPA, TOGETHER = "scaled_dot_product_attention", "each operation on all cores"
Work = Callable[[], Sequence[Tensor]]
TOLERANCE = 1e-4  # of every path, as a share of the largest number
LEAST_SECONDS = 0.05  # of a round: short work is done over and over


@dataclass
class FastPath:
    """One of them.

    Attributes:
        module: of nlm_core, whose docstring says what is measured here.
        name: of the path.
        beside: the plain way.
        fast, plain: do the work and return the numbers that must agree.
        threads: of both.
    """

    module: str
    name: str
    beside: str
    fast: Work
    plain: Work
    threads: int = 1


def with_gradient(work: Callable[..., Tensor], *inputs: Tensor) -> Work:
    """Work that ends with the result and the gradients of its inputs."""
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    shape = work(*inputs).shape
    down = torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def both() -> Sequence[Tensor]:
        y = work(*inputs)
        return y.detach(), *torch.autograd.grad(y, inputs, down)

    return both


def of_training(inputs: Inputs) -> Iterator[FastPath]:
    """The kernels of a micro-batch's way through the model."""
    config = inputs.model().config
    B, T, C, H = MICRO_BATCH, config.context_length, config.d_model, config.n_heads

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(1))

    def sdpa(qkv: Tensor) -> Tensor:
        q, k, v = qkv.view(B, T, 3, H, -1).permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)

    qkv = random(B, T, 3 * C)
    kernel = with_gradient(lambda x: causal_attention(x, H), qkv)
    yield FastPath("attention", "attention, with gradient", SDPA, kernel, with_gradient(sdpa, qkv))
    yield FastPath(
        "attention", "attention in blocks, without the kernel", SDPA, without_kernels(kernel), with_gradient(sdpa, qkv)
    )
    hidden = random(B, T, 4 * C)
    yield FastPath(
        "gelu",
        "GELU, with gradient",
        "torch's",
        with_gradient(gelu, hidden),
        with_gradient(lambda x: F.gelu(x, approximate="tanh"), hidden),
    )
    x, table = random(B * T, C), 0.1 * random(config.vocab_size, C)
    targets = torch.randint(config.vocab_size, (B * T,), generator=torch.Generator().manual_seed(2))
    yield FastPath(
        "cross_entropy",
        "output and loss, with gradient",
        "a product and cross_entropy",
        with_gradient(lambda x, table: mean_nats(x, table, targets), x, table),
        with_gradient(lambda x, table: F.cross_entropy(x @ table.T, targets), x, table),
    )


def of_writing(inputs: Inputs) -> Iterator[FastPath]:
    """Reading the next token of each text, and choosing the one after."""
    model, tokenizer, threads = inputs.model().eval(), inputs.tokenizer, torch.get_num_threads()
    for count in (1, inputs.prompts):
        prompts = [tokenizer.encode(opening) for opening in inputs.openings(count)]
        longest = max(map(len, prompts)) + inputs.new_tokens
        tokens = torch.tensor([prompt[-1] for prompt in prompts])

        def go_on(decoder: NativeDecoder | TorchDecoder, prompts=prompts, tokens=tokens) -> Work:
            @torch.inference_mode()
            def work() -> Sequence[Tensor]:
                logits = decoder.begin(prompts)
                for _ in range(inputs.new_tokens):
                    logits = decoder.step(list(range(len(prompts))), tokens)
                return [logits]

            return work

        texts = "one text" if count == 1 else f"{count} texts"
        yield FastPath(
            "decode",
            f"reading {inputs.new_tokens} tokens of {texts}",
            "the model and its cache",
            go_on(NativeDecoder(model, longest)),
            go_on(TorchDecoder(model)),
            threads,
        )
    logits = model(torch.tensor([tokenizer.encode(inputs.text[:400])[:64]]))[0].detach()  # (64, V)
    keys = list(range(len(logits)))

    def chosen() -> Sequence[Tensor]:
        return [choose(logits, Sampling(temperature=0.8), keys, keys).double()]

    name, beside = f"choosing {len(logits)} tokens", "noise for the whole vocabulary"
    yield FastPath("sampling", name, beside, chosen, without_kernels(chosen), threads)


def without_kernels(work: Work) -> Work:
    def plain() -> Sequence[Tensor]:
        with mock.patch.object(native, "library", lambda: None):
            return work()

    return plain


def of_threads(inputs: Inputs) -> Iterator[FastPath]:
    """A thread for each core, where PyTorch would share out every operation."""
    threads = torch.get_num_threads()
    training = OurTraining(inputs, precision="float32")
    model, batch = training.model, training.batches(0).split(training.config.micro_batch_size)

    def gradients() -> Sequence[Tensor]:
        model.zero_grad(set_to_none=True)
        step.accumulate_gradients(model, batch, training.config, 0)
        return [param.grad for param in model.parameters()]

    yield FastPath(
        "workers",
        "gradients of a batch, a thread per core",
        TOGETHER,
        gradients,
        in_turn(step, gradients),
        threads,
    )

    def muon() -> Work:
        weights = [weight.detach().clone() for name, weight in model.named_parameters() if name.startswith("blocks.")]
        weights = [weight for weight in weights if weight.ndim == 2]
        for weight in weights:
            weight.grad = weight.clone()
        optimizer = Muon(weights, lr=0.003)

        def move() -> Sequence[Tensor]:
            optimizer.step()
            return weights

        return move

    yield FastPath("optim", "Muon, a thread per core", TOGETHER, muon(), in_turn(optim, muon()), threads)


def in_turn(module: Any, work: Work) -> Work:
    """The same work without threads of its own: PyTorch shares out each operation."""

    def plain() -> Sequence[Tensor]:
        with mock.patch.object(module, "on_threads", lambda work, items, device: map(work, items)):
            return work()

    return plain


def compare(path: FastPath, inputs: Inputs) -> dict[str, Any]:
    """See whether both ways agree, then measure both in turn."""
    say(f"    {path.name}")
    before = torch.get_num_threads()
    torch.set_num_threads(path.threads)
    try:
        pairs = zip(path.fast(), path.plain(), strict=True)
        difference = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
        agreement = require_agreement(f"the two ways of {path.name}", {"numbers": (difference, TOLERANCE)})
        times = math.ceil(LEAST_SECONDS / seconds(path.fast))

        def timed(work: Work) -> Callable[[int], float]:
            return lambda _: seconds(lambda: [work() for _ in range(times)]) / times

        ours, theirs = alternate(timed(path.fast), timed(path.plain), inputs.rounds)
    finally:
        torch.set_num_threads(before)
    ratio = spread([b / a for a, b in zip(ours, theirs, strict=True)])
    return {
        "module": path.module,
        "path": path.name,
        "beside": path.beside,
        "threads": path.threads,
        "ratio": ratio,
        "rounds": {"fast": ours, "plain": theirs},
        "agreement": agreement,
    }


def measure(inputs: Inputs) -> list[dict[str, Any]]:
    say(NAME)
    if native.library() is None:
        raise UserError("the kernels can't be compiled here, so there is no fast path; NLM_NATIVE=1 says why")
    paths = [compare(path, inputs) for kind in (of_training, of_writing, of_threads) for path in kind(inputs)]
    return [{"row": NAME, "unit": "plain seconds / fast seconds", "paths": paths}]
