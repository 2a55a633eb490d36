"""Which processes are Feeder's, by their command lines as the kernel shows them."""

from pathlib import Path

import pytest

from feeder.doctor.kernel_files import KernelFiles
from feeder.doctor.read_system import read_load, read_processes
from tests.support.machine_tree import cgroup_v2, write_tree


@pytest.mark.parametrize(
    ("command", "is_daemon", "is_ours"),
    [
        ("/opt/bin/python3|/opt/bin/feeder|serve|--workers|2", True, True),
        ("/opt/bin/python3.11|-m|feeder|serve", True, True),
        ("python|-P|-X|faulthandler|-m|feeder.node|8|71", False, True),
        ("timeout|60|/opt/bin/feeder|serve", False, False),
        ("sh|-c|feeder serve --workers 2", False, False),
        ("/opt/bin/python3|/opt/bin/feeder|status", False, False),
        ("/opt/bin/python3|-m|pytest|feeder|serve", False, False),
        ("", False, False),
    ],
)
def test_processes_are_known_by_what_they_run(
    tmp_path: Path, command: str, is_daemon: bool, is_ours: bool
) -> None:
    folder = tmp_path / "proc/71"
    folder.mkdir(parents=True)
    words = command.split("|") if command else []
    (folder / "cmdline").write_bytes(b"".join(f"{word}\0".encode() for word in words))
    (folder / "status").write_text("VmSwap:\t3 kB\n")
    ours, daemons, swapped_bytes = read_processes(KernelFiles(tmp_path))
    assert ours == ({71} if is_ours else set())
    assert daemons == ((71,) if is_daemon else ())
    assert swapped_bytes == (3072 if is_ours else 0)


def test_pressure_is_the_machine_s_or_the_cgroup_s_if_that_is_higher(tmp_path: Path) -> None:
    pressure = "some avg10={} avg60=0.00 avg300=0.00 total=1\nfull avg10=99.0 avg60=0 total=0"
    write_tree(
        tmp_path,
        {
            **cgroup_v2("/app", {"app": "max 100000"}),
            "proc/loadavg": "7.92 3.00 1.00 3/210 4711",
            "proc/pressure/cpu": pressure.format("62.50"),
            "proc/pressure/io": pressure.format("0.00"),
            "sys/fs/cgroup/app/cpu.pressure": pressure.format("12.00"),
            "sys/fs/cgroup/app/io.pressure": pressure.format("40.50"),
        },
    )
    load = read_load(KernelFiles(tmp_path))
    assert (load.average, load.cpu, load.io, load.memory) == (7.92, 0.625, 0.405, None)
    (tmp_path / "proc/pressure/cpu").write_text("some avg10=1e9 total=x")
    assert read_load(KernelFiles(tmp_path)).cpu == 0.12
