"""The tests' own ``Daemon`` ends its processes, whatever a test did to them."""

from pathlib import Path

import psutil
import pytest

from tests.faults.client import stop
from tests.support.daemon import Daemon, client_process, pack_small, small_recipe


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_small(tmp_path_factory.mktemp("leaving"))


def serve(packed: Path) -> Daemon:
    bind = f"ipc://{packed.parent}/s"
    return Daemon("--data", f"d={packed}", "--workers", "1", "--bind", bind)


def test_a_stopped_supervisor_ends_with_status_0(packed: Path) -> None:
    with serve(packed) as daemon:
        stop(psutil.Process(daemon.process.pid))
    assert daemon.process.returncode == 0, "it was not killed"


def test_a_stopped_client_is_killed(packed: Path) -> None:
    with (
        serve(packed) as daemon,
        client_process(daemon.endpoint, small_recipe(), [(0, 0)]) as client,
    ):
        stop(psutil.Process(client.pid))
    assert client.wait() == -9
