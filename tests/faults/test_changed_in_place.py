"""Datasets changed in place under a running daemon: the right bytes or an error with a name.

Each batch is compared with that of the unchanged dataset, over five kinds of change; all but one
leave the checksum of each record valid. An index that the daemon has proven is read from memory
whatever happens to that in the file, so batches fail only where blobs are wrong, or, once a shard
is opened again, its header.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from feeder.dataset.format import RECORD, checksum, decode_header, shard_name
from feeder.dataset.manifest import MANIFEST_NAME
from feeder.errors import DatasetError
from tests.support.daemon import SAMPLES, Daemon
from tests.support.lent_client import digest, expected, make_loader
from tests.support.sources import make_source, pack

EPOCH = 5  # batches
EPOCHS = 14
SHARD = shard_name(0)

Change = Callable[[Path, Path], None]
"""Changes the first dataset in place, using the second, which has the same shape."""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset as served, and packed with another seed."""
    root = tmp_path_factory.mktemp("in-place")
    source = make_source(root / "source", SAMPLES, side=72)
    pack(source, root / "served", shards=1)
    pack(source, root / "reseeded", shards=1, seed=1)
    return {name: root / name for name in ("served", "reseeded")}


@pytest.fixture(scope="module")
def right(datasets: dict[str, Path]) -> list[str]:
    """The digests of all batches of the unchanged dataset."""
    with _serve(datasets["served"]) as daemon:
        return expected(daemon.endpoint, EPOCHS * EPOCH)


def _serve(dataset: Path) -> Daemon:
    bind = f"ipc://{dataset.parent}/node"
    return Daemon("--data", f"d={dataset}", "--bind", bind, "--workers", "2")


def overwrite(path: Path, content: bytes) -> None:
    """Replace a file's content as ``rsync --inplace`` does: same inode, piece by piece."""
    with path.open("r+b") as file:
        for start in range(0, len(content), 4096):
            file.write(content[start : start + 4096])
            file.flush()
        file.truncate(len(content))


def copy_whole(served: Path, other: Path) -> None:
    overwrite(served / SHARD, (other / SHARD).read_bytes())


def copy_index(served: Path, other: Path) -> None:
    content, mine = (other / SHARD).read_bytes(), (served / SHARD).read_bytes()
    start = decode_header(content, SHARD).records_offset
    overwrite(served / SHARD, mine[: decode_header(mine, SHARD).records_offset] + content[start:])


def truncate(served: Path, other: Path) -> None:
    os.truncate(served / SHARD, 500)


def _rewrite_records(
    served: Path, edit: Callable[[np.ndarray], None], *, seal: bool = True
) -> None:
    """Edit the records and update their checksums, to ``seal`` also the header's of the index."""
    content = (served / SHARD).read_bytes()
    header = decode_header(content, SHARD)
    records = np.frombuffer(content, RECORD, header.samples, header.records_offset).copy()
    edit(records)
    for record in records:
        record["record_checksum"] = checksum(record.tobytes()[:56])
    index = records.tobytes() + content[header.names_offset :]
    if seal:
        header = replace(header, index_checksum=checksum(index))
    head = header.encode()
    overwrite(served / SHARD, head + content[len(head) : header.records_offset] + index)


def _swap(records: np.ndarray) -> None:
    even = len(records) // 2 * 2
    records[:even] = records[:even].reshape(-1, 2)[:, ::-1].reshape(-1)


def swap_records(served: Path, other: Path) -> None:
    """Swap each pair of adjacent records; the header stays."""
    _rewrite_records(served, _swap, seal=False)


def shift_blobs(served: Path, other: Path) -> None:
    """Replace each record, except its label and name, by that of the sample before."""

    def shift(records: np.ndarray) -> None:
        shifted = np.roll(records, 1)
        for own in ("label", "name_offset", "name_bytes"):
            shifted[own] = records[own]
        records[:] = shifted

    _rewrite_records(served, shift)


KINDS: dict[str, Change] = {
    "in-place-copy": copy_whole,
    "truncated": truncate,
    "index-only": copy_index,
    "records-swapped": swap_records,
    "blobs-of-others": shift_blobs,
}


FAILS_WHILE_OPEN = {"in-place-copy", "truncated"}
FAILS_ONCE_REOPENED = {*FAILS_WHILE_OPEN, "blobs-of-others"}


@pytest.fixture(params=KINDS)
def change(
    request: pytest.FixtureRequest, datasets: dict[str, Path], tmp_path: Path
) -> Iterator[tuple[str, Path, Callable[[], None], Callable[[], None]]]:
    """The kind; a copy of the served dataset; functions that change it and restore it, in place."""
    served = tmp_path / "served"
    shutil.copytree(datasets["served"], served)
    intact = {name: (served / name).read_bytes() for name in (SHARD, MANIFEST_NAME)}
    apply = KINDS[request.param]

    def restore() -> None:
        for name, content in intact.items():
            overwrite(served / name, content)

    return request.param, served, lambda: apply(served, datasets["reseeded"]), restore


def _take(endpoint: str, epochs: range, right: list[str]) -> tuple[int, int]:
    """Take the epochs' batches and compare each; return the numbers of batches and of failures."""
    taken = failed = 0
    with make_loader(endpoint) as loader:
        for epoch in epochs:
            loader.set_epoch(epoch)
            problem = ""
            try:
                for batch in loader:
                    assert digest(batch) == right[epoch * EPOCH + batch.index]
                    taken += 1
            except DatasetError as error:
                problem = str(error)
                failed += 1
            assert not problem or SHARD in problem or MANIFEST_NAME in problem
    return taken, failed


def test_no_batch_is_wrong_while_a_dataset_changes_in_place(
    change: tuple[str, Path, Callable[[], None], Callable[[], None]], right: list[str]
) -> None:
    """Changed and restored over and over while batches are taken; then workers are killed."""
    kind, served, apply, restore = change
    is_over = threading.Event()
    with _serve(served) as daemon:
        assert _take(daemon.endpoint, range(4), right) == (4 * EPOCH, 0)

        def disturb() -> None:
            while not is_over.is_set():
                apply()
                restore()

        disturber = threading.Thread(target=disturb)
        disturber.start()
        try:
            _take(daemon.endpoint, range(4, EPOCHS // 2), right)
        finally:
            is_over.set()
            disturber.join()
        apply()
        _, failed = _take(daemon.endpoint, range(EPOCHS // 2, EPOCHS - 4), right)
        assert bool(failed) == (kind in FAILS_WHILE_OPEN)
        for worker in daemon.workers():
            worker.kill()
        taken, _ = _take(daemon.endpoint, range(EPOCHS - 4, EPOCHS), right)
        assert taken == (0 if kind in FAILS_ONCE_REOPENED else 4 * EPOCH)
        restore()
        assert _take(daemon.endpoint, range(4), right) == (4 * EPOCH, 0)


@pytest.mark.parametrize("kind", ["records-swapped", "blobs-of-others", "index-only"])
def test_dataset_changed_before_the_start_is_not_served(
    kind: str, datasets: dict[str, Path], tmp_path: Path
) -> None:
    served = tmp_path / "served"
    shutil.copytree(datasets["served"], served)
    KINDS[kind](served, datasets["reseeded"])
    with Daemon(
        *("--data", f"d={served}", "--bind", f"ipc://{tmp_path}/node", "--workers", "1"),
        is_ready=False,
    ) as daemon:
        daemon.wait_line(rf"{SHARD} does not match the manifest")
        assert daemon.process.wait() == DatasetError.exit_status


def test_replaced_shard_is_served_until_a_new_worker_refuses_the_other_file(
    datasets: dict[str, Path], right: list[str], tmp_path: Path
) -> None:
    """The name then leads to another file, which does not match the manifest."""
    served = tmp_path / "served"
    shutil.copytree(datasets["served"], served)
    intact = tmp_path / "intact"
    with _serve(served) as daemon, make_loader(daemon.endpoint) as loader:
        assert [digest(batch) for batch in loader] == right[:EPOCH]
        (served / SHARD).rename(intact)
        shutil.copy(datasets["reseeded"] / SHARD, served)
        assert [digest(batch) for batch in loader] == right[EPOCH : 2 * EPOCH]
        for worker in daemon.workers():
            worker.kill()
        with pytest.raises(DatasetError, match=rf"{SHARD} does not match the manifest"):
            list(chain(loader, loader))
        intact.replace(served / SHARD)
        loader.set_epoch(EPOCHS - 1)  # batches of the next one may have failed ahead of the loop
        assert [digest(batch) for batch in loader] == right[-EPOCH:]
        daemon.family()
