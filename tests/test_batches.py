"""The order of the windows: each once per epoch, none overlapping, and nothing to remember between steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlm_core.batches import Windows
from nlm_core.errors import UserError


def starts(windows: Windows, epoch: int) -> list[int]:
    """Where an epoch's windows begin; the tokens of these tests are their own places."""
    first = epoch * windows.per_epoch
    return [int(windows.batch(step, 1)[0, 0]) for step in range(first, first + windows.per_epoch)]


@given(st.integers(1, 12), st.integers(0, 60), st.integers(0, 2**63 - 1))
def test_every_window_comes_once_per_epoch_and_none_overlap(context_length, spare, seed):
    tokens = np.arange(context_length + 1 + spare, dtype=np.uint16)
    windows = Windows(tokens, context_length, seed)
    for epoch in range(3):
        found = sorted(starts(windows, epoch))
        assert np.diff(found).tolist() == [context_length] * (len(found) - 1)
        assert found[0] < context_length
        # What is left over at both ends is less than two windows.
        assert len(tokens) - 1 - len(found) * context_length < 2 * context_length
    batch = windows.batch(0, 4)
    assert batch.dtype == np.int64
    assert (np.diff(batch, axis=1) == 1).all()
    assert batch.shape == (4, context_length + 1)


def test_targets_of_one_window_are_read_again_as_the_next_one_s_input_only():
    windows = Windows(np.arange(1000, dtype=np.uint16), 7, seed=0)
    batch = windows.batch(0, windows.per_epoch)
    inputs, targets = batch[:, :-1].ravel(), batch[:, 1:].ravel()
    assert len(set(inputs.tolist())) == inputs.size
    assert len(set(targets.tolist())) == targets.size


def test_epochs_differ_in_order_and_offset():
    windows = Windows(np.arange(10_000, dtype=np.uint16), 64, seed=0)
    epochs = [starts(windows, epoch) for epoch in range(8)]
    assert len({min(epoch) for epoch in epochs}) > 4
    assert all(epoch != sorted(epoch) for epoch in epochs)
    orders = {tuple((np.array(epoch) // 64).tolist()) for epoch in epochs}
    assert len(orders) == 8
    assert starts(Windows(windows.tokens, 64, seed=1), 0) != epochs[0]


def test_a_batch_is_a_function_of_seed_and_step():
    tokens = np.random.default_rng(0).integers(0, 500, 3000).astype(np.uint16)
    steps = np.random.default_rng(1).permutation(60)
    inorder = Windows(tokens, 16, seed=5)
    expected = {step: inorder.batch(step, 7) for step in range(60)}
    jumping = Windows(tokens, 16, seed=5)
    for step in steps:
        assert np.array_equal(jumping.batch(int(step), 7), expected[int(step)])
        assert np.array_equal(Windows(tokens, 16, seed=5).batch(int(step), 7), expected[int(step)])


def test_batches_run_on_across_the_border_of_two_epochs():
    tokens = np.arange(101, dtype=np.uint16)
    windows = Windows(tokens, 10, seed=0)
    assert windows.per_epoch == 9
    one_by_one = np.concatenate([windows.batch(step, 1) for step in range(40)])
    by_four = np.concatenate([windows.batch(step, 4) for step in range(10)])
    assert np.array_equal(one_by_one, by_four)
    assert Windows(tokens, 10, seed=0).batch(0, 40).tolist() == one_by_one.tolist()


@pytest.mark.parametrize("context_length", [1, 2, 512])
def test_the_shortest_stream(context_length):
    tokens = np.arange(context_length + 1, dtype=np.uint16)
    windows = Windows(tokens, context_length, seed=3)
    assert windows.batch(0, 2).tolist() == windows.batch(1000, 2).tolist() == [tokens.tolist()] * 2
    with pytest.raises(UserError) as caught:
        Windows(tokens[:-1], context_length, seed=3)
    assert f"has {context_length} tokens" in str(caught.value)
    assert f"({context_length + 1:,})" in str(caught.value)


def test_no_text_at_all():
    with pytest.raises(UserError, match="the training text has 0 tokens"):
        Windows(np.zeros(0, np.uint16), 8, seed=0)


def test_a_memory_map_gives_the_same_batches(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 65_536, 500).astype("<u2")
    tokens.tofile(tmp_path / "train.bin")
    mapped = np.memmap(tmp_path / "train.bin", dtype="<u2", mode="r")
    assert np.array_equal(Windows(mapped, 8, 0).batch(3, 5), Windows(tokens, 8, 0).batch(3, 5))
