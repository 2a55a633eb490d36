"""``feeder pack --ray`` on real Ray, with simulated hosts (make test-cluster)."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cluster.simulated import SimulatedCluster
from tests.support.daemon import wait_until
from tests.support.sources import REPOSITORY, feeder_command, make_source, run_feeder

IMAGES, SHARDS = 607, 24
"""Of the sample, which make a minute of packing."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("source"), IMAGES, side=400)


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The fingerprint that --jobs gives."""
    folder = tmp_path_factory.mktemp("expected") / "dataset"
    done = run_feeder("pack", source, folder, "--shards", str(SHARDS), "--jobs", "2")
    assert done.returncode == 0, done.stderr
    return fingerprint_of(folder)


def fingerprint_of(folder: Path) -> str:
    return str(json.loads((folder / "manifest.json").read_text())["fingerprint"])


def pack_on(cluster: SimulatedCluster, source: Path, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        feeder_command(
            *("pack", source, folder, "--shards", str(SHARDS), "--ray", cluster.address)
        ),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def await_parts(folder: Path, count: int) -> int:
    """Wait until so many parts are finished; how many are."""
    parts = lambda: len([*(folder / ".packing").glob("part-*.json")])  # noqa: E731
    wait_until(lambda: parts() >= count, "some parts are finished")
    return parts()


@pytest.mark.parametrize("is_killed", [False, True])
def test_parts_packed_on_hosts_make_the_same_dataset(
    cluster: SimulatedCluster, source: Path, expected: str, tmp_path: Path, is_killed: bool
) -> None:
    """Also where a host is killed midway."""
    cluster.add(1, 2)
    with pack_on(cluster, source, tmp_path / "dataset") as process:
        if is_killed:
            assert await_parts(tmp_path / "dataset", 3) < SHARDS, "too late to test anything"
            cluster.hosts[1].kill()
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert f"{IMAGES:,} images" in output
    assert f"this run: {IMAGES:,} files" in output
    assert fingerprint_of(tmp_path / "dataset") == expected


def test_a_head_that_is_killed_midway_is_a_line_and_the_packing_resumes(
    cluster: SimulatedCluster, source: Path, expected: str, tmp_path: Path
) -> None:
    cluster.add(1)
    folder = tmp_path / "dataset"
    with pack_on(cluster, source, folder) as process:
        await_parts(folder, 2)
        cluster.close()
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 4, errors
    assert "run the same command again" in errors.splitlines()[-1]
    done = run_feeder("pack", source, folder, "--shards", str(SHARDS), "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert fingerprint_of(folder) == expected


def test_a_host_without_the_shared_folder_is_a_line(
    cluster: SimulatedCluster, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "shared").mkdir()
    cluster.add(1, instead={tmp_path / "shared": tmp_path / "empty"})
    with pack_on(cluster, source, tmp_path / "shared" / "dataset") as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode != 0
    last = errors.splitlines()[-1]
    assert last.startswith("feeder: error: ")
    assert str(tmp_path / "shared") in last, last
