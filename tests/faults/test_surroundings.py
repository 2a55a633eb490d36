"""Daemon and clients depend on neither room in /dev/shm nor a name server."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.faults.client import Client
from tests.faults.preload import preload
from tests.support.daemon import DEADLINE_S, serve, wait_until
from tests.support.lent_client import expected

EPOCH: Final = 5  # batches
SILENCE_S: Final = 45.0  # longer than the test takes on a busy machine

WITHOUT_SHM: Final = (
    *("unshare", "-m", "sh", "-c"),
    'mount -t tmpfs -o size=4k,nr_inodes=1 none /dev/shm && exec "$@"',
    "-",
)
"""A command prefix under which /dev/shm has no room for a file."""


@pytest.fixture(scope="module")
def without_shm() -> Sequence[str]:
    """``WITHOUT_SHM``; skips if this user may not mount file systems."""
    done = subprocess.run([*WITHOUT_SHM, "true"], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"/dev/shm cannot be replaced here: {done.stderr.strip()}")
    return WITHOUT_SHM


def test_the_loss_of_a_worker_changes_nothing_under_a_full_dev_shm(
    packed: Path, tmp_path: Path, without_shm: Sequence[str]
) -> None:
    bind = f"ipc://{tmp_path}/node"
    with (
        serve(packed, bind=bind, prefix=without_shm) as daemon,
        Client(prefix=without_shm) as client,
    ):
        client.open(daemon.endpoint)
        client.opened()
        undisturbed = expected(daemon.endpoint, 3 * EPOCH)
        taken = client.take(EPOCH)
        daemon.workers()[0].kill()
        wait_until(
            lambda: daemon.counters()["worker_restarts"] == 1, "the worker has been replaced"
        )
        taken += client.take(2 * EPOCH)
        assert taken == undisturbed
        statistics, counters = client.statistics(), daemon.counters()
        assert statistics["batches_lent"] >= 3 * EPOCH
        assert statistics["reconnects"] == 0
        assert (counters["sessions_expired"], counters["sessions_lost"]) == (0, 0)
        client.close()
        daemon.family()


def test_name_lookup_that_hangs_delays_no_other_feeder(packed: Path, tmp_path: Path) -> None:
    environ = preload("silent_names.c", tmp_path)
    program = "import socket; socket.getaddrinfo('feeder.silent', 1)"
    began_s = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", program],
        env=environ | {"SILENCE_S": "1"},
        capture_output=True,
        check=False,
    )
    assert time.monotonic() - began_s >= 1, "the lookup does not hang"
    environ["SILENCE_S"] = f"{SILENCE_S:.0f}"
    with (
        serve(packed) as daemon,
        Client(environ=environ) as client,
    ):
        undisturbed = expected(daemon.endpoint, 2 * EPOCH)
        silent = [f"tcp://{name}.silent:5555" for name in ("one", "two")]
        began_s = time.monotonic()
        client.open([*silent, daemon.endpoint, "tcp://localhost:1"], timeout_s=DEADLINE_S)
        client.opened()
        assert client.take(2 * EPOCH) == undisturbed
        client.close()
        assert time.monotonic() - began_s < SILENCE_S, "it has waited for a name"
