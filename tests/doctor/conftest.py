"""The machines described in ``machines/``, written as trees once."""

from pathlib import Path

import pytest

from feeder.doctor.facts import Libraries
from tests.support.machine_tree import read_description, write_tree

DESCRIPTIONS = Path(__file__).with_name("machines")


@pytest.fixture(scope="session")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        path.stem: write_tree(
            tmp_path_factory.mktemp(path.stem), read_description(path.read_text("utf-8"))
        )
        for path in sorted(DESCRIPTIONS.glob("*.txt"))
    }


@pytest.fixture
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip looking at this process's libraries, which takes half a second."""
    monkeypatch.setattr("feeder.doctor.read_machine.read_libraries", Libraries)
