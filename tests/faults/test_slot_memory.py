"""Memory for slots that is short: a budget that another uses up, and a /dev/shm without room."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from feeder.errors import PeerError
from feeder.slot_layout import SlotLayout
from tests.daemon import Daemon, pack_small, wait_until
from tests.faults.client import Client
from tests.lent_client import BATCH, SLOTS, digest, expected, make_loader

EPOCH: Final = 5  # batches
SIDE: Final = 224
LARGE: Final = {"image_size": SIDE, "recipe": {"resize_size": 236}}

WITHOUT_SHM: Final = (
    *("unshare", "-m", "sh", "-c"),
    'mount -t tmpfs -o size=4k,nr_inodes=1 none /dev/shm && exec "$@"',
    "-",
)
"""In it /dev/shm has no room for a file."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_small(tmp_path_factory.mktemp("memory"))


def test_a_client_without_room_for_its_slots_waits_for_it_or_hears_what_is_missing(
    packed: Path, tmp_path: Path
) -> None:
    budget = SLOTS * SlotLayout(slots=1, batch_size=BATCH, image_size=SIDE).slot_bytes
    options = ("--workers", "1", "--slots-bytes", str(budget))
    with Daemon("--data", f"d={packed}", "--bind", f"ipc://{tmp_path}/node", *options) as daemon:
        undisturbed = expected(daemon.endpoint, EPOCH)
        with ThreadPoolExecutor() as pool:
            with make_loader(daemon.endpoint, **LARGE) as first:
                batches = iter(first)
                taken = [digest(next(batches))]
                with pytest.raises(PeerError, match=r"no welcome .* within 1 s: .*slots_bytes"):
                    make_loader(daemon.endpoint, timeout_s=1.0)
                refused = daemon.counters()["refused.memory"]
                patient = pool.submit(make_loader, daemon.endpoint)
                wait_until(lambda: daemon.counters()["refused.memory"] > refused, "it is refused")
                taken += map(digest, batches)
                assert first.statistics().reconnects == 0
            with patient.result(30) as second:
                assert [digest(batch) for batch in second] == undisturbed
        assert taken == expected(daemon.endpoint, EPOCH, **LARGE)
        wait_until(lambda: daemon.counters()["slots_committed_bytes"] == 0, "all is back")


def test_no_room_in_dev_shm_changes_nothing(packed: Path, tmp_path: Path) -> None:
    if subprocess.run([*WITHOUT_SHM, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount: run as root to see a daemon without /dev/shm")
    bind = ("--bind", f"ipc://{tmp_path}/node", "--workers", "1")
    with (
        Daemon("--data", f"d={packed}", *bind, prefix=WITHOUT_SHM) as daemon,
        Client(prefix=WITHOUT_SHM) as client,
    ):
        client.open(daemon.endpoint)
        client.opened()
        assert client.take(EPOCH) == expected(daemon.endpoint, EPOCH)
        assert client.statistics()["batches_lent"] >= EPOCH
        client.close()
