"""A real daemon on a machine with something wrong warns of it, once, and serves."""

from pathlib import Path

from tests.support.daemon import Daemon, pack_small
from tests.support.machine_tree import write_tree


def test_the_daemon_warns_at_its_start(tmp_path: Path) -> None:
    clock = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    machine = write_tree(tmp_path / "machine", {clock: "hpet"})
    data = f"d={pack_small(tmp_path)}"
    options = ("--workers", "1", "--bind", f"ipc://{tmp_path}/socket", "--topology-root", machine)
    with Daemon("--data", data, *options) as daemon:
        warning = daemon.wait_line("the clock source is hpet")
        assert warning.rstrip().endswith("; see `feeder doctor`")
        assert sum("the clock source" in line for line in daemon.lines) == 1
        assert daemon.stop()[0] == 0
