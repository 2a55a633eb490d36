"""The datasets that the tests of choices share."""

from pathlib import Path

import pytest

from tests.choose.animals import write_animals


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See ``write_animals``."""
    return write_animals(tmp_path_factory.mktemp("home"))
