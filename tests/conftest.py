"""Shared fixtures and settings of all tests."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from feeder.dataset.opened import Dataset
    from tests.support.stores import FaultyStore, S3Server

_SAMPLE = Path(__file__).resolve().parents[2] / "shared" / "data" / "imagenet-sample"

# A shell starts background jobs with SIGINT ignored, and child processes would inherit that: tests
# that interrupt them would hang. A handler that is already installed stays.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Without this, OpenBLAS starts a thread for each core in every process that imports numpy, which is
# a third of that import's processor time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The same examples in every run, however slow the machine, so that a failure points to the change
# under test. `--hypothesis-profile default` draws random ones.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


@pytest.hookimpl(tryfirst=True)  # before a random order is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that mostly wait first: the others use the processors in the meantime.

    UsageError for an ``extensive`` mark without its reason.
    """
    items.sort(key=lambda item: "faults" not in item.path.parts)
    for item in items:
        for mark in item.iter_markers("extensive"):
            if len(mark.args) != 1 or not isinstance(mark.args[0], str) or not mark.args[0]:
                raise pytest.UsageError(f'{item.nodeid}: write mark.extensive("the reason")')


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """With ``--collect-only``: each extensive test, with the number of its cases and the reason."""
    if not config.option.collectonly:
        return []
    cases = Counter(
        (item.nodeid.partition("[")[0], "".join(map(str, mark.args)))
        for item in items
        if (mark := item.get_closest_marker("extensive"))
    )
    return [f"{test} ({count}): {reason}" for (test, reason), count in cases.items()]


@pytest.fixture(scope="session")
def imagenet_sample() -> Path:
    """The folder of 201 real ImageNet JPEGs beside the checkout; skips if it is missing."""
    if not _SAMPLE.is_dir():
        pytest.skip(f"the ImageNet sample is not at {_SAMPLE.name} beside the checkout (../shared)")
    return _SAMPLE


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 53 small images in 5 shards, which tests only read."""
    from tests.support.daemon import pack_small  # here: imports that few tests need

    return pack_small(tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="session")
def dataset(packed: Path) -> "Iterator[Dataset]":
    """``packed``, opened."""
    from feeder.dataset.opened import Dataset

    with Dataset.open(packed) as opened:
        yield opened


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[S3Server]":
    """A server that behaves as S3 does, without buckets; skips if its packages are missing."""
    pytest.importorskip("obstore")
    from tests.support.stores import s3_server

    with s3_server(tmp_path_factory.mktemp("s3"), os.getpid()) as server:
        yield server


@pytest.fixture
def use_store(monkeypatch: pytest.MonkeyPatch) -> "Callable[[S3Server | FaultyStore], None]":
    """Let this process, and those that it starts, find s3:// at a server."""
    from feeder.source.location import objects

    def use(server: "S3Server | FaultyStore") -> None:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        objects.open_bucket.cache_clear()

    return use
