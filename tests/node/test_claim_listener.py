"""Claims of slots: the packets, the listener, and the mapping that a client gets."""

import gc
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from feeder.client import host_memory
from feeder.client.host_memory import LentMemory, NotSharedError, claim_slots
from feeder.errors import ResourceError
from feeder.node.claim_listener import ClaimListener
from feeder.node.endpoint import parse_endpoint
from feeder.node.polling import PollSet
from feeder.session.events import HolderGone, SlotsClaimed
from feeder.wire.claim import (
    decode_answer,
    encode_claim,
)
from feeder.wire.messages import MAGIC, PROTOCOL_VERSION
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.slot_memory import SlotMemory
from tests.support.daemon import wait_until
from tests.support.sources import REPOSITORY

PREFIX = MAGIC + bytes([PROTOCOL_VERSION])
LAYOUT = SlotLayout(slots=2, batch_size=5, image_size=7)


class Node:
    """A claim listener with its poll set, and a clock and decisions that the test makes."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "node.slots")
        self.now_s = 0.0
        self.claims: list[tuple[int, int]] = []
        self.gone: list[tuple[int, bool]] = []  # the session, and whether its holder died
        self.listener = ClaimListener()
        self.listener.bind(
            parse_endpoint(text)
            for text in (f"ipc://{folder}/node", f"ipc://{folder}/other", "tcp://[::1]:0")
        )
        self.poll_set = PollSet()
        self.listener.start(self.poll_set, self._handle)

    def _handle(self, events: Sequence[HolderGone | SlotsClaimed], now_s: float) -> None:
        (event,) = events
        if isinstance(event, SlotsClaimed):
            self.claims.append((event.connection, event.session))
        else:
            self.gone.append((event.session, event.has_died))

    def poll(self) -> None:
        """Handle a connection, its packet and its end."""
        for _ in range(3):
            self.poll_set.run(0.0)

    def connect(self, name: str = "node") -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(10)
        connection.connect(self.path.replace("node.", f"{name}."))
        return connection


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path)
    clock = SimpleNamespace(monotonic=lambda: made.now_s)
    monkeypatch.setattr("feeder.node.polling.time", clock)
    yield made
    made.listener.close()
    assert os.listdir(tmp_path) == []


@pytest.fixture
def memory() -> Iterator[SlotMemory]:
    made = SlotMemory.create(LAYOUT)
    yield made
    made.close()


def lend(node: Node, memory: SlotMemory) -> LentMemory:
    with ThreadPoolExecutor(1) as pool:
        claim = pool.submit(claim_slots, node.path, 77, LAYOUT)
        wait_until(lambda: node.poll() or node.claims, "the claim")
        connection, session = node.claims.pop()
        assert session == 77
        assert node.listener.grant(connection, session, memory)
        return claim.result()


def test_client_reads_what_workers_write_and_cannot_write(node: Node, memory: SlotMemory) -> None:
    lent = lend(node, memory)
    memory.chunk(1, 2, 3).pixels[...] = -9
    memory.chunk(1, 2, 3).labels[...] = 4
    slot = lent.slots()[1]
    assert (slot.pixels[2:] == -9).all()
    assert slot.labels.tolist() == [0, 0, 4, 4, 4]
    start = slot.pixels.__array_interface__["data"][0]
    assert lent.address + LAYOUT.slot_bytes == start
    mapped = [line.split(maxsplit=2) for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [([int(end, 16) for end in span.split("-")], access) for span, access, _ in mapped]
    (access,) = (access for (first, end), access in spans if first <= start < end)
    assert access == "r--s", "to write there would be a segmentation fault"
    reader = memory.open_read_only()
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(reader, LAYOUT.total_bytes)
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fileno(), 0)
        assert os.fstat(reader).st_mode & 0o777 == 0o400
    finally:
        os.close(reader)


def test_holder_is_gone_with_its_last_view(node: Node, memory: SlotMemory) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    lent = lend(node, memory)
    ended: list[str] = []
    lent.before_unmapping(lambda: ended.append("unlocked"))
    view = lent.slots()[0].pixels[1:2]
    del lent
    gc.collect()
    node.poll()
    assert (node.gone, ended) == ([], []), "a view is still open"
    assert not view.any()
    del view
    wait_until(lambda: node.poll() or node.gone, "the slots are unmapped")
    assert (node.gone, ended) == ([(77, False)], ["unlocked"])
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, "all are closed")


def test_a_signal_s_exception_is_not_lost_while_the_last_view_is_dropped(
    node: Node, memory: SlotMemory
) -> None:
    """Python code that the garbage collector calls would swallow it, a Ctrl-C for example."""
    lent = lend(node, memory)
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(f"{event} {frame.f_code.co_name}"))
    del lent
    sys.setprofile(None)
    assert [call for call in called if call.startswith("call ")] == []
    wait_until(lambda: node.poll() or node.gone, "the slots are unmapped")


@pytest.mark.parametrize("when", ["while it claims", "while it holds"])
def test_fork_that_outlives_the_client_neither_releases_its_slots_nor_hides_its_death(
    node: Node, memory: SlotMemory, when: str
) -> None:
    program = (
        "import os, sys\n"
        "from feeder.client import host_memory\n"
        "from tests.node.test_claim_listener import LAYOUT\n"
        "def fork():\n"
        "    global lent\n"
        "    if os.fork() == 0:\n"
        "        lent = None\n"
        "        os.read(int(sys.argv[3]), 1)\n"
        "        os._exit(0)\n"
        "decode = host_memory.decode_answer\n"
        "def hold(packet):\n"
        "    if sys.argv[2] == 'while it claims':\n"
        "        fork()\n"
        "    return decode(packet)\n"
        "host_memory.decode_answer = hold\n"
        "host_memory.CLAIM_S = 30\n"
        "lent = host_memory.claim_slots(sys.argv[1], 77, LAYOUT)\n"
        "if sys.argv[2] == 'while it holds':\n"
        "    fork()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    forks_end, our_end = os.pipe()
    client = subprocess.Popen(
        [sys.executable, "-c", program, node.path, when, str(forks_end)],
        cwd=REPOSITORY,
        pass_fds=[forks_end],
    )
    os.close(forks_end)
    with client, os.fdopen(our_end):
        wait_until(lambda: node.poll() or node.claims, "the claim")
        assert node.listener.grant(*node.claims[0], memory)
        assert client.wait(30) == -9
        wait_until(lambda: node.poll() or node.gone, "the death is seen, once the fork runs")
        assert node.gone == [(77, True)]


def test_refused_claim_gets_the_reason(node: Node) -> None:
    with ThreadPoolExecutor(1) as pool:
        claim = pool.submit(claim_slots, node.path, 5, LAYOUT)
        wait_until(lambda: node.poll() or node.claims, "the claim")
        node.listener.refuse(node.claims[0][0], "there is no such session")
        with pytest.raises(NotSharedError, match=r"^there is no such session$"):
            claim.result()
    node.poll()
    assert node.gone == []
    assert node.listener.counters.claims_refused == 1


@pytest.mark.parametrize("packet", [PREFIX, bytes(64)])
def test_malformed_claim_gets_the_reason_and_is_closed(node: Node, packet: bytes) -> None:
    with node.connect() as caller:
        caller.send(packet)
        node.poll()
        assert decode_answer(caller.recv(2000))
        assert caller.recv(2000) == b""
    assert (node.claims, node.gone) == ([], [])


def test_connections_without_a_claim_are_bounded_and_the_oldest_is_closed(node: Node) -> None:
    first = node.connect()
    node.poll()
    others = []
    for _ in range(64):
        others.append(node.connect())
        node.poll()
    assert first.recv(10) == b""
    others[-1].send(encode_claim(3))
    node.poll()
    assert [session for _, session in node.claims] == [3]
    for caller in (first, *others):
        caller.close()
    node.poll()


def test_path_in_use_is_refused_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    endpoint = parse_endpoint(f"ipc://{tmp_path}/node")
    first, second = ClaimListener(), ClaimListener()
    first.bind([endpoint])
    with pytest.raises(ResourceError, match="in use by another process"):
        second.bind([endpoint])
    second.close()
    os.link(tmp_path / "node.slots", tmp_path / "kept")
    first.close()
    os.rename(tmp_path / "kept", tmp_path / "node.slots")  # as a killed daemon leaves it
    second.bind([endpoint])
    second.close()
    assert os.listdir(tmp_path) == []


def test_a_claim_that_is_not_answered_in_time_is_given_up_and_gets_no_late_grant(
    node: Node, memory: SlotMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "CLAIM_S", 0.02)
    with pytest.raises(NotSharedError, match=r"^no answer to the claim within 0\.02 s$"):
        claim_slots(node.path, 77, LAYOUT)
    node.poll_set.run(0.0)
    node.poll_set.run(0.0)
    assert not node.listener.grant(*node.claims[0], memory)
    node.poll()
    assert node.gone == []


def test_listener_is_not_polled_for_a_moment_after_running_out_of_descriptors(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(listener: socket.socket) -> object:
        accepts.append(listener)
        raise OSError(24, "Too many open files")

    accepts: list[socket.socket] = []

    with node.connect() as caller, node.connect("other"):
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", no_descriptor)
            node.poll()
        assert len(accepts) == 2, "a listener that stays readable would keep the loop busy"
        node.now_s = 0.2
        caller.send(encode_claim(3))
        node.poll()
        assert [session for _, session in node.claims] == [3]
    node.poll()
