"""Attention maps: the weights are those that the model uses."""

import numpy as np
import pytest
import torch

from nlm_core.attention_maps import attention_weights, looks, looks_of
from nlm_core.errors import UserError


@pytest.fixture
def model(sharp_model):
    return sharp_model


def test_values_weighted_by_them_are_what_attention_adds(model):
    ids = list(range(100, 120))
    weights = torch.from_numpy(attention_weights(model, ids))
    x = model.embed(torch.tensor([ids]))
    for layer, block in enumerate(model.blocks):
        normed = block.attn_norm(x)
        v = block.attn.qkv(normed)[0, :, 32:].view(20, 2, 8).transpose(0, 1)  # (H, T, D)
        gathered = (weights[layer] @ v).transpose(0, 1).reshape(1, 20, 16)
        assert torch.allclose(block.attn.out(gathered), block.attn(normed, layer, None), atol=1e-5)
        x = block(x, layer, None)


def test_rows_sum_to_one_and_nothing_looks_ahead(model):
    weights = attention_weights(model, [5, 6, 7, 8])
    assert weights.shape == (2, 2, 4, 4)
    assert np.allclose(weights.sum(axis=-1), 1)
    assert (np.triu(weights, 1) == 0).all()


def test_where_a_head_looks_is_found():
    T = 24
    previous = np.eye(T, k=-1)
    previous[0, 0] = 1
    first = np.zeros((T, T))
    first[:, 0] = 1
    two_back = 0.75 * np.eye(T, k=-2) + 0.25 * np.eye(T)
    found = looks(np.stack([previous, first, two_back])[None], skip=8, back=3)
    assert found["1 back"].tolist() == [[1, 0, 0]]
    assert found["first"].tolist() == [[0, 1, 0]]
    assert found["2 back"].tolist() == [[0, 0, 0.75]]
    assert found["0 back"].tolist() == [[0, 0, 0.25]]


def test_texts_are_stacked_and_too_short_ones_refused(model):
    found = looks_of(model, [[1] * 20, list(range(30))])
    assert found["first"].shape == (2, 2, 2)
    assert np.allclose(found["first"][1], attention_weights(model, list(range(30)))[:, :, 16:, 0].mean(axis=-1))
    with pytest.raises(UserError, match="too short"):
        looks_of(model, [[1] * 16])
    with pytest.raises(UserError, match="1 to 32 tokens"):
        attention_weights(model, [1] * 33)
