"""Batches read in the slots of a real daemon: the same bytes, none of them through the socket."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from feeder.client.host_memory import LentMemory, claim_slots
from feeder.wire.claim import claim_path
from feeder.wire.slot_layout import SlotLayout
from tests.support.daemon import (
    Daemon,
    RawClient,
    serve,
    small_recipe,
    wait_until,
)
from tests.support.lent_client import BATCH, SIDE, digest, expected, make_loader
from trainer_client._staging import PageLocks


@pytest.fixture(scope="module")
def daemon(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    ipc = f"ipc://{tmp_path_factory.mktemp('run')}/node"
    options = ("--bind", "tcp://127.0.0.1:0", "--chunk-images", "4")
    with serve(packed, *options, bind=ipc) as running:
        yield running


def claim(client: RawClient, daemon: Daemon, slots: int) -> LentMemory:
    path = claim_path(daemon.endpoints[0])
    assert path is not None
    layout = SlotLayout(slots=slots, batch_size=BATCH, image_size=SIDE)
    return claim_slots(path, client.session, layout)


def test_the_loader_gives_the_same_lent_copied_and_over_tcp(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wait_until(lambda: daemon.counters()["sessions"] == 0, "former sessions have ended")
    before = daemon.counters()
    with make_loader(daemon.endpoints[0]) as lent:
        batches = [digest(batch) for _ in range(2) for batch in lent]
        after = lent.statistics()
    assert (after.copied_because, after.received_bytes) == (None, 0)
    assert after.batches == 10 <= after.batches_lent
    wait_until(lambda: daemon.counters()["sessions_closed"] > before["sessions_closed"], "Bye")
    counters = daemon.counters()
    assert counters["bytes_sent"] == before["bytes_sent"], "no pixel went over the socket"
    assert counters["sessions_lost"] == before["sessions_lost"]
    assert expected(daemon.endpoints[0], 10) == batches
    assert f"{daemon.endpoints[0]}: batches are read in place" in caplog.text
    with make_loader(daemon.endpoints[1]) as over_tcp:
        assert [digest(batch) for _ in range(2) for batch in over_tcp] == batches
        after = over_tcp.statistics()
    assert (after.batches_lent, after.copied_because) == (0, "it is no ipc endpoint")
    assert after.received_bytes >= 10 * BATCH * (SIDE * SIDE * 3 + 16)
    assert "are copied over the socket: it is no ipc endpoint" in caplog.text


def test_a_client_that_cannot_claim_slots_gets_copies_and_logs_the_reason(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    path = claim_path(daemon.endpoints[0])
    assert path is not None
    before = daemon.counters()["batches_lent"]
    os.rename(path, path + ".away")  # as where only the one socket is mounted into a container
    try:
        with make_loader(daemon.endpoints[0]) as loader:
            batches = [digest(batch) for batch in loader]
            after = loader.statistics()
    finally:
        os.rename(path + ".away", path)
    assert batches == expected(daemon.endpoints[0], 5)
    assert after.copied_because == f"{path}: No such file or directory"
    assert after.batches_lent == 0
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    text = f"{daemon.endpoints[0]}: batches are copied over the socket: {after.copied_because} ("
    assert [line.startswith(text) for line in warnings] == [True], warnings
    assert daemon.counters()["batches_lent"] == before


def test_one_slot_is_enough(packed: Path, tmp_path: Path) -> None:
    with serve(packed, "--window-max", "1", bind=f"ipc://{tmp_path}/node", workers=1) as tight:
        with make_loader(tight.endpoint) as loader:
            batches = [digest(batch) for batch in loader]
            assert loader.statistics().copied_because is None
        assert batches == expected(tight.endpoint, 5)
        assert tight.counters()["windows_reduced"] == 2


# Page locks


class FakeCudart:
    """Registers pages until it has no room."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 -- CUDA's
        assert flags == 8, "the pages are read-only"
        assert address % 4096 == size % 4096 == 0
        assert address not in self.registered
        if len(self.registered) == self.room:
            return 801
        self.registered[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 -- CUDA's
        del self.registered[address]
        return 0


def test_slots_are_locked_once_and_unlocked_before_they_are_unmapped(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    cudart, forgotten = FakeCudart(2), []
    locks = PageLocks(cudart, lambda: forgotten.append(1))
    with RawClient(daemon.endpoints[0]) as client:
        client.hello(small_recipe(), window=4)
        memory = claim(client, daemon, 4)
        slots = memory.slots()
        for slot in (*slots, *slots):
            locks.lock(slot)
        assert [slot.is_page_locked for slot in slots] == [True, True, False, False]
        assert set(cudart.registered) == {slot.pixels.ctypes.data for slot in slots[:2]}
        assert (locks.refused, len(forgotten)) == (2, 2)
        assert caplog.text.count("did not page-lock the feeder's slots (cudaError 801)") == 1
        view = torch.from_numpy(slots[0].labels)
        slots.clear()
        del memory, slot
        assert len(cudart.registered) == 2, "a tensor still reads them"
        del view
        wait_until(lambda: not cudart.registered, "they are unmapped")


ENDS_WHILE_UNLOCKING = """
import fcntl, os, socket, threading, torch
from feeder.client.host_memory import LentMemory
from feeder.wire.slot_layout import SlotLayout

layout = SlotLayout(slots=1, batch_size=1, image_size=32)
fd = os.memfd_create("slots", os.MFD_ALLOW_SEALING)
os.ftruncate(fd, layout.total_bytes)
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
memory = LentMemory(fd, layout, socket.socketpair()[0])
torch.set_num_threads(1)  # several wait for each other, on a busy machine for longer than exit does
square, begun = torch.ones(100, 100), threading.Event()
memory.before_unmapping(begun.set)
memory.before_unmapping(lambda: [torch.mm(square, square) for _ in range(5000)])
del memory
begun.wait()
"""


def test_a_process_that_ends_while_slots_are_unlocked_ends_well() -> None:
    """In C++ code that takes the GIL back, as torch's ``cudaHostUnregister`` is."""
    command = [sys.executable, "-c", ENDS_WHILE_UNLOCKING]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
