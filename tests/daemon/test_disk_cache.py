"""The disk cache of a real daemon: smaller than the dataset, and found again by the next daemon."""

from pathlib import Path

from feeder.disk_cache.folder import DiskCache
from tests.faults.remote import (
    EPOCH,
    PIECE,
    SAMPLES,
    Taker,
    leftovers,
    make_epochs,
    remote_store,
    serve,
    store_record,
    take_epoch,
    there,
    write_dataset,
)
from tests.support.daemon import wait_until

BUDGET_BYTES = 35_000_000
PIECE_BYTES = PIECE * 215_000


def test_a_cache_smaller_than_the_dataset_serves_it_and_the_next_daemon_has_what_it_held(
    tmp_path: Path,
) -> None:
    dataset, disk = write_dataset(tmp_path / "dataset"), tmp_path / "disk"
    cache = DiskCache.open(disk)
    epochs = make_epochs(dataset, epochs=2)
    with remote_store(dataset, "x") as remote:
        with serve(tmp_path, *remote.data("x"), "--disk-bytes", str(BUDGET_BYTES)) as daemon:
            with Taker(daemon.endpoint, "x", batches=2 * EPOCH) as taker:
                most_bytes = 0
                for right in epochs:
                    assert taker.take(1) == [right]
                    most_bytes = max(most_bytes, cache.used_bytes())
            wait_until(lambda: store_record(daemon.endpoint).evicted_pieces > 0, "it is counted")
            record = store_record(daemon.endpoint)
            assert record.budget_bytes == BUDGET_BYTES
        # What a batch waits for is fetched even if batches read all the rest, as on a slow machine.
        exceptions_bytes = record.over_budget * PIECE_BYTES
        assert BUDGET_BYTES / 2 < most_bytes < BUDGET_BYTES + PIECE_BYTES + exceptions_bytes
        sent = sum(end - first for _, first, end in remote.shard_reads("x"))
        assert sent < 2 * remote.shards_bytes - PIECE_BYTES, "a part is kept from epoch to epoch"

        kept, before = there(disk, "x"), len(remote.proxy.exchanges)
        assert sum(map(len, kept.values())) < SAMPLES
        with serve(tmp_path, *remote.data("x")) as daemon:
            assert take_epoch(daemon.endpoint, "x") == epochs[:EPOCH]
        assert remote.find_again("x", kept, before) == set()
    assert leftovers(disk) == []
