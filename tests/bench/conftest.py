"""What several benches run on."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.rows import SAMPLES
from tests.support.synthetic_sets import pack_synthetic


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed dataset of SAMPLES synthetic images."""
    return pack_synthetic(tmp_path_factory.mktemp("dataset"), images=SAMPLES)


@pytest.fixture
def short_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="fb-", dir="/tmp") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)
