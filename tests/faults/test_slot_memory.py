"""Slot memory that another client has exhausted."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from feeder.errors import PeerError
from feeder.wire.slot_layout import SlotLayout
from tests.support.daemon import DEADLINE_S, serve, wait_until
from tests.support.lent_client import BATCH, SLOTS, digest, expected, make_loader

EPOCH: Final = 5  # batches
SIDE: Final = 224
LARGE: Final = {"image_size": SIDE, "recipe": {"resize_size": 236}}


def test_client_without_room_for_its_slots_waits_or_gets_the_reason(
    packed: Path, tmp_path: Path
) -> None:
    budget = SLOTS * SlotLayout(slots=1, batch_size=BATCH, image_size=SIDE).slot_bytes
    options = ("--slots-bytes", str(budget))
    with serve(packed, *options, bind=f"ipc://{tmp_path}/node", workers=1) as daemon:
        undisturbed = expected(daemon.endpoint, EPOCH)
        # Slots still held would leave the next client a smaller window, and so room for others.
        wait_until(lambda: daemon.counters()["slots_committed_bytes"] == 0, "its slots are free")
        with ThreadPoolExecutor() as pool:
            with make_loader(daemon.endpoint, **LARGE) as first:
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
        assert taken == expected(daemon.endpoint, EPOCH, **LARGE)
        wait_until(lambda: daemon.counters()["slots_committed_bytes"] == 0, "all slots are free")
