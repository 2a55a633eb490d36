"""The client's I/O thread, told what to do by a script in the session's place."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from feeder.client.connection import Link
from feeder.client.core.events import (
    AttemptFailed,
    ClaimSlots,
    ClockAdvanced,
    Dial,
    DropClaim,
    EndpointsListed,
    Event,
    HangUp,
    Instruction,
    SlotsNotShared,
)
from feeder.client.core.session import Job
from feeder.client.io_thread import Pump
from feeder.errors import FeederError
from feeder.wire.claim import CLAIM_BYTES, encode_answer
from feeder.wire.slot_layout import SlotLayout
from tests.support.client_shell import hello
from tests.support.daemon import DEADLINE_S

LAYOUT = SlotLayout(slots=1, batch_size=1, image_size=8)


class Script:
    """A session that answers events as ``answer`` says, and runs its pump in this thread."""

    has_news = False
    due_s = float("inf")

    def __init__(self, answer: Callable[[Event], Sequence[Instruction] | None]) -> None:
        self.job = Job(name="a job", hello=hello())
        self.error: FeederError | None = None
        self.now_s = 0.0
        self._answer = answer
        self._bell, ring = socket.socketpair()
        ring.setblocking(False)
        self.pump = Pump(
            self,  # type: ignore[arg-type]
            threading.Condition(),
            buffers={},
            wrap_slot=lambda memory, number: memory.slot(number),
            keys=None,
            ring=ring,
        )

    def run(self, *endpoints: str) -> None:
        """Serve until ``stop``; raises the error that ended it instead."""
        self.pump.listed = endpoints
        self.pump.run()
        self._bell.close()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """End the pump after this turn."""
        self.pump.closing = True

    def handle(self, event: Event, now_s: float) -> Sequence[Instruction]:
        self.now_s = now_s
        return self._answer(event) or ()

    def fail(self, error: FeederError) -> None:
        self.error = error

    def farewell(self) -> Sequence[Instruction]:
        return ()

    def let_go(self) -> None:
        pass


@pytest.fixture
def door(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "door"))
        listener.listen()
        listener.settimeout(DEADLINE_S)
        yield listener


def test_a_link_that_is_hung_up_as_soon_as_it_is_dialled(tmp_path: Path) -> None:
    def answer(event: Event) -> Sequence[Instruction] | None:
        if isinstance(event, AttemptFailed):
            script.stop()
            return [Dial(1, f"ipc://{tmp_path}/other"), HangUp(1)]
        return [Dial(0, f"ipc://{tmp_path}/node")] if isinstance(event, EndpointsListed) else None

    script = Script(answer)
    script.run("one")


def test_a_process_that_was_stopped_reads_what_has_come_before_it_takes_it_for_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[type[Event], bool]] = []
    now = time.monotonic

    def answer(event: Event) -> Sequence[Instruction] | None:
        heard.append((type(event), script.now_s > now() + 10.0))
        if isinstance(event, EndpointsListed):
            return [Dial(0, f"ipc://{tmp_path}/node")]
        if isinstance(event, AttemptFailed):
            monkeypatch.setattr(time, "monotonic", lambda: now() + 30.0)
            if heard[-1][1]:
                script.stop()
        return None

    script = Script(answer)
    script.run("one")
    assert next(kind for kind, is_later in heard if is_later) is AttemptFailed
    assert (ClockAdvanced, False) in heard[heard.index((AttemptFailed, False)) :]


def test_a_claim_is_not_taken_for_one_before_that_had_its_descriptors_number(
    tmp_path: Path, door: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    links: list[Link] = []
    monkeypatch.setattr(
        "feeder.client.io_thread.Link", lambda *a: links.append(Link(*a)) or links[0]
    )
    claims = [ClaimSlots(0, number, door.getsockname(), LAYOUT) for number in (1, 2)]
    turns: list[str] = []
    outcomes: list[Event] = []

    def answer(event: Event) -> Sequence[Instruction] | None:
        match event:
            case EndpointsListed():
                return [Dial(0, f"ipc://{tmp_path}/nobody"), claims[0]]
            case ClockAdvanced() if not turns:
                # Now the end of the first claim and word of the connection are found in one turn.
                turns.append("both are there")
                door.accept()[0].close()
                assert links[0].monitor.poll(int(DEADLINE_S * 1000))
            case AttemptFailed() if len(turns) == 1:
                turns.append("claimed anew")
                return [DropClaim(0), claims[1]]
            case ClockAdvanced() if turns[-1] == "claimed anew":
                turns.append("refused")
                with door.accept()[0] as claim:
                    claim.recv(CLAIM_BYTES)
                    claim.send(encode_answer("not now"))
            case SlotsNotShared():
                outcomes.append(event)
                script.stop()
            case _:
                pass
        return None

    script = Script(answer)
    script.run("one")
    # Most often the numbers are the same; sometimes libzmq's thread, which dials, is quicker.
    assert outcomes == [SlotsNotShared(0, 2, "not now")]
