"""``feeder cache``: fetch, show and drop."""

import re
import signal
import subprocess
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from feeder.disk_cache.cached import CachedDataset
from feeder.disk_cache.folder import DiskCache, prepare
from tests.disk_cache.conftest import SAMPLES
from tests.disk_cache.fetching import wait_until
from tests.disk_cache.web_store import WebStore
from tests.support.sources import call_feeder, error_line, feeder_command


@pytest.fixture
def options(cache: DiskCache) -> tuple[str, ...]:
    return "--disk-path", str(cache.root.parent)


def test_fetch_resumes_and_ends_with_all_of_it(
    cache: DiskCache, options: tuple[str, ...], url: str, store: WebStore
) -> None:
    store.fault = lambda name, first, end: "hold" if name.endswith("2.fds") else ""
    command = feeder_command("cache", "fetch", url, *options)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: store.held > 0, "it fetches")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        assert process.returncode == 128 + signal.SIGINT
    assert "the same command fetches the rest" in errors
    store.release()
    wait_until(lambda: store.held == 0, "the server has given up")
    fetched = store.sent_bytes()
    assert fetched > 0
    store.requests.clear()
    result = call_feeder("cache", "fetch", url, *options)
    assert result.returncode == 0, result.stderr
    assert f"{url} is whole in {cache.root}" in result.stdout
    assert store.doubly_sent() == []
    with closing(CachedDataset.open(cache.folders()[0])) as cached:
        assert cached.has(np.arange(SAMPLES))
    assert "fetched nothing" in call_feeder("cache", "fetch", url, *options).stdout


def test_fetch_of_a_name_in_the_configuration(tmp_path: Path, cache: DiskCache, url: str) -> None:
    config = tmp_path / "feeder.toml"
    config.write_text(
        f'[cache]\ndisk_path = "{cache.root.parent}"\n'
        f'[data]\nblobs = "{url}"\nlocal = "{tmp_path}"\n'
    )
    result = call_feeder("cache", "fetch", "blobs", "--config", config)
    assert result.returncode == 0, result.stderr
    result = call_feeder("cache", "fetch", "local", "--config", config)
    assert result.returncode == 2
    assert "local is on this host" in error_line(result)


def test_fetch_into_too_little_room_is_an_error_that_says_how_much_is_there(
    cache: DiskCache, options: tuple[str, ...], url: str
) -> None:
    result = call_feeder("cache", "fetch", url, "--disk-bytes", "20MB", *options)
    assert result.returncode == 4
    assert re.search("the disk cache is full, with [23] of 7 pieces", error_line(result))
    assert cache.used_bytes() <= 20_000_000


def test_fetch_of_what_the_store_refuses_is_its_error(
    cache: DiskCache, options: tuple[str, ...], url: str, store: WebStore
) -> None:
    prepare(cache, url)
    store.fault = lambda name, first, end: "403" if name.endswith(".fds") else ""
    result = call_feeder("cache", "fetch", url, *options)
    assert result.returncode == 3
    assert "access denied" in error_line(result)


def test_show_lists_what_is_there_and_drop_removes_what_is_not_in_use(
    cache: DiskCache, options: tuple[str, ...], url: str
) -> None:
    folder = prepare(cache, url)
    with closing(CachedDataset.open(folder)):
        result = call_feeder("cache", "show", *options)
        assert result.returncode == 0, result.stderr
        _, row, total = result.stdout.splitlines()
        assert row.split()[:2] == [url, "0/7"]
        assert row.split()[-2:] == ["yes", folder.name]
        assert total.startswith("1 dataset, ")
        result = call_feeder("cache", "drop", url, *options)
        assert result.returncode == 4
        assert "is in use" in error_line(result)
    assert call_feeder("cache", "drop", url, *options).returncode == 0
    assert call_feeder("cache", "show", *options).stdout.startswith("0 datasets, 0 bytes in ")
    result = call_feeder("cache", "drop", url, *options)
    assert result.returncode == 2
    assert "feeder cache show lists what is" in error_line(result)


def test_a_damaged_dataset_is_shown_and_dropped_by_its_folder(
    cache: DiskCache, options: tuple[str, ...], url: str
) -> None:
    folder = prepare(cache, url)
    (folder / "origin.json").write_text("{")
    assert "damaged" in call_feeder("cache", "show", *options).stdout
    assert call_feeder("cache", "drop", folder.name, *options).returncode == 0
    assert not folder.exists()
