"""Which processes are Feeder's, by their command lines as the kernel shows them."""

from pathlib import Path

import pytest

from feeder.doctor.kernel_files import KernelFiles
from feeder.doctor.read_processes import read_processes


@pytest.mark.parametrize(
    ("command", "is_daemon", "is_ours"),
    [
        ("/opt/bin/python3|/opt/bin/feeder|serve|--workers|2", True, True),
        ("/opt/bin/python3.11|-m|feeder|serve", True, True),
        ("python|-P|-X|faulthandler|-m|feeder.node|8|71", False, True),
        ("python|-P|-Xfaulthandler|-m|feeder.worker|17|72", False, True),
        ("/opt/bin/feeder|serve", True, True),
        ("timeout|60|/opt/bin/feeder|serve", False, False),
        ("sudo|feeder|serve|--workers|2", False, False),
        ("sh|-c|feeder serve --workers 2", False, False),
        ("vim|notes on feeder serve ", False, False),
        ("/opt/bin/python3|/opt/bin/feeder|status", False, False),
        ("/opt/bin/python3|-m|pytest|feeder|serve", False, False),
        ("python|-m", False, False),
        ("python|-X", False, False),
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
    daemons, swapped_bytes = read_processes(KernelFiles(tmp_path))
    assert daemons == ((71,) if is_daemon else ())
    assert swapped_bytes == (3072 if is_ours else 0)
