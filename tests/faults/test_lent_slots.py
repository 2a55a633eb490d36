"""Clients that map slots and die, stop or outlive the daemon: no slot leaks, no byte is wrong."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from feeder.errors import PeerError
from feeder.wire.slot_layout import SlotLayout
from tests.support.daemon import DEADLINE_S, Daemon, serve, wait_until
from tests.support.lent_client import BATCH, SLOTS, digest, expected, make_loader
from trainer_client import FeederLoader


@pytest.fixture
def daemon(packed: Path, tmp_path: Path) -> Iterator[Daemon]:
    with serve(packed, "--chunk-images", "4", bind=f"ipc://{tmp_path}/node") as running:
        yield running


def all_lent(daemon: Daemon, batches: int) -> None:
    wait_until(lambda: daemon.counters()["batches_lent"] == batches, f"{batches} batches lent")


def take(loader: FeederLoader, batches: int) -> list[str]:
    taken: list[str] = []
    while True:
        for batch in loader:
            taken.append(digest(batch))
            if len(taken) == batches:
                return taken


def test_lent_slots_stay_readable_after_a_clean_daemon_exit(packed: Path, tmp_path: Path) -> None:
    with serve(packed, bind=f"ipc://{tmp_path}/node") as first:
        loader = make_loader(first.endpoint)
        with loader:
            batches = iter(loader)
            taken = [digest(next(batches))]
            all_lent(first, 1 + SLOTS)
            assert first.stop()[0] == 0
            assert first.close() == []
            taken += [digest(next(batches)) for _ in range(4)]
            assert next(batches, None) is None
            assert loader.statistics().reconnects == 0
            with serve(packed, bind=f"ipc://{tmp_path}/node") as second:
                taken += take(loader, 5)
                assert taken == expected(second.endpoint, 10)
                assert loader.statistics().reconnects == 1
                assert loader.statistics().copied_because is None


def test_client_without_room_for_its_slots_waits_or_gets_the_reason(
    packed: Path, tmp_path: Path
) -> None:
    budget = SLOTS * SlotLayout(slots=1, batch_size=BATCH, image_size=224).slot_bytes
    options = ("--slots-bytes", str(budget))
    with serve(packed, *options, bind=f"ipc://{tmp_path}/node", workers=1) as daemon:
        undisturbed = expected(daemon.endpoint, 5)
        # Slots still held would leave the next client a smaller window, and so room for others.
        wait_until(lambda: daemon.counters()["slots_committed_bytes"] == 0, "its slots are free")
        with ThreadPoolExecutor() as pool:
            with make_loader(daemon.endpoint, image_size=224, recipe={"resize_size": 236}) as first:
                batches = iter(first)
                taken = [digest(next(batches))]
                with pytest.raises(PeerError, match=r"no welcome .* within 1.5 s: .*slots_bytes"):
                    make_loader(daemon.endpoint, timeout_s=1.5)
                refused = daemon.counters()["refused.memory"]
                patient = pool.submit(make_loader, daemon.endpoint)
                wait_until(
                    lambda: daemon.counters()["refused.memory"] > refused, "it has been refused"
                )
                taken += map(digest, batches)
                assert first.statistics().reconnects == 0
            with patient.result(DEADLINE_S) as second:
                assert [digest(batch) for batch in second] == undisturbed
        assert taken == expected(daemon.endpoint, 5, image_size=224, recipe={"resize_size": 236})
        wait_until(lambda: daemon.counters()["slots_committed_bytes"] == 0, "all slots are free")
