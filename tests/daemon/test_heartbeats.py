"""Node processes without heartbeats: replaced, or spared while they cannot help it."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from feeder.daemon.child_process import ChildProcess
from feeder.daemon.config import load_config
from feeder.daemon.node_plan import plan_nodes
from feeder.daemon.node_process import HEARTBEATS, START_DEADLINE_S, NodeProcess
from feeder.daemon.supervisor import Supervisor
from feeder.host.placement import NodePlacement
from feeder.metrics.hangs import KernelState, ProcessLook
from feeder.node.messages import NodeReady

TURN_S = 0.6
HUNG_S = HEARTBEATS.stopped_s
HUNG_MAX_S = HEARTBEATS.most_s
PLACEMENT = NodePlacement(node_id=0, cpus=frozenset({0}), memory_node=None, workers=1)
READY = NodeReady(endpoints=(), worker_pids=(), libraries={}, self_test="", decoder="", warnings=())


class Fetcher(ChildProcess[Any, Any]):
    has_served = True


class Host:
    """Node processes and a supervisor that looks at each in its turns."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.states: list[tuple[KernelState, float] | None] = [("sleeps", 0.01)] * 2
        """And the share of a CPU; None: it cannot be seen."""
        self.beating = {0, 1}
        self.hangs: list[tuple[int, float, str]] = []
        configs = plan_nodes(load_config(None, {}), {}, [PLACEMENT] * 2, 1024)
        self.nodes = [NodeProcess(config, PLACEMENT) for config in configs]
        self.fetcher = Fetcher("the fetcher", "", None, HEARTBEATS)
        for node in self.nodes:
            node.ready = READY
            node.beat(self.now_s)

    def hang(self, number: int, state: KernelState, share: float = 0.0) -> None:
        """A node process sends nothing more."""
        self.beating.discard(number)
        self.states[number] = state, share

    def run(self, seconds: float) -> None:
        """Time passes; the other node processes send a heartbeat each turn."""
        for _ in range(round(seconds / TURN_S)):
            self.now_s += TURN_S
            for number in self.beating:
                self.nodes[number].beat(self.now_s)
            self.turn()

    def turn(self) -> None:
        for number, node in enumerate(self.nodes):
            if not node.is_hung and node.hangs_now(self.now_s, lambda _, n=number: self._look(n)):
                watch = node.watch
                self.hangs.append((number, self.now_s - watch.progress_s, watch.describe()))

    def suspend(self, seconds: float) -> None:
        """The supervisor does not run, and learns of it in its next turn."""
        watch = SimpleNamespace(report=SimpleNamespace(clock_s=self.now_s))
        supervisor: Any = SimpleNamespace(
            _nodes=self.nodes,
            _fetcher=self.fetcher,
            _children=[*self.nodes, self.fetcher],
            _is_draining=False,
            _watch=watch,
        )
        self.now_s += seconds
        Supervisor._replace_hung(supervisor, self.now_s)

    def _look(self, number: int) -> ProcessLook | None:
        state = self.states[number]
        return None if state is None else ProcessLook(state[0], state[1] * self.now_s)

    def state_of(self, number: int) -> str:
        return self.nodes[number].report(self.now_s, is_draining=False).state


@pytest.mark.parametrize(
    ("state", "share", "words"),
    [
        ("stopped", 0.0, "stopped by a signal"),
        ("traced", 0.0, "stopped by a debugger"),
        ("sleeps", 0.0, "sleeping"),
        ("runs", 1.0, "running or waiting for a CPU, 1.8 s of CPU time in 1.8 s"),
    ],
)
def test_a_process_that_hangs_is_found_within_5_s(
    state: KernelState, share: float, words: str
) -> None:
    host = Host()
    host.hang(1, state, share)
    host.run(HUNG_S - TURN_S)
    assert not host.hangs
    host.run(2 * TURN_S)
    ((number, silent_s, kernel_state),) = host.hangs
    assert (number, kernel_state) == (1, words)
    assert HUNG_S <= silent_s < 5.0
    assert host.state_of(1) == "hung"


@pytest.mark.parametrize("state", [("storage", 0.0), ("runs", 0.05), ("runs", 0.0), None])
def test_a_process_that_waits_for_disk_or_cpu_gets_longer(
    state: tuple[KernelState, float] | None,
) -> None:
    host = Host()
    host.beating.discard(1)
    host.states[1] = state
    host.run(HUNG_MAX_S - 1.0)
    assert not host.hangs
    assert [host.state_of(number) for number in (0, 1)] == ["ready", "silent"]
    host.run(2.0)
    assert [number for number, _, _ in host.hangs] == [1]


@pytest.mark.parametrize(("state", "frozen_s"), [("sleeps", 8.0), ("runs", 1000.0)])
def test_processes_that_were_suspended_with_the_supervisor_get_their_time(
    state: KernelState, frozen_s: float
) -> None:
    """As by docker pause, a cgroup freezer, or a suspended virtual machine."""
    host = Host()
    host.run(5.0)
    for number in (0, 1):
        host.hang(number, state)
    host.suspend(frozen_s)
    assert host.fetcher.watch.progress_s == host.now_s
    host.turn()
    host.run(2.5)
    assert [host.state_of(number) for number in (0, 1)] == ["ready", "ready"]
    host.beating = {0, 1}
    host.run(60.0)
    assert not host.hangs


def test_a_process_has_two_minutes_to_start_and_is_not_silent_meanwhile() -> None:
    node = Host().nodes[0]
    node.ready, node.config = None, msgspec.structs.replace(node.config, is_successor=True)
    node.watch = NodeProcess(node.config, PLACEMENT).watch
    states = set()
    for now_s in range(round(START_DEADLINE_S)):
        assert not node.hangs_now(float(now_s), lambda _: ProcessLook("sleeps", 0.0))
        states.add(node.report(float(now_s), is_draining=False).state)
    assert states == {"restarting"}
    assert node.hangs_now(START_DEADLINE_S, lambda _: None)
