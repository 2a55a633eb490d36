"""One of each emulator, and what a client of it needs."""

from collections.abc import Iterator

import pytest

from tests.stores import emulators
from tests.stores.emulators import Emulator

DATA = bytes(range(256)) * 1_000


@pytest.fixture(scope="session", params=["azurite", "fake_gcs"])
def emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    with getattr(emulators, request.param)() as running:
        running.put("set/shard-00000.fds", DATA)
        running.put("set/manifest.json", b"{}")
        running.put("set/more/a b+c.jpg", b"of a folder")
        running.put("settings", b"of no folder")
        yield running
