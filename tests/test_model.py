"""The network is GPT-2: it agrees with `transformers`, looks only back, and reads on from a cache as from the text."""

import os

import pytest
import torch
import torch.nn.functional as F

from benchmarks.peers import gpt2_of
from nlm_core.attention import causal_attend
from nlm_core.checkpoint import save_checkpoint
from nlm_core.config import ModelConfig
from nlm_core.dropout import Dropout
from nlm_core.model import NLM, KVCache


def wild(config: ModelConfig, dropout: float = 0.0) -> NLM:
    """A float64 model whose weights, biases and norms are all far from their first values."""
    torch.manual_seed(0)
    model = NLM(config, dropout).double().eval()
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn_like(param) * (0.5 if param.ndim == 1 else 0.3))
    return model


def random_ids(*shape: int, vocab_size: int) -> torch.Tensor:
    return torch.randint(0, vocab_size, shape, generator=torch.Generator().manual_seed(1))


# ---- size


def test_the_default_model_has_the_posts_size():
    with torch.device("meta"):
        model = NLM(ModelConfig())
    shapes = {name: tuple(param.shape) for name, param in model.named_parameters()}
    assert sum(param.numel() for param in model.parameters()) == 10_657_280
    assert shapes["token_emb"] == (4096, 256)
    assert shapes["pos_emb"] == (512, 256)
    # One layer: two norms, qkv, out, up, down, each with its bias.
    layer = 2 * 512 + 256 * 768 + 768 + 256 * 256 + 256 + 256 * 1024 + 1024 + 1024 * 256 + 256
    assert sum(param.numel() for name, param in model.named_parameters() if name.startswith("blocks.0.")) == layer


def test_first_weights_are_gpt_2_s():
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=512, context_length=64, d_model=64, n_layers=8, n_heads=4)
    for name, param in NLM(config).named_parameters():
        if name.endswith("bias"):
            assert torch.equal(param, torch.zeros_like(param))
        elif "norm" in name:
            assert torch.equal(param, torch.ones_like(param))
        else:
            std = 0.02 / 4 if name.endswith(("out.weight", "down.weight")) else 0.02
            assert param.std().item() == pytest.approx(std, rel=0.1)


# ---- the same function as GPT-2


@pytest.fixture(scope="module")
def transformers():
    """The library, kept from the network and from writing to its cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
        import transformers

        transformers.logging.set_verbosity_error()
        yield transformers


@pytest.mark.parametrize(
    ("shape", "batch", "T"),
    [
        ({"vocab_size": 2, "context_length": 1, "d_model": 1, "n_layers": 1, "n_heads": 1}, 1, 1),
        ({"vocab_size": 7, "context_length": 5, "d_model": 3, "n_layers": 2, "n_heads": 3}, 2, 5),
        ({"vocab_size": 300, "context_length": 64, "d_model": 24, "n_layers": 3, "n_heads": 3}, 3, 1),
        ({"vocab_size": 300, "context_length": 64, "d_model": 24, "n_layers": 3, "n_heads": 1}, 2, 37),
        ({"vocab_size": 50, "context_length": 300, "d_model": 12, "n_layers": 2, "n_heads": 2}, 2, 128),
        ({"vocab_size": 50, "context_length": 300, "d_model": 12, "n_layers": 2, "n_heads": 2}, 2, 129),
        ({"vocab_size": 50, "context_length": 300, "d_model": 12, "n_layers": 2, "n_heads": 2}, 1, 300),
    ],
)
@torch.no_grad()
def test_it_agrees_with_transformers(transformers, shape, batch, T):
    model = wild(ModelConfig(**shape))
    ids = random_ids(batch, T, vocab_size=shape["vocab_size"])
    expected = gpt2_of(model)(ids).logits
    torch.testing.assert_close(model(ids), expected, rtol=1e-9, atol=1e-9)
    assert expected.std() > 0.1 or shape["d_model"] == 1


@torch.no_grad()
def test_logits_are_the_unembedded_residual_stream():
    model = wild(ModelConfig(vocab_size=50, context_length=16, d_model=12, n_layers=2, n_heads=2))
    ids = random_ids(2, 16, vocab_size=50)
    x = model.read(ids)
    assert torch.equal(model(ids), model.unembed(x))
    torch.testing.assert_close(model.unembed(x[:, -1]), model(ids)[:, -1], rtol=1e-12, atol=1e-12)


# ---- attention


@pytest.mark.parametrize("T", [1, 2, 127, 128, 129, 256, 300])
def test_causal_attention_is_torch_s(T):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, T, 5, generator=generator, dtype=torch.float64) * 3 for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(causal_attend(q, k, v), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("T", "changed"), [(20, 19), (20, 0), (20, 7), (200, 150), (200, 128)])
@torch.no_grad()
def test_no_position_sees_a_later_one(T, changed):
    model = wild(ModelConfig(vocab_size=50, context_length=200, d_model=12, n_layers=2, n_heads=2))
    ids = random_ids(2, T, vocab_size=50)
    other = ids.clone()
    other[:, changed] = (ids[:, changed] + 1) % 50
    before, after = model(ids), model(other)
    assert torch.equal(before[:, :changed], after[:, :changed])
    assert (before[:, changed:] != after[:, changed:]).any(-1).all()


@torch.no_grad()
def test_rows_do_not_see_each_other():
    model = wild(ModelConfig(vocab_size=50, context_length=32, d_model=12, n_layers=2, n_heads=2))
    ids = random_ids(5, 32, vocab_size=50)
    for row in range(5):
        torch.testing.assert_close(model(ids)[row], model(ids[row : row + 1])[0], rtol=1e-11, atol=1e-11)


# ---- the cache


@pytest.fixture
def cached_model():
    return wild(ModelConfig(vocab_size=50, context_length=40, d_model=12, n_layers=3, n_heads=3))


def fill(model: NLM, ids: torch.Tensor, lengths: list[int]) -> tuple[KVCache, torch.Tensor]:
    """Read rows of different lengths, padded on the right with tokens that must not matter."""
    cache = KVCache(model, len(lengths))
    padded = random_ids(len(lengths), max(lengths), vocab_size=50)
    for row, length in enumerate(lengths):
        padded[row, :length] = ids[row, :length]
    logits = model(padded, cache)
    cache.lengths += torch.tensor(lengths)
    return cache, logits


@pytest.mark.parametrize("new", [1, 3])
@torch.no_grad()
def test_reading_on_with_a_cache_is_reading_the_whole(cached_model, new):
    lengths = [9, 1, 16, 4]
    ids = random_ids(4, 40, vocab_size=50).flip(0)
    cache, logits = fill(cached_model, ids, lengths)
    for row, length in enumerate(lengths):
        whole = cached_model(ids[row : row + 1, :length])
        torch.testing.assert_close(logits[row, :length], whole[0], rtol=1e-10, atol=1e-10)
    while int(cache.lengths.max()) + new <= 40:
        places = cache.lengths[:, None] + torch.arange(new)
        logits = cached_model(ids.gather(1, places), cache)
        cache.lengths += new
        for row, length in enumerate(cache.lengths.tolist()):
            whole = cached_model(ids[row : row + 1, :length])
            torch.testing.assert_close(logits[row], whole[0, -new:], rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_rows_can_leave_the_cache(cached_model):
    lengths = [5, 12, 3]
    ids = random_ids(3, 40, vocab_size=50).flip(0)
    cache, _ = fill(cached_model, ids, lengths)
    cache.keep(torch.tensor([2, 0]))
    logits = cached_model(ids[[2, 0], [3, 5]][:, None], cache)
    for row, of, length in ((0, 2, 4), (1, 0, 6)):
        whole = cached_model(ids[of : of + 1, :length])
        torch.testing.assert_close(logits[row, 0], whole[0, -1], rtol=1e-10, atol=1e-10)


# ---- limits


def test_513_tokens_are_too_many():
    with torch.device("meta"):
        model = NLM(ModelConfig())
    with pytest.raises(ValueError, match=r"513 tokens .* limit of 512"):
        model(torch.zeros(1, 513, dtype=torch.long, device="meta"))


@torch.no_grad()
def test_a_full_cache_says_so_and_stays_as_it_was(cached_model):
    ids = random_ids(2, 40, vocab_size=50)
    cache, _ = fill(cached_model, ids, [38, 20])
    with pytest.raises(ValueError, match=r"41 tokens .* limit of 40"):
        cached_model(ids[:, :3], cache)
    logits = cached_model(ids[:, 38:], cache)
    torch.testing.assert_close(logits[0], cached_model(ids[:1])[0, 38:], rtol=1e-10, atol=1e-10)


# ---- training


def test_every_parameter_gets_a_gradient():
    model = wild(ModelConfig(vocab_size=50, context_length=16, d_model=12, n_layers=2, n_heads=2)).train()
    ids = random_ids(4, 17, vocab_size=50)
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    assert [name for name, param in model.named_parameters() if param.grad is None or not param.grad.any()] == []


@torch.no_grad()
def test_dropout_acts_in_training_only():
    config = ModelConfig(vocab_size=50, context_length=16, d_model=12, n_layers=2, n_heads=2)
    model, without = wild(config, dropout=0.5), wild(config)
    ids = random_ids(2, 16, vocab_size=50)
    assert torch.equal(model(ids), without(ids))
    model.train()
    without.train()
    assert not torch.equal(model(ids), model(ids))
    assert torch.equal(without(ids), without(ids))
    assert {module.p for module in model.modules() if isinstance(module, Dropout)} == {0.5}


@torch.no_grad()
def test_dropout_acts_on_the_embedding_sum_and_on_each_branch():
    model = wild(ModelConfig(vocab_size=50, context_length=16, d_model=12, n_layers=2, n_heads=2))
    ids = random_ids(2, 16, vocab_size=50)
    embeddings = model.token_emb[ids] + model.pos_emb

    def drop_all(module, inputs, output):
        return torch.zeros_like(output)

    hooks = [block.dropout.register_forward_hook(drop_all) for block in model.blocks]
    torch.testing.assert_close(model.read(ids), model.final_norm(embeddings))
    hooks[0].remove()
    assert not torch.allclose(model.read(ids), model.final_norm(embeddings))
    model.dropout.register_forward_hook(drop_all)
    assert torch.equal(model.read(ids), model.read(ids.flip(1)))


# ---- other kinds of positions


def small(positions: str, n_layers: int = 2) -> ModelConfig:
    return ModelConfig(vocab_size=50, context_length=16, d_model=12, n_layers=n_layers, n_heads=2, positions=positions)


@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
def test_fixed_positions_are_no_weights(positions):
    model = NLM(small(positions))
    assert "pos_emb" not in model.state_dict()
    assert sum(param.numel() for param in model.parameters()) == small(positions).n_parameters
    assert small("learned").n_parameters - small(positions).n_parameters == 16 * 12


def test_the_sinusoidal_table_is_as_large_as_a_fresh_learned_one():
    table = NLM(ModelConfig(positions="sinusoidal")).pos_emb
    assert table.pow(2).mean().sqrt().item() == pytest.approx(0.02)
    assert torch.equal(table[0, 0::2], torch.zeros(128))


@torch.no_grad()
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
def test_every_kind_comes_back_and_reads_on_with_a_cache(positions):
    model = NLM(small(positions)).eval()
    back = NLM.from_params(model.config, {name: value.numpy() for name, value in model.state_dict().items()})
    ids = random_ids(2, 9, vocab_size=50)
    logits = model(ids)
    assert torch.equal(back(ids), logits)
    cache = KVCache(model, 2)
    first = model(ids[:, :5], cache)
    cache.lengths += 5
    torch.testing.assert_close(torch.cat([first, model(ids[:, 5:], cache)], dim=1), logits)


@torch.no_grad()
def test_without_positions_only_the_mask_carries_order():
    ids = random_ids(1, 8, vocab_size=50)
    other = ids[:, [3, 1, 0, 2, 6, 5, 4, 7]]  # the same tokens before the same last one
    for n_layers, differ in ((1, False), (2, True)):
        model = wild(small("none", n_layers))
        assert torch.allclose(model(ids)[:, -1], model(other)[:, -1], atol=1e-12) != differ
    model = wild(small("learned", 1))
    assert not torch.allclose(model(ids)[:, -1], model(other)[:, -1], atol=1e-3)


# ---- loading


@torch.no_grad()
def test_a_model_of_arrays_is_independent_of_them_and_draws_no_numbers(tiny_model):
    params = {name: value.half().numpy().copy() for name, value in tiny_model.state_dict().items()}
    for value in params.values():
        value.flags.writeable = False
    generator = torch.get_rng_state()
    model = NLM.from_params(tiny_model.config, params)
    assert torch.equal(torch.get_rng_state(), generator)
    for name, param in model.named_parameters():
        assert param.requires_grad
        assert param.dtype == torch.float32
        assert torch.equal(param, torch.tensor(params[name]).float())
        param.zero_()
        assert params[name].any() or not tiny_model.state_dict()[name].any()


@torch.no_grad()
def test_a_model_comes_back_from_its_checkpoint_ready_for_use(tiny_model, tokenizer, tmp_path):
    save_checkpoint(tmp_path / "ckpt", tiny_model, tokenizer, dtype="float32")
    model = NLM.from_checkpoint(tmp_path / "ckpt")
    ids = random_ids(2, 32, vocab_size=512)
    assert not model.training
    assert {param.dtype for param in model.parameters()} == {torch.float32}
    assert torch.equal(model(ids), tiny_model(ids))
