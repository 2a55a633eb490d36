"""A dataset and a configuration for the feeders of simulated hosts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.daemon import free_port
from tests.cluster.simulated import SimulatedCluster
from tests.support.sources import make_source, pack

SAMPLES = 211
"""Prime: no batch size divides it."""


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    pack(make_source(folder / "source", SAMPLES, side=72), folder / "dataset", shards=16)
    return folder / "dataset"


def configure(folder: Path, dataset: Path, more: str = "") -> Path:
    path = folder / "feeder.toml"
    path.write_text(
        f'[serve]\nworkers = 1\nslots_bytes = "64 MiB"\n{more}'
        f'bind = ["tcp://127.0.0.1:{free_port()}"]\n[data]\nd = "{dataset}"\n'
    )
    return path


@pytest.fixture
def config(tmp_path: Path, dataset: Path) -> Path:
    return configure(tmp_path, dataset)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SimulatedCluster]:
    """A head without hosts."""
    with SimulatedCluster(tmp_path) as made:
        yield made
