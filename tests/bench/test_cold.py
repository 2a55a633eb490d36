"""``feeder-bench stream --cold``: a memory cgroup of its own, and what an epoch reads in it."""

import subprocess
from pathlib import Path

import pytest

from bench.cli import main
from bench.machine import memory_group, within
from bench.stream import cold
from feeder.errors import ResourceError
from tests.bench.rows import check_rows, group, run_bench

ORDERS = tuple(cold.orders(1 << 30))


@pytest.fixture
def memory_cgroups() -> None:
    try:
        with memory_group(1 << 30):
            pass
    except ResourceError as error:
        pytest.skip(str(error))


def test_processes_that_start_within_a_group_are_in_it(memory_cgroups: None) -> None:
    before = Path("/proc/self/cgroup").read_text()
    with memory_group(1 << 30) as folder:
        with within(folder):
            started = subprocess.run(["cat", "/proc/self/cgroup"], capture_output=True, check=True)
        assert folder.name in started.stdout.decode()
        assert Path("/proc/self/cgroup").read_text() == before
        limits = [folder / name for name in ("memory.max", "memory.limit_in_bytes")]
        assert [path.read_text() for path in limits if path.exists()] == [f"{1 << 30}\n"]
    assert not folder.exists()


def test_without_a_cgroup_one_line_says_so(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.machine.cgroup_folders", lambda *_: ())
    assert main(["stream", "--cold", str(dataset)]) == ResourceError.exit_status
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("feeder-bench: error: no memory cgroup can be made here (no memory ")


@pytest.mark.extensive("a minute of streaming from a disk")
def test_an_epoch_reads_little_more_than_the_dataset(
    memory_cgroups: None,
    tmp_path: Path,
    short_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cold, "_DATASET_BYTES", 1_600 << 20)
    monkeypatch.setattr(cold, "_DISTINCT", 128)
    try:
        document = run_bench(tmp_path, "stream", "--cold", "--rounds", 1)
    except AssertionError:
        if "is not on a disk" in (problem := capsys.readouterr().err):
            pytest.skip(problem.splitlines()[-1])
        raise
    assert list(short_folder.iterdir()) == []
    expected = group("images/s", *(f"cold/{order}" for order in ORDERS))
    expected |= group("datasets", *(f"read/{order}" for order in ORDERS))
    rows = check_rows(document, expected)
    for order in ORDERS:
        assert 0.5 < rows[f"read/{order}"]["value"] < 1.1
    assert capsys.readouterr().out.startswith(f"{ORDERS[0]}: an epoch reads ")
