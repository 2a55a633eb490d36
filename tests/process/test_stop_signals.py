"""Signals that end a command by an exception, so that it can clean up."""

import os
import signal
from collections.abc import Iterator

import pytest

from feeder.process.stop_signals import StopSignals

HANGUP, QUIT = signal.SIGHUP, signal.SIGQUIT


@pytest.fixture(autouse=True)
def _as_in_a_terminal() -> Iterator[None]:
    """Have SIGHUP and SIGQUIT end the process: under nohup or in a script's background they are
    ignored."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (HANGUP, QUIT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, HANGUP, QUIT])
def test_the_first_signal_ends_it_and_later_ones_are_ignored(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, HANGUP, QUIT)]
    with StopSignals(HANGUP, QUIT) as stop:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        for later in (signal.SIGINT, signal.SIGTERM, HANGUP, QUIT):
            os.kill(os.getpid(), later)
    assert stop.received == number
    assert stop.exit_status == 128 + number
    assert before == [signal.getsignal(each) for each in (signal.SIGTERM, HANGUP, QUIT)]


def test_a_hangup_that_nohup_made_ignored_stays_ignored() -> None:
    before = signal.signal(HANGUP, signal.SIG_IGN)
    try:
        with StopSignals(HANGUP) as stop:
            os.kill(os.getpid(), HANGUP)
            assert signal.getsignal(HANGUP) == signal.SIG_IGN
        assert stop.received is None
    finally:
        signal.signal(HANGUP, before)
