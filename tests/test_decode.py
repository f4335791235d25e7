"""The kernel that writes is the model: to rounding for one text, to the last bit for one among many."""

import functools

import numpy as np
import pytest
import torch
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from nlm_core import NLM, generate, load_checkpoint, native
from nlm_core.config import ModelConfig
from nlm_core.decode import NativeDecoder, TorchDecoder, decoder_for
from nlm_core.errors import UserError
from nlm_core.sampling import Sampling, choose, gumbel_noise, narrowed

SHAPES = [
    {"vocab_size": 300, "context_length": 70, "d_model": 16, "n_layers": 2, "n_heads": 2},
    {"vocab_size": 300, "context_length": 70, "d_model": 16, "n_layers": 2, "n_heads": 2, "positions": "sinusoidal"},
    {"vocab_size": 300, "context_length": 70, "d_model": 16, "n_layers": 2, "n_heads": 2, "positions": "none"},
    {"vocab_size": 257, "context_length": 90, "d_model": 64, "n_layers": 2, "n_heads": 2},
    {"vocab_size": 512, "context_length": 40, "d_model": 48, "n_layers": 1, "n_heads": 1},
    {"vocab_size": 7, "context_length": 33, "d_model": 3, "n_layers": 2, "n_heads": 3},
    {"vocab_size": 2, "context_length": 5, "d_model": 1, "n_layers": 1, "n_heads": 1},
]


def wild(float16: bool = False, **shape) -> NLM:
    """A model whose weights, biases and norms are all far from their first values; in float16, if asked."""
    torch.manual_seed(0)
    model = NLM(ModelConfig(**shape)).eval()
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn_like(param) * (0.5 if param.ndim == 1 else 0.3))
            if float16:
                param.copy_(param.half())
    return model


def prompts_for(model: NLM, count: int, longest: int) -> list[list[int]]:
    """Prompts of all lengths up to `longest`."""
    random = np.random.default_rng(count)
    return [random.integers(model.config.vocab_size, size=1 + 7 * row % longest).tolist() for row in range(count)]


def read_all(decoder, prompts, steps, ending=()):
    """Read prompts, then tokens that depend on row and step alone; texts end where `ending` (row, step) says."""
    alive = list(range(len(prompts)))
    found = [(alive, decoder.begin(prompts))]
    V = found[0][1].shape[1]
    for step in range(steps):
        kept = [place for place, row in enumerate(alive) if (row, step) not in ending]
        alive = [alive[place] for place in kept]
        tokens = torch.tensor([(7 * row + 3 * step) % V for row in alive])
        found.append((alive, decoder.step(kept, tokens)))
    return found


# ---- the same function as the model


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [1, 3, 40])
@torch.no_grad()
def test_the_kernel_equals_the_model_for_ragged_prompts_and_ending_texts(shape, batch):
    model = wild(**shape)
    context = model.config.context_length
    longest = min(context - 3, 20)
    prompts = prompts_for(model, batch, longest)
    steps = context - longest  # which fills the context
    ending = {(row, row % steps) for row in range(1, batch, 3)}
    kernel = read_all(decoder_for(model, context), prompts, steps, ending)
    by_torch = read_all(decoder_for(model.double(), context), prompts, steps, ending)
    for (rows, logits), (_, expected) in zip(kernel, by_torch, strict=True):
        assert logits.dtype == torch.float32
        assert logits.shape == (len(rows), model.config.vocab_size)
        torch.testing.assert_close(logits.double(), expected, rtol=2e-4, atol=2e-4)


def test_decoders_are_what_the_tests_take_them_for():
    model = wild(**SHAPES[0])
    assert type(decoder_for(model, 9)) is NativeDecoder
    assert type(decoder_for(model.double(), 9)) is TorchDecoder


@torch.no_grad()
def test_at_the_contexts_limit():
    model = wild(**SHAPES[0])
    prompts = [*prompts_for(model, 1, 1), [5] * 69]
    decoder = decoder_for(model, 70)
    decoder.begin(prompts)
    logits = decoder.step([0, 1], torch.tensor([3, 4]))
    torch.testing.assert_close(logits[1], model(torch.tensor([[5] * 69 + [4]]))[0, -1], rtol=2e-4, atol=2e-4)
    with pytest.raises(UserError, match="longer than the 70 tokens"):
        decoder.step([0, 1], torch.tensor([3, 4]))


@pytest.fixture(scope="module")
def shipped():
    folder = ROOT / "checkpoints" / "nlm"
    return NLM.from_checkpoint(folder), load_checkpoint(folder)["tokenizer"]


OPENINGS = ["Once upon a time", "Two little birds", "The dog", "Lily wanted to play with a big red ball.", "One day"]


@torch.inference_mode()
def test_the_shipped_model_gives_the_same_logits_and_greedy_texts(shipped, monkeypatch):
    model, tok = shipped
    prompts = [tok.encode(opening) for opening in OPENINGS]
    decoder = decoder_for(model, 30)
    assert decoder.f16 == NativeDecoder._constant(decoder, "decode_f16")
    for (_, logits), (_, expected) in zip(
        read_all(decoder, prompts, 5), read_all(TorchDecoder(model), prompts, 5), strict=True
    ):
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    texts = generate(model, tok, OPENINGS, max_new_tokens=60, temperature=0)
    monkeypatch.setattr(native, "usable", lambda x: False)
    assert texts == generate(model, tok, OPENINGS, max_new_tokens=60, temperature=0)


# ---- to the last bit


@pytest.mark.parametrize("float16", [True, False])
@torch.no_grad()
def test_a_texts_numbers_depend_neither_on_the_batch_nor_on_how_it_is_read(float16):
    model = wild(float16, **SHAPES[3])
    prompts = prompts_for(model, 40, 30)
    together = read_all(decoder_for(model, 90), prompts, 9)
    for row in (0, 17, 39):
        # Alone; and the prompt token by token.
        alone = decoder_for(model, 90)
        logits = alone.begin([prompts[row][:1]])
        for token in prompts[row][1:]:
            logits = alone.step([0], torch.tensor([token]))
        assert torch.equal(logits[0], together[0][1][row])
        for step in range(9):
            logits = alone.step([0], torch.tensor([(7 * row + 3 * step) % 257]))
            assert torch.equal(logits[0], together[step + 1][1][row])
    # Among every number of others, since few rows go through the processor in another way.
    for batch in range(1, 27):
        some = read_all(decoder_for(model, 90), prompts[:batch], 2)
        for (_, logits), (_, expected) in zip(some, together, strict=False):
            assert torch.equal(logits, expected[:batch])


@torch.no_grad()
def test_a_texts_numbers_do_not_depend_on_the_threads():
    model = wild(**SHAPES[3])
    prompts = prompts_for(model, 5, 30)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(read_all(decoder_for(model, 60), prompts, 3))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for (_, logits), (_, expected) in zip(other, found[0], strict=True):
            assert torch.equal(logits, expected)


@torch.no_grad()
def test_float16_in_memory_changes_nothing_and_is_taken_only_then(monkeypatch):
    model = wild(float16=True, **SHAPES[3])
    prompts = prompts_for(model, 3, 9)
    constant = NativeDecoder._constant
    packed = decoder_for(model, 20)
    assert packed.f16 == constant(packed, "decode_f16")
    monkeypatch.setattr(NativeDecoder, "_constant", lambda self, name: name != "decode_f16" and constant(self, name))
    plain = decoder_for(model, 20)
    assert plain.f16 == 0
    for (_, logits), (_, expected) in zip(read_all(packed, prompts, 3), read_all(plain, prompts, 3), strict=True):
        assert torch.equal(logits, expected)
    monkeypatch.undo()
    for change in (1 + 2**-11, 2**20, 2.0**-30):  # between two numbers of float16, above them all, below
        other = wild(float16=True, **SHAPES[3])
        other.blocks[1].mlp.down.bias[-1] = change
        assert decoder_for(other, 20).f16 == 0


# ---- when the kernel must not be taken


@torch.no_grad()
def test_changed_weights_count_at_once():
    model = wild(**SHAPES[0])
    before = decoder_for(model, 9).begin([[1, 2, 3]])
    model.token_emb.data[2] += 1  # unseen by PyTorch's own count of changes
    after = decoder_for(model, 9).begin([[1, 2, 3]])
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after[0], model(torch.tensor([[1, 2, 3]]))[0, -1], rtol=2e-4, atol=2e-4)


@torch.no_grad()
def test_a_weight_may_lie_in_memory_in_any_order():
    model = wild(**SHAPES[0])
    expected = decoder_for(model, 9).begin([[1, 2, 3]])
    for linear in (model.blocks[0].mlp.up, model.blocks[1].attn.qkv):
        linear.weight.data = linear.weight.data.T.contiguous().T
    assert torch.equal(decoder_for(model, 9).begin([[1, 2, 3]]), expected)


class Louder(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked(model):
    model.blocks[0].mlp.register_forward_hook(lambda module, given, out: 0 * out)


def louder(model):
    model.blocks[1].attn.out = Louder(16, 16)


def patched(model):
    mlp = model.blocks[0].mlp
    mlp.forward = lambda x: 0 * x


def cut(model):
    model.blocks = model.blocks[:1]


def wider(model):
    model.blocks[0].mlp.up, model.blocks[0].mlp.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)


def normed_otherwise(model):
    model.final_norm.eps = 0.1


@pytest.mark.parametrize("change", [hooked, louder, patched, cut, wider, normed_otherwise])
@torch.no_grad()
def test_a_model_that_was_changed_is_read_by_pytorch(change):
    model = wild(**SHAPES[0])
    assert type(decoder_for(model, 9)) is NativeDecoder
    before = decoder_for(model, 9).begin([[1, 2, 3]])
    change(model)
    assert type(decoder_for(model, 9)) is TorchDecoder
    assert not torch.allclose(decoder_for(model, 9).begin([[1, 2, 3]]), before)


def test_what_would_be_read_from_beyond_a_table_is_refused():
    model = wild(**SHAPES[0])
    assert decoder_for(model, 1000).longest == model.config.context_length
    decoder = decoder_for(model, 9)
    for prompt, complaint in (([], "at least one token"), ([10**6], "outside the vocabulary"), ([-1], "outside")):
        with pytest.raises(UserError, match=complaint):
            decoder.begin([prompt])
    decoder.begin([[1, 2], [3]])
    for kept, tokens in (([0, 1], [1, 2, 3]), ([0, 1], [1]), ([0, 2], [1, 2]), ([1, 0], [1, 2]), ([0, 0], [1, 2])):
        with pytest.raises(ValueError, match="texts"):
            decoder.step(kept, torch.tensor(tokens))
    decoder.step([0, 1], torch.tensor([1, 2]))


def test_without_kernels_pytorch_writes_the_same_text(tokenizer, monkeypatch):
    model = wild(vocab_size=512, context_length=48, d_model=32, n_layers=2, n_heads=4)
    settings = {"max_new_tokens": 20, "seed": range(5), "repetition_penalty": 1.2, "stop": "er"}
    texts = generate(model, tokenizer, OPENINGS, **settings)
    monkeypatch.setattr(native, "library", lambda: None)
    assert type(decoder_for(model, 9)) is TorchDecoder
    assert generate(model, tokenizer, OPENINGS, **settings) == texts


# ---- the choice of a token


def by_all_noise(logits, sampling, seeds, positions):
    """The definition: the largest of logits / T + noise, in float64, over all tokens."""
    scores = logits.double() - logits.double().amax(dim=-1, keepdim=True)
    scores = narrowed(scores / sampling.temperature, sampling.top_k, sampling.top_p)
    noise = np.stack([gumbel_noise(*key, logits.shape[-1]) for key in zip(seeds, positions, strict=True)])
    return (scores + torch.from_numpy(noise)).argmax(dim=-1)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**62),
    position=st.integers(0, 511),
    temperature=st.sampled_from([1e-310, 1e-30, 1e-3, 0.1, 0.5, 0.8, 1.0, 1.2, 3.0, 1e3, 1e30, 1e300]),
    spread=st.sampled_from([0.0, 1e-7, 0.1, 1.0, 5.0, 30.0, 1e30]),
    V=st.sampled_from([1, 2, 3, 5, 8, 9, 15, 16, 17, 300, 1000, 4096]),
    top_k=st.sampled_from([None, None, 1, 3, 40]),
    top_p=st.sampled_from([None, None, 0.05, 0.9]),
    odd=st.sampled_from(["", "ties", "holes", "one", "none"]),
)
def test_the_chosen_token_is_exactly_that_of_the_definition(seed, position, temperature, spread, V, top_k, top_p, odd):
    random = np.random.default_rng(seed)
    logits = torch.from_numpy(random.normal(size=(3, V)).astype(np.float32) * spread)
    if odd == "ties":
        logits = logits.round()
    elif odd == "holes":
        logits[torch.from_numpy(random.random((3, V)) < 0.9)] = -torch.inf
        logits[:, -1] = 0
    elif odd == "one":
        logits[:, :-1] = -torch.inf
    elif odd == "none":  # what a broken model says
        logits[1] = torch.nan
        logits[2] = -torch.inf
    keys = ([seed, seed + 1, 0], [position, 0, position])
    sampling = Sampling(temperature, top_k, top_p)
    if odd == "none":
        with pytest.raises(UserError, match="logits are not finite numbers"):
            choose(logits, sampling, *keys)
        return
    assert choose(logits, sampling, *keys).tolist() == by_all_noise(logits, sampling, *keys).tolist()


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_broken_model_is_not_asked_for_a_token(temperature, number):
    logits = torch.zeros(2, 9)
    logits[1, 3] = number
    with pytest.raises(UserError, match="logits are not finite numbers"):
        choose(logits, Sampling(temperature), [1, 2], [3, 4])


@pytest.mark.parametrize(
    "keys", [([1], [0, 1]), ([1, 2, 3], [0, 1]), ([], []), ([1, -1], [0, 1]), ([1, 2], [0, 2**63])]
)
def test_every_row_needs_a_seed_and_a_position(keys):
    with pytest.raises(ValueError, match="seeds and positions"):
        choose(torch.zeros(2, 9), Sampling(), *keys)


def test_most_tokens_are_ruled_out():
    """Or the kernel would save nothing."""
    scores = torch.from_numpy(np.random.default_rng(0).normal(size=(40, 4096)) * 4)
    scores -= scores.amax(dim=-1, keepdim=True)
    found = torch.empty(40, 4096, 3, dtype=torch.long)
    counts, most = torch.empty(40, dtype=torch.int32), torch.empty(1, dtype=torch.int32)
    native.run("contenders", 40, 4096, scores, torch.arange(40), torch.full((40,), 5), found, counts, most)
    assert counts.min() >= 1
    assert counts.float().mean() < 20
    assert counts.max() == most
    for row, count in enumerate(counts.tolist()):
        tokens, bits = found[row, :count, 0], found[row, :count, 2].numpy().view(np.uint64)
        assert (bits == np.random.Philox(key=row, counter=[0, 0, 0, 5]).random_raw(4096)[tokens]).all()
        assert torch.equal(found[row, :count, 1].view(torch.float64), scores[row, tokens])


def test_without_kernels_the_choice_is_the_same(monkeypatch):
    logits = torch.randn(40, 512, generator=torch.Generator().manual_seed(0))
    choice = functools.partial(choose, logits, Sampling(0.9), list(range(40)), [7] * 40)
    expected = choice()
    monkeypatch.setattr(native, "library", lambda: None)
    assert torch.equal(choice(), expected)
