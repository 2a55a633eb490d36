"""Tests of stores see nothing of the developer's clouds."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from feeder.store.address import StoreAddress
from feeder.store.client import Store
from tests.support.stores import FaultyStore


class Retries(list[str]):
    """The reasons for which requests were made again."""


@pytest.fixture(autouse=True)
def no_clouds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable, no file, and no metadata service: an instance of a cloud has one."""
    prefixes = (
        "AWS_",
        "GOOGLE_",
        "AZURE_",
        "GCE_",
        "STORAGE_EMULATOR",
        "IDENTITY_",
        "HTTP",
        "http",
    )
    for name in os.environ:
        if name.startswith(prefixes):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def faulty() -> Iterator[FaultyStore]:
    """A store with an object of 1,000 bytes at s3://bucket/prefix/object."""
    with FaultyStore({"bucket/prefix/object": bytes(range(250)) * 4}) as store:
        yield store


Open = Callable[..., Store]


@pytest.fixture
def retries() -> Retries:
    return Retries()


@pytest.fixture
def open_store(monkeypatch: pytest.MonkeyPatch, retries: Retries) -> Open:
    """Opens a store, in the environment of a server."""
    pytest.importorskip("obstore")
    pytest.importorskip("botocore")

    def open_store(url: str, environment: Mapping[str, str], patience_s: float = 60.0) -> Store:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return Store(StoreAddress.parse(url), on_retry=retries.append, patience_s=patience_s)

    return open_store
