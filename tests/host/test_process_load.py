"""What the kernel counts of a process, from its files in /proc."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.host.process_load import ProcessLoad, _parse_io, read_process_load

STAT = "41 (a) R) {state} " + " ".join(str(number) for number in range(35)) + " 5 0 0 0\n"


def write_process(folder: Path, **files: str) -> Path:
    (folder / "41").mkdir()
    for name, text in files.items():
        (folder / "41" / name).write_text(text)
    return folder


def test_a_process_is_read(tmp_path: Path) -> None:
    root = write_process(
        tmp_path,
        stat=STAT.format(state="T"),
        schedstat="5000000 1500000000 12\n",
        io="rchar: 9000\nwchar: 1\nread_bytes: 4096\nwrite_bytes: 0\n",
    )
    assert read_process_load(41, root) == ProcessLoad(
        state="stopped",
        cpu=5,
        cpu_s=0.005,
        run_delay_s=1.5,
        read_bytes=4096,
        requested_bytes=9000,
    )


def test_an_own_process_has_run_and_read() -> None:
    load = read_process_load(os.getpid())
    assert load.state == "runs"
    assert load.cpu_s > 0
    assert load.cpu in range(os.cpu_count() or 1)
    assert load.requested_bytes > 0


def test_a_process_that_has_ended_has_zeros(tmp_path: Path) -> None:
    assert read_process_load(41, tmp_path) == ProcessLoad()


@pytest.mark.parametrize("missing", ["stat", "schedstat", "io"])
def test_a_file_that_is_missing_leaves_zeros(tmp_path: Path, missing: str) -> None:
    files = {"stat": STAT.format(state="D"), "schedstat": "1 2000000000 3", "io": "rchar: 7"}
    del files[missing]
    load = read_process_load(41, write_process(tmp_path, **files))
    assert (load.cpu == -1) is (missing == "stat")
    assert (load.run_delay_s == 0.0) is (missing == "schedstat")
    assert (load.requested_bytes == 0) is (missing == "io")


@given(st.binary())
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    assert all(value >= 0 for value in _parse_io(data).values())
