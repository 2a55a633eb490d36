"""The daemon that all checks of a process share."""

from collections.abc import Iterator

import pytest

from feeder.dataset.opened import Dataset
from tests.frameworks.running import SAMPLES, Served
from tests.support.daemon import Daemon
from tests.support.synthetic_sets import pack_synthetic


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    packed = {
        name: pack_synthetic(folder / name, images=images) for name, images in SAMPLES.items()
    }
    data = [text for name, path in packed.items() for text in ("--data", f"{name}={path}")]
    with Daemon(*data, "--bind", f"ipc://{folder}/s") as daemon:
        yield Served(daemon.endpoint, {name: Dataset.open(path) for name, path in packed.items()})
