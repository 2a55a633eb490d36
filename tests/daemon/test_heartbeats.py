"""Node processes without heartbeats: replaced, or spared while they cannot help it."""

from functools import partial

import pytest

from feeder.daemon.node_process import HEARTBEATS, HUNG_S, Heartbeats
from feeder.metrics.hangs import SUSPENDED_S, KernelState, ProcessLook

STEP_S = 0.05
HUNG_MAX_S = HEARTBEATS.most_s


class Host:
    """Node processes and a supervisor that checks them whenever a check is due."""

    def __init__(self, nodes: int = 2) -> None:
        self.now_s = 100.0
        self.states: dict[int, tuple[KernelState, float]] = {}  # and the share of a CPU, by pid
        self.looked: list[int] = []
        self.nodes = [Heartbeats(HEARTBEATS) for _ in range(nodes)]
        self.beating = set(range(nodes))
        self.hangs: list[tuple[int, float, str]] = []
        self.wake_ups = 0
        for number in range(nodes):
            self.states[1000 + number] = "sleeps", 0.01
            self.nodes[number].begin(self.now_s)

    def _look(self, pid: int) -> ProcessLook | None:
        self.looked.append(pid)
        if pid not in self.states:
            return None
        state, share = self.states[pid]
        return ProcessLook(state, share * self.now_s)

    def hang(self, number: int, state: KernelState, share: float = 0.0) -> None:
        """A node process sends nothing more."""
        self.beating.discard(number)
        self.states[1000 + number] = state, share

    def run(self, seconds: float) -> None:
        """Time passes; the other node processes send a heartbeat every second."""
        for _ in range(round(seconds / STEP_S)):
            before_s, self.now_s = self.now_s, self.now_s + STEP_S
            if int(self.now_s) > int(before_s):
                for number in self.beating:
                    self.nodes[number].beat(self.now_s)
            self.check()

    def check(self) -> None:
        """Check the node processes for which that is due, as a supervisor does."""
        for number, node in enumerate(self.nodes):
            self.wake_ups += node.due_s <= self.now_s
            if node.check(partial(self._look, 1000 + number), self.now_s):
                self.hangs.append((number, self.now_s - node.progress_s, node.describe()))

    def silence_of(self, number: int) -> str | None:
        node = self.nodes[number]
        return "hung" if node.is_hung else "silent" if node.are_missing(self.now_s) else None


def test_processes_that_send_heartbeats_are_not_looked_at_and_cost_no_wake_up() -> None:
    host = Host()
    host.run(60.0)
    assert not host.hangs
    assert not host.looked
    assert host.wake_ups == 0


@pytest.mark.parametrize(
    ("state", "share", "words"),
    [
        ("stopped", 0.0, "stopped by a signal"),
        ("traced", 0.0, "stopped by a debugger"),
        ("sleeps", 0.0, "sleeping"),
        ("runs", 1.0, "running or waiting for a CPU, 2.0 s of CPU time in 2.0 s"),
    ],
)
def test_a_process_that_hangs_is_found_within_5_s(
    state: KernelState, share: float, words: str
) -> None:
    host = Host()
    host.hang(1, state, share)
    host.run(HUNG_S - 0.2)
    assert not host.hangs
    host.run(0.8)
    ((number, silent_s, kernel_state),) = host.hangs
    assert (number, kernel_state) == (1, words)
    assert HUNG_S <= silent_s < 5.0
    host.run(60.0)
    assert len(host.hangs) == 1, "its successor has not begun"


@pytest.mark.parametrize(
    ("state", "share"), [("storage", 0.0), ("runs", 0.05), ("runs", 0.0), ("sleeps", 0.01)]
)
def test_a_process_that_waits_for_disk_or_cpu_gets_longer(state: KernelState, share: float) -> None:
    host = Host()
    if state == "sleeps":  # it cannot be seen at all
        host.hang(1, state)
        del host.states[1001]
    else:
        host.hang(1, state, share)
    host.run(HUNG_MAX_S - 1.0)
    assert not host.hangs
    assert host.silence_of(1) == "silent"
    assert host.silence_of(0) is None
    host.run(2.0)
    assert [number for number, _, _ in host.hangs] == [1]


def test_a_process_is_silent_until_it_is_judged_and_hung_until_it_has_ended() -> None:
    host = Host()
    assert host.silence_of(0) is None
    host.hang(0, "storage")
    host.run(HUNG_S + 1.0)
    assert host.silence_of(0) == "silent", "it is spared"
    host.states[1000] = "stopped", 0.0
    host.run(HUNG_S)
    assert host.hangs
    assert host.silence_of(0) == "hung"
    host.run(5.0)
    assert host.silence_of(0) == "hung", "the kernel may take its time"
    host.nodes[0].end()
    assert host.silence_of(0) is None
    host.nodes[0].begin(host.now_s)
    assert host.silence_of(0) is None
    assert host.silence_of(1) is None


def test_a_process_that_goes_on_is_forgiven() -> None:
    host = Host()
    for _ in range(5):
        host.hang(1, "stopped")
        host.run(HUNG_S - 1.0)
        host.states[1001] = "sleeps", 0.01
        host.beating.add(1)
        host.run(3.0)
    assert not host.hangs


def test_a_supervisor_that_was_suspended_reads_before_it_judges() -> None:
    host = Host()
    host.hang(0, "stopped")
    host.hang(1, "stopped")
    host.run(3.0)
    host.now_s += 1000.0
    host.check()
    assert not host.hangs
    assert host.nodes[0].due_s == host.now_s + HEARTBEATS.look_s
    host.nodes[0].beat(host.now_s + 0.1)
    host.beating.add(0)
    host.run(HUNG_S + 1.0)
    assert [number for number, _, _ in host.hangs] == [1]


@pytest.mark.parametrize("frozen_s", [3.0, 8.0, HUNG_MAX_S, 1000.0])
@pytest.mark.parametrize("state", ["sleeps", "runs", "storage"])
def test_processes_that_were_suspended_with_it_get_their_time(
    frozen_s: float, state: KernelState
) -> None:
    """As by docker pause, a cgroup freezer, or a suspended virtual machine."""
    host = Host()
    host.run(5.0)
    for number in (0, 1):
        host.hang(number, state)
    host.now_s += frozen_s
    host.check()
    assert not any(host.silence_of(number) for number in (0, 1))
    host.run(2.5)
    assert not any(host.silence_of(number) for number in (0, 1))
    for number in (0, 1):
        host.nodes[number].beat(host.now_s)
        host.beating.add(number)
    host.run(60.0)
    assert not host.hangs


def test_a_process_that_hangs_is_found_after_a_suspension_of_all() -> None:
    host = Host()
    host.hang(1, "sleeps")
    host.run(3.0)
    host.now_s += 100.0
    host.run(HUNG_S + 1.0)
    ((number, silent_s, _),) = host.hangs
    assert number == 1
    assert silent_s < HUNG_S + 1.0, "the suspension is not counted"


def test_a_check_that_is_a_little_late_is_no_suspension() -> None:
    host = Host(nodes=1)
    host.hang(0, "stopped")
    while not host.hangs and host.now_s < 110.0:
        host.now_s = host.nodes[0].due_s + 0.8 * SUSPENDED_S
        host.check()
    assert host.hangs
    assert host.now_s < 100.0 + 5.0


def test_a_process_that_drains_or_has_ended_is_not_watched() -> None:
    host = Host()
    host.hang(0, "sleeps")
    host.nodes[0].end()
    host.nodes[0].end()
    host.nodes[0].beat(host.now_s)
    host.run(60.0)
    assert not host.hangs
    host.nodes[1].end()
    host.run(3.0)
    assert all(node.due_s == float("inf") for node in host.nodes)
