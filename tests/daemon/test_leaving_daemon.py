"""The tests' own ``Daemon`` ends its processes, whatever a test did to them."""

from pathlib import Path

import psutil

from tests.faults.client import stop
from tests.support.daemon import client_process, serve, small_recipe


def test_a_stopped_supervisor_ends_with_status_0_and_a_stopped_client_is_killed(
    packed: Path,
) -> None:
    with (
        serve(packed, workers=1) as daemon,
        client_process(daemon.endpoint, small_recipe(), [(0, 0)]) as client,
    ):
        stop(psutil.Process(client.pid))
        stop(psutil.Process(daemon.process.pid))
    assert daemon.process.returncode == 0, "it was not killed"
    assert client.wait() == -9
