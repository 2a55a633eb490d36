"""Slots: their layout, their memory, and their return."""

import errno
import fcntl
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from feeder.errors import ResourceError
from feeder.host.memory_budget import available_bytes, cacheable_bytes
from feeder.node.slot_store import SlotStore
from feeder.remedies import lift_limit
from feeder.session.events import SlotReturned, SlotsClosed, SlotSent
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.slot_memory import SlotMemory
from tests.support.daemon import wait_until


class Tracker:
    """A fake zmq.MessageTracker."""

    done = False


def small_layout(slots: int = 2) -> SlotLayout:
    return SlotLayout(slots=slots, batch_size=5, image_size=7)


def test_memory_is_shared_through_its_descriptor_and_cannot_be_shrunk_or_sealed() -> None:
    before = psutil.Process().num_fds()
    ours = SlotMemory.create(small_layout())
    theirs = SlotMemory(os.dup(ours.fileno()), small_layout())
    theirs.chunk(1, 2, 2).labels[:] = [5, 6]
    assert ours.chunk(1, 0, 5).labels.tolist() == [0, 0, 5, 6, 0]
    for attack in (
        lambda: os.ftruncate(ours.fileno(), 0),
        lambda: fcntl.fcntl(ours.fileno(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
    ):
        with pytest.raises(PermissionError):
            attack()
    for memory in (theirs, ours, ours):  # closing is idempotent
        memory.close()
    assert psutil.Process().num_fds() <= before


class Sender:
    """A slot store with open sessions, and the frames that the socket reads."""

    def __init__(self, *sessions: int) -> None:
        self.store = SlotStore()
        for session in sessions:
            self.store.open(session, small_layout())

    def lend(self, session: int, slot: int, now_s: float = 0.0) -> Tracker:
        tracker: Any = Tracker()
        self.store.lend(session, slot, tracker, now_s)
        return tracker


def test_slots_and_memory_are_back_once_the_socket_has_finished_with_all_their_frames() -> None:
    before = psutil.Process().num_fds()
    sender = Sender(7)
    store, (first, second, other) = sender.store, [sender.lend(7, slot) for slot in (0, 0, 1)]
    second.done = True
    assert store.want_back(7, 0, 0.0) == []
    first.done = True
    assert store.look_around(1.0) == [SlotSent(7, 0, 0.5), SlotReturned(7, 0)]
    assert store.want_back(7, None, 1.0) == []
    assert store.loans
    other.done = True
    assert store.look_around(2.0)[-1] == SlotsClosed(7)
    assert not store.loans
    assert psutil.Process().num_fds() <= before
    assert store.deadline_s == float("inf")
    assert SlotStore().want_back(9, None, 0.0) == [SlotsClosed(9)], "it was never opened"


def test_the_loop_wakes_up_for_a_slot_in_use_until_it_is_back() -> None:
    sender = Sender(7)
    store, tracker = sender.store, sender.lend(7, 1)
    assert store.want_back(7, 0, 0.0) == [SlotReturned(7, 0)]
    assert store.deadline_s == float("inf")
    assert store.want_back(7, 1, 0.0) == []
    now_s = 1.0
    for _ in range(12):
        assert store.look_around(now_s) == []
        assert 0 < store.deadline_s - now_s < 0.1
        now_s = store.deadline_s
    tracker.done = True
    assert store.look_around(now_s)[-1] == SlotReturned(7, 1)
    assert store.deadline_s == float("inf")
    store.want_back(7, None, now_s)


def test_a_slot_counts_as_sent_halfway_between_the_looks_around_its_last_read() -> None:
    sender = Sender(7, 8)
    store = sender.store
    trackers = [sender.lend(*where, 10.0) for where in ((7, 0), (7, 1), (8, 0))]
    assert store.look_around(11.0) == []
    for tracker in trackers:
        tracker.done = True
    assert store.look_around(11.0001) == []  # all sessions were looked at just now
    assert store.look(8, 13.0) == [SlotSent(8, 0, 12.0)]
    assert store.look_around(15.0) == [SlotSent(7, 0, 13.0), SlotSent(7, 1, 13.0)]
    assert store.look_around(17.0) == []
    store.want_back(7, None, 17.0)
    store.want_back(8, None, 17.0)
    assert store.look(7, 18.0) == []


def test_many_sessions_take_turns_at_being_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.node.slot_store._SLOTS_A_LOOK", 2)
    sender = Sender(1, 2, 3, 4)
    store, trackers = sender.store, [sender.lend(session, 0, 10.0) for session in (1, 2, 3, 4)]
    trackers[-1].done = True
    assert store.look_around(11.0) == []  # 1 and 2
    assert store.look_around(12.0) == [SlotSent(4, 0, 11.0)]  # 3 and 4
    for session in (1, 2, 3):
        sender.lend(session, 0, 13.0).done = True
        assert store.want_back(session, 0, 13.0) == [], "the earlier chunk is unfinished"
    store.want_back(4, None, 17.0)


def test_available_memory_is_the_machines_without_a_cgroup(tmp_path: Path) -> None:
    def is_free() -> bool:
        free = psutil.virtual_memory().available
        return available_bytes(tmp_path) == pytest.approx(free, rel=0.2)

    wait_until(is_free, "the free memory, unless other processes take some meanwhile")


V1, V2 = "4:memory:/box\n3:cpu:/box\n", "0::/pod/feeder\n"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES])
def test_available_memory_is_unlimited_only_if_no_more_files_can_be_opened(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(number, os.strerror(number), "/proc/meminfo")

    monkeypatch.setattr(psutil, "virtual_memory", fail)
    if number == errno.EMFILE:
        assert available_bytes(tmp_path) == sys.maxsize
    else:
        with pytest.raises(ResourceError, match=r"Permission denied: '/proc/meminfo'"):
            available_bytes(tmp_path)


@pytest.mark.parametrize(
    ("membership", "files", "available", "cacheable"),
    [
        (
            V2,
            {
                "pod/feeder/memory.max": "1000000\n",
                "pod/feeder/memory.current": "700000\n",
                # The inactive page cache counts as available.
                "pod/feeder/memory.stat": "anon 5\ninactive_file 200000\nactive_file 99\n",
                "pod/memory.max": "max\n",
                "pod/memory.current": "900000\n",
            },
            500_000,
            500_099,
        ),
        (  # a limit of a parent
            V2,
            {
                "pod/feeder/memory.max": "max\n",
                "pod/memory.max": "1000\n",
                "pod/memory.current": "4000\n",
            },
            0,
            0,
        ),
        (
            V1,
            {
                "memory/box/memory.limit_in_bytes": "5000\n",
                "memory/box/memory.usage_in_bytes": "1500\n",
                "memory/box/memory.stat": "inactive_file 20\nactive_file 30\n"
                "total_inactive_file 500\ntotal_active_file 700\n",
            },
            4000,
            4700,
        ),
    ],
    ids=["v2", "parent", "v1"],
)
def test_the_limit_of_a_cgroup_counts(
    tmp_path: Path, membership: str, files: dict[str, str], available: int, cacheable: int
) -> None:
    mounts = (
        "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    )
    texts = {"proc/self/cgroup": membership, "proc/self/mountinfo": mounts}
    texts |= {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path) == available
    assert cacheable_bytes(tmp_path) == cacheable, "with the active pages of files"


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (errno.EMFILE, "systemd `LimitNOFILE=65536`, `docker run --ulimit nofile=65536:65536`"),
        (errno.ENOMEM, "allow it 39 MB more with `docker run --memory="),
        (errno.ENOMEM, "/dev/shm is not used"),
        (errno.EPERM, "memfd_create"),
        (None, "MemoryMax="),
    ],
)
def test_the_remedy_fits_the_limit_that_was_hit(number: int | None, line: str) -> None:
    assert line in lift_limit(number, 38_535_168)
