"""The dataset of the tests with stores, for all of them."""

from pathlib import Path

import pytest

from tests.faults.remote import make_epochs, write_dataset


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset that tests put into a store."""
    return write_dataset(tmp_path_factory.mktemp("published") / "dataset")


@pytest.fixture(scope="session")
def epoch(published: Path) -> list[str]:
    """The digests of the batches of its first epoch, in the order WINDOWED, from the disk."""
    return make_epochs(published)
