"""A worker: its messages, what it writes into slots, and when it ends."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from feeder.dataset.opened import Dataset
from feeder.errors import DatasetError, FeederError, ResourceError
from feeder.jpeg.decode import describe_decoder
from feeder.jpeg.decoders import DECODERS, Decoder
from feeder.plan.epoch import EpochPlan
from feeder.process.channel import Channel, ChannelClosedError, ChannelFullError
from feeder.process.child import open_pair
from feeder.process.path_text import decode_name
from feeder.sample.cache import COUNTS
from feeder.sample.reader import STAGES
from feeder.sample.self_test import compute_self_test
from feeder.wire.chunk_work import Fill, Filled, FillFailed
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.__main__ import _fill, _read_blobs, _read_names
from feeder.worker.filler import ChunkFiller
from feeder.worker.index_memory import IndexMemory
from feeder.worker.messages import (
    BlobsRead,
    CannotStart,
    CloseSession,
    Configure,
    DatasetSource,
    IndexProven,
    NamesRead,
    NodeToWorker,
    OpenSession,
    ReadBlobs,
    ReadNames,
    ShareIndexes,
    Started,
    WorkerToNode,
)
from feeder.worker.slot_memory import SlotMemory
from tests.support.daemon import DEADLINE_S, Arrived, check_batch, small_recipe, wait_until
from tests.support.hard_jpegs import hard_jpeg
from tests.support.sources import REPOSITORY, make_source, pack

NodeEnd = Channel[NodeToWorker, WorkerToNode]


class WorkerProcess:
    """A real worker and the node process's end of its channel."""

    def __init__(self, parent: int | None = None) -> None:
        ours, theirs = open_pair()
        with theirs:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "feeder.worker", str(theirs.fileno())),
                    str(parent or os.getpid()),
                ],
                cwd=REPOSITORY,
                pass_fds=[theirs.fileno()],
            )
        self.channel: NodeEnd = Channel(ours, WorkerToNode)
        self.channel.set_timeout(DEADLINE_S)
        self._own_memory = self._indexes = IndexMemory({})

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        self._own_memory.close()
        self.process.kill()
        self.process.wait()

    def configure(
        self, datasets: dict[str, DatasetSource], indexes: IndexMemory | None = None, **fields: Any
    ) -> Started | CannotStart:
        """Without ``indexes`` the worker keeps them by itself."""
        fields = {"open_shards": 8, "self_test": False} | fields
        self._indexes = indexes or self._own_memory
        self.channel.send(Configure(datasets=datasets, **fields))
        self.channel.send(ShareIndexes(starts=self._indexes.starts), self._indexes.fileno())
        answer = self.channel.receive()
        assert isinstance(answer, Started | CannotStart)
        return answer

    def open(self, session: int, memory: SlotMemory, split: str = "train", name: str = "d") -> None:
        recipe = small_recipe(split)  # type: ignore[arg-type]
        message = OpenSession(session=session, dataset=name, recipe=recipe, seed=3, slots=2)
        self.channel.send(message, memory.fileno())

    def fill(self, *fill: int) -> WorkerToNode:
        self.channel.send(Fill(*fill))
        return self.receive()

    def receive(self) -> WorkerToNode:
        """Receive the next message; put the rows of one that has proven an index in place."""
        answer, fd = self.channel.receive_with_fd()
        if isinstance(answer, IndexProven):
            assert fd is not None
            self._indexes.take(answer.dataset, answer.shard, fd)
            os.close(fd)
        assert answer is not None
        return answer


def source_of(packed: Path, folder: Path | None = None) -> DatasetSource:
    """Return the source of a dataset, which is in ``folder`` if given."""
    with Dataset.open(packed) as dataset:
        return DatasetSource(
            folder=bytes(folder or packed), fingerprint=dataset.manifest.fingerprint
        )


@pytest.fixture
def memory() -> Iterator[SlotMemory]:
    made = SlotMemory.create(SlotLayout(slots=2, batch_size=10, image_size=32))
    yield made
    made.close()


def copy_slot(memory: SlotMemory, slot: int, valid: int = 10) -> Arrived:
    rows = memory.chunk(slot, 0, 10)
    return Arrived(rows.pixels.copy(), rows.labels.copy(), rows.sample_ids.copy(), 0, valid)


def test_a_worker_fills_the_chunks_of_a_session_and_ends_with_its_channel(
    packed: Path, memory: SlotMemory
) -> None:
    with WorkerProcess() as worker, Dataset.open(packed) as dataset:
        channel = worker.channel
        started = worker.configure({"d": source_of(packed)}, self_test=True)
        assert isinstance(started, Started)
        assert "numpy" in started.libraries
        worker.open(1, memory)
        for ticket, (first, count) in enumerate([(0, 4), (4, 4), (8, 2)]):
            channel.send(Fill(ticket, 1, 1, 5, 2, first, count))
        for ticket in range(3):
            filled = channel.receive()
            assert isinstance(filled, Filled)
            assert filled.ticket == ticket
            assert [*filled.stage_seconds] == [*STAGES, "fill"]
            assert sum(filled.stage_seconds.values()) > 0
            assert [*filled.cache_counts] == [*COUNTS]
        check_batch(dataset, small_recipe(), (5, 2), copy_slot(memory, 1))
        before = psutil.Process(worker.process.pid).num_fds()
        channel.send(CloseSession(session=1))
        worker.open(2, memory)
        assert isinstance(worker.fill(9, 2, 0, 0, 0, 0, 1), Filled)
        channel.send(ReadNames(10, "d", (22, 0)))
        read = channel.receive()
        assert isinstance(read, NamesRead)
        assert (read.ticket, read.problem) == (10, "")
        assert [*map(decode_name, read.names)] == [dataset.name_of(22), dataset.name_of(0)]
        assert psutil.Process(worker.process.pid).num_fds() <= before + 1, "one more shard"
        channel.close()
        assert worker.process.wait(DEADLINE_S) == 0


def test_a_worker_reports_why_it_cannot_start(tmp_path: Path) -> None:
    with WorkerProcess() as worker:
        gone = DatasetSource(folder=bytes(tmp_path / "gone"), fingerprint="0" * 32)
        message = worker.configure({"d": gone}, self_test=True)
        assert isinstance(message, CannotStart)
        assert isinstance(message.as_error(), DatasetError)
        assert "gone" in message.message
        assert worker.process.wait(DEADLINE_S) == DatasetError.exit_status


def test_a_worker_of_another_parent_ends_at_once() -> None:
    with WorkerProcess(parent=1) as worker:
        assert worker.process.wait(DEADLINE_S) == 0


def test_damaged_samples_and_datasets_are_reported_and_the_worker_lives(
    packed: Path, tmp_path: Path, memory: SlotMemory
) -> None:
    damaged, gone = tmp_path / "damaged", tmp_path / "gone"
    shutil.copytree(packed, damaged)
    shard = damaged / "shard-00000.fds"
    content = bytearray(shard.read_bytes())
    content[64 + 2000] ^= 0xFF
    shard.write_bytes(content)
    sources = {
        "damaged": source_of(packed, damaged),
        "other": source_of(packed, pack_other(tmp_path)),
        "gone": source_of(packed, gone),
        "d": source_of(packed),
    }
    with WorkerProcess() as worker:
        assert isinstance(worker.configure(sources), Started)
        for number, name in enumerate(sources):
            worker.open(number, memory, "val", name)

        answers = [worker.fill(index, 0, 0, 0, index, 0, 10) for index in range(6)]
        (failed,) = (answer for answer in answers if isinstance(answer, FillFailed))
        assert failed.code == "dataset"
        assert "shard-00000.fds" in failed.message
        assert failed.shard == str(shard)
        assert failed.message.startswith(f"sample {failed.sample} (")

        other, missing = (worker.fill(number, number, 0, 0, 0, 0, 10) for number in (1, 2))
        assert isinstance(other, FillFailed)
        assert isinstance(missing, FillFailed)
        assert "is of another dataset than the one that is served" in other.message
        assert str(gone) in missing.message
        shutil.copytree(packed, gone)
        assert isinstance(worker.fill(9, 2, 0, 0, 0, 0, 10), Filled), "opened once it exists"


def test_a_memory_shortage_is_reported_and_the_worker_lives(
    packed: Path, memory: SlotMemory
) -> None:
    with WorkerProcess() as worker:
        process = psutil.Process(worker.process.pid)
        assert isinstance(worker.configure({"d": source_of(packed)}), Started)
        worker.open(1, memory, "val")
        lifted = process.rlimit(psutil.RLIMIT_AS)
        # Enough for small objects, too little for the first scratch buffer.
        limit_bytes = process.memory_info().vms + (3 << 20)
        process.rlimit(psutil.RLIMIT_AS, (limit_bytes, lifted[1]))
        failed = worker.fill(1, 1, 0, 0, 0, 0, 10)
        assert isinstance(failed, FillFailed)
        assert failed.code == "resource"
        assert (failed.sample, failed.shard) == (None, "")
        assert failed.message.startswith("memory ran out: this process may use ")
        process.rlimit(psutil.RLIMIT_AS, lifted)
        assert isinstance(worker.fill(2, 1, 0, 0, 0, 0, 10), Filled)


def test_an_unexpected_error_ends_a_worker() -> None:
    def fail(_: Fill) -> None:
        raise OSError(errno.EIO, "a fault")

    filler = SimpleNamespace(fill=fail)
    with pytest.raises(OSError, match="a fault"):
        _fill(filler, Fill(1, 1, 0, 0, 0, 0, 1))  # type: ignore[arg-type]


def pack_other(folder: Path) -> Path:
    """Pack a dataset of other images; return its folder."""
    pack(make_source(folder / "source", 11, side=72), folder / "dataset", shards=5)
    return folder / "dataset"


@pytest.fixture
def filler(packed: Path) -> Iterator[ChunkFiller]:
    with (
        warnings.catch_warnings(),
        contextlib.closing(ChunkFiller({"d": source_of(packed)}, open_shards=8)) as made,
    ):
        yield made


def _open(filler: ChunkFiller, memory: SlotMemory, session: int, split: str = "train") -> None:
    recipe = small_recipe(split)  # type: ignore[arg-type]
    message = OpenSession(session=session, dataset="d", recipe=recipe, seed=3, slots=2)
    filler.open_session(message, os.dup(memory.fileno()))


def test_rows_past_the_last_sample_are_padding(
    filler: ChunkFiller, packed: Path, memory: SlotMemory
) -> None:
    _open(filler, memory, 1, "val")
    with Dataset.open(packed) as dataset:
        for index, valid in ((0, 10), (5, 3)):  # the slot's former contents must not show
            for first in range(0, 10, 4):
                filler.fill(Fill(0, 1, 0, 0, index, first, min(4, 10 - first)))
            check_batch(dataset, small_recipe("val"), (0, index), copy_slot(memory, 0, valid=valid))
    filler.close_session(1)


KINDS = ("4:2:0", "4:4:0", "4:2:0", "rgb", "grey", "4:1:1", "4:4:4")


@pytest.mark.parametrize(
    ("decoder", "left"), [("own", ["4:4:0", "rgb", "4:1:1"]), ("turbojpeg", [])]
)
def test_images_that_the_decoder_leaves_to_turbojpeg_are_counted_with_their_chunk(
    tmp_path: Path, memory: SlotMemory, decoder: Decoder, left: list[str]
) -> None:
    source = tmp_path / "source" / "class"
    source.mkdir(parents=True)
    for number, kind in enumerate(KINDS):
        (source / f"{number}.jpg").write_bytes(hard_jpeg(number, kind, 70, 60, 80))
    pack(source.parent, tmp_path / "dataset", shards=1)
    sources = {"d": source_of(tmp_path / "dataset")}
    with (
        Dataset.open(tmp_path / "dataset") as dataset,
        contextlib.closing(ChunkFiller(sources, open_shards=8, decoder=decoder)) as filler,
    ):
        _open(filler, memory, 1, "val")
        rows = range(len(KINDS))
        counts = [filler.fill(Fill(7, 1, 0, 0, 0, row, 1)).fallbacks for row in rows]
        kinds = [KINDS[int(Path(dataset.name_of(row)).stem)] for row in rows]
        assert counts == [int(kind in left) for kind in kinds]
        filler.close_session(1)


@pytest.mark.parametrize("bound", [("_NAMES_S", -1.0), ("_NAMES_BYTES", 0)], ids=str)
def test_names_are_read_for_a_short_time_only(
    filler: ChunkFiller, monkeypatch: pytest.MonkeyPatch, bound: tuple[str, float]
) -> None:
    monkeypatch.setattr("feeder.worker.filler._NAMES_S", 60.0)  # also on a busy machine
    assert len(filler.read_names("d", range(20))) == 20
    monkeypatch.setattr(f"feeder.worker.filler.{bound[0]}", bound[1])
    assert len(filler.read_names("d", range(20))) == 1


def test_names_that_cannot_be_read_are_reported(packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path / "d")
    with contextlib.closing(ChunkFiller({"d": source_of(packed, tmp_path / "d")}, 8)) as filler:
        for shard in (tmp_path / "d").glob("*.fds"):
            shard.write_bytes(shard.read_bytes()[:-1])
        read = _read_names(filler, ReadNames(5, "d", (1, 2)))
    assert (read.ticket, read.names) == (5, ())
    assert "is truncated" in read.problem


def read_all(fd: int, sizes: tuple[int, ...]) -> list[bytes]:
    """Return the blobs of an answer; closes its file, which has nothing else."""
    with open(fd, "rb") as file:
        file.seek(0)
        blobs = [file.read(size) for size in sizes]
        assert file.read() == b""
    return blobs


def blobs_of(dataset: Dataset, *sample_ids: int) -> list[bytes]:
    ids = np.array(sample_ids)
    locations = dataset.find_blobs(ids, dataset.read_records(ids))
    return [bytes(dataset.read_blob(at, np.empty(at.blob_bytes, np.uint8))) for at in locations]


def test_blobs_are_read_as_they_were_packed(packed: Path) -> None:
    with WorkerProcess() as worker, Dataset.open(packed) as dataset:
        worker.configure({"d": source_of(packed)})
        before = psutil.Process(worker.process.pid).num_fds()
        for _ in range(3):
            worker.channel.send(ReadBlobs(10, "d", (22, 0, 22)))
            while isinstance(answer := worker.channel.receive_with_fd(), tuple):
                read, fd = answer
                assert fd is not None
                if isinstance(read, BlobsRead):
                    break
                os.close(fd)  # an index that was proven
            assert (read.ticket, read.problem) == (10, "")
            assert read_all(fd, read.sizes) == blobs_of(dataset, 22, 0, 22)
        process = psutil.Process(worker.process.pid)
        wait_until(lambda: process.num_fds() <= before + 2, "two shards more")


def test_a_damaged_blob_is_left_out(packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path / "d")
    with Dataset.open(packed) as dataset:
        (blob,) = blobs_of(dataset, 1)
        expected = blobs_of(dataset, 0, 2)
        path = tmp_path / "d" / Path(dataset.shard_path(1)).name
    path.write_bytes(path.read_bytes().replace(blob, bytes(len(blob))))
    with contextlib.closing(ChunkFiller({"d": source_of(packed, tmp_path / "d")}, 8)) as filler:
        sizes, fd = filler.read_blobs("d", (0, 1, 2))
        assert read_all(fd, sizes) == [expected[0], b"", expected[1]]
        path.unlink()
    with contextlib.closing(ChunkFiller({"d": source_of(packed, tmp_path / "d")}, 8)) as filler:
        sizes, fd = filler.read_blobs("d", (0, 1))
        assert read_all(fd, sizes) == [b"", b""]
        (tmp_path / "d" / "manifest.json").unlink()
    with contextlib.closing(ChunkFiller({"d": source_of(packed, tmp_path / "d")}, 8)) as filler:
        read, fd_or_none = _read_blobs(filler, ReadBlobs(5, "d", (0, 1)))
    assert (read.ticket, read.sizes, fd_or_none) == (5, (), None)
    assert "manifest.json" in read.problem


@pytest.mark.parametrize(("bound", "count"), [("_BLOBS_S", -1.0), ("MAX_BLOBS_BYTES", 0)])
def test_blobs_are_read_for_a_short_time_and_one_message_only(
    filler: ChunkFiller, monkeypatch: pytest.MonkeyPatch, bound: str, count: float
) -> None:
    monkeypatch.setattr("feeder.worker.filler._BLOBS_S", 60.0)  # a busy machine takes longer
    sizes, fd = filler.read_blobs("d", range(20))
    os.close(fd)
    assert len(sizes) == 20
    monkeypatch.setattr(f"feeder.worker.filler.{bound}", count or sizes[0] + sizes[1])
    fewer, fd = filler.read_blobs("d", range(20))
    os.close(fd)
    assert fewer == sizes[: len(fewer)]
    assert len(fewer) == (2 if bound == "MAX_BLOBS_BYTES" else 1)
    monkeypatch.setattr("feeder.worker.filler.MAX_BLOBS_BYTES", 1)
    none, fd = filler.read_blobs("d", range(20))
    os.close(fd)
    assert none == (0,), "the first one is larger than a message"


PIECES = [(first, first + 4) for first in range(0, 400, 4)]


@pytest.mark.parametrize(
    ("page_cache_share", "kept"),
    [(0.1, 0), (0.4, 25), (0.7, 62), (1.1, 100)],
    ids=["less than the working set", "some", "most", "all"],
)
def test_a_worker_advises_once_a_batch_and_keeps_as_much_as_memory_allows(
    page_cache_share: float,
    kept: int,
    packed: Path,
    memory: SlotMemory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advice: list[tuple[list[tuple[int, int]], bool]] = []
    monkeypatch.setattr(
        Dataset, "advise", lambda _, ranges, *, needed: advice.append((list(ranges), needed))
    )
    monkeypatch.setattr(EpochPlan, "pieces_ahead", lambda _, index: [(index, index + 1)])
    monkeypatch.setattr(EpochPlan, "pieces_behind", lambda *_: PIECES)
    size_bytes = sum(path.stat().st_size for path in packed.glob("*.fds"))
    page_cache = int(size_bytes * page_cache_share)
    sources = {"d": source_of(packed)}
    with contextlib.closing(ChunkFiller(sources, 8, page_cache_bytes=page_cache)) as filler:
        opened = OpenSession(session=1, dataset="d", recipe=small_recipe(), seed=3, slots=2)
        filler.open_session(opened, os.dup(memory.fileno()))
        for epoch in (0, 1):
            plan = filler._sessions[1].plan(epoch)
            working_set = plan.layout.samples // 5
            plan.shape = plan.shape._replace(working_set=working_set)
            filler.fill(Fill(1, 1, 0, epoch, 2, 0, 6))
            filler.fill(Fill(2, 1, 0, epoch, 2, 6, 4))
        filler.close_session(1)
    assert [advised for advised in advice if advised[1]] == [([(2, 3)], True)] * 2
    first, second = (ranges for ranges, needed in advice if not needed)
    assert first == second, "the same pieces stay from epoch to epoch"
    assert len(PIECES) - len(first) == pytest.approx(kept, abs=4)


def test_errors_keep_their_class_and_odd_bytes_over_the_channel() -> None:
    error = DatasetError("sample b\udcff.jpg is damaged")
    carried = CannotStart.of(error).as_error()
    assert type(carried) is DatasetError
    assert str(carried) == "sample b\\udcff.jpg is damaged"
    assert type(CannotStart(error="KeyError", message="x").as_error()) is FeederError


def test_a_channel_that_is_full_or_closed_and_a_message_that_is_too_long_raise() -> None:
    ours, theirs = open_pair()
    near: NodeEnd = Channel(ours, WorkerToNode)
    near.set_timeout(0)
    assert near.receive() is None
    with pytest.raises(ResourceError, match="does not fit"):
        near.send(
            Configure(
                datasets={"d": DatasetSource(folder=b"x" * 200_000, fingerprint="")},
                open_shards=1,
                self_test=False,
            )
        )
    with pytest.raises(ChannelFullError):
        _send_forever(near)
    theirs.close()
    with pytest.raises(ChannelClosedError):
        near.send(CloseSession(session=1))
    with pytest.raises(ChannelClosedError):
        near.receive()
    near.close()


def _send_forever(channel: NodeEnd) -> None:
    while True:
        channel.send(Fill(1, 1, 2, 3, 4, 5, 6))


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_worker_reports_its_decoder_and_the_same_self_test(decoder: Decoder) -> None:
    with WorkerProcess() as worker:
        started = worker.configure({}, self_test=True, decoder=decoder)
        assert isinstance(started, Started)
        assert started.decoder == describe_decoder(decoder)
        assert started.self_test == compute_self_test()
