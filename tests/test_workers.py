"""Work on threads gives what it gives one by one, in order."""

import subprocess
import sys
import threading
from concurrent.futures import Future

import pytest
import torch

from nlm_core.config import ModelConfig, TrainConfig
from nlm_core.dropout import Dropout, keyed
from nlm_core.model import NLM
from nlm_core.step import accumulate_gradients
from nlm_core.workers import on_threads

CPU = torch.device("cpu")


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def test_results_come_in_order(threads):
    assert list(on_threads(lambda item: item * item, range(20), CPU)) == [item * item for item in range(20)]
    assert torch.get_num_threads() == threads


def test_as_many_work_at_once_as_there_are_threads_and_items(threads):
    meeting = threading.Barrier(min(threads, 2))
    seen = list(on_threads(lambda _: (meeting.wait(60), threading.get_ident()), range(2), CPU))
    assert len({ident for _, ident in seen}) == min(threads, 2)


def test_threads_that_are_over_help_within_an_item():
    torch.set_num_threads(4)
    try:
        assert list(on_threads(lambda _: torch.get_num_threads(), range(2), CPU)) == [2, 2]
        assert list(on_threads(lambda _: torch.get_num_threads(), range(4), CPU)) == [1] * 4
    finally:
        torch.set_num_threads(1)


def test_an_error_comes_out_and_the_threads_stay_usable(threads):
    with pytest.raises(ZeroDivisionError):
        list(on_threads(lambda item: 1 // item, [2, 0, 1], CPU))
    assert torch.get_num_threads() == threads
    assert list(on_threads(str, [1, 2], CPU)) == ["1", "2"]


def test_after_an_interruption_nothing_goes_on(monkeypatch):
    """Ctrl-C while the main thread waits for a result."""
    torch.set_num_threads(2)
    begun, ended, go = [], [], threading.Event()

    def work(item):
        begun.append(item)
        assert go.wait(60)
        ended.append(item)

    real = Future.result

    def interrupted(future):
        monkeypatch.setattr(Future, "result", real)
        go.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(on_threads(work, range(9), CPU))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert sorted(begun) == sorted(ended)
    assert len(ended) <= 3


FORKED = """
import os, sys, torch
from nlm_core.workers import on_threads
torch.set_num_threads(2)
work = lambda: list(on_threads(str, [1, 2, 3], torch.device("cpu")))
work()
if (child := os.fork()) == 0:
    os._exit(0 if work() == ["1", "2", "3"] else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_has_threads_of_its_own():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=True, timeout=120)


def test_whether_gradients_are_wanted_goes_along(threads):
    with torch.no_grad():
        assert list(on_threads(lambda _: torch.is_grad_enabled(), [0, 1], CPU)) == [False, False]
    with torch.inference_mode():
        assert list(on_threads(lambda _: torch.is_inference_mode_enabled(), [0, 1], CPU)) == [True, True]
    assert list(on_threads(lambda _: torch.is_grad_enabled(), [0, 1], CPU)) == [True, True]


def gradients(dropout, precision):
    torch.manual_seed(3)
    model = NLM(ModelConfig(vocab_size=60, context_length=16, d_model=16, n_layers=2, n_heads=2), dropout).train()
    parts = torch.randint(0, 60, (8, 17)).split(1)
    loss = accumulate_gradients(model, parts, TrainConfig(precision=precision), step=5)
    return loss, torch.cat([param.grad.flatten() for param in model.parameters()])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_step_has_the_same_gradient_to_the_last_bit_whatever_the_threads(threads, dropout, precision):
    """With dropout, too: its masks belong to the micro-batch."""
    loss, gradient = gradients(dropout, precision)
    torch.set_num_threads(1)
    alone_loss, alone = gradients(dropout, precision)
    assert loss == alone_loss
    assert torch.equal(gradient, alone)


def test_dropout_follows_its_key_alone():
    drop, x = Dropout(0.25).train(), torch.ones(4000)
    with keyed(1, CPU):
        first = drop(x)
        torch.rand(1)
        second = drop(x)
    with keyed(1, CPU):
        assert torch.equal(drop(x), first)
        assert torch.equal(drop(x), second)
    assert not torch.equal(first, second)
    with keyed(2, CPU):
        assert not torch.equal(drop(x), first)
    assert sorted(set(first.tolist())) == pytest.approx([0, 4 / 3])
    assert first.mean() == pytest.approx(1, abs=0.05)
    assert torch.equal(drop.eval()(x), x)
