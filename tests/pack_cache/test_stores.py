"""Packed copies of sources in stores: packed once, and served where the store is away."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from feeder.dataset.manifest import load_manifest
from feeder.errors import ConfigError, DatasetError, StoreError
from feeder.pack_cache.entry import is_source
from feeder.source.location import objects
from tests.pack_cache.test_resolve import Cache
from tests.support.sources import encoded, file_tree, image, make_source, run_inline
from tests.support.stores import Fault, FaultyStore, refusal, status

pytest.importorskip("obstore")

SOURCE = "s3://bucket/raw/"
IMAGES = 11


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.run", "pack.containers")
    monkeypatch.setattr(objects, "PATIENCE_S", 0.0)


@pytest.fixture
def store(use_store: Callable[[FaultyStore], None], tmp_path: Path) -> Iterator[FaultyStore]:
    """A class folder at SOURCE."""
    files = file_tree(make_source(tmp_path / "images", IMAGES))
    with FaultyStore({f"bucket/raw/{name}": data for name, data in files.items()}) as server:
        use_store(server)
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_a_source_in_a_store_is_packed_once(store: FaultyStore, cache: Cache) -> None:
    dataset = cache.find(SOURCE)
    assert load_manifest(dataset).samples == IMAGES
    assert cache.packed == [dataset]
    store.requests.clear()
    for location in (SOURCE, SOURCE.rstrip("/")):
        assert cache.find(location) == dataset
        assert cache.packed == []
        assert cache.written == f"feeder: s3://bucket/raw is packed in {dataset}\n"
    read = [path for _, path, _ in store.requests if path.endswith(".jpg")]
    assert read == [], "images were read although nothing has changed"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("class0/more.jpg", r"1 file more in s3://bucket/raw/, the newest object is class"),
        (
            "class0/image000.jpg",
            r"(sizes|names or modification times) of files in s3://bucket/raw/",
        ),
        (".hidden.jpg", ""),
    ],
)
def test_a_changed_source_in_a_store_is_refused_until_it_is_packed_again(
    store: FaultyStore, cache: Cache, name: str, change: str
) -> None:
    before = cache.find(SOURCE)
    store.objects[f"bucket/raw/{name}"] = encoded(image(50, 40, seed=99))
    if not change:
        assert cache.find(SOURCE) == before
        return
    with pytest.raises(DatasetError, match=rf"s3://bucket/raw has changed .*{change}.*--repack"):
        cache.find(SOURCE)
    after = cache.find(SOURCE, repack=True)
    assert after != before
    assert cache.find(SOURCE) == after


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (status(500), "the store reports an error of its own"),
        (refusal(403, "AccessDenied"), "access denied"),
        (refusal(400, "ExpiredToken"), "the credentials have expired"),
        (refusal(404, "NoSuchBucket"), "there is no such"),
    ],
)
def test_the_copy_of_a_source_whose_store_is_away_is_served_with_a_warning(
    store: FaultyStore, cache: Cache, fault: Fault, reason: str
) -> None:
    dataset = cache.find(SOURCE)
    store.fail("bucket", fault, times=99)
    store.fail("", fault, times=99)
    assert is_source(SOURCE, cache.folder)
    assert cache.find(SOURCE) == dataset
    expected = rf"feeder: warning: s3://bucket/raw.*{reason}.*; serving {dataset}, which was packed"
    assert re.match(expected, cache.written), cache.written
    with pytest.raises(StoreError):
        cache.find(SOURCE, repack=True)
    with pytest.raises(StoreError):
        cache.find("s3://bucket/other/")


def test_the_copy_of_a_source_that_is_gone_is_served_with_a_warning(
    store: FaultyStore, cache: Cache
) -> None:
    dataset = cache.find(SOURCE)
    store.objects.clear()
    store.objects["bucket/other"] = b""
    assert cache.find(SOURCE) == dataset
    assert "feeder: warning: s3://bucket/raw is gone: serving" in cache.written


def test_a_container_that_was_written_again_is_named(
    store: FaultyStore, cache: Cache, tmp_path: Path
) -> None:
    from tests.pack.test_kinds import WRITERS

    tar = WRITERS["wds-cls"](tmp_path / "tar", ["1", "0", "1"]).read_bytes()
    store.objects |= {"bucket/tars/x-0.tar": tar, "bucket/tars/x-1.tar": tar}
    cache.find("s3://bucket/tars/x-{0..1}.tar")
    store.objects["bucket/tars/x-1.tar"] = tar + bytes(512)
    with pytest.raises(DatasetError, match=r"\(s3://bucket/tars/x-1.tar was written again\)"):
        cache.find("s3://bucket/tars/x-{0..1}.tar")


def test_a_dataset_in_a_store_is_told_from_a_source(
    store: FaultyStore, cache: Cache, tmp_path: Path
) -> None:
    for name, data in file_tree(cache.find(tmp_path / "images")).items():
        store.objects[f"bucket/packed/{name}"] = data
    assert is_source(SOURCE, None)
    assert is_source("s3://bucket/raw/shard-{000..009}.tar", None)
    assert not is_source("s3://bucket/packed", None)
    assert not is_source("s3://bucket/packed/", None)
    with pytest.raises(ConfigError, match="is a packed dataset already: give it to feeder serve"):
        cache.find("s3://bucket/packed/")


def test_splits_below_one_prefix_share_their_classes(
    store: FaultyStore, cache: Cache, tmp_path: Path
) -> None:
    for split, classes in (("train", "ant bee cat"), ("val", "ant cat")):
        for name in classes.split():
            key = f"bucket/sets/{split}/{name}/x.jpg"
            store.objects[key] = encoded(image(40, 30, seed=len(store.objects)))
    training = cache.find("s3://bucket/sets/train/")
    validation = cache.find("s3://bucket/sets/val/", classes_of=training)
    assert load_manifest(validation).classes == load_manifest(training).classes
    with pytest.raises(ConfigError, match="choose one with feeder pack --split train"):
        cache.find("s3://bucket/sets/")
