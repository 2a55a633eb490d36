"""What a node process does about deadlines that passed while it was held up itself."""

from types import SimpleNamespace
from typing import Any

import pytest

from feeder.metrics import ClaimCounters, SocketCounters, WorkerCounters
from feeder.node.service import NodeService
from feeder.plan.epoch import ShardLayout
from feeder.session.admission import NodeIdentity, ServedDataset
from feeder.wire.messages import Bye, Hello, NodeMessage, Ping, Pong, Welcome, encode
from tests.support.session_shell import SAMPLES, limits, recipe

LEASE_S = 10.0


class Host:
    """A node service whose clock the test sets; what it sends is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.sent: list[NodeMessage] = []
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        monkeypatch.setattr("feeder.node.service.time", clock)
        self.router: Any = SimpleNamespace(
            counters=SocketCounters(),
            has_unread=False,
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
            self.router,
            door=SimpleNamespace(counters=ClaimCounters()),  # type: ignore[arg-type]
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
            self.service.run_due(self.now_s, self.now_s)

    def count(self, name: str) -> object:
        """Return one of its counters."""
        return self.service.counters()[name]

    @property
    def expired(self) -> object:
        return self.count("sessions_expired")


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
    due_s = host.now_s + 0.1
    host.now_s += held_up_s
    host.service.run_due(host.now_s, due_s)
    host.pass_by(0.5)
    host.service.on_frame(b"peer", encode(Ping(session=host.session)))
    assert isinstance(host.sent[-1], Pong)
    host.pass_by(LEASE_S - 0.2)
    assert host.expired == 0
    host.pass_by(1.4)
    assert host.expired == 1


def test_who_is_silent_after_that_is_given_up(host: Host) -> None:
    host.now_s += 100.0
    host.service.run_due(host.now_s, host.now_s - 99.9)
    host.pass_by(0.9)
    assert host.expired == 0
    host.pass_by(0.4)
    assert host.expired == 1
    assert host.service.deadline_s > host.now_s


def test_who_slept_until_it_was_due_was_not_held_up(host: Host) -> None:
    """Nobody is connected: it wakes up for the end of the lease, a millisecond late each time."""
    turns = 0
    while host.expired == 0:
        due_s = host.service.deadline_s
        assert due_s > host.now_s
        host.now_s = due_s + 0.0013
        host.service.run_due(host.now_s, due_s)
        turns += 1
    assert turns <= 2
    assert host.now_s < 1000.0 + LEASE_S + 1.0


def test_who_is_stopped_when_it_has_begun_to_look_judges_by_when_it_began(host: Host) -> None:
    host.pass_by(1.0)
    began_s = host.now_s
    host.now_s += 100.0
    host.service.run_due(began_s, began_s)
    assert host.expired == 0


def test_who_is_gone_is_so_once_all_was_read_that_it_may_have_said(host: Host) -> None:
    host.router.has_unread = True
    host.service.on_disconnected([b"peer"], host.now_s)
    host.pass_by(0.5)
    assert host.service.deadline_s > host.now_s, "no busy waiting for whoever reads the messages"
    host.service.on_frame(b"peer", encode(Bye(session=host.session)))
    host.router.has_unread = False
    host.pass_by(0.5)
    assert (host.count("sessions_closed"), host.count("sessions_lost")) == (1, 0)


@pytest.mark.parametrize("others_speak", [False, True])
def test_who_is_gone_without_a_word_is_lost(host: Host, others_speak: bool) -> None:
    host.router.has_unread = others_speak
    host.service.on_disconnected([b"peer"], host.now_s)
    assert (host.service.deadline_s <= host.now_s) is not others_speak
    host.pass_by(1.5 if others_speak else 0.2)
    assert (host.count("sessions_closed"), host.count("sessions_lost")) == (0, 1)
