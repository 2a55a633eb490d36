"""What processes with children rely on: the first stop signal, orphans, waits that double."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from feeder.process.backoff import BACKOFF_MAX_S, CRASHES_MAX, WINDOW_S, RestartPolicy
from feeder.process.stop_signals import StopSignals
from tests.support.sources import REPOSITORY

HANGUP, QUIT = signal.SIGHUP, signal.SIGQUIT


@pytest.fixture
def terminal() -> Iterator[None]:
    """Have SIGHUP and SIGQUIT end the process: under nohup or in a script's background they are
    ignored."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (HANGUP, QUIT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("terminal")
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


@pytest.mark.usefixtures("terminal")
def test_a_hangup_that_nohup_made_ignored_stays_ignored() -> None:
    before = signal.signal(HANGUP, signal.SIG_IGN)
    try:
        with StopSignals(HANGUP) as stop:
            os.kill(os.getpid(), HANGUP)
            assert signal.getsignal(HANGUP) == signal.SIG_IGN
        assert stop.received is None
    finally:
        signal.signal(HANGUP, before)


_ADOPTS = """
import os, subprocess, sys
from feeder.process.child import adopt_orphans, reap_orphans

adopt_orphans()
# Spawned, not a Popen: that would reap a child which ends before its parent does.
nested = "import os; print(os.posix_spawn('/bin/sh', ['sh', '-c', 'exit 0'], os.environ))"
parent = subprocess.Popen([sys.executable, "-c", nested], stdout=subprocess.PIPE)
own = subprocess.Popen(["sh", "-c", "exit 7"])
orphan = int(parent.communicate()[0])
os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)  # a child now, and ended
while os.path.exists(f"/proc/{orphan}"):
    reap_orphans({own.pid})
    if own.returncode is None and os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT):
        own.wait()  # as the code that started it does
reap_orphans({own.pid})
sys.exit(own.wait())
"""


def test_orphans_are_reaped_and_the_status_of_a_child_is_left_to_its_owner() -> None:
    done = subprocess.run([sys.executable, "-c", _ADOPTS], cwd=REPOSITORY, timeout=60)
    assert done.returncode == 7


def test_the_backoff_doubles_up_to_its_maximum() -> None:
    policy, now_s, backoffs_s = RestartPolicy(), 0.0, []
    for _ in range(8):
        backoff_s = policy.on_crash(now_s, has_served=False)
        assert backoff_s is not None
        backoffs_s.append(backoff_s)
        now_s += backoff_s + WINDOW_S / CRASHES_MAX  # just too slow to be given up
    assert backoffs_s[:6] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
    assert backoffs_s[6:] == [BACKOFF_MAX_S, BACKOFF_MAX_S]


def test_too_many_crashes_in_a_minute_are_given_up() -> None:
    policy = RestartPolicy()
    for second in range(CRASHES_MAX):
        assert policy.on_crash(float(second), has_served=False) is not None
    assert policy.on_crash(float(CRASHES_MAX), has_served=False) is None


def test_a_node_process_that_has_served_is_never_given_up() -> None:
    policy, now_s = RestartPolicy(), 0.0
    for _ in range(100 * CRASHES_MAX):
        backoff_s = policy.on_crash(now_s, has_served=True)
        assert backoff_s is not None
        assert 0 < backoff_s <= BACKOFF_MAX_S
        now_s += backoff_s
    assert policy.crashes == 100 * CRASHES_MAX
