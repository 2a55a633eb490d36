"""The cache's folder is Feeder's own; a remote dataset gets one folder in it, and keeps it."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import copytree

import msgspec
import numpy as np
import pytest

from feeder.dataset.manifest import load_manifest
from feeder.disk_cache.cached import FETCHING, CachedDataset, is_cached, read_origin
from feeder.disk_cache.folder import MARKER_NAME, DiskCache, prepare
from feeder.disk_cache.transfers import Transfers
from feeder.errors import ConfigError, DatasetError, ResourceError, StoreError
from feeder.metrics.records import StoreRecord
from feeder.store.address import StoreAddress
from feeder.store.client import Store
from tests.disk_cache.web_store import WebStore, serve_store
from tests.support.stores import S3Server


@pytest.fixture
def own_copy(published: Path, tmp_path: Path) -> Iterator[WebStore]:
    """A store whose objects a test may change."""
    copytree(published, tmp_path / "published")
    with serve_store(tmp_path / "published") as web:
        yield web


def leftovers(cache: DiskCache) -> list[str]:
    return [path.name for path in cache.root.rglob("*.tmp")]


def test_the_folder_is_made_with_a_marker_and_found_again(tmp_path: Path) -> None:
    cache = DiskCache.open(tmp_path / "new" / "disk")
    assert cache.root == tmp_path / "new" / "disk" / "feeder-pieces"
    assert (cache.root / MARKER_NAME).read_text().startswith("feeder-pieces 1\n")
    assert DiskCache.open(tmp_path / "new" / "disk").folders() == []


def test_a_folder_that_feeder_did_not_make_is_refused(tmp_path: Path) -> None:
    (tmp_path / "feeder-pieces").mkdir()
    (tmp_path / "feeder-pieces" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"files that Feeder did not download.*another folder"):
        DiskCache.open(tmp_path)
    assert [path.name for path in (tmp_path / "feeder-pieces").iterdir()] == ["thesis.tex"]


def test_a_marker_of_another_version_is_refused(tmp_path: Path) -> None:
    cache = DiskCache.open(tmp_path)
    (cache.root / MARKER_NAME).write_text("feeder-pieces 2\n")
    with pytest.raises(ConfigError, match="of another version"):
        DiskCache.open(tmp_path)


def test_a_path_that_cannot_be_a_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match=r"keeping remote datasets in .*file failed: "):
        DiskCache.open(tmp_path / "file")


def test_preparing_again_finds_the_same_folder(cache: DiskCache, url: str) -> None:
    folder = prepare(cache, url)
    assert prepare(cache, f"{url}/") == folder
    assert cache.folders() == cache.find(url) == [folder]
    assert read_origin(folder).content == load_manifest(folder).content
    assert leftovers(cache) == []


def test_two_that_prepare_at_once_make_one_folder(
    cache: DiskCache, url: str, store: WebStore
) -> None:
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(prepare(cache, url))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(folders)) == 1
    assert len(folders) == 4
    assert store.doubly_sent() == []


def test_preparing_waits_for_a_process_that_fetches_the_first_piece(
    cache: DiskCache, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(CachedDataset.open(prepare(cache, url))) as other:
        other.mark(0, 1, there=False)
        assert other.lock(FETCHING)
        monkeypatch.setattr("feeder.disk_cache.folder._PATIENCE_S", 0.1)
        with pytest.raises(ResourceError, match="another process has been fetching"):
            prepare(cache, url)
        monkeypatch.setattr("feeder.disk_cache.folder._PATIENCE_S", 30.0)
        looks = []

        def look(_: float) -> None:
            looks.append(0)
            if len(looks) == 3:
                other.unlock(FETCHING)

        monkeypatch.setattr("feeder.disk_cache.folder.time.sleep", look)
        prepare(cache, url)
        assert other.samples_there[0]


def test_a_warm_dataset_is_prepared_without_the_store(
    cache: DiskCache, url: str, store: WebStore
) -> None:
    folder = prepare(cache, url)
    store.is_away = True
    warnings: list[str] = []
    assert prepare(cache, url, report=warnings.append) == folder
    assert len(warnings) == 1
    assert f"serving {url} from the disk cache" in warnings[0]


def test_a_cold_dataset_needs_the_store(
    cache: DiskCache, url: str, store: WebStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.disk_cache.folder._PATIENCE_S", 0.2)
    store.is_away = True
    with pytest.raises(StoreError):
        prepare(cache, url)
    assert cache.folders() == []


def test_a_dataset_that_never_had_its_first_sample_needs_the_store(
    cache: DiskCache, url: str, store: WebStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.disk_cache.folder._WARM_PATIENCE_S", 0.2)
    store.fault = lambda name, first, end: "404" if name.endswith(".fds") else ""
    with pytest.raises(StoreError, match=r"shard-00000\.fds: there is no such object or bucket"):
        prepare(cache, url)
    store.is_away = True
    with pytest.raises(StoreError) as caught:
        prepare(cache, url)
    assert caught.value.is_transient


def test_a_manifest_that_came_damaged_is_fetched_again(
    cache: DiskCache, url: str, store: WebStore
) -> None:
    faults = iter(["wrong", "wrong"])
    store.fault = lambda name, first, end: next(faults, "") if name.endswith(".json") else ""
    folder = prepare(cache, url)
    manifest = store.folder / "blobs" / "manifest.json"
    assert (folder / "manifest.json").read_bytes() == manifest.read_bytes()


@pytest.mark.parametrize(("status", "kind"), [("403", "denied"), ("404", "gone")])
def test_what_does_not_pass_is_an_error_also_of_a_warm_dataset(
    cache: DiskCache, url: str, store: WebStore, status: str, kind: str
) -> None:
    prepare(cache, url)
    store.fault = lambda name, first, end: status
    with pytest.raises(StoreError) as caught:
        prepare(cache, url)
    assert caught.value.kind == kind


def test_a_changed_manifest_is_another_dataset_and_the_old_one_stays(
    cache: DiskCache, own_copy: WebStore, published: Path
) -> None:
    url = f"{own_copy.url}/blobs"
    old = prepare(cache, url)
    manifest = own_copy.folder / "blobs" / "manifest.json"
    loaded = load_manifest(manifest.parent)
    manifest.write_bytes(msgspec.structs.replace(loaded, seed=7).sealed().encode())
    new = prepare(cache, url)
    assert new != old
    assert cache.find(url) == [new, old]
    assert is_cached(old)


def test_what_is_no_dataset_leaves_nothing(cache: DiskCache, own_copy: WebStore) -> None:
    (own_copy.folder / "blobs" / "manifest.json").write_text("{}")
    with pytest.raises(DatasetError, match=r"blobs/manifest\.json is damaged"):
        prepare(cache, f"{own_copy.url}/blobs")
    assert [path.name for path in cache.root.iterdir()] == [MARKER_NAME]


@pytest.mark.parametrize("name", ["presence", "manifest.json", "origin.json"])
def test_damaged_files_are_made_again(cache: DiskCache, url: str, name: str) -> None:
    folder = prepare(cache, url)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:20])
    warnings: list[str] = []
    assert prepare(cache, url, report=warnings.append) == folder
    with closing(CachedDataset.open(folder)) as cached:
        assert cached.has(np.array([0])), "the first sample is fetched again"
    assert len(warnings) == (name == "presence")
    assert (folder / name).read_bytes() == whole


def test_what_a_killed_process_left_unfinished_is_finished(cache: DiskCache, url: str) -> None:
    folder = prepare(cache, url)
    (folder / "origin.json").rename(folder / "origin.json.tmp")
    (folder / "manifest.json").rename(folder / "manifest.json.tmp")
    assert cache.folders() == []
    assert prepare(cache, url) == folder
    assert leftovers(cache) == []
    with closing(CachedDataset.open(folder)) as cached:
        assert cached.has(np.array([0]))


def test_a_dataset_in_s3_is_prepared_and_fetched(
    cache: DiskCache, published: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    s3.make_bucket("datasets")
    s3.put_folder("datasets", "some/blobs", published / "blobs")
    folder = prepare(cache, "s3://datasets/some/blobs/")
    with closing(CachedDataset.open(folder)) as cached:
        transfers = Transfers(cached, Store(StoreAddress.parse(cached.url)), StoreRecord())
        for piece in range(cached.pieces):
            assert transfers.fetch(piece, [cached.range_of(piece)])
    for name in ("manifest.json", "shard-00000.fds", "shard-00002.fds"):
        assert (folder / name).read_bytes() == (published / "blobs" / name).read_bytes()
    assert len((folder / "objects").read_text().split()) == 2 * 3


def test_only_what_nobody_has_open_is_dropped(cache: DiskCache, url: str) -> None:
    folder = prepare(cache, url)
    with closing(CachedDataset.open(folder)):
        assert not cache.drop(folder)
        assert is_cached(folder)
    assert cache.drop(folder)
    assert [path.name for path in cache.root.iterdir()] == [MARKER_NAME]
