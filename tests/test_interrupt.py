"""Signals that are remembered."""

import os
import signal

import pytest

from nlm_core.interrupt import Interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_remembered_and_a_second_one_raises(number):
    before = signal.getsignal(number)
    interrupt = Interrupt()
    with interrupt.listening():
        os.kill(os.getpid(), number)
        assert interrupt.signal == number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


def test_a_launcher_may_pass_on_a_signal_twice():
    interrupt = Interrupt(twice_raises=False)
    with interrupt.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert interrupt.signal == signal.SIGTERM
