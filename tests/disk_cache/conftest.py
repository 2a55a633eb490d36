"""A dataset of large blobs behind a web server, and a disk cache for it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from feeder.disk_cache.folder import DiskCache
from tests.disk_cache.web_store import WebStore, serve_store
from tests.support.synthetic_sets import Sample, tiled_image, write_set

SAMPLES = 101
SHARDS = 3


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dataset ``blobs``: 101 blobs of 0.4 MB that are no images, 3 shards, and 7
    pieces, two of which have parts in two shards."""
    folder = tmp_path_factory.mktemp("published")
    numbers = np.random.default_rng(39)
    samples = [
        Sample(
            name=f"s{number}",
            tiled=dataclasses.replace(
                tiled_image(), blob=numbers.bytes(int(numbers.integers(300_000, 500_000)))
            ),
            source=number + 1,
        )
        for number in range(SAMPLES)
    ]
    write_set(folder / "blobs", samples, shards=SHARDS, classes=("class0", "class1"))
    return folder


@pytest.fixture
def store(published: Path) -> Iterator[WebStore]:
    with serve_store(published) as web:
        yield web


@pytest.fixture
def url(store: WebStore) -> str:
    return f"{store.url}/blobs"


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache.open(tmp_path / "disk")
