"""What a node process does about deadlines that passed while it was held up itself."""

from types import SimpleNamespace
from typing import Any

import pytest

from feeder.admission import NodeIdentity, ServedDataset
from feeder.metrics import DoorCounters, SocketCounters, WorkerCounters
from feeder.node_service import NodeService
from feeder.plan import ShardLayout
from feeder.wire import Hello, NodeMessage, Ping, Pong, Welcome, encode
from tests.session_shell import SAMPLES, limits, recipe

LEASE_S = 10.0


class Host:
    """A node service whose clock the test sets; what it sends is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.sent: list[NodeMessage] = []
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        monkeypatch.setattr("feeder.node_service.time", clock)
        router: Any = SimpleNamespace(
            counters=SocketCounters(),
            account=lambda: "",
            send=lambda peer, message: self.sent.append(message),
        )
        layout = ShardLayout(samples=SAMPLES, shards=5, lanes=2)
        self.service = NodeService(
            {"d": ServedDataset(fingerprint="f" * 32, classes=("a", "b"), layout=layout)},
            limits(lease_s=LEASE_S),
            NodeIdentity(
                node="host/1 ipc:///n",
                number=1,
                incarnation=77,
                siblings=(("ipc:///n",),),
                feeder_version="0",
                self_test="5" * 32,
                libraries={},
            ),
            router,
            door=SimpleNamespace(counters=DoorCounters()),  # type: ignore[arg-type]
            pool=SimpleNamespace(  # type: ignore[arg-type]
                counters=WorkerCounters(), pids=(), send_to_all=lambda *_: None
            ),
            placement_warnings=0,
        )
        hello = Hello(dataset="d", recipe=recipe(), seed=0, window=1, client="test")
        self.service.on_frame(b"peer", encode(hello))
        (welcome,) = self.sent
        assert isinstance(welcome, Welcome)
        self.session = welcome.session

    def pass_by(self, seconds: float) -> None:
        """Have time go by in which the process runs."""
        for _ in range(round(seconds / 0.1)):
            self.now_s += 0.1
            self.service.tend(self.now_s)

    @property
    def expired(self) -> object:
        return self.service.counters()["sessions_expired"]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_a_silent_client_is_given_up_when_its_lease_is_over(host: Host) -> None:
    host.pass_by(LEASE_S - 0.2)
    assert host.expired == 0
    host.pass_by(0.4)
    assert host.expired == 1


@pytest.mark.parametrize("held_up_s", [LEASE_S, LEASE_S + 0.2, 100.0])
def test_who_was_held_up_itself_reads_what_waits_before_it_takes_anybody_for_silent(
    host: Host, held_up_s: float
) -> None:
    host.now_s += held_up_s
    host.service.tend(host.now_s)
    host.pass_by(0.5)
    host.service.on_frame(b"peer", encode(Ping(session=host.session)))
    assert isinstance(host.sent[-1], Pong)
    host.pass_by(LEASE_S - 0.2)
    assert host.expired == 0
    host.pass_by(1.4)
    assert host.expired == 1


def test_who_is_silent_after_that_is_given_up(host: Host) -> None:
    host.now_s += 100.0
    host.pass_by(0.9)
    assert host.expired == 0
    host.pass_by(0.4)
    assert host.expired == 1
    assert host.service.deadline_s > host.now_s
