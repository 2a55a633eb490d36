"""The proven indexes that workers share: sealed, right whoever proves a shard, read in place."""

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.dataset.format import decode_header, shard_name
from feeder.dataset.opened import Dataset
from feeder.errors import ResourceError
from feeder.wire.chunk_work import Filled
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.index_memory import IndexMemory, WorkerIndexes
from feeder.worker.messages import IndexProven, Started
from feeder.worker.slot_memory import SlotMemory
from tests.support.daemon import check_batch, small_recipe
from tests.support.synthetic_sets import FLOATS, MULTI, expected_rows, write_labelled
from tests.worker.test_worker import WorkerProcess, copy_slot, source_of

SAMPLES = 23
LABELS = {"floats": FLOATS, "multi": MULTI}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets with label rows, of 23 samples in five shards."""
    root = tmp_path_factory.mktemp("index")
    for name, labels in LABELS.items():
        write_labelled(root / name, labels, samples=SAMPLES, shards=5)
    return root


class Host:
    """A node process's memory for the datasets, and workers' messages on their way to it."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._folder = folder
        parts = {}
        for name in LABELS:
            with Dataset.open(folder / name) as dataset:
                parts[name] = dataset.layout, dataset.labels.stored_bytes
        self.memory = IndexMemory(parts)
        self._stack.callback(self.memory.close)
        self.sent: list[tuple[str, int, int]] = []

    def open(self, name: str) -> Dataset:
        """Open a dataset as a worker does."""
        dataset = self._stack.enter_context(Dataset.open(self._folder / name, open_shards=1))
        WorkerIndexes(os.dup(self.memory.fileno()), self.memory.starts, self._send).share(
            name, dataset
        )
        return dataset

    def _send(self, name: str, shard: int, fd: int) -> None:
        self.sent.append((name, shard, os.dup(fd)))

    def deliver(self) -> None:
        """Handle the oldest message, if there is one."""
        if self.sent:
            name, shard, fd = self.sent.pop(0)
            self.memory.take(name, shard, fd)
            os.close(fd)

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        for *_, fd in self.sent:
            os.close(fd)
        self._stack.close()


def check_rows(dataset: Dataset, name: str, ids: list[int]) -> None:
    """Compare checksums of sources and labels with those that were written."""
    wanted = np.array(ids, np.int64)
    records = dataset.read_records(wanted)
    assert records["source_checksum"].tolist() == [1 + sample for sample in ids]
    rows = np.empty((len(ids), *dataset.labels.row_shape), dataset.labels.dtype)
    dataset.read_labels(wanted, records, rows)
    assert np.array_equal(rows, expected_rows(wanted, LABELS[name]))


STEP = st.one_of(
    st.none(),  # a message is delivered
    st.tuples(
        st.integers(0, 3),
        st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=9),
    ),
)


@given(steps=st.lists(STEP, max_size=30))
def test_rows_are_right_whoever_has_proven_a_shard_and_whenever_that_arrives(
    folder: Path, steps: list[tuple[int, list[int]] | None]
) -> None:
    """Four workers, two for each dataset; messages are late, and some shards proven twice."""
    with Host(folder) as host:
        names = [*LABELS] * 2
        workers = [host.open(name) for name in names]
        for step in steps:
            if step is None:
                host.deliver()
            else:
                check_rows(workers[step[0]], names[step[0]], step[1])


def test_a_shard_that_is_there_is_read_from_memory_by_all(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    with Host(tmp_path / "copy") as host:
        first = host.open("multi")
        check_rows(first, "multi", [*range(SAMPLES)])
        assert [shard for _, shard, _ in host.sent] == [*range(5)]
        while host.sent:
            host.deliver()
        damage_index(tmp_path / "copy" / "multi", range(5))
        for dataset in (first, host.open("multi")):
            check_rows(dataset, "multi", [*range(SAMPLES)])
        assert not host.sent
        assert host.open("multi").name_of(3) is None, "names are read from the file"


def damage_index(dataset: Path, shards: range) -> None:
    """Overwrite all records, in place; the header stays."""
    for shard in shards:
        with (dataset / shard_name(shard)).open("r+b") as file:
            header = decode_header(file.read(64), "x")
            file.seek(header.records_offset)
            file.write(bytes(64 * header.samples))


def refusals(fd: int) -> Iterator[Callable[[], object]]:
    """Ways to change the file of a descriptor."""
    yield lambda: mmap.mmap(fd, 0)
    yield lambda: os.pwrite(fd, b"x", 0)
    yield lambda: os.ftruncate(fd, 0)
    yield lambda: os.ftruncate(fd, 1 << 30)
    yield lambda: os.posix_fallocate(fd, 0, 1 << 30)
    yield lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_nobody_but_the_node_process_can_change_the_memory(folder: Path) -> None:
    with Host(folder) as host:
        fd = host.memory.fileno()
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        future_write = 0x10
        assert sealed == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | future_write
        for change in refusals(fd):
            with pytest.raises(PermissionError):
                change()
        dataset = host.open("multi")
        with pytest.raises(ValueError, match="read-only"):
            dataset.index.records[0] = 0
        # Not even by making a mapping writable that was mapped to be read.
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        page = dataset.index.is_here.ctypes.data & -mmap.PAGESIZE
        assert protect(ctypes.c_void_p(page), mmap.PAGESIZE, 3) == -1
        assert ctypes.get_errno() == errno.EACCES


def test_memory_that_the_system_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(ResourceError, match=r"indexes of datasets \(Too many open files\)"):
        IndexMemory({})


def test_a_successor_of_a_worker_reads_what_another_has_proven(
    packed: Path, tmp_path: Path
) -> None:
    dataset = Path(shutil.copytree(packed, tmp_path / "d"))
    layout = SlotLayout(slots=2, batch_size=10, image_size=32)
    with Dataset.open(packed) as opened:
        memory = IndexMemory({"d": (opened.layout, opened.labels.stored_bytes)})
        slots = SlotMemory.create(layout)
        for is_successor in (False, True):
            with WorkerProcess() as worker:
                started = worker.configure({"d": source_of(dataset)}, indexes=memory)
                assert isinstance(started, Started)
                worker.open(1, slots, "val")
                proven = set()
                for index in range(opened.layout.samples // 10):
                    answer = worker.fill(1, 1, 0, 0, index, 0, 10)
                    while isinstance(answer, IndexProven):
                        proven.add(answer.shard)
                        answer = worker.receive()
                    assert isinstance(answer, Filled)
                    check_batch(opened, small_recipe("val"), (0, index), copy_slot(slots, 0))
            assert proven == (set() if is_successor else {*range(opened.layout.shards)})
            damage_index(dataset, range(opened.layout.shards))
        slots.close()
        memory.close()
