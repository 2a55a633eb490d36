"""What daemon and clients must not depend on: the wall clock, room in /dev/shm, a name server."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.faults.client import Client
from tests.faults.preload import preload
from tests.support.daemon import DEADLINE_S, Daemon, pack_small, wait_until
from tests.support.lent_client import expected

EPOCH: Final = 5  # batches
SILENCE_S: Final = 45.0  # longer than all that a busy machine takes

WITHOUT_SHM: Final = (
    *("unshare", "-m", "sh", "-c"),
    'mount -t tmpfs -o size=4k,nr_inodes=1 none /dev/shm && exec "$@"',
    "-",
)
"""A command in which /dev/shm has no room for a file."""


@pytest.fixture(scope="module")
def jumping_clock(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """An environment in which the wall clock jumps by two days whenever it is read."""
    environ = preload("wall_clock.c", tmp_path_factory.mktemp("clock"))
    program = "import time; print(round(abs(time.time() - time.time()) / 86400))"
    seen = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    assert seen.stdout == "2\n", "it jumps"
    return environ


@pytest.fixture(scope="module")
def without_shm() -> Sequence[str]:
    """A prefix that takes /dev/shm away, where this user may do that; else an empty one."""
    done = subprocess.run([*WITHOUT_SHM, "true"], check=False, capture_output=True)
    return WITHOUT_SHM if done.returncode == 0 else ()


def test_neither_a_set_clock_nor_a_dev_shm_without_room_is_noticed(
    jumping_clock: Mapping[str, str], without_shm: Sequence[str], tmp_path: Path
) -> None:
    packed = pack_small(tmp_path)
    bind = ("--bind", f"ipc://{tmp_path}/node", "--workers", "2")
    with (
        Daemon(
            *("--data", f"d={packed}", *bind), environ=jumping_clock, prefix=without_shm
        ) as daemon,
        Client(environ=jumping_clock, prefix=without_shm) as client,
    ):
        client.open(daemon.endpoint)
        client.opened()
        undisturbed = expected(daemon.endpoint, 3 * EPOCH)
        taken = client.take(EPOCH)
        daemon.workers()[0].kill()
        wait_until(lambda: daemon.counters()["worker_restarts"] == 1, "it is replaced")
        taken += client.take(2 * EPOCH)
        assert taken == undisturbed
        statistics, counters = client.statistics(), daemon.counters()
        assert statistics["batches_lent"] >= 3 * EPOCH
        assert statistics["reconnects"] == 0
        assert (counters["sessions_expired"], counters["sessions_lost"]) == (0, 0)
        client.close()
        daemon.family()


def test_a_feeder_whose_name_nobody_looks_up_delays_no_other(tmp_path: Path) -> None:
    packed = pack_small(tmp_path)
    environ = preload("silent_names.c", tmp_path)
    program = "import socket; socket.getaddrinfo('feeder.silent', 1)"
    began_s = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", program],
        env=environ | {"SILENCE_S": "2"},
        capture_output=True,
        check=False,
    )
    assert time.monotonic() - began_s >= 2, "it is silent"
    environ["SILENCE_S"] = f"{SILENCE_S:.0f}"
    with (
        Daemon("--data", f"d={packed}", "--bind", "tcp://127.0.0.1:0", "--workers", "2") as daemon,
        Client(environ=environ) as client,
    ):
        undisturbed = expected(daemon.endpoint, 2 * EPOCH)
        silent = [f"tcp://{name}.silent:5555" for name in ("one", "two")]
        began_s = time.monotonic()
        client.open([*silent, daemon.endpoint, "tcp://localhost:1"], timeout_s=DEADLINE_S)
        client.opened()
        assert client.take(2 * EPOCH) == undisturbed
        client.close()
        assert time.monotonic() - began_s < SILENCE_S, "it has waited for no name"
